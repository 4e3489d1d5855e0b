"""What a path says of its memory and its bytes, checked by the kernel: a memory limit, and interface counters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("outside.py")
SLACK = 24 << 20  # Python objects, receive buffers, arenas of malloc


def run(*args: object, namespace: bool = False) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, args)]
    if namespace:
        inner = 'ip link set lo up && exec "$@"'
        command = ["unshare", "--net", "sh", "-c", inner, "sh", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]  # what it printed


@pytest.mark.parametrize("scheme", ["sharded", "reduce"])
def test_local_memory_does_not_grow_with_the_context(scheme: str) -> None:
    """64 MiB and 256 MiB of KV pass under the same limit of hot region + window + slack; all-local does not."""
    from .outside import HOT, WINDOW

    limit = HOT + WINDOW + SLACK
    assert limit < 64 << 20
    for context in (16384, 65536):
        assert result(run(scheme, context, limit))["peak_local_bytes"] <= HOT + WINDOW


def test_the_limit_is_one_that_bites() -> None:
    from .outside import HOT, WINDOW

    done = run("local", 65536, HOT + WINDOW + SLACK)
    assert done.returncode != 0
    assert "Cannot allocate memory" in done.stderr or "MemoryError" in done.stderr


@pytest.mark.parametrize("scheme", ["sharded", "reduce"])
def test_wire_bytes_are_those_of_the_interface(scheme: str) -> None:
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("capability: a network namespace needs root, unshare and ip")
    said = result(run(scheme, 16384, 0, namespace=True))
    assert said["wire_bytes"] > 0
    # the interface counts TCP/IP headers and acknowledgements too: 52 bytes and more per segment
    overhead = 1.05 if scheme == "sharded" else 1.6
    assert said["wire_bytes"] <= said["interface_bytes"] <= overhead * said["wire_bytes"]
