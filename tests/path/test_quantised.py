"""Sealed blocks in one byte an element, over real nodes: every scheme against float64 over what was kept, bit for bit
among each other, on the wire, in tiny budgets, and after what can go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from dualpath.errors import CapacityError
from dualpath.kv import QUANTISED, KVLayout
from dualpath.path import DualPath, PathConfig, Scheme
from dualpath.path.explain import explain
from dualpath.path.fill import block_bytes
from dualpath.path.staging import scratch_bytes
from dualpath.testing.pool import LocalNodes

from .test_dualpath import connect
from .world import HYBRID, MLA, PATIENCE_S, World

REMOTE = [scheme for scheme in Scheme if scheme is not Scheme.LOCAL]


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    with LocalNodes(2, capacity=64 << 20, threads=1) as running:
        yield running


def quantised(layout: KVLayout, dtype: str = "int8", **changes: object) -> KVLayout:
    return replace(layout, kv_dtype=dtype, model=f"{layout.model}-{dtype}", **changes)


class Opened:
    """A path over its own pool connection. `hot` counts sealed blocks beside one open; `window` is units of scratch."""

    def __init__(self, nodes: LocalNodes, layout: KVLayout, scheme: Scheme, hot: int = 2, window: int = 6) -> None:
        self.pool = connect(nodes, scheme, f"{layout.model}-{scheme.value}")
        largest = max(layout.layer_block_bytes(group) for group in layout.groups)
        config = PathConfig(
            scheme,
            hot_bytes=layout.open.block_bytes + hot * layout.block_bytes,
            window_bytes=window * scratch_bytes(layout) + largest,
            threads=2,
            deadline_s=PATIENCE_S,
        )
        self.path = DualPath(layout, config, self.pool)
        self.world = World(self.path)

    def __enter__(self) -> World:
        return self.world

    def __exit__(self, *exc: object) -> None:
        self.path.close()
        assert self.path.arena.used_bytes == 0
        if self.pool is not None:
            self.pool.close()


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("layout", [HYBRID, MLA], ids=lambda layout: layout.model)
@pytest.mark.parametrize("scheme", list(Scheme), ids=lambda scheme: scheme.value)
def test_every_scheme_agrees_with_float64_over_what_is_kept(
    nodes: LocalNodes, scheme: Scheme, layout: KVLayout, dtype: str
) -> None:
    with Opened(nodes, quantised(layout, dtype), scheme, hot=8) as world:
        a = world.open()
        world.append(a, 29)
        for _ in range(20):
            world.step([(a, 1)])
        b = world.fork(a)
        world.step([(a, 3), (b, 2)])
        for _ in range(12):
            world.step([(b, 1), (a, 1)])
        world.crop(b, 43)
        world.crop(a, 60)
        world.step([(a, 5), (b, 4)])
        world.step([(a, 4)], commit=False)
        world.close(a)
        c = world.open()
        world.step([(c, 11), (b, 1)])
        assert world.path.metrics.peak_local_bytes <= world.path.arena.total_bytes


def test_schemes_are_bitwise_equal(nodes: LocalNodes) -> None:
    outs = []
    for scheme, hot, window in (
        (Scheme.LOCAL, 0, 3),
        (Scheme.FETCH, 0, 3),
        (Scheme.SHARDED, 1, 2),
        (Scheme.BASELINE, 3, 4),
        (Scheme.MAPPED, 0, 3),
    ):
        with Opened(nodes, quantised(HYBRID), scheme, hot=hot, window=window) as world:
            a = world.open()
            for count in (8, 16, 5, 1, 1, 1, 9, 1):
                world.step([(a, count)])
            outs.append(world.outs)
    for other in outs[1:]:
        assert all(np.array_equal(x, y) for x, y in zip(outs[0], other, strict=True))


def test_prompts_are_cut_alike_by_all_schemes(nodes: LocalNodes) -> None:
    """Where a chunk ends decides what its queries see quantised, so it must not depend on the scheme."""
    cuts = []
    for scheme in (Scheme.LOCAL, Scheme.SHARDED):
        with Opened(nodes, quantised(HYBRID), scheme, window=3) as world:
            a, taken = world.open(), []
            for left in (100, 90, 77, 50, 20, 5):
                taken.append(world.path.room(a, left))
                world.step([(a, taken[-1])])
            cuts.append(taken)
    assert cuts[0] == cuts[1]


@pytest.mark.parametrize("scheme", REMOTE, ids=lambda scheme: scheme.value)
def test_the_smallest_budgets(nodes: LocalNodes, scheme: Scheme) -> None:
    layout = quantised(HYBRID)
    with Opened(nodes, layout, scheme, hot=0, window=1) as world:
        a = world.open()
        world.append(a, 50)
        for _ in range(10):
            world.step([(a, 1)])
        path = world.path
        assert path.metrics.peak_local_bytes <= path.arena.total_bytes
        small = PathConfig(scheme, path.config.hot_bytes - 1, path.config.window_bytes)
        with pytest.raises(CapacityError, match="hot region"):
            DualPath(layout, small, path.pool)
        small = PathConfig(scheme, path.config.hot_bytes, path.config.window_bytes - 1)
        with pytest.raises(CapacityError, match="window"):
            DualPath(layout, small, path.pool)


@pytest.mark.parametrize("scheme", [Scheme.LOCAL, Scheme.SHARDED], ids=lambda scheme: scheme.value)
def test_an_aborted_step_leaves_the_open_tail_as_it_was(nodes: LocalNodes, scheme: Scheme) -> None:
    with Opened(nodes, quantised(HYBRID), scheme, hot=8) as world:
        a = world.open()
        world.step([(a, 13)])
        used = world.path.arena.used_bytes
        world.step([(a, 9)], commit=False)  # would have sealed the tail and one more
        assert world.path.arena.used_bytes == used
        world.step([(a, 2)])


def test_half_the_bytes_of_bf16(nodes: LocalNodes) -> None:
    """Counted at the sockets, headers included, in a scheme that reads what it needs and nothing ahead."""
    wide = replace(HYBRID, dtype="bfloat16", block_tokens=256, groups=HYBRID.groups[:1])
    received = {}
    for layout in (replace(wide, model="wire-bf16"), quantised(replace(wide, model="wire"))):
        with Opened(nodes, layout, Scheme.BASELINE, hot=0, window=3) as world:
            a, pool = world.open(), world.path.pool
            assert pool is not None
            world.path.fill_random(a, 8 * 256, seed=1)
            before = sum(node.counters.rx_bytes for node in pool.nodes)
            step = world.path.begin([(a, [1])])
            k = np.zeros((1, 2, 16), np.uint16)
            for layer in (0, 2):
                step.attend(layer, np.zeros((1, 6, 16), np.float32), k, k, scale=1.0)
            step.commit()
            received[layout.kv_dtype] = sum(node.counters.rx_bytes for node in pool.nodes) - before
    assert received[""] > 8 * 256 * 2 * 2 * 2 * 16 * 2
    assert received["int8"] / received[""] < 0.51


def test_explain_reads_both_kinds(nodes: LocalNodes) -> None:
    with Opened(nodes, quantised(MLA), Scheme.REDUCE) as world:
        a = world.open()
        world.append(a, 45)
        step, reports = world.path.begin([(a, [1])]), []
        step.observer = lambda seen: reports.append(explain(world.path, seen))
        rng = np.random.default_rng(0)
        for layer in range(3):
            q = rng.standard_normal((1, 4, 24)).astype(np.float32)
            step.attend(layer, q, q[:, :1].copy(), None, scale=0.3)
        step.abort()
        assert len(reports) == 3
        assert max(report.out_error for report in reports) < 2e-5


@pytest.mark.parametrize("dtype", QUANTISED)
def test_random_kv_is_the_same_wherever_it_lies(nodes: LocalNodes, dtype: str) -> None:
    stored = []
    for scheme in (Scheme.LOCAL, Scheme.SHARDED):
        with Opened(nodes, quantised(HYBRID, dtype), scheme) as world:
            a = world.open()
            world.path.fill_random(a, 64, seed=3)
            stored.append([block_bytes(world.path, a, index) for index in range(8)])
    assert stored[0] == stored[1]
