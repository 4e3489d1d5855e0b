"""Arenas: what a slot that nobody needs leaves behind."""

from __future__ import annotations

import mmap

import pytest

from dualpath.pool.arena import Arena, SharedArena

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize("kind", [Arena, SharedArena])
def test_a_discarded_slot_gives_back_its_whole_pages_and_no_others(kind: type[Arena]) -> None:
    slot_bytes = 3 * PAGE + PAGE // 2  # so that slot 1 shares a page with slot 0
    arena = kind(3, slot_bytes)
    for slot in range(3):
        arena.view(slot)[:] = bytes([slot + 1]) * slot_bytes
    arena.discard(1)
    half, whole = PAGE // 2, 3 * PAGE
    assert bytes(arena.view(1)) == bytes([2]) * half + bytes(whole)
    assert bytes(arena.view(0)) == bytes([1]) * slot_bytes
    assert bytes(arena.view(2)) == bytes([3]) * slot_bytes
    arena.view(1)[:] = bytes([4]) * slot_bytes
    assert bytes(arena.view(1)) == bytes([4]) * slot_bytes
    arena.close()


@pytest.mark.parametrize("kind", [Arena, SharedArena])
def test_a_slot_without_a_whole_page_keeps_its_bytes(kind: type[Arena]) -> None:
    arena = kind(3, PAGE // 2)
    arena.view(1)[:] = bytes([1]) * (PAGE // 2)
    arena.discard(1)
    assert bytes(arena.view(1)) == bytes([1]) * (PAGE // 2)
    arena.close()
