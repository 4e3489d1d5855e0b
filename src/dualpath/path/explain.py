"""Comparing partials with the truth: what each part of the context contributed, and what a missing rescale would do.

A partial's max and exp-sum are (m, z) of online softmax; its share of the attention is z·e^(m − lse), with the lse of
the whole. Merged without the rescale e^(m − max m), partials are weighted by z alone: harmless while their maxima are
close, ruinous when they are not, and silent either way. So this is measured against float64 over the same KV, read back
from the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dualpath.attention import reference
from dualpath.attention.base import BlockTable, Geometry, State
from dualpath.attention.storage import shape_of
from dualpath.kv import codecs
from dualpath.path.fill import read_layer_block

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dualpath.path.dualpath import DualPath
    from dualpath.path.step import Observation

    Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class PartialReport:
    """One partial of one layer; arrays are float64 `[rows, query_heads]`. `share` sums to 1 over the partials."""

    where: str
    tokens: int
    max: Float64
    exp_sum: Float64
    share: Float64


@dataclass(frozen=True)
class LayerReport:
    """One layer. Errors are the largest absolute ones: of the merged out, of lse, and of an out merged unscaled."""

    layer: int
    partials: list[PartialReport]
    out_error: float
    lse_error: float
    unscaled_error: float


def explain(path: DualPath, seen: Observation) -> LayerReport:
    """Return the report of one observed layer. Raises `BlockLostError` if a node cannot give its blocks back."""
    blocks, geometry = _all_blocks(path, seen)
    exact = reference.attend(
        seen.q,
        np.concatenate([np.arange(first, first + rows) for first, rows in _rows(seen)]).astype(np.int64),
        blocks,
        geometry,
        scale=seen.scale,
        softcap=seen.softcap,
        window=seen.plan.group.window,
        sinks=seen.sinks,
    )
    states = [state for _, state, _ in seen.partials]
    lse = _lse(states, seen.sinks)
    partials = [
        PartialReport(
            where, tokens, state.max.astype(float), state.exp_sum.astype(float), np.exp(_log_weight(state) - exact.lse)
        )
        for where, state, tokens in seen.partials
    ]
    return LayerReport(
        seen.layer,
        partials,
        out_error=float(np.abs(seen.out - exact.out).max()),
        lse_error=float(np.abs(lse - exact.lse).max()),
        unscaled_error=float(np.abs(merge_unscaled(states) - exact.out).max()),
    )


def merge_unscaled(states: Sequence[State]) -> Float64:
    """Return what a merge without the rescale gives: Σ acc / Σ z, whatever each partial's max. Wrong on purpose."""
    acc = sum((state.acc.astype(float) for state in states), np.zeros(states[0].acc.shape))
    total = sum((state.exp_sum.astype(float) for state in states), np.zeros(states[0].exp_sum.shape))
    out: Float64 = acc / np.where(total > 0, total, 1.0)[..., None]
    return out


def _log_weight(state: State) -> Float64:
    with np.errstate(divide="ignore"):
        out: Float64 = state.max.astype(float) + np.log(state.exp_sum.astype(float))
    return out


def _lse(states: Sequence[State], sinks: NDArray[np.float32] | None) -> Float64:
    parts = [_log_weight(state) for state in states]
    if sinks is not None:
        parts.append(np.broadcast_to(sinks.astype(float), parts[0].shape))
    out: Float64 = np.logaddexp.reduce(parts, axis=0)
    return out


def _rows(seen: Observation) -> list[tuple[int, int]]:
    """Return each sequence's first row position and number of rows (a step under observation has one sequence)."""
    return [(seen.plan.first_rows[0], len(seen.q))]


def _all_blocks(path: DualPath, seen: Observation) -> tuple[BlockTable, Geometry]:
    """Return the blocks that a layer saw, widened to float32: sealed and open ones may be stored in different ways."""
    plan = seen.plan
    parts = [
        (plan.reduced, plan.geometry),
        (plan.far, plan.geometry),
        *((near.table, near.geometry) for near in plan.near),
    ]
    buffers: list[NDArray[np.uint8]] = []
    for table, geometry in parts:
        for entry in table.entries:
            raw = np.frombuffer(read_layer_block(path, entry, plan.index, seen.index), np.uint8)
            wide = codecs.decode(raw, geometry.dtype, shape_of(geometry))
            buffers.append(codecs.encode(wide, "float32"))
    entries = [entry for table, _ in parts for entry in table.entries]
    count = len(entries)
    whole = BlockTable(
        buffers=buffers,
        buffer=np.arange(count, dtype=np.int32),
        offset=np.zeros(count, np.int64),
        tokens=np.array([entry.tokens for entry in entries], np.int32),
        position=np.array([entry.block.position for entry in entries], np.int64),
        row_start=np.array([0, len(seen.q)], np.int32),
        block_start=np.array([0, count], np.int32),
    )
    return whole, msgspec.structs.replace(plan.geometry, dtype="float32")
