"""The tool that compares partials with float64 sees a missing rescale as soon as there is something to rescale."""

from __future__ import annotations

import numpy as np

import dualpath
from dualpath.path import DualPath, PathConfig, Scheme
from dualpath.path.explain import LayerReport, explain
from dualpath.path.step import Observation
from dualpath.pool.local import LocalNodes

from .world import MLA, World


def observe(world: World, sequence: object) -> list[LayerReport]:
    """Return the reports of one decode step, which is undone."""
    seen: list[Observation] = []
    step = world.path.begin([(sequence, [1])])  # type: ignore[list-item]  # an id is a number
    step.observer = seen.append
    for layer in world.layers:
        group = world.group(layer)
        q = world.random.standard_normal((1, group.query_heads, group.head_dim)).astype(np.float32) * 4
        k = world.random.standard_normal((1, group.kv_heads, group.head_dim)).astype(np.float32)
        step.attend(layer, q, k, None, scale=0.3)
    reports = [explain(world.path, one) for one in seen]
    step.abort()
    return reports


def test_a_missing_rescale_shows_at_the_first_length_with_a_remote_block() -> None:
    with LocalNodes(2, capacity=16 << 20, threads=1) as nodes, dualpath.connect(nodes.spec) as pool:
        config = PathConfig(Scheme.REDUCE, hot_bytes=2 * MLA.block_bytes, window_bytes=8 * MLA.block_bytes)
        with DualPath(MLA, config, pool) as path:
            world = World(path)
            sequence = world.open()
            noticed = None
            for length in range(4, 60, 4):
                world.append(sequence, length - path.length(sequence))
                for report in observe(world, sequence):
                    assert report.out_error < 1e-5
                    assert report.lse_error < 1e-5
                    np.testing.assert_allclose(sum(part.share for part in report.partials), 1.0, atol=1e-5)
                    assert sum(part.tokens for part in report.partials) == length + 1
                    if len(report.partials) > 1:
                        assert report.unscaled_error > 1e-2
                        noticed = noticed or length
                    else:
                        assert report.unscaled_error < 1e-5
            assert noticed == 16  # two hot blocks of eight tokens: with the 17th, the first block is remote
