"""The shared key of a pool, as every command finds it."""

from __future__ import annotations

import os
from pathlib import Path

from dualpath.errors import UsageError

KEY_VARIABLE = "DUALPATH_KEY"


def shared_key(file: Path | None = None) -> bytes | None:
    """Return the key out of `file`, or else the environment, without white space around it; `None` if there is none.

    Raises `UsageError` for an empty file.
    """
    if file is None:
        return os.environ.get(KEY_VARIABLE, "").strip().encode() or None
    key = file.read_bytes().strip()
    if not key:
        raise UsageError(f"the key file {file} is empty", hint="openssl rand -hex 32 > FILE")
    return key
