"""Owners: the clients of a node, which of them are here, and which have been away too long. Pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from dualpath.pool.blocks import Connection, Owner


class Owners:
    """Clients by tenant and name. One that has no connection for `grace_s` seconds is given up."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._owners: dict[tuple[str, bytes], Owner] = {}
        self._away: list[tuple[float, int, Owner]] = []  # heap by the end of grace
        self._serial = itertools.count(1)

    def __len__(self) -> int:
        return len(self._owners)

    def arrive(self, tenant: str, name: bytes) -> Connection:
        """A connection of an owner opens; with an empty name it is an owner of its own."""
        name = name or b"connection-%d" % next(self._serial)
        owner = self._owners.setdefault((tenant, name), Owner(tenant, name))
        owner.connections += 1
        return Connection(owner)

    def leave(self, owner: Owner, now: float) -> None:
        """One of its connections closed."""
        owner.connections -= 1
        if not owner.connections:
            owner.pins_end = now + self._grace_s
            heapq.heappush(self._away, (owner.pins_end, next(self._serial), owner))

    def give_up(self, now: float) -> Iterator[Owner]:
        """Forget the owners whose grace has ended by `now`, and name them."""
        while self._away and self._away[0][0] <= now:
            _, _, owner = heapq.heappop(self._away)
            if not owner.connections and owner.pins_end <= now:
                self._owners.pop((owner.tenant, owner.name), None)
                yield owner
