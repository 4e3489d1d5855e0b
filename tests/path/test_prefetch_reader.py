"""The runner of the prefetcher over a node that never lets go of a destination until it is told to."""

from __future__ import annotations

import io
import threading
import time
from contextlib import AbstractContextManager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from dualpath.errors import CapacityError
from dualpath.path import flights as flights_module
from dualpath.path import reader as reader_module
from dualpath.path.arena import Budget, LocalArena
from dualpath.path.flights import Flight, Flights
from dualpath.path.metrics import PathMetrics
from dualpath.path.prefetch_reader import PrefetchReader
from dualpath.path.trace import replay
from dualpath.path.window import DECODE, Window
from dualpath.transport.base import Outcome

SLOT = 4096


class HeldNode:
    """Every read stays in flight until `let_go`."""

    name = "held"

    def __init__(self) -> None:
        self.tickets: list[Any] = []

    def read(self, refs: Any, destinations: Any, *, on_items: Any, **_: Any) -> Any:
        ticket = SimpleNamespace(outcomes=[None] * len(refs), drained=False, error=None, on_items=on_items)
        self.tickets.append(ticket)
        return ticket

    def let_go(self) -> None:
        for ticket in self.tickets:
            ticket.drained = True
            ticket.outcomes[:] = [Outcome.OK] * len(ticket.outcomes)
            ticket.on_items(0, ticket.outcomes)
        self.tickets.clear()


def plan_of(arena: LocalArena, serials: range) -> Any:
    """Return what the reader looks at of a plan: one layer, these blocks, all at the node."""
    entries = [
        SimpleNamespace(block=SimpleNamespace(serial=serial), part=SimpleNamespace(local=None, node=0, refs=[serial]))
        for serial in serials
    ]
    group = SimpleNamespace(layers=(0,))
    return SimpleNamespace(index=0, group=group, slots=arena.slots(SLOT), far=SimpleNamespace(distinct=entries), rows=1)


def test_a_window_full_of_reads_that_were_given_up_is_waited_for() -> None:
    """Another step wants none of the blocks in flight: it starts, and asks for its own once there is room."""
    arena, node = LocalArena(SLOT, 3 * SLOT), HeldNode()
    pool: Any = SimpleNamespace(nodes=[node])
    layout: Any = None
    reader = PrefetchReader(pool, arena, layout, PathMetrics(), 1.0)
    reader.begin([plan_of(arena, range(1, 8))], reserve=0, wrap=True)
    held = arena.limit(Budget.WINDOW) - arena.room(Budget.WINDOW)
    while arena.room(Budget.WINDOW) >= SLOT:  # whatever the window's policy has asked for: fill what it left
        arena.slots(SLOT).take(Budget.WINDOW, 1)
    other = plan_of(arena, range(11, 14))
    reader.begin([other], reserve=0, wrap=False)
    assert len(node.tickets) >= 1
    assert held > 0
    node.let_go()
    reader.begin([other], reserve=0, wrap=False)
    assert len(node.tickets) == 1
    node.let_go()
    reader.end()


def test_a_step_that_is_to_show_how_fast_a_rail_is_reads_all_at_once() -> None:
    for hurries, wanted in ((False, 1), (True, 6)):
        arena, node = LocalArena(SLOT, 6 * SLOT), HeldNode()
        pool: Any = SimpleNamespace(nodes=[node])
        layout: Any = None
        reader = PrefetchReader(pool, arena, layout, PathMetrics(), 1.0)
        reader.at_once = lambda hurries=hurries: hurries
        reader._window.computed(1.0, SLOT)  # compute uses a block a second, and a fetch takes no time:
        reader._window.arrived(0.0)  # one ahead is enough
        reader.begin([plan_of(arena, range(1, 9))], reserve=0, wrap=False)
        assert sum(len(ticket.outcomes) for ticket in node.tickets) == wanted
        node.let_go()
        reader.end()


class Node(HeldNode):
    """As `HeldNode`, until it is `ready`: then it answers at once."""

    ready = False

    def read(self, refs: Any, destinations: Any, *, on_items: Any, **_: Any) -> Any:
        ticket = super().read(refs, destinations, on_items=on_items)
        if self.ready:
            self.let_go()
        return ticket


