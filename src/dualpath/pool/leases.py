"""Leases over blocks: granted, moved, lapsed. Pure: the time is an argument."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from dualpath.pool.blocks import Block

_STALE = 1024  # entries of the heap that may be stale, beyond as many as there are leases


class Leases:
    """Which blocks are promised to readers, and until when."""

    def __init__(self) -> None:
        self._leases: dict[int, tuple[float, str, tuple[Block, ...]]] = {}
        self._ends: list[tuple[float, int]] = []  # heap; an entry whose lease has moved on is stale
        self._serial = itertools.count(1)

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, tenant: str, blocks: tuple[Block, ...], end: float) -> int:
        """Return the number of a new lease over `blocks` that lapses at `end`."""
        lease = next(self._serial)
        self._set(lease, end, tenant, blocks)
        return lease

    def move(self, lease: int, tenant: str, end: float) -> bool:
        """Let a lease end at `end` instead; whether this tenant has such a lease."""
        _, holder, blocks = self._leases.get(lease, (0.0, None, ()))
        if holder != tenant:
            return False
        self._set(lease, end, tenant, blocks)
        return True

    def lapse(self, now: float) -> Iterator[Block]:
        """End the leases that run until `now` at most, and name each block once per lease that it has lost."""
        while self._ends and self._ends[0][0] <= now:
            end, lease = heapq.heappop(self._ends)
            if self._leases.get(lease, (None,))[0] == end:
                yield from self._leases.pop(lease)[2]

    def _set(self, lease: int, end: float, tenant: str, blocks: tuple[Block, ...]) -> None:
        self._leases[lease] = (end, tenant, blocks)
        heapq.heappush(self._ends, (end, lease))
        if len(self._ends) > 2 * len(self._leases) + _STALE:  # a lease may be moved without end
            self._ends = [(lapses, number) for number, (lapses, _, _) in self._leases.items()]
            heapq.heapify(self._ends)
