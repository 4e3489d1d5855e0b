"""Attention over blocks in float64, slow and obviously right. The kernels are held against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dualpath.attention.base import BlockTable, Geometry
from dualpath.attention.storage import read_block

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Exact:
    """`out` `[rows, query_heads, value_dim]`, `lse`, `max` and `exp_sum` `[rows, query_heads]`, all float64."""

    out: Float64
    lse: Float64
    max: Float64
    exp_sum: Float64


def attend(
    q: NDArray[np.float32],
    row_position: NDArray[np.int64],
    blocks: BlockTable,
    geometry: Geometry,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    sinks: NDArray[np.float32] | None = None,
) -> Exact:
    """Return softmax(q·Kᵀ·scale)·V of every row over the visible keys of its sequence's blocks, all at once."""
    import numpy as np

    rows, heads, _ = q.shape
    group = heads // geometry.kv_heads
    out = np.zeros((rows, heads, geometry.value_dim))
    high = np.full((rows, heads), -np.inf)
    total = np.zeros((rows, heads))
    for sequence in range(len(blocks.row_start) - 1):
        owned = range(blocks.block_start[sequence], blocks.block_start[sequence + 1])
        if not len(owned):
            continue
        pairs = [read_block(blocks, i, geometry) for i in owned]
        keys = np.concatenate([k for k, _ in pairs], axis=1).astype(np.float64)
        values = np.concatenate([v for _, v in pairs], axis=1).astype(np.float64)
        position = np.concatenate([blocks.position[i] + np.arange(blocks.tokens[i]) for i in owned])
        for row in range(blocks.row_start[sequence], blocks.row_start[sequence + 1]):
            seen = position <= row_position[row]
            if window:
                seen &= position > row_position[row] - window
            if not seen.any():
                continue
            for head in range(heads):
                scores = keys[head // group][seen] @ q[row, head].astype(np.float64) * scale
                if softcap:
                    scores = softcap * np.tanh(scores / softcap)
                high[row, head] = scores.max()
                weights = np.exp(scores - scores.max())
                total[row, head] = weights.sum()
                out[row, head] = weights @ values[head // group][seen]
    return _normalise(out, high, total, sinks)


def _normalise(acc: Float64, high: Float64, total: Float64, sinks: NDArray[np.float32] | None) -> Exact:
    import numpy as np

    with np.errstate(divide="ignore"):
        lse = high + np.log(total)
    if sinks is not None:
        lse = np.logaddexp(lse, sinks.astype(np.float64))
    empty = np.isneginf(lse)
    factor = np.exp(np.where(empty, 0.0, high) - np.where(empty, 0.0, lse))
    return Exact(acc * np.where(empty, 0.0, factor)[..., None], lse, high, total)