def test_room_that_comes_back_while_chosen_blocks_are_read_costs_none_of_them() -> None:
    """A step was undone with its whole window in flight; the next one reads what was chosen for it."""
    arena, node = LocalArena(SLOT, 4 * SLOT), Node()
    pool: Any = SimpleNamespace(nodes=[node])
    layout: Any = None
    metrics = PathMetrics()
    reader = PrefetchReader(pool, arena, layout, metrics, 1.0)
    reader.begin([plan_of(arena, range(1, 5))], reserve=0, wrap=False)
    nothing = plan_of(arena, range(0))
    reader.begin([nothing], reserve=0, wrap=False)
    assert arena.room(Budget.WINDOW) == 0
    node.let_go()
    node.ready = True
    before = metrics.fetched_bytes
    runs = list(reader.chosen(nothing, 0, plan_of(arena, range(11, 16)).far.distinct))
    assert [run.lo for run in runs] == [0, *(run.hi for run in runs[:-1])]
    assert runs[-1].hi == 5
    assert metrics.fetched_bytes - before == 5 * SLOT  # each once
    reader.end()
    assert arena.used_bytes == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_read_whose_start_is_interrupted_keeps_its_slots_until_its_deadline(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Ctrl-C comes when the transport has begun already, or it finds no thread for its second connection: what it
    brings must not land among other blocks."""
    now = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: now, perf_counter=time.perf_counter)
    for module in (reader_module, flights_module):
        monkeypatch.setattr(module, "time", clock)
    arena, node = LocalArena(SLOT, 4 * SLOT), HeldNode()
    begin, read = node.read, []

    def interrupted(refs: Any, destinations: Any, **options: Any) -> Any:
        read.append(begin(refs, destinations, **options))
        raise error

    monkeypatch.setattr(node, "read", interrupted)
    pool: Any = SimpleNamespace(nodes=[node])
    layout: Any = None
    reader = PrefetchReader(pool, arena, layout, PathMetrics(), 1.0)
    with pytest.raises(error):
        reader.begin([plan_of(arena, range(1, 3))], reserve=0, wrap=False)
    under_way = sum(len(ticket.outcomes) for ticket in read)
    assert under_way >= 1
    assert arena.used_bytes == under_way * SLOT
    reader.begin([plan_of(arena, range(0))], reserve=0, wrap=False)
    assert arena.used_bytes == under_way * SLOT
    now += 4.0
    reader.end()
    assert arena.used_bytes == 0


def test_a_read_that_is_interrupted_as_it_is_made_again_is_given_up_like_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arena, node = LocalArena(SLOT, 4 * SLOT), Node()
    pool: Any = SimpleNamespace(nodes=[node])
    node.ready = True
    flights = Flights(pool, arena, PathMetrics(), 1.0)
    slots, window = arena.slots(SLOT), Window(DECODE)
    three = [Flight(entry, 0, slots) for entry in plan_of(arena, range(1, 4)).far.distinct]
    flights.start(three, window)
    flights.used(slots, three)

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(node, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        flights.start(three[2:], window)
    flights.bury(three[2])
    assert flights.left_bytes == arena.used_bytes == SLOT  # it may be under way


def test_what_could_not_be_asked_for_is_not_held() -> None:
    arena, node = LocalArena(SLOT, 4 * SLOT), HeldNode()
    pool: Any = SimpleNamespace(nodes=[node])
    layout: Any = None
    reader = PrefetchReader(pool, arena, layout, PathMetrics(), 1.0)
    slots = arena.slots(SLOT)
    others = slots.take(Budget.WINDOW, 3)
    with pytest.raises(CapacityError):
        reader.begin([plan_of(arena, range(1, 4))], reserve=0, wrap=False)
    reader.end()
    slots.give(Budget.WINDOW, others)
    assert arena.used_bytes == 0
    assert len({*slots.take(Budget.WINDOW, 4)} & {*range(5)}) == 4  # no slot that is none, and none twice


def test_reads_that_do_not_come_are_cancelled_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a node that has stopped: the end does not wait for the deadline."""
    monkeypatch.setattr("dualpath.path.flights.GRACE_S", 0.0)

    class Stopped(HeldNode):
        def cancel(self, ticket: Any) -> None:
            ticket.outcomes[:] = [Outcome.CANCELLED] * len(ticket.outcomes)
            ticket.drained = True
            cancelled.append(ticket)

    arena, node = LocalArena(SLOT, 4 * SLOT), Stopped()
    cancelled: list[Any] = []
    pool: Any = SimpleNamespace(nodes=[node])
    layout: Any = None
    reader = PrefetchReader(pool, arena, layout, PathMetrics(), 60.0)
    reader.begin([plan_of(arena, range(1, 5))], reserve=0, wrap=False)
    reader.end()
    assert cancelled == node.tickets != []
    assert arena.used_bytes == 0


def test_what_was_read_ahead_in_vain_is_read_again_by_the_next_step() -> None:
    """A node was silent for longer than the deadline while no step was under way, and answers again by now."""

    class Silent(Node):
        def time_out(self) -> None:
            for ticket in self.tickets:
                ticket.drained = True
                ticket.outcomes[:] = [Outcome.TIMEOUT] * len(ticket.outcomes)
                ticket.on_items(0, ticket.outcomes)
            self.tickets.clear()

    arena, node, file = LocalArena(SLOT, 8 * SLOT), Silent(), io.StringIO()
    pool: Any = SimpleNamespace(nodes=[node])
    layout: Any = None
    metrics = PathMetrics()
    reader = PrefetchReader(pool, arena, layout, metrics, 1.0, trace=file)
    plan = plan_of(arena, range(1, 6))
    reader.begin([plan], reserve=0, wrap=True)
    node.time_out()
    node.ready = True
    reader.begin([plan], reserve=0, wrap=False)
    assert sum(run.hi - run.lo for run in reader.runs(plan, 0)) == 5
    assert (metrics.fetched_bytes, metrics.wasted_bytes) == (5 * SLOT, 0)
    reader.end()
    assert arena.used_bytes == 0
    assert replay(file.getvalue().splitlines()).first_difference == ""


def test_a_schedule_whose_making_was_interrupted_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    arena, node, asked = LocalArena(SLOT, 8 * SLOT), Node(), list[int]()
    node.ready, read = True, node.read

    def noted(refs: Any, destinations: Any, **options: Any) -> Any:
        asked.extend(refs)
        return read(refs, destinations, **options)

    monkeypatch.setattr(node, "read", noted)
    pool: Any = SimpleNamespace(nodes=[node])
    layout: Any = None
    reader = PrefetchReader(pool, arena, layout, PathMetrics(), 1.0)
    before, after = (plan_of(arena, serials) for serials in (range(1, 4), range(11, 14)))
    reader.begin([before], reserve=0, wrap=False)
    assert [run.hi for run in reader.runs(before, 0)][-1] == 3

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reader, "_build", interrupt)
        with pytest.raises(KeyboardInterrupt):
            reader.begin([after], reserve=0, wrap=False)
    asked.clear()
    reader.begin([after], reserve=0, wrap=False)
    assert [run.hi for run in reader.runs(after, 0)][-1] == 3
    assert asked == [11, 12, 13]
    reader.end()


def test_an_interrupt_as_arrivals_are_looked_at_leaves_their_lock_free(
    interrupted_conditions: AbstractContextManager[None],
) -> None:
    arena, node = LocalArena(SLOT, 4 * SLOT), HeldNode()
    pool: Any = SimpleNamespace(nodes=[node])
    flights = Flights(pool, arena, PathMetrics(), 1.0)
    (flight,) = [Flight(entry, 0, arena.slots(SLOT)) for entry in plan_of(arena, range(1, 2)).far.distinct]
    flights.start([flight], Window(DECODE))
    with interrupted_conditions, suppress(KeyboardInterrupt):
        flights.bury(flight)
    transport = threading.Thread(target=node.let_go, daemon=True)
    transport.start()
    transport.join(5.0)
    assert not transport.is_alive()
