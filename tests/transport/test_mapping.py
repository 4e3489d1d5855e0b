"""Copying out of a mapped arena: what was reused before or meanwhile is lost, and is never taken for data."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from dualpath.transport import mapping
from dualpath.transport.mapping import Mapping
from dualpath.wire.messages import Outcome, SlotRef

OK, LOST = Outcome.OK, Outcome.LOST
SLOTS, SIZE = 4, 16


@pytest.fixture
def mapped() -> Mapping:
    data = np.repeat(np.arange(1, SLOTS + 1, dtype=np.uint8), SIZE)
    return Mapping(data, np.full(SLOTS, 7, np.uint64), SLOTS, SIZE, cast("Any", None))


def copy(mapped: Mapping, refs: list[tuple[int, int]]) -> tuple[list[Outcome], list[bytes]]:
    places = [bytearray(SIZE) for _ in refs]
    outcomes = mapped.copy([SlotRef(*ref) for ref in refs], [memoryview(place) for place in places])
    return outcomes, [bytes(place) for place in places]


def test_slots_are_copied_where_they_belong(mapped: Mapping) -> None:
    assert copy(mapped, [(3, 7), (0, 7)]) == ([OK, OK], [bytes([4]) * SIZE, bytes([1]) * SIZE])
    assert copy(mapped, []) == ([], [])


@pytest.mark.parametrize("bad", [(1, 6), (SLOTS, 7), (-1, 7)])
def test_a_stale_or_impossible_reference_is_lost_and_its_destination_left_alone(mapped, bad) -> None:
    assert copy(mapped, [(2, 7), bad, (0, 7)]) == ([OK, LOST, OK], [bytes([3]) * SIZE, bytes(SIZE), bytes([1]) * SIZE])


@pytest.mark.parametrize("refs", [[(0, 7), (1, 7), (2, 7)], [(0, 7), (1, 7), (2, 7), (3, 6)]])
def test_what_is_reused_while_it_is_copied_is_lost(mapped, refs, monkeypatch: pytest.MonkeyPatch) -> None:
    def and_reuse(*args: Any) -> None:
        plain(*args)
        mapped.generations[1] = 8

    plain = mapping.copy_blocks
    monkeypatch.setattr(mapping, "copy_blocks", and_reuse)
    assert copy(mapped, refs)[0] == [OK, LOST, OK, LOST][: len(refs)]
