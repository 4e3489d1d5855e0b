"""Local KV memory: slots in page-aligned buffers, and the two budgets that bound it.

        buffers   [ extent 0 ........ ][ extent 1 ........ ]      anonymous memory, huge pages where the kernel allows
        slots      0  1  2  3  4  5      6  7  8 ...              one layer block each, equal size within a class

A slot class exists per slot size (nearly always one per model). Extents are added as they are needed and stay mapped.
*Hot* slots (Path A) and *window* slots (Path B) come from the same extents, so that attention sees one page table; each
budget is counted apart, so that a window can never squeeze out the hot region.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

from dualpath.errors import CapacityError, HostError
from dualpath.units import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EXTENT_BYTES = 64 << 20


class Budget(enum.IntEnum):
    """Whose memory a slot counts against."""

    HOT = 0
    WINDOW = 1


class SlotClass:
    """Slots of one size. Made by `LocalArena.slots`."""

    def __init__(self, arena: LocalArena, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self._arena = arena
        self._per_extent = max(1, min(_EXTENT_BYTES, arena.total_bytes) // slot_bytes)
        self._extents: list[tuple[int, memoryview]] = []  # buffer, and all of its bytes
        self._index: NDArray[np.int32] = np.empty(0, np.int32)
        self._free: list[int] = []

    def available(self, budget: Budget) -> int:
        """Return how many more slots `budget` allows."""
        return self._arena.room(budget) // self.slot_bytes

    def allocate(self, budget: Budget, count: int) -> NDArray[np.int64]:
        """Return `count` slots. All or none: raises `CapacityError` when the budget does not allow them."""
        return np.array(self.take(budget, count), np.int64)

    def free(self, budget: Budget, slots: NDArray[np.int64]) -> None:
        """Give slots back to the budget that they were taken from."""
        self.give(budget, slots.tolist())

    def take(self, budget: Budget, count: int) -> list[int]:
        """As `allocate`, for who keeps them one by one."""
        self._charge(budget, count)
        start = len(self._free) - count
        taken = self._free[start:]
        del self._free[start:]
        return taken[::-1]

    def give(self, budget: Budget, slots: list[int]) -> None:
        """As `free`."""
        self._free += reversed(slots)
        self._arena.charge(budget, -len(slots) * self.slot_bytes)

    def locate(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return for each slot the index of its buffer in `LocalArena.buffers`, and its byte offset there."""
        if len(self._extents) == 1:  # a hot region and a window of moderate size: spares the division, in every layer
            return self._index.repeat(len(slots)), slots * self.slot_bytes
        extent, place = np.divmod(slots, self._per_extent)
        return self._index[extent], place * self.slot_bytes

    def bytes_of(self, slot: int) -> memoryview:
        """Return the writable bytes of one slot."""
        extent, place = divmod(slot, self._per_extent)
        start = place * self.slot_bytes
        return self._extents[extent][1][start : start + self.slot_bytes]

    def array(self, slot: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[np.generic]:
        """Return one slot as a writable array."""
        return np.frombuffer(self.bytes_of(slot), dtype).reshape(shape)

    def trim(self) -> None:
        """Give the pages of free slots back to the kernel; they are zero when used again."""
        for slot in self._free:
            extent, place = divmod(slot, self._per_extent)
            self._arena.drop_pages(self._extents[extent][0], place * self.slot_bytes, self.slot_bytes)

    def _charge(self, budget: Budget, count: int) -> None:
        """Count `count` slots against `budget`, and see to it that as many are free. After an error nothing counts."""
        self._arena.charge(budget, count * self.slot_bytes)
        try:
            while len(self._free) < count:
                self._extend()
        except BaseException:  # mapping memory takes its time: an interrupt may come as well
            self._arena.charge(budget, -count * self.slot_bytes)
            raise

    def _extend(self) -> None:
        buffer = self._arena.map_buffer(self._per_extent * self.slot_bytes)
        extent = buffer, memoryview(self._arena.buffers[buffer]).cast("B")
        first = len(self._extents) * self._per_extent
        self._extents.append(extent)  # as one: interrupted from here on, its slots are lost, and the others are right
        self._index = np.array([buffer for buffer, _ in self._extents], np.int32)
        self._free[:0] = range(first + self._per_extent - 1, first - 1, -1)


class LocalArena:
    """Local KV memory under two budgets in bytes; `hot_bytes` None means without limit."""

    def __init__(self, hot_bytes: int | None, window_bytes: int) -> None:
        self._limit = [hot_bytes if hot_bytes is not None else 1 << 62, window_bytes]
        self._used = [0, 0]
        self._classes: dict[int, SlotClass] = {}
        self.buffers: list[NDArray[np.uint8]] = []
        self._maps: dict[int, mmap.mmap] = {}  # of the buffers that are ours
        self.peak_bytes = 0

    @property
    def total_bytes(self) -> int:
        """Return the bytes that both budgets allow together."""
        return sum(self._limit)

    @property
    def used_bytes(self) -> int:
        """Return the bytes in use now."""
        return sum(self._used)

    def room(self, budget: Budget) -> int:
        """Return the bytes that `budget` still allows."""
        return self._limit[budget] - self._used[budget]

    def limit(self, budget: Budget) -> int:
        """Return the bytes that `budget` allows in all."""
        return self._limit[budget]

    def slots(self, slot_bytes: int) -> SlotClass:
        """Return the class of slots of this size."""
        found = self._classes.get(slot_bytes)
        if found is None:
            found = self._classes[slot_bytes] = SlotClass(self, slot_bytes)
        return found

    def charge(self, budget: Budget, count: int) -> None:
        """Count `count` bytes (negative: given back) against `budget`. Raises `CapacityError`, changing nothing."""
        if count > self.room(budget):
            name = "hot region" if budget is Budget.HOT else "window"
            raise CapacityError(
                f"{name} is full: {format_bytes(self._used[budget])} of {format_bytes(self._limit[budget])} in use, "
                f"{format_bytes(count)} more needed",
                hint=f"give it more with --{'hot' if budget is Budget.HOT else 'window'}",
            )
        self._used[budget] += count
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def trim(self) -> None:
        """Give the pages of all free slots back to the kernel."""
        for slots in self._classes.values():
            slots.trim()

    def drop_pages(self, buffer: int, start: int, size: int) -> None:
        """Give back the whole pages within `[start, start + size)` of a buffer that `map_buffer` made."""
        page = mmap.PAGESIZE
        first, last = -(-start // page) * page, (start + size) // page * page
        if last > first:
            self._maps[buffer].madvise(mmap.MADV_DONTNEED, first, last - first)

    def map_buffer(self, size: int) -> int:
        """Map a new buffer of `size` bytes and return its index in `buffers`. Raises `HostError`."""
        # private: shared anonymous memory gets no huge pages on most hosts
        try:
            memory = mmap.mmap(-1, max(size, mmap.PAGESIZE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise HostError(
                f"cannot map {format_bytes(size)} of local memory: {error.strerror}",
                hint="free some memory, or give hot region and window less (--hot, --window)",
            ) from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without transparent huge pages: slower, not wrong
                memory.madvise(mmap.MADV_HUGEPAGE)
        buffer = self.add_buffer(np.frombuffer(memory, np.uint8))
        self._maps[buffer] = memory
        return buffer

    def add_buffer(self, buffer: NDArray[np.uint8]) -> int:
        """Make foreign memory (a node's mapped arena) part of the page table. It counts against no budget."""
        self.buffers.append(buffer)
        return len(self.buffers) - 1
