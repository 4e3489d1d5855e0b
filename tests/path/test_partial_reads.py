"""Partial reads through a dual path: the softmax over what was chosen and what is local, for every kind of batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dualpath.attention.bounds import choose
from dualpath.errors import BlockLostError, UsageError
from dualpath.kv import KVLayout
from dualpath.path import DualPath, PathConfig, Scheme, SequenceId
from dualpath.path.prefetch_reader import PrefetchReader
from dualpath.path.staging import scratch_bytes
from dualpath.path.step import Observation
from dualpath.testing.pool import LocalNodes

from .test_dualpath import connect
from .world import HYBRID, MLA, PATIENCE_S, World, float64

PARTLY = [scheme for scheme in Scheme if scheme.reads_partly]


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    with LocalNodes(2, capacity=64 << 20, threads=1) as running:
        yield running


class PartialWorld(World):
    """Expects attention over the local blocks and, of each node's, over those that its bounds choose."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen: list[Observation] = []
        self.read, self.there = 0, 0
        begin = self.path.begin

        def watched(batch: Any, **options: Any) -> Any:
            step = begin(batch, **options)
            step.observer = self.seen.append
            return step

        self.path.begin = watched  # type: ignore[method-assign]  # watched

    def _compare(
        self, layer: int, batch: Sequence[tuple[SequenceId, int]], new: list[tuple[Any, Any]], q: Any, out: Any
    ) -> None:
        group, plan, at = self.group(layer), self.seen[-1].plan, 0
        for s, (sequence, count) in enumerate(batch):
            pairs = self.kept[sequence][layer] + new[at : at + count]
            entries = plan.reduced.entries[plan.reduced.starts[s] : plan.reduced.starts[s + 1]]
            self.there += len(entries)
            skipped = self._skipped(entries, pairs, q[at]) if count == 1 else set()
            self.read += len(entries) - len(skipped)
            tokens = {i for e in entries if e.block.position in skipped for i in range(e.block.position, e.block.end)}
            pairs = [pair for i, pair in enumerate(pairs) if i not in tokens]
            exact = float64(group, pairs, q[at : at + count])
            np.testing.assert_allclose(out[at : at + count], exact, rtol=0, atol=self.tolerance)
            at += count

    def _skipped(self, entries: list[Any], pairs: list[tuple[Any, Any]], q: Any) -> set[int]:
        """Return the positions of the blocks that nodes should leave out."""
        skipped: set[int] = set()
        for node in {entry.part.node for entry in entries}:
            mine = [entry.block for entry in entries if entry.part.node == node]
            keys = [np.stack([pair[0] for pair in pairs[b.position : b.end]], 1) for b in mine]
            bounds = np.stack([np.concatenate([k.max(1), k.min(1)], -1) for k in keys], 1)
            tokens = np.array([b.length for b in mine], np.int32)
            first = np.array([b.position == 0 for b in mine])
            taken = choose(q * np.float32(0.3), bounds, tokens, self.path.read_fraction, keep=first)
            skipped |= {b.position for i, b in enumerate(mine) if i not in taken.tolist()}
        return skipped


class Opened:
    """A path over its own pool connection; a few blocks are local. `window` is units of scratch."""

    def __init__(
        self,
        nodes: LocalNodes,
        layout: KVLayout,
        fraction: float,
        world: type[World] = PartialWorld,
        *,
        scheme: Scheme = Scheme.REDUCE,
        window: int = 6,
    ) -> None:
        self.pool = connect(nodes, scheme, f"partial-{scheme}-{layout.model}-{fraction}-{world.__name__}")
        largest = max(layout.layer_block_bytes(group) for group in layout.groups)
        config = PathConfig(
            scheme,
            hot_bytes=4 * layout.open.block_bytes,
            window_bytes=window * scratch_bytes(layout) + largest,
            threads=2,
            deadline_s=PATIENCE_S,
            reduce_rows=6,
            read_fraction=fraction,
        )
        self.path = DualPath(layout, config, self.pool)
        self.world = world(self.path)

    def __enter__(self) -> Any:
        return self.world

    def __exit__(self, *exc: object) -> None:
        self.path.close()
        assert self.path.arena.used_bytes == 0
        if self.pool is not None:
            self.pool.close()


def through_everything(world: World) -> None:
    """Prompts, decoding, forks that part, several sequences in one step, a crop, and an aborted step."""
    a = world.open()
    world.append(a, 77)
    for _ in range(10):
        world.step([(a, 1)])
    b = world.fork(a)
    world.step([(a, 1), (b, 3)])
    for _ in range(12):
        world.step([(b, 1), (a, 1)])
    c = world.open()
    world.append(c, 30)
    world.step([(c, 1), (b, 1), (a, 2)])
    world.crop(b, 99)
    world.step([(b, 1), (c, 1)])
    world.step([(a, 1)], commit=False)
    world.close(a)
    for _ in range(9):
        world.step([(b, 1), (c, 1)])


@pytest.mark.parametrize("kv_dtype", ["", "int8"])
@pytest.mark.parametrize("layout", [HYBRID, MLA], ids=lambda layout: layout.model)
@pytest.mark.parametrize("scheme", PARTLY, ids=lambda scheme: scheme.value)
def test_attention_is_over_what_was_chosen(nodes: LocalNodes, scheme: Scheme, layout: KVLayout, kv_dtype: str) -> None:
    layout = replace(layout, kv_dtype=kv_dtype, model=f"{layout.model}-{kv_dtype}")
    with Opened(nodes, layout, 0.3, scheme=scheme) as world:
        through_everything(world)
        metrics = world.path.metrics
        assert (metrics.far_blocks, metrics.far_blocks_read) == (world.there, world.read)
        assert world.read < 0.6 * world.there


