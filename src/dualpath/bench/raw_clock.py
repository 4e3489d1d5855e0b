"""The raw bench's clock: operations are kept under way for a while and counted, or made one by one and timed.

Every operation has a deadline of its own, so nothing here waits for ever.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

LEAST_SAMPLES, MOST_SAMPLES = 8, 5000
"""How many operations are timed one by one, however long or short that takes."""

Wait = Callable[[], None]


class Flow(Protocol):
    """One way to move blocks."""

    depth: int
    group: int
    """Blocks of one operation."""
    block_bytes: int

    def start(self, number: int, count: int) -> Wait:
        """Start operation `number` with `count` blocks, at most `group`.

        What is returned waits for its end, and raises a `PeerError` unless every block was moved.
        """

    def verify(self) -> None:
        """Raise `HostError` if what landed is not what was sent. Call it once, when nothing is in flight."""


@dataclass(frozen=True)
class Moved:
    """Payload bytes that a flow moved, and how long it took."""

    payload_bytes: int
    seconds: float


def pump(flow: Flow, go_on: Callable[[], bool]) -> Moved:
    """Keep a flow's operations under way as long as `go_on` says, and until the last has ended.

    At least `depth` operations are made. Raises what an operation raised; others may be in flight then.
    """
    under_way: deque[Wait] = deque()
    number = 0
    started = time.monotonic()
    while number < flow.depth or go_on():
        if len(under_way) == flow.depth:
            under_way.popleft()()
        under_way.append(flow.start(number, flow.group))
        number += 1
    while under_way:
        under_way.popleft()()
    return Moved(number * flow.group * flow.block_bytes, time.monotonic() - started)


@contextlib.contextmanager
def pumping(flows: Sequence[Flow], interrupt: Callable[[], None]) -> Iterator[list[Future[Moved]]]:
    """Pump flows, each in a thread of its own, while the block runs, and then until their last operations have ended.

    `interrupt` must make operations under way fail: an exception in the block does not wait for them.
    """
    enough = threading.Event()
    with ThreadPoolExecutor(max(1, len(flows)), thread_name_prefix="pump") as threads:
        try:
            yield [threads.submit(pump, flow, lambda: not enough.is_set()) for flow in flows]
        except BaseException:
            interrupt()
            raise
        finally:
            enough.set()


def linger(under_way: Sequence[Future[Moved]], seconds: float) -> None:
    """Let so many seconds pass, fewer if a pump fails. Raises what it failed of."""
    if not under_way:
        time.sleep(seconds)
    for one in wait(under_way, timeout=seconds, return_when=FIRST_EXCEPTION).done:
        one.result()


def during(seconds: float) -> Callable[[], bool]:
    """Return what is true for so many seconds from now."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def times_alone(operation: Wait, seconds: float, *, least: int = LEAST_SAMPLES) -> list[float]:
    """Do an operation again and again for so many seconds; return how long each took, sorted, without the first two."""
    go_on = during(seconds)
    times: list[float] = []
    while len(times) < least + 2 or (len(times) < MOST_SAMPLES and go_on()):
        started = time.monotonic()
        operation()
        times.append(time.monotonic() - started)
    return sorted(times[2:])


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of the sorted values that at least `share` of them do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
