"""Which blocks can matter to a query, told from the bounds of their keys alone.

A block's bounds are the largest and the smallest value of each column of its keys. No key of it scores higher than

    q·k  <=  Σ_d max(q_d · high_d, q_d · low_d)  =  relu(q)·high - relu(-q)·low

(Quest: Tang et al. 2024, arXiv 2406.10774, section 3.3), so that a product with `[high, low]` bounds every block at
once. Scores of different query heads have no common measure. What a block is worth to a head is therefore the share of
the head's attention that it would have if all blocks reached their bounds; blocks are ranked by the sum over the heads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dualpath.attention.base import Geometry
from dualpath.attention.storage import read_keys
from dualpath.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]

_ROUNDING = 1e-9


def check_fraction(fraction: float) -> None:
    """Raise `UsageError` unless `0 < fraction <= 1`."""
    if not 0.0 < fraction <= 1.0:
        raise UsageError(f"cannot read a fraction of {fraction:g} of the blocks", hint="more than 0, at most 1")


def key_bounds(raw: NDArray[np.uint8], geometry: Geometry, tokens: int) -> Float32:
    """Return the bounds of the first `tokens` keys of a layer block (1-D uint8): float32 `[kv_heads, 2 * head_dim]`,
    of each column the largest, then of each the smallest. Exact in every dtype: they are values of keys as attention
    reads them. A column with a NaN has NaN for bounds."""
    import numpy as np

    keys = read_keys(raw, geometry, tokens)
    return np.concatenate([keys.max(axis=1), keys.min(axis=1)], axis=-1)


def score_bounds(q: Float32, bounds: Float32) -> Float32:
    """Return what no key of a block scores higher than, up to rounding: float32 `[query_heads, blocks]`.

    q: float32 `[query_heads, head_dim]`, one row, times the scale of scores; a soft cap does not change the order.
    bounds: float32 `[kv_heads, blocks, 2 * head_dim]`. What cannot be told (NaN) is infinite.
    """
    import numpy as np

    heads, width = q.shape
    both = np.concatenate([np.maximum(q, 0), np.minimum(q, 0)], axis=-1)
    grouped = both.reshape(len(bounds), heads // len(bounds), 2 * width)
    with np.errstate(invalid="ignore", over="ignore"):
        found: Float32 = np.matmul(grouped, bounds.swapaxes(1, 2)).reshape(heads, bounds.shape[1])
    found[np.isnan(found)] = np.inf
    return found


def rank(scores: Float32, tokens: NDArray[np.int32]) -> Float32:
    """Return what each block is worth, float32 `[blocks]`: the sum of the shares that the heads would give it.

    scores: as of `score_bounds`; tokens: int32 `[blocks]`. An infinite bound is worth more than any other.
    """
    import numpy as np

    lost = np.isposinf(scores)
    finite = np.where(lost, -np.inf, scores)
    high = np.maximum(finite.max(axis=1, keepdims=True), np.finfo(np.float32).min)
    shares = np.exp(finite - high) * tokens
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    shares[lost] = np.inf
    worth: Float32 = shares.sum(axis=0)
    return worth


def count_of(fraction: float, blocks: int) -> int:
    """Return how many of `blocks` blocks a fraction is: rounded up, and at least one (of at least one)."""
    return min(blocks, max(1, math.ceil(fraction * blocks - _ROUNDING)))


def choose(
    q: Float32, bounds: Float32, tokens: NDArray[np.int32], fraction: float, *, keep: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return which blocks to read, int64, ascending: `count_of(fraction, blocks)` of them.

    Those of `keep` (bool `[blocks]`) come first, then those worth most; of equals the earlier. The rest as in
    `score_bounds` and `rank`.
    """
    import numpy as np

    worth = rank(score_bounds(q, bounds), tokens)
    order = np.lexsort((-worth, ~keep))
    return np.sort(order[: count_of(fraction, len(tokens))])
