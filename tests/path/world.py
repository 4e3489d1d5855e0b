"""A dual path driven by random q, k, v instead of a model, beside a float64 record of everything it was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dualpath.attention import BlockTable, reference
from dualpath.kv import KVLayout, LayerGroup, LayerKind, codecs
from dualpath.path import DualPath, SequenceId

FULL = LayerGroup(kind=LayerKind.FULL, layers=(0, 2), query_heads=6, kv_heads=2, head_dim=16, value_dim=16)
SLIDING = LayerGroup(
    kind=LayerKind.SLIDING, layers=(1,), query_heads=6, kv_heads=2, head_dim=16, value_dim=16, window=21
)
LATENT = LayerGroup(kind=LayerKind.LATENT, layers=(0, 1, 2), query_heads=4, kv_heads=1, head_dim=24, value_dim=16)

PATIENCE_S = 60.0  # only a hang exceeds it

HYBRID = KVLayout((FULL, SLIDING), "float32", block_tokens=8, model="hybrid")
MLA = KVLayout((LATENT,), "float32", block_tokens=8, model="mla")


@dataclass
class World:
    """Gives a path random tokens and checks every layer's output against float64 over all that the sequence holds."""

    path: DualPath
    seed: int = 0
    tolerance: float = 2e-5
    kept: dict[SequenceId, list[list[tuple[Any, Any]]]] = field(default_factory=dict)
    outs: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.layers = sorted(layer for group in self.path.layout.groups for layer in group.layers)

    def group(self, layer: int) -> LayerGroup:
        return next(group for group in self.path.layout.groups if layer in group.layers)

    def open(self) -> SequenceId:
        sequence = self.path.open()
        self.kept[sequence] = [[] for _ in self.layers]
        return sequence

    def fork(self, sequence: SequenceId) -> SequenceId:
        child = self.path.fork(sequence)
        self.kept[child] = [list(rows) for rows in self.kept[sequence]]
        return child

    def crop(self, sequence: SequenceId, length: int) -> None:
        self.path.crop(sequence, length)
        self.kept[sequence] = [rows[:length] for rows in self.kept[sequence]]

    def close(self, sequence: SequenceId) -> None:
        self.path.close_sequence(sequence)
        del self.kept[sequence]

    def append(self, sequence: SequenceId, count: int) -> None:
        """Append tokens in steps that hot region and window can take."""
        while count:
            now = self.path.room(sequence, count)
            self.step([(sequence, now)])
            count -= now

    def step(self, batch: Sequence[tuple[SequenceId, int]], *, commit: bool = True) -> None:
        """Append tokens with random k and v, ask with random q, and compare. What the path counts is recorded."""
        ids = [(sequence, self.random.integers(0, 999, count).tolist()) for sequence, count in batch]
        step = self.path.begin(ids)
        rows = sum(count for _, count in batch)
        fresh: list[list[tuple[Any, Any]]] = []
        try:
            for layer in self.layers:
                group = self.group(layer)
                q = self.random.standard_normal((rows, group.query_heads, group.head_dim)).astype(np.float32) * 2
                k = self.random.standard_normal((rows, group.kv_heads, group.head_dim)).astype(np.float32)
                v = self.random.standard_normal(k.shape).astype(np.float32)
                latent = group.kind is LayerKind.LATENT
                fresh.append(list(zip(k, v, strict=True)))
                out = step.attend(layer, q, k, None if latent else v, scale=0.3)
                self.outs.append(out)
                self._compare(layer, batch, fresh[-1], q, out)
            if commit:
                step.commit()
        finally:
            step.abort()
            at = 0
            for sequence, count in batch:
                if self.path.length(sequence) > len(self.kept[sequence][0]):
                    for layer, new in zip(self.layers, fresh, strict=True):
                        self._keep(sequence, layer, new[at : at + count])
                at += count

    def _keep(self, sequence: SequenceId, layer: int, new: list[tuple[Any, Any]]) -> None:
        """Record new tokens; where sealed blocks are quantised, blocks that are full by now read as they are kept."""
        layout, rows = self.path.layout, self.kept[sequence][layer]
        size, before = layout.block_tokens, len(rows)
        rows += new
        if not layout.kv_dtype:
            return
        for first in range(before // size * size, len(rows) - size + 1, size):
            pairs = rows[first : first + size]
            k, v = (as_kept(np.stack([pair[i] for pair in pairs], 1), layout.kv_dtype) for i in (0, 1))
            rows[first : first + size] = list(zip(k.swapaxes(0, 1), v.swapaxes(0, 1), strict=True))

    def _compare(
        self, layer: int, batch: Sequence[tuple[SequenceId, int]], new: list[tuple[Any, Any]], q: Any, out: Any
    ) -> None:
        group, at = self.group(layer), 0
        for sequence, count in batch:
            pairs = self.kept[sequence][layer] + new[at : at + count]
            exact = float64(group, pairs, q[at : at + count])
            np.testing.assert_allclose(out[at : at + count], exact, rtol=0, atol=self.tolerance)
            at += count


def as_kept(block: Any, dtype: str) -> Any:
    """Return `[kv_heads, tokens, head_dim]` as it reads after it was kept in `dtype`."""
    return codecs.decode(codecs.encode(block, dtype), dtype, block.shape)


def float64(group: LayerGroup, pairs: list[tuple[Any, Any]], q: Any) -> Any:
    """Return the attention of the last `len(q)` tokens over `pairs` of (k, v), each `[kv_heads, head_dim]`."""
    from dualpath.attention import Geometry

    total = len(pairs)
    k = np.stack([pair[0] for pair in pairs], 1)
    latent = group.kind is LayerKind.LATENT
    data = k if latent else np.stack([k, np.stack([pair[1] for pair in pairs], 1)], 1)
    table = BlockTable(
        buffers=[np.ascontiguousarray(data).view(np.uint8).reshape(-1)],
        buffer=np.zeros(1, np.int32),
        offset=np.zeros(1, np.int64),
        tokens=np.array([total], np.int32),
        position=np.zeros(1, np.int64),
        row_start=np.array([0, len(q)], np.int32),
        block_start=np.array([0, 1], np.int32),
    )
    geometry = Geometry(group.kv_heads, group.head_dim, group.value_dim, total, "float32", latent)
    position = np.arange(total - len(q), total, dtype=np.int64)
    return reference.attend(q, position, table, geometry, scale=0.3, window=group.window).out
