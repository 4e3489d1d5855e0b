"""The readers that use ordinary calls, interrupted: no slot is free while a reply may still land in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dualpath.path.arena import Budget, LocalArena
from dualpath.path.call_reader import BaselineReader, CallReader
from dualpath.path.metrics import PathMetrics
from dualpath.transport.base import Outcome

from .test_prefetch_reader import SLOT, plan_of

READERS = pytest.mark.parametrize("reader_type", [CallReader, BaselineReader])


class Nodes:
    """Two nodes. What is waited for is interrupted, as often as `interrupts` says, and under way until it is not."""

    def __init__(self, interrupts: int) -> None:
        self.interrupts = interrupts
        self.under_way = 0
        self.refuse_at = -1
        """Which call is interrupted as it is made."""
        self.room_while_under_way: list[int] = []
        self.room: Callable[[], int] = lambda: 0
        self.nodes = [SimpleNamespace(name="n", start_read_by_call=self._start) for _ in range(2)]

    def _start(self, refs: Sequence[Any], into: Any, slot_bytes: int, *, timeout_s: float) -> Any:
        if self.refuse_at == self.under_way:
            raise KeyboardInterrupt
        self.under_way += 1

        def result() -> Any:
            self.room_while_under_way.append(self.room())
            if self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt
            self.under_way -= 1
            return [Outcome.OK] * len(refs), into if isinstance(into, memoryview) else memoryview(b"")

        return SimpleNamespace(result=result)


def opened(reader_type: type[CallReader], nodes: Nodes) -> tuple[LocalArena, Any, Any]:
    arena = LocalArena(SLOT, 200 * SLOT)
    nodes.room = lambda: arena.room(Budget.WINDOW)
    pool: Any = nodes
    plan = plan_of(arena, range(1, 40))
    for index, entry in enumerate(plan.far.distinct):
        entry.part.node, entry.part.refs = index % 2, [index]
    return arena, reader_type(pool, arena, PathMetrics(), 1.0), plan


@READERS
@pytest.mark.parametrize("interrupts", [1, 2, 5])
def test_slots_are_free_when_no_call_is_under_way(reader_type: type[CallReader], interrupts: int) -> None:
    """Another thread may receive what an interrupted one has waited for, into slots that must not be another's yet."""
    nodes = Nodes(interrupts)
    arena, reader, plan = opened(reader_type, nodes)
    with pytest.raises(KeyboardInterrupt):
        list(reader.runs(plan, 0))
    assert nodes.under_way == 0
    assert max(nodes.room_while_under_way) < arena.limit(Budget.WINDOW)
    assert arena.used_bytes == 0


@READERS
def test_an_interrupt_while_calls_are_made_leaves_none_under_way(reader_type: type[CallReader]) -> None:
    nodes = Nodes(0)
    nodes.refuse_at = 3
    arena, reader, plan = opened(reader_type, nodes)
    with pytest.raises(KeyboardInterrupt):
        list(reader.runs(plan, 0))
    assert nodes.under_way == 0
    assert arena.used_bytes == 0
