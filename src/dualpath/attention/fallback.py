"""The Python kernel: the contract of `base` in float32 numpy, for machines without the native one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dualpath.attention.base import BlockTable, Geometry, State
from dualpath.attention.storage import read_block
from dualpath.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]


def attend(
    state: State,
    q: Float32,
    row_position: NDArray[np.int64],
    blocks: BlockTable,
    geometry: Geometry,
    *,
    scale: float,
    softcap: float,
    window: int,
) -> None:
    """Fold all blocks into `state`, block by block. Arguments must have been validated."""
    import numpy as np

    for sequence in range(len(blocks.row_start) - 1):
        rows = slice(int(blocks.row_start[sequence]), int(blocks.row_start[sequence + 1]))
        if rows.start == rows.stop:
            continue
        scaled = _grouped(q[rows], geometry.kv_heads) * scale
        positions = row_position[rows]
        for index in range(int(blocks.block_start[sequence]), int(blocks.block_start[sequence + 1])):
            seen = _visible(positions, int(blocks.position[index]), int(blocks.tokens[index]), window)
            if seen.any():
                with np.errstate(invalid="ignore"):  # what is not finite shows in the result
                    keys, values = read_block(blocks, index, geometry)
                    _fold_block(state, rows, scaled, keys, values, seen, softcap)


def _grouped(q: Float32, kv_heads: int) -> Float32:
    """Return q `[rows, heads, dim]` as `[kv_heads, rows · group, dim]`."""
    rows, heads, dim = q.shape
    return q.reshape(rows, kv_heads, heads // kv_heads, dim).transpose(1, 0, 2, 3).reshape(kv_heads, -1, dim)


def _visible(positions: NDArray[np.int64], first: int, tokens: int, window: int) -> NDArray[np.bool_]:
    import numpy as np

    keys = first + np.arange(tokens)
    seen = keys[None] <= positions[:, None]
    if window:
        seen &= keys[None] > positions[:, None] - window
    return seen


def _fold_block(
    state: State, rows: slice, q: Float32, keys: Float32, values: Float32, seen: NDArray[np.bool_], softcap: float
) -> None:
    import numpy as np

    kv_heads, wide, _ = q.shape
    count = len(seen)
    group = wide // count
    scores = q @ keys.transpose(0, 2, 1)
    if softcap:
        scores = softcap * np.tanh(scores / np.float32(softcap))
    scores = np.where(seen.repeat(group, axis=0)[None], scores, np.float32(-np.inf))
    high = scores.max(axis=2)
    weights = np.exp(scores - np.where(np.isneginf(high), 0, high)[..., None])

    def by_row(x: Float32) -> Float32:
        split = x.reshape(kv_heads, count, group, *x.shape[2:])
        return np.moveaxis(split, 0, 1).reshape(count, kv_heads * group, *x.shape[2:])

    total = weights.sum(axis=2)
    high = np.where(np.isnan(total), total, high)
    fold_triple(state, rows, by_row(high), by_row(total), by_row(_weighted(weights, values, seen)))


def _weighted(weights: Float32, values: Float32, seen: NDArray[np.bool_]) -> Float32:
    """Return `weights @ values`, in which values that are not finite reach the rows alone that see them: a weight of
    zero would not keep them out."""
    import numpy as np

    finite: NDArray[np.bool_] = np.asarray(np.isfinite(values).all(axis=(0, 2)))
    if finite.all():
        return weights @ values
    acc: Float32 = weights @ np.where(finite[:, None], values, np.float32(0))
    visible = seen.repeat(weights.shape[1] // len(seen), axis=0)
    for token in np.flatnonzero(~finite):
        added = weights[:, :, token, None] * values[:, None, token]
        acc += np.where(visible[None, :, token, None], added, np.float32(0))
    return acc


def fold_triple(state: State, rows: slice, high: Float32, total: Float32, acc: Float32) -> None:
    """Fold `(max, exp_sum, acc)` of later keys into rows `rows` of `state`. Empty entries (max -inf) change nothing."""
    import numpy as np

    old = state.max[rows]
    top = np.maximum(old, high)
    safe = np.where(np.isneginf(top), np.float32(0), top)
    keep, take = np.exp(old - safe), np.exp(high - safe)
    state.exp_sum[rows] = state.exp_sum[rows] * keep + total * take
    state.acc[rows] = state.acc[rows] * keep[..., None] + acc * take[..., None]
    state.max[rows] = top


def finish(state: State, sinks: Float32 | None) -> tuple[Float32, Float32]:
    """Do what `partials.finish` does."""
    import numpy as np

    high, total, acc = state.max, state.exp_sum, state.acc
    if sinks is not None:
        top = np.maximum(high, sinks[None].astype(np.float32))
        safe = np.where(np.isneginf(top), np.float32(0), top)
        keep = np.exp(high - safe)
        total = total * keep + np.exp(sinks[None].astype(np.float32) - safe)
        acc = acc * keep[..., None]
        high = top
    some = ~(total <= 0)  # a NaN is not nothing
    divisor = np.where(some, total, np.float32(1))
    lse: Float32 = np.where(some, high + np.log(divisor), np.float32(-np.inf)).astype(np.float32, copy=False)
    return (acc / divisor[..., None]).astype(np.float32, copy=False), lse


def combine(states: Sequence[State]) -> State:
    """Do what `partials.combine` does with one state or more."""
    import numpy as np

    if any(state.acc.shape != states[0].acc.shape for state in states):
        raise UsageError("combine: the states have different shapes")
    top = states[0].max
    for state in states[1:]:
        top = np.maximum(top, state.max)
    safe = np.where(np.isneginf(top), np.float32(0), top)
    weight = np.exp(states[0].max - safe)
    exp_sum, acc = states[0].exp_sum * weight, states[0].acc * weight[..., None]
    for state in states[1:]:
        weight = np.exp(state.max - safe)
        exp_sum += state.exp_sum * weight
        acc += state.acc * weight[..., None]
    return State(top, exp_sum, acc)
