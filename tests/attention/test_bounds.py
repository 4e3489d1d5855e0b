"""Bounds of keys: above every score, in every dtype; and the choice of blocks against a plain reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.attention import Geometry
from dualpath.attention.bounds import check_fraction, choose, count_of, key_bounds, rank, score_bounds
from dualpath.attention.storage import DTYPE_CODE, read_keys, shape_of
from dualpath.errors import UsageError
from dualpath.kv import codecs

TOKENS = 8


def stored(geometry: Geometry, seed: int, tokens: int = TOKENS) -> np.ndarray:
    """Return a layer block with columns of very different sizes, and junk behind its tokens."""
    rng = np.random.default_rng(seed)
    data = rng.standard_normal(shape_of(geometry)) * 10.0 ** rng.integers(-2, 3, geometry.head_dim)
    data[..., tokens:, :] = 1e4
    return codecs.encode(data.astype(np.float32), geometry.dtype, tokens)


def geometry_of(dtype: str, *, latent: bool) -> Geometry:
    return Geometry(1 if latent else 2, 12, 8 if latent else 12, TOKENS, dtype, latent)


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("dtype", DTYPE_CODE)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), tokens=st.integers(1, TOKENS), scale=st.sampled_from([0.25, 1.0, -0.5]))
def test_no_key_scores_above_its_bound(dtype: str, latent: bool, seed: int, tokens: int, scale: float) -> None:
    geometry = geometry_of(dtype, latent=latent)
    raw = stored(geometry, seed, tokens)
    q = np.random.default_rng(seed + 1).standard_normal((4, 12)).astype(np.float32) * np.float32(scale)
    bounds = key_bounds(raw, geometry, tokens)
    keys = read_keys(raw, geometry, tokens).astype(np.float64)
    scores = np.einsum("gjd,gtd->gjt", q.reshape(geometry.kv_heads, -1, 12).astype(np.float64), keys)
    found = score_bounds(q, bounds[:, None]).reshape(*scores.shape[:2], 1)
    room = 1e-5 * np.einsum("gjd,gtd->gjt", np.abs(q.reshape(geometry.kv_heads, -1, 12)), np.abs(keys))
    assert (scores <= found + room).all()
    assert bounds.shape == (geometry.kv_heads, 24)
    one = score_bounds(np.eye(12, dtype=np.float32)[:2], bounds[:1, None])  # a query of one column reaches its bound
    np.testing.assert_allclose(one[:, 0], keys[0].max(axis=0)[:2], rtol=1e-6)


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("dtype", DTYPE_CODE)
def test_keys_are_what_attention_reads(dtype: str, latent: bool) -> None:
    geometry = geometry_of(dtype, latent=latent)
    raw = stored(geometry, 5)
    whole = codecs.decode(raw, dtype, shape_of(geometry))
    np.testing.assert_array_equal(read_keys(raw, geometry, 5), whole[:, :5] if latent else whole[:, 0, :5])


def plain_choice(q: np.ndarray, bounds: np.ndarray, tokens: np.ndarray, fraction: float, keep: set[int]) -> list[int]:
    """The same choice, one number after another."""
    heads, width = q.shape
    group, blocks = heads // len(bounds), bounds.shape[1]
    worth = [0.0] * blocks
    for head in range(heads):
        weights = []
        for block in range(blocks):
            high, low = np.split(bounds[head // group, block].astype(float), 2)
            top = sum(max(float(q[head, d]) * high[d], float(q[head, d]) * low[d]) for d in range(width))
            weights.append(int(tokens[block]) * math.exp(top))
        for block in range(blocks):
            worth[block] += weights[block] / sum(weights)
    order = sorted(range(blocks), key=lambda block: (block not in keep, -worth[block], block))
    return sorted(order[: max(1, math.ceil(fraction * blocks))])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    blocks=st.integers(1, 12),
    fraction=st.sampled_from([0.125, 0.25, 0.5, 0.9, 1.0]),
    sink=st.booleans(),
)
def test_the_choice_is_that_of_the_formula(seed: int, blocks: int, fraction: float, sink: bool) -> None:
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((2, blocks, 5, 6)).astype(np.float32)
    bounds = np.concatenate([keys.max(2), keys.min(2)], -1)
    q = rng.standard_normal((6, 6)).astype(np.float32)
    tokens = rng.integers(1, 6, blocks).astype(np.int32)
    keep = np.zeros(blocks, bool)
    keep[0] = sink
    found = choose(q, bounds, tokens, fraction, keep=keep)
    assert found.tolist() == plain_choice(q, bounds, tokens, fraction, {0} if sink else set())


def test_one_loud_head_does_not_decide_alone() -> None:
    """Largest bounds would take what the loud head prefers by a hair; shares take what the quiet heads need."""
    scores = np.array([[100.0, 100.1, 100.0], [6.0, 0.0, 0.0], [0.0, 0.0, 6.0]], np.float32)
    worth = rank(scores, np.ones(3, np.int32))
    assert np.argsort(worth).tolist() == [1, 0, 2] or np.argsort(worth).tolist() == [1, 2, 0]


def test_what_cannot_be_told_is_read() -> None:
    """A block with a NaN is chosen, so that it shows as when everything is read; the others keep their order."""
    bounds = np.zeros((1, 4, 4), np.float32)
    bounds[0, :, 0] = [1.0, 2.0, np.nan, 3.0]
    q = np.array([[1.0, 0.0], [2.0, 0.0]], np.float32)
    tokens, nothing = np.full(4, 8, np.int32), np.zeros(4, bool)
    assert choose(q, bounds, tokens, 0.25, keep=nothing).tolist() == [2]
    assert choose(q, bounds, tokens, 0.5, keep=nothing).tolist() == [2, 3]
    bounds[...] = np.nan
    assert choose(q, bounds, tokens, 0.5, keep=nothing).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("fraction", "blocks", "count"),
    [
        (1.0, 7, 7),
        (0.5, 7, 4),
        (0.1, 30, 3),
        (0.25, 1, 1),
        (1e-9, 50, 1),
        (0.2, 5, 1),
        (0.7, 10, 7),
        (0.07, 100, 7),
        (0.5, 0, 0),
    ],
)
def test_a_fraction_is_rounded_up(fraction: float, blocks: int, count: int) -> None:
    assert count_of(fraction, blocks) == count


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.01, math.nan, math.inf])
def test_no_such_fraction(fraction: float) -> None:
    with pytest.raises(UsageError, match="fraction"):
        check_fraction(fraction)
