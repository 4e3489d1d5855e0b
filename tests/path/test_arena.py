"""Local memory: two budgets that cannot squeeze each other."""

from __future__ import annotations

import numpy as np
import pytest

from dualpath.errors import CapacityError, HostError
from dualpath.path.arena import Budget, LocalArena


def test_budgets_are_apart_and_allocation_is_all_or_none() -> None:
    arena = LocalArena(hot_bytes=300, window_bytes=200)
    slots = arena.slots(100)
    taken = slots.allocate(Budget.WINDOW, 2)
    with pytest.raises(CapacityError, match="window is full"):
        slots.allocate(Budget.WINDOW, 1)
    assert slots.available(Budget.HOT) == 3
    slots.allocate(Budget.HOT, 3)
    with pytest.raises(CapacityError, match="hot region is full"):
        slots.take(Budget.HOT, 1)
    assert (arena.used_bytes, arena.peak_bytes) == (500, 500)
    slots.free(Budget.WINDOW, taken)
    with pytest.raises(CapacityError):
        slots.allocate(Budget.WINDOW, 3)
    assert slots.available(Budget.WINDOW) == 2


def test_slots_are_distinct_memory_over_several_extents() -> None:
    arena = LocalArena(hot_bytes=None, window_bytes=0)
    slots = arena.slots(40 << 20)
    taken = slots.allocate(Budget.HOT, 3)
    for i, slot in enumerate(taken.tolist()):
        slots.bytes_of(slot)[:8] = bytes([i]) * 8
    buffer, offset = slots.locate(taken)
    assert len(set(zip(buffer.tolist(), offset.tolist(), strict=True))) == 3
    for i in range(3):
        assert arena.buffers[buffer[i]][offset[i]] == i
    assert slots.array(int(taken[1]), np.dtype(np.float32), (-1,)).nbytes == 40 << 20


def test_memory_that_the_host_does_not_give_counts_against_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = LocalArena(1 << 20, 1 << 20)
    slots = arena.slots(4096)

    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as here:
        here.setattr("dualpath.path.arena.mmap.mmap", refuse)
        with pytest.raises(HostError, match=r"cannot map .* Cannot allocate memory"):
            slots.allocate(Budget.HOT, 2)
        with pytest.raises(HostError, match="cannot map"):
            slots.take(Budget.WINDOW, 1)
        here.setattr("dualpath.path.arena.mmap.mmap", interrupt)
        with pytest.raises(KeyboardInterrupt):
            slots.take(Budget.WINDOW, 1)
    assert arena.used_bytes == 0
    assert len(slots.allocate(Budget.HOT, 256)) == 256


@pytest.mark.parametrize("name", ["memoryview", "np"])
def test_an_interrupt_while_memory_is_taken_in_leaves_the_slots_in_their_places(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    arena = LocalArena(1 << 30, 0)
    slots = arena.slots(40 << 20)
    taken = slots.take(Budget.HOT, 1)

    class Interrupted:
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

        __call__ = __getattr__

    with monkeypatch.context() as here:
        here.setattr(f"dualpath.path.arena.{name}", Interrupted(), raising=False)
        with pytest.raises(KeyboardInterrupt):
            slots.take(Budget.HOT, 1)
    taken += slots.take(Budget.HOT, 2)
    buffer, offset = slots.locate(np.array(taken))
    for i, slot in enumerate(taken):
        slots.bytes_of(slot)[:8] = bytes([i + 1]) * 8
        assert arena.buffers[buffer[i]][offset[i]] == i + 1
    assert arena.used_bytes == 3 * (40 << 20)
