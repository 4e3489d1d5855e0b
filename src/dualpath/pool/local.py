"""Real pool nodes as child processes, for experiments and tests: on loopback, or in hosts emulated on this machine.

    with LocalNodes(2, capacity=1 << 30) as nodes, connect(nodes.spec) as pool:
        ...

Every node is reaped when the block is left, however it is left; should this process be killed outright, the nodes
notice and end by themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec

from dualpath.errors import HostError
from dualpath.pool.server import NodeConfig

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Seat:
    """Where a node runs: the words before a command that has it run there, and the address to listen at."""

    prefix: tuple[str, ...] = ()
    address: str = "127.0.0.1"


class LocalNode:
    """One node process. `kill`, `pause` and `resume` are what happens to it in an experiment."""

    def __init__(self, process: subprocess.Popen[str], ready: dict[str, Any]) -> None:
        self.process = process
        self.name: str = ready["node"]
        self.tcp: str = ready["tcp"]
        self.socket: str = ready["socket"]
        self.management: str = ready["management"]

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """SIGSTOP, and wait until all its threads have stopped: connections stay open and nothing answers."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)


class LocalNodes:
    """`count` node processes of `capacity` bytes each. All are ready inside the block.

    `sockets=False`: TCP only, as if on other hosts; `mapped_spec` is then of no use. `seats`: where the nodes run, in
    turns; they need a `key` beyond loopback.
    """

    def __init__(
        self,
        count: int,
        *,
        capacity: int,
        key: str | None = None,
        threads: int = 0,
        sockets: bool = True,
        seats: Sequence[Seat] = (Seat(),),
    ) -> None:
        self._count = count
        self._config = NodeConfig(capacity=capacity, threads=threads, parent=os.getpid(), json=True)
        self.key = key
        self._sockets, self._seats = sockets, seats
        self._folder = tempfile.TemporaryDirectory(prefix="dualpath-")
        self._processes: list[subprocess.Popen[str]] = []
        self.nodes: list[LocalNode] = []

    @property
    def spec(self) -> str:
        """What `connect` wants, over TCP."""
        return ",".join(node.tcp for node in self.nodes)

    @property
    def mapped_spec(self) -> str:
        """What `connect` wants, over mapped memory."""
        return ",".join(f"mapped:{node.socket}" for node in self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, index: int) -> LocalNode:
        return self.nodes[index]

    def __enter__(self) -> LocalNodes:
        try:
            for number in range(self._count):  # one by one: `close` knows those that run, should a later one fail
                self._processes.append(self._start(number))
            deadline = time.monotonic() + START_TIMEOUT_S
            self.nodes = [LocalNode(process, _ready(process, deadline)) for process in self._processes]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all nodes, gently if they listen, and reap them. Idempotent."""
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            process.terminate()
            process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._folder.cleanup()

    def _start(self, number: int) -> subprocess.Popen[str]:
        path = f"{self._folder.name}/node{number}.sock" if self._sockets else ""
        seat = self._seats[number % len(self._seats)]
        config = msgspec.structs.replace(self._config, host=seat.address, socket=path, node_id=f"node{number}")
        environment = {name: value for name, value in os.environ.items() if name != "DUALPATH_KEY"}
        if self.key is not None:
            environment["DUALPATH_KEY"] = self.key
        command = [*seat.prefix, sys.executable, "-m", "dualpath.pool", msgspec.json.encode(config).decode()]
        # A session of its own: Ctrl-C at a terminal is for whoever started the nodes, who ends them when they are free.
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def _ready(process: subprocess.Popen[str], deadline: float) -> dict[str, Any]:
    """Wait for a node's first line."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
    line = process.stdout.readline() if readable else ""
    if not line:
        code = process.poll()
        state = "said nothing in time" if code is None else f"ended with exit code {code}"
        raise HostError(f"a pool node did not start: it {state}", hint="its own message is on stderr")
    record: dict[str, Any] = json.loads(line)
    return record
