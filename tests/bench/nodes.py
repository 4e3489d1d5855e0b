"""Pool nodes for benches under test: in this process, and in an emulated host."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

from dualpath.host.lab import Lab
from dualpath.pool.service import PoolService
from dualpath.transport.tcp import TcpServer

WITH_KEY = {**os.environ, "DUALPATH_KEY": "a key of the test"}
PROGRAM = [sys.executable, "-m", "dualpath"]


@contextlib.contextmanager
def node_here() -> Iterator[SimpleNamespace]:
    """A node on loopback: its `service` and its `spec`."""
    service = PoolService(64 << 20)
    try:
        with TcpServer(service, node_id="n") as server:
            yield SimpleNamespace(service=service, spec=f"127.0.0.1:{server.port}")
    finally:
        service.close()


@contextlib.contextmanager
def node_in(lab: Lab, *words: str, capacity: str = "64MiB") -> Iterator[list[str]]:
    """A node in host b of a lab, at all its `data` NICs; yields the words of its first line. `words`: more options."""
    host = lab.host("b")
    listen = ",".join(f"{nic.address}:7700" for nic in host.config.nics if nic.name.startswith("data"))
    command = [*PROGRAM, "pool", "--listen", listen, "--capacity", capacity, *(words or ("--management", "off"))]
    with host.popen(command, stdout=subprocess.PIPE, text=True, env=WITH_KEY) as process:
        try:
            yield process.stdout.readline().split()
        finally:
            process.terminate()
