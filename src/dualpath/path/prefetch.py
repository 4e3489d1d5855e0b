"""The prefetch policy as a pure state machine: events in, instructions out. No I/O, no clock.

A step consumes remote layer blocks in a known order, its *schedule* (layer by layer, in token order), and the next step
will most likely consume the same ones again. The prefetcher walks the schedule ahead of consumption and, at its end,
wraps into the next lap:

    schedule   k0 k1 k2 | k3 k4 k5 | k6 k7 k8 | k0 k1 ...         | = layer
                    ^consumed      ^issued         ^wrapped
                    [--- held: in flight or ready, at most `capacity` bytes ---)

`begin` may bring a changed schedule: what is held and still wanted stays, the rest is returned for cancelling. A key
that is needed now but was never issued (a changed schedule, a full window) is fetched by `need`, which makes room by
dropping what is needed last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """One remote layer block: a key that is unique and stable across steps, its bytes, and the runner's own `what`."""

    key: int
    bytes: int
    what: T


class Prefetcher(Generic[T]):
    """Decides what to fetch and what to drop, within `capacity` bytes (at least one item is always allowed)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: dict[int, Item[T]] = {}
        self.held_bytes = 0
        self._schedule: Sequence[Item[T]] = ()
        self._issued = 0
        self._wrap = False

    def begin(self, schedule: Sequence[Item[T]], *, wrap: bool) -> list[Item[T]]:
        """A step began that will consume `schedule`. Returns held items that it does not want; they are let go.

        `wrap`: go on into the next lap when everything of this one has been issued.
        """
        unwanted: list[Item[T]] = []
        if schedule is self._schedule:
            self._issued = max(0, self._issued - len(schedule))
        else:
            wanted = {item.key for item in schedule}
            unwanted = [item for key, item in self.held.items() if key not in wanted]
            for item in unwanted:
                self.let_go(item.key)
            self._schedule, self._issued = schedule, 0
        self._wrap = wrap
        return unwanted

    def pump(self) -> list[Item[T]]:
        """Return the items to fetch now. They count as held from here on."""
        out: list[Item[T]] = []
        count = len(self._schedule)
        end = 2 * count if self._wrap else count
        while self._issued < end:
            item = self._schedule[self._issued % count]
            if item.key in self.held:
                if self._issued >= count:
                    break  # this lap's copy is still unused: the next lap cannot start on it
            elif self.held and self.held_bytes + item.bytes > self.capacity:
                break
            else:
                self._hold(item)
                out.append(item)
            self._issued += 1
        return out

    def need(self, item: Item[T]) -> tuple[bool, list[Item[T]]]:
        """Compute waits for `item`. Returns whether to fetch it now, and the items dropped to make room for it."""
        if item.key in self.held:
            return False, []
        dropped: list[Item[T]] = []
        while self.held and self.held_bytes + item.bytes > self.capacity:
            dropped.append(self.let_go(next(reversed(self.held))))
        self._rewind(dropped)
        self._hold(item)
        return True, dropped

    def let_go(self, key: int) -> Item[T]:
        """Compute has used this item, or it is lost: its bytes are free again."""
        item = self.held.pop(key)
        self.held_bytes -= item.bytes
        return item

    def shrink(self, capacity: int) -> list[Item[T]]:
        """The capacity is now `capacity` bytes. Returns what no longer fits, the latest needed first; it is let go."""
        self.capacity = capacity
        dropped: list[Item[T]] = []
        while self.held_bytes > capacity and self.held:
            dropped.append(self.let_go(next(reversed(self.held))))
        self._rewind(dropped)
        return dropped

    def end(self) -> list[Item[T]]:
        """No step will follow. Returns everything that is held; it is let go."""
        return self.begin((), wrap=False)

    def _rewind(self, dropped: Sequence[Item[T]]) -> None:
        if dropped:
            gone = {one.key for one in dropped}
            first = next((i for i, one in enumerate(self._schedule) if one.key in gone), self._issued)
            self._issued = min(self._issued, first)

    def _hold(self, item: Item[T]) -> None:
        self.held[item.key] = item
        self.held_bytes += item.bytes
