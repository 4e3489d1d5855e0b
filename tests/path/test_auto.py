"""Scheme `auto` over real nodes: splits that are forced by made-up speeds, bypass, failures, and mutants."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dualpath.cost.balance import Rates
from dualpath.errors import BlockLostError
from dualpath.path import Scheme
from dualpath.path.auto import Auto
from dualpath.path.choice import Choice, Form
from dualpath.path.plan import Entry
from dualpath.path.prefetch_reader import PrefetchReader
from dualpath.path.reduce import Reducer
from dualpath.testing.pool import LocalNodes
from dualpath.testing.speeds import fetch_everything, fetch_half, force, reduce_everything

from .test_dualpath import Opened, steps
from .world import HYBRID, MLA, PATIENCE_S, World

NONE, HALF, ALL = reduce_everything(2), fetch_half(2), fetch_everything(2)
SPLITS = pytest.mark.parametrize("rates", [NONE, HALF, ALL], ids=["none", "half", "all"])


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    with LocalNodes(2, capacity=64 << 20, threads=1) as running:
        yield running


def auto_of(world: World) -> Auto:
    assert world.path.auto is not None
    return world.path.auto


@pytest.mark.parametrize("layout", [HYBRID, MLA], ids=lambda layout: layout.model)
@pytest.mark.parametrize(
    ("rates", "form", "low", "high"),
    [(NONE, Form.REDUCE, 0.0, 0.0), (HALF, Form.MIXED, 0.2, 0.6), (ALL, Form.FETCH, 1.0, 1.0)],
    ids=["none", "half", "all"],
)
def test_forced_splits_agree_with_float64(
    nodes: LocalNodes, rates: Rates, form: Form, low: float, high: float, layout: object
) -> None:
    with Opened(nodes, layout, Scheme.AUTO, hot=4, window=12) as world:  # type: ignore[arg-type]  # a stand-in
        balancer = force(world.path, rates)
        a = world.open()
        world.append(a, 90)
        steps(world, a, 6)
        assert balancer.settled.form is form
        divided: list[tuple[int, int]] = []

        def noted(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
            reduced, others = auto_of(world).divide(entries)
            divided.append((len(reduced), sum(entry.part.local is None for entry in others)))
            return reduced, others

        world.path.divide = noted
        steps(world, a, 1)
        ((reduced, fetched),) = divided
        assert reduced + fetched >= 8
        assert low <= fetched / (reduced + fetched) <= high
        b = world.fork(a)
        world.step([(a, 3), (b, 2)])
        world.step([(b, 1), (a, 1)])
        world.crop(b, 93)
        world.step([(b, 1), (a, 1)])
        world.close(a)
        steps(world, b, 2)
        assert world.path.metrics.peak_local_bytes <= world.path.arena.total_bytes
    assert world.path.arena.used_bytes == 0


def test_the_split_may_change_at_any_step(nodes: LocalNodes) -> None:
    with Opened(nodes, HYBRID, Scheme.AUTO, hot=1, window=6) as world:
        a = world.open()
        world.append(a, 90)
        for rates in (NONE, HALF, ALL, HALF, NONE, ALL, NONE):
            force(world.path, rates)
            steps(world, a, 3)


def test_a_share_is_met_over_all_sequences(nodes: LocalNodes) -> None:
    """Each has three far blocks at each node, of which one and a half are to be fetched."""
    with Opened(nodes, MLA, Scheme.AUTO, hot=4, window=30) as world:
        balancer, auto = force(world.path, NONE), auto_of(world)
        rows = [world.open() for _ in range(4)]
        for row in rows:
            world.append(row, 56)
        steps(world, rows[0], 1)
        counts = []
        balancer.choice = Choice(Form.MIXED, (0.5, 0.5))
        auto.begin()
        for row in rows:
            entries = [entry_of(block) for block in world.path._sequences[row].blocks if block.id is not None]
            reduced, rest = auto.divide(entries)
            far = [entry for entry in rest if entry.part.local is None]
            counts.append((len(reduced), len(far)))
            for node in (0, 1):  # the oldest are reduced
                last = max((e.block.position for e in reduced if e.part.node == node), default=-1)
                assert all(e.block.position > last for e in far if e.part.node == node)
        assert abs(sum(r for r, _ in counts) - sum(f for _, f in counts)) <= 2


def entry_of(block: object) -> object:
    return Entry(block, block.parts[0], block.length)  # type: ignore[attr-defined, arg-type]  # a stand-in


def test_it_measures_decides_and_says_so(nodes: LocalNodes) -> None:
    with Opened(nodes, MLA, Scheme.AUTO, hot=1, window=8) as world:
        a = world.open()
        world.append(a, 60)
        steps(world, a, 12)
        auto = auto_of(world)
        sentence = auto.explain()["sentence"]
        assert auto.balancer.probing.count >= 1
        for word in ("node " + auto.names[0], "node " + auto.names[1], "NIC ", "bit/s", "near-data ", "local ", "B/s"):
            assert word in sentence
        rates = auto.balancer.settled.rates
        assert rates is not None
        for node in rates.nodes:
            assert 0 < node.near.bytes_per_s < 1e12
            assert 0 < node.rail_bytes_per_s < 1e12
            assert 0 <= node.round_trip_s < PATIENCE_S


def test_only_a_probe_while_nothing_else_is_fetched_reads_all_at_once(nodes: LocalNodes) -> None:
    with Opened(nodes, HYBRID, Scheme.AUTO) as world:
        auto = auto_of(world)
        reader = world.path.reader
        assert isinstance(reader, PrefetchReader)
        assert reader.at_once is not None
        assert not reader.at_once()
        auto.balancer.probing.now = True
        assert reader.at_once()
        auto.balancer.settled = Choice(Form.MIXED, (0.5, 0.0))
        assert not reader.at_once()


def test_while_all_is_local_path_b_stays_out_of_the_way(nodes: LocalNodes) -> None:
    with Opened(nodes, MLA, Scheme.AUTO, hot=20) as world:
        a = world.open()
        world.step([(a, 40)])
        metrics, pool = world.path.metrics, world.path.pool
        assert pool is not None
        bypassed, counters = metrics.bypassed_steps, pool.counters
        steps(world, a, 5)  # no block becomes full: nothing is written either
        assert metrics.bypassed_steps - bypassed == 5
        assert pool.counters == counters
        assert auto_of(world).explain()["sentence"] == "all KV that a step reads is local: Path B is not used"


@SPLITS
def test_a_killed_node_is_one_clear_error(rates: Rates) -> None:
    with LocalNodes(2, capacity=16 << 20, threads=1) as two, Opened(two, HYBRID, Scheme.AUTO, hot=1) as world:
        force(world.path, rates)
        a = world.open()
        world.append(a, 57)
        steps(world, a, 3)
        two.nodes[1].kill()
        length = world.path.length(a)
        with pytest.raises(BlockLostError) as caught:
            steps(world, a, 3)
        assert caught.value.node == two.nodes[1].name
        assert caught.value.block
        assert world.path.length(a) >= length
        assert world.path.pool is not None
        assert world.path.pool.nodes[0].stats()["blocks_sealed"] > 0


@SPLITS
def test_a_node_that_dies_within_a_step_undoes_it(rates: Rates) -> None:
    with LocalNodes(2, capacity=16 << 20, threads=1) as two, Opened(two, MLA, Scheme.AUTO, hot=1, window=3) as world:
        force(world.path, rates)
        a = world.open()
        world.append(a, 89)
        steps(world, a, 3)
        step = world.path.begin([(a, [7])])
        q, k = np.ones((1, 4, 24), np.float32), np.ones((1, 1, 24), np.float32)
        step.attend(0, q, k, None, scale=0.3)
        two.nodes[0].kill()
        lost = None
        for layer in (1, 2):  # what was prefetched is still good
            try:
                step.attend(layer, q, k, None, scale=0.3)
            except BlockLostError as error:
                lost = error
                break
        assert lost is not None
        assert lost.node == two.nodes[0].name
        step.abort()
        assert world.path.length(a) == 92
    assert world.path.arena.used_bytes == 0


@SPLITS
def test_an_aborted_step_leaves_nothing_behind_and_teaches_nothing(nodes: LocalNodes, rates: Rates) -> None:
    with Opened(nodes, MLA, Scheme.AUTO, hot=2) as world:
        balancer = force(world.path, rates)
        a = world.open()
        world.append(a, 60)
        steps(world, a, 2)
        assert world.path.pool is not None
        stored = [node.stats()["blocks_sealed"] for node in world.path.pool.nodes]
        clock_s, length = balancer.probing.clock_s, world.path.length(a)
        world.step([(a, 5)], commit=False)
        assert balancer.probing.clock_s == clock_s
        assert world.path.length(a) == length
        assert [node.stats()["blocks_sealed"] for node in world.path.pool.nodes] == stored
        steps(world, a, 2)
        world.close(a)
        assert [node.stats()["blocks_sealed"] for node in world.path.pool.nodes] < stored
    assert world.path.arena.used_bytes == 0
    assert auto_of(world).traffic.in_flight == 0  # every read has ended, one way or another


@pytest.mark.parametrize("part", ["reduced", "fetched"])
def test_mutants_that_drop_a_part_fail(nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    with Opened(nodes, MLA, Scheme.AUTO, hot=1, window=8) as world:
        force(world.path, HALF)
        a = world.open()
        world.append(a, 60)
        steps(world, a, 3)
        if part == "reduced":
            monkeypatch.setattr(Reducer, "collect", lambda self, shipment, rows: [])
        else:
            monkeypatch.setattr(PrefetchReader, "runs", lambda self, plan, layer: iter(()))
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            steps(world, a, 1)


def test_it_agrees_with_local(nodes: LocalNodes) -> None:
    outs = []
    for scheme in (Scheme.LOCAL, Scheme.AUTO):
        with Opened(nodes, HYBRID, scheme, hot=1, window=8) as world:
            if scheme is Scheme.AUTO:
                force(world.path, HALF)
            a = world.open()
            for count in (8, 16, 5, *[1] * 20):
                world.step([(a, count)])
            outs.append(world.outs)
    for x, y in zip(*outs, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-4)