@pytest.mark.parametrize("layout", [HYBRID, MLA], ids=lambda layout: layout.model)
def test_a_fraction_of_one_is_bitwise_exact(nodes: LocalNodes, layout: KVLayout) -> None:
    outs = []
    for fraction in (1.0, 1.0 - 1e-9):  # the second goes through the choice, and chooses all
        with Opened(nodes, layout, fraction, World) as world:
            through_everything(world)
            outs.append(world.outs)
            assert world.path.metrics.far_blocks_read == world.path.metrics.far_blocks > 0
    assert all(np.array_equal(x, y) for x, y in zip(*outs, strict=True))


@pytest.mark.parametrize("scheme", PARTLY, ids=lambda scheme: scheme.value)
def test_the_fraction_may_change_between_steps(nodes: LocalNodes, scheme: Scheme) -> None:
    with Opened(nodes, HYBRID, 1.0, scheme=scheme) as world:
        a = world.open()
        world.append(a, 90)
        for fraction in (0.1, 1.0, 0.5, 0.3):
            world.path.read_fraction = fraction
            before = world.path.metrics.snapshot()
            world.step([(a, 1)])
            there = world.path.metrics.far_blocks - before.far_blocks
            read = world.path.metrics.far_blocks_read - before.far_blocks_read
            assert read <= there
            assert (read == there) == (fraction == 1.0)
            assert (there > 0) == (fraction < 1.0 or scheme is Scheme.REDUCE)


@pytest.mark.parametrize("scheme", [Scheme.FETCH, Scheme.SHARDED], ids=lambda scheme: scheme.value)
def test_only_what_was_chosen_is_fetched(nodes: LocalNodes, scheme: Scheme) -> None:
    with Opened(nodes, MLA, 0.3, scheme=scheme) as world:
        a = world.open()
        world.append(a, 90)
        world.step([(a, 1)])
        before = world.path.metrics.snapshot()
        for _ in range(3):
            world.step([(a, 1)])
        fetched = world.path.metrics.fetched_bytes - before.fetched_bytes
        read = world.path.metrics.far_blocks_read - before.far_blocks_read
        assert fetched == read * MLA.layer_block_bytes(MLA.groups[0]) > 0
        assert world.path.metrics.wasted_bytes == before.wasted_bytes


def test_reads_that_nobody_waits_for_any_more_are_given_up(nodes: LocalNodes) -> None:
    with Opened(nodes, MLA, 0.9, scheme=Scheme.SHARDED) as world:
        a = world.open()
        world.append(a, 90)
        reader = world.path.reader
        assert isinstance(reader, PrefetchReader)
        step = world.path.begin([(a, 1)])
        plan = step._plans[0]
        runs = reader.chosen(plan, 0, plan.reduced.distinct)
        assert next(runs).lo == 0
        assert reader._policy.held
        runs.close()
        assert not reader._policy.held
        step.abort()


@pytest.mark.parametrize("scheme", [Scheme.FETCH, Scheme.SHARDED], ids=lambda scheme: scheme.value)
def test_the_smallest_window(nodes: LocalNodes, scheme: Scheme) -> None:
    with Opened(nodes, HYBRID, 0.6, scheme=scheme, window=1) as world:
        through_everything(world)


@pytest.mark.parametrize("scheme", PARTLY, ids=lambda scheme: scheme.value)
def test_a_lost_node_undoes_the_step_and_leaves_nothing(scheme: Scheme) -> None:
    with LocalNodes(2, capacity=8 << 20, threads=1) as own, Opened(own, HYBRID, 0.3, scheme=scheme) as world:
        a = world.open()
        world.append(a, 90)
        world.step([(a, 1)])
        own[0].kill()
        for _ in range(2):
            with pytest.raises(BlockLostError):
                world.step([(a, 1)])
        assert world.path.length(a) == 91


@pytest.mark.parametrize("scheme", PARTLY, ids=lambda scheme: scheme.value)
def test_a_node_that_has_forgotten_its_views_is_told_again(nodes: LocalNodes, scheme: Scheme) -> None:
    with Opened(nodes, HYBRID, 0.3, scheme=scheme) as world:
        a = world.open()
        world.append(a, 90)
        world.step([(a, 1)])
        asked = world.path.reducer or world.path.ranker
        assert asked is not None
        for view in asked._views._views.values():
            world.path.pool.nodes[view.node].drop_view(view.id)
        world.step([(a, 1)])


@pytest.mark.parametrize("scheme", [scheme for scheme in Scheme if scheme not in PARTLY])
def test_other_schemes_refuse(scheme: Scheme) -> None:
    with pytest.raises(UsageError, match="reads all far blocks"):
        PathConfig(scheme, read_fraction=0.5)
    assert PathConfig(scheme, read_fraction=1.0).read_fraction == 1.0


def test_there_is_nothing_to_trace() -> None:
    with pytest.raises(UsageError, match="traced"):
        PathConfig(Scheme.SHARDED, read_fraction=0.5, trace="trace.jsonl")


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_a_fraction_is_a_share(fraction: float) -> None:
    with pytest.raises(UsageError, match="fraction"):
        PathConfig(Scheme.REDUCE, read_fraction=fraction)


def test_a_fraction_that_is_set_is_checked_as_well(nodes: LocalNodes) -> None:
    with Opened(nodes, HYBRID, 1.0) as world:
        for fraction in (0.0, 1.5, float("nan")):
            with pytest.raises(UsageError, match="fraction"):
                world.path.read_fraction = fraction
        assert world.path.read_fraction == 1.0
    with DualPath(HYBRID, PathConfig(Scheme.LOCAL)) as path, pytest.raises(UsageError, match="reads all far blocks"):
        path.read_fraction = 0.5
