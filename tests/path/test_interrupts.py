"""Interrupts while nodes are told what nobody needs: a step counts or does not, nothing leaks, `close` tells all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

import dualpath
from dualpath.errors import CapacityError
from dualpath.kv import KVLayout
from dualpath.kv.ids import BlockId
from dualpath.path import DualPath, PathConfig, Scheme
from dualpath.path.arena import Budget, SlotClass
from dualpath.path.holdings import Holdings
from dualpath.path.publisher import Publisher
from dualpath.pool.client import Pool
from dualpath.pool.node import PoolNode
from dualpath.testing.pool import LocalNodes

from .world import HYBRID, MLA, PATIENCE_S, World


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    with LocalNodes(2, capacity=16 << 20, threads=1) as running:
        yield running


@pytest.fixture
def pool(nodes: LocalNodes) -> Iterator[Pool]:
    with dualpath.connect(nodes.spec, timeout_s=PATIENCE_S) as pool:
        yield pool


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str], list[None]]:
    """Interrupt the next call of a method instead of making it; the list that is returned tells whether it has come."""

    def arm(owner: type, name: str) -> list[None]:
        method: Callable[..., Any] = getattr(owner, name)
        come: list[None] = []

        def once(*args: Any, **options: Any) -> Any:
            if come:
                return method(*args, **options)
            come.append(None)
            raise KeyboardInterrupt

        monkeypatch.setattr(owner, name, once)
        return come

    return arm


@contextmanager
def opened(layout: KVLayout, scheme: Scheme, pool: Pool) -> Iterator[World]:
    """A path that must have given everything back when it is closed."""
    config = PathConfig(scheme, 6 * layout.block_bytes, 8 * layout.block_bytes, threads=1, deadline_s=PATIENCE_S)
    with DualPath(layout, config, pool) as path:
        yield World(path)
    assert path.arena.used_bytes == 0
    assert not pool.kept
    assert [node.stats()["blocks_sealed"] for node in pool.nodes] == [0, 0]


def test_a_step_counts_for_the_whole_batch_before_its_nodes_hear_of_what_it_made_useless(
    pool: Pool, interrupt: Callable[[type, str], list[None]]
) -> None:
    with opened(HYBRID, Scheme.SHARDED, pool) as world:
        batch = [(world.open(), 10), (world.open(), 9)]
        come = interrupt(PoolNode, "drop")
        steps = 0
        while not come:
            steps += 1
            try:
                world.step(batch)
            except KeyboardInterrupt:
                continue
        assert [world.path.length(sequence) for sequence, _ in batch] == [10 * steps, 9 * steps]
        assert [len(world.path.tokens(sequence)) for sequence, _ in batch] == [10 * steps, 9 * steps]
        for _ in range(3):
            world.step(batch)
        for sequence, count in batch:
            world.crop(sequence, (steps + 3) * count - HYBRID.block_tokens)
        world.step(batch)


@pytest.mark.parametrize("name", ["sealed", "grown"])
def test_a_commit_that_is_interrupted_before_it_counts_is_undone(
    pool: Pool, interrupt: Callable[[type, str], list[None]], name: str
) -> None:
    with opened(HYBRID, Scheme.SHARDED, pool) as world:
        a, b = world.open(), world.open()
        world.step([(a, 11), (b, 3)])
        kept, room = dict(pool.kept), world.path.arena.room(Budget.HOT)
        interrupt(Publisher, name)
        with pytest.raises(KeyboardInterrupt):
            world.step([(a, 8), (b, 8)])
        assert [world.path.length(a), world.path.length(b)] == [11, 3]
        assert (dict(pool.kept), world.path.arena.room(Budget.HOT)) == (kept, room)
        world.step([(a, 8), (b, 8)])


@pytest.mark.parametrize("name", ["drop", "drop_view"])
def test_a_sequence_that_is_interrupted_as_it_closes_leaves_nothing_behind(
    pool: Pool, interrupt: Callable[[type, str], list[None]], name: str
) -> None:
    with opened(MLA, Scheme.REDUCE, pool) as world:
        a = world.open()
        world.append(a, 90)
        world.step([(a, 1)])
        come = interrupt(PoolNode, name)
        with pytest.raises(KeyboardInterrupt):
            world.path.close_sequence(a)
        assert come
        assert world.path.arena.room(Budget.HOT) == world.path.arena.limit(Budget.HOT)
        assert not pool.kept


class Node:
    """Seals everything; `dropped`: the `(id, group)` it was told to drop. `tired`: the next drop is cut short."""

    def __init__(self) -> None:
        self.dropped: list[tuple[bytes, int]] = []
        self.tired = False

    def commit(self, keys: list[Any]) -> list[Any]:
        return []

    def drop(self, keys: list[Any]) -> None:
        if self.tired:
            self.tired = False
            raise KeyboardInterrupt
        self.dropped += [(key.id, key.group) for key in keys]


@pytest.fixture
def pair() -> tuple[Node, Node]:
    return Node(), Node()


@pytest.fixture
def holdings(pair: tuple[Node, Node]) -> Holdings:
    pool: Any = SimpleNamespace(nodes=pair, kept=Counter(), wanted=Counter(), owed={})
    return Holdings(pool, 2)


A, B = (0, BlockId(b"a")), (1, BlockId(b"b"))


def test_nodes_that_were_not_told_are_told_next_time(holdings: Holdings, pair: tuple[Node, Node]) -> None:
    holdings.own([A, B], "", "")
    assert holdings.disown([A, B]) == [A, B]
    pair[0].tired = True
    with pytest.raises(KeyboardInterrupt):
        holdings.tell()
    assert [node.dropped for node in pair] == [[], []]
    holdings.tell()
    holdings.tell()
    assert [node.dropped for node in pair] == [[(b"a", 0), (b"a", 1)], [(b"b", 0), (b"b", 1)]]


def test_what_is_needed_again_meanwhile_stays(holdings: Holdings, pair: tuple[Node, Node]) -> None:
    holdings.own([A, B], "", "")
    holdings.disown([A])
    holdings.disown([B], [1])
    holdings.want([A])
    holdings.own([B], "", "")
    holdings.tell()
    assert [node.dropped for node in pair] == [[], []]
    holdings.disown([B])
    holdings.disown([B])
    holdings.tell()
    assert pair[1].dropped == [(b"b", 0), (b"b", 1)]


@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.SHARDED])
def test_slots_are_nobody_elses_whichever_of_their_returns_is_interrupted(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, scheme: Scheme
) -> None:
    """The interrupt comes when they are free already, and whoever gave them has not noted it."""
    layout, give, returns = MLA, SlotClass.give, [0]

    def interrupted(slots: SlotClass, budget: Budget, which: list[int]) -> None:
        give(slots, budget, which)
        returns[0] -= bool(which)
        if returns[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(SlotClass, "give", interrupted)
    for number in range(1, 40):
        config = PathConfig(scheme, 2 * layout.block_bytes, 8 * layout.block_bytes, threads=1, deadline_s=PATIENCE_S)
        returns[0] = 0
        with DualPath(layout, config, pool) as path:
            world = World(path)
            a, b = world.open(), world.open()
            world.append(a, 29)
            world.step([(b, 8)])
            returns[0] = number
            for batch in ([(a, 1), (b, 0)], [(b, 1)], [(a, 3), (b, 7)]):
                with suppress(KeyboardInterrupt, CapacityError):
                    world.step(batch)
            returns[0] = 0
            slots = path.arena.slots(layout.layer_block_bytes(layout.groups[0]))
            assert len(slots._free) == len({*slots._free})
            used = [part.local for s in (a, b) for one in path._get(s).blocks for part in one.parts]
            mine = [slot for local in used if local is not None for slot in local.tolist()]
            assert len(mine) == len({*mine})
            assert not {*mine} & {*slots._free}
