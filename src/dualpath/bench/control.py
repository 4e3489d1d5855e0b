"""Control messages at a set rate, and their round trips: an open loop, so that a slow reply does not thin them out.

For each node a thread that sends on time, and one that collects the replies, which come in order on one connection. In
lane REALTIME they do as a program should whose threads do nothing else: they run ahead of those that compute.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dualpath.errors import DualPathError
from dualpath.host.scheduling import realtime
from dualpath.wire.messages import Lane, Ping

if TYPE_CHECKING:
    from dualpath.pool.node import PoolNode
    from dualpath.transport.base import Pending


@dataclass
class Control:
    """Round trips of control messages in seconds, from handing a request to the transport to having its reply; and how
    many had no answer."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    realtime: bool = False
    """Whether the threads that send and collect are scheduled ahead of others."""


@contextlib.contextmanager
def control_messages(
    nodes: Sequence[PoolNode], per_s: float, *, lane: Lane = Lane.REALTIME, timeout_s: float | None = None
) -> Iterator[Control]:
    """Send `Ping` `per_s` times a second in all (0: never), to the nodes in turn, until the block is left.

    Each is asked at least once, however short the block and however late a sender gets a core. Every reply is waited
    for then, at most until its deadline (`timeout_s`; `None`: each node's own). An exception in the block waits for
    none: the threads end with the connections, which are the caller's to close once its blocks are dropped.
    """
    control, end = Control(), threading.Event()
    callers = [_Caller(node, control, end, lane, node.timeout_s if timeout_s is None else timeout_s) for node in nodes]
    if per_s:
        for number, caller in enumerate(callers):
            caller.start(first_s=number / per_s, period_s=len(nodes) / per_s)
    try:
        yield control
    finally:
        end.set()
    for caller in callers:
        caller.join()


class _Caller:
    """The two threads that ping one node."""

    def __init__(self, node: PoolNode, control: Control, end: threading.Event, lane: Lane, timeout_s: float) -> None:
        self._node, self._control, self._end = node, control, end
        self._lane, self._timeout_s = lane, timeout_s
        self._sent: queue.SimpleQueue[tuple[float, Pending] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, *, first_s: float, period_s: float) -> None:
        """Send the first message after `first_s` seconds, and then one every `period_s`."""
        send = threading.Thread(target=self._send, args=(first_s, period_s), name="control", daemon=True)
        self._threads = [send, threading.Thread(target=self._collect, name="control-replies", daemon=True)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for both threads, if they were started."""
        for thread in self._threads:
            thread.join()

    def _scheduled(self) -> contextlib.AbstractContextManager[bool]:
        return realtime() if self._lane is Lane.REALTIME else contextlib.nullcontext(False)

    def _send(self, first_s: float, period_s: float) -> None:
        with self._scheduled() as self._control.realtime:
            self._send_all(first_s, period_s)

    def _send_all(self, first_s: float, period_s: float) -> None:
        due = time.monotonic() + first_s
        self._end.wait(first_s)
        try:
            while True:
                started = time.perf_counter()
                self._sent.put((started, self._node.peer.start(Ping(), lane=self._lane, timeout_s=self._timeout_s)))
                due = max(due + period_s, time.monotonic())  # one that is late does not make the next come at once
                if self._end.wait(max(0.0, due - time.monotonic())):
                    return
        finally:
            self._sent.put(None)

    def _collect(self) -> None:
        with self._scheduled():
            self._collect_all()

    def _collect_all(self) -> None:
        while (sent := self._sent.get()) is not None:
            started, pending = sent
            try:
                pending.result()
            except DualPathError:
                self._control.failed += 1
            else:
                self._control.seconds.append(time.perf_counter() - started)
