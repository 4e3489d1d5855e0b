"""What a node has done: operations, bytes and latencies, counted in plain Python and exported by `management`."""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass, field

BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


@dataclass
class Operation:
    """One kind of request. `buckets[i]` counts those that took at most `BUCKETS_S[i]`, the last one the slower ones."""

    count: int = 0
    failures: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))


class Meter:
    """Thread-safe counters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._operations: dict[str, Operation] = {}
        self._bytes = {"bytes_in_total": 0, "bytes_out_total": 0}
        self._lost = 0

    def observe(
        self, name: str, seconds: float, *, bytes_in: int = 0, bytes_out: int = 0, lost: int = 0, failures: int = 0
    ) -> None:
        """Count one request: its payload bytes in and out, and the items of it that were lost."""
        with self._lock:
            operation = self._operations.get(name)
            if operation is None:
                operation = self._operations[name] = Operation()
            operation.count += 1
            operation.failures += failures
            operation.seconds += seconds
            operation.buckets[bisect_left(BUCKETS_S, seconds)] += 1
            self._bytes["bytes_in_total"] += bytes_in
            self._bytes["bytes_out_total"] += bytes_out
            self._lost += lost

    def operations(self) -> dict[str, Operation]:
        """Return a snapshot by message name."""
        with self._lock:
            return {
                name: Operation(o.count, o.failures, o.seconds, list(o.buckets)) for name, o in self._operations.items()
            }

    def counters(self) -> dict[str, float]:
        """Return the totals by metric name."""
        with self._lock:
            totals: dict[str, float] = {f"{name}s_total": o.count for name, o in self._operations.items()}
            return totals | self._bytes | {"items_lost_total": self._lost}
