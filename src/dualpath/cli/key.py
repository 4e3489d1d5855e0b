"""The shared key of a pool, as every command finds it."""

from __future__ import annotations

import os
from pathlib import Path

from dualpath.cli.output import read_input
from dualpath.errors import UsageError

KEY_VARIABLE = "DUALPATH_KEY"


def shared_key(file: Path | None = None) -> bytes | None:
    """Return the key out of `file`, or else the environment, without white space around it; `None` if there is none.

    Raises `UsageError` for a file that is empty or cannot be read.
    """
    if file is None:
        return os.environb.get(KEY_VARIABLE.encode(), b"").strip() or None  # any bytes: not all are text
    key = read_input(file, "--key-file").strip()
    if not key:
        raise UsageError(f"the key file {file} is empty", hint="openssl rand -hex 32 > FILE")
    return key
