"""A node in a process of its own, to be killed, stopped and measured: `ChildNode`, and the child's program.

The child serves a `MemoryService` whose slot `n` is filled with the byte `n % 251`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import IO

from dualpath.transport.mapped import MappedServer
from dualpath.transport.tcp import TcpServer


class ChildNode:
    """A process that serves `slots` slots of `slot_bytes` at `address` over `kind` ("tcp" or "mapped").

    `address` is `host:port` (port 0: any free one) or the path of a socket; after the start it is what to connect to.
    """

    def __init__(self, kind: str, slots: int, slot_bytes: int, address: str = "127.0.0.1:0") -> None:
        self.kind, self.slots, self.slot_bytes, self.address = kind, slots, slot_bytes, address
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def pid(self) -> int:
        """The child's process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process, again at the same address if it ran before; returns once it listens."""
        arguments = [self.kind, self.address, str(self.slots), str(self.slot_bytes)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dualpath.testing.transport_node", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._pipe(self._process.stdout).readline().strip()
        if not self.address:
            self.kill()
            raise RuntimeError("the child node did not start")

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def stop(self) -> None:
        """SIGSTOP: alive to the kernel, and silent. Returns once it has stopped."""
        self._signal(signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            self._pipe(process.stdin).close()
            self._pipe(process.stdout).close()

    def __enter__(self) -> ChildNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _main(kind: str, address: str, slots: int, slot_bytes: int) -> None:
    from dualpath.testing.transport_service import MemoryService

    service = MemoryService(slots, slot_bytes)
    for slot in range(slots):
        service.slot(slot)[:] = bytes([slot % 251]) * slot_bytes
    server: TcpServer | MappedServer
    if kind == "tcp":
        host, _, port = address.rpartition(":")
        server = TcpServer(service, host, int(port), node_id="child")
        server.start()
        print(f"{host}:{server.port}", flush=True)  # noqa: T201 the child's one line to its parent
    else:
        server = MappedServer(service, address, node_id="child")
        server.start()
        print(address, flush=True)  # noqa: T201 as above
    sys.stdin.read()  # ends with the parent
    server.close()


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
