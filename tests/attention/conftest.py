"""Builds attention calls for the tests of this folder: random blocks scattered over buffers, junk around them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from dualpath.attention import BlockTable, Geometry, State, kernels, reference
from dualpath.attention.dispatch import attend_with
from dualpath.attention.partials import finish
from dualpath.attention.storage import layer_block_bytes
from dualpath.kv import QUANTISED, codecs


@dataclass(frozen=True)
class Case:
    q: np.ndarray
    row_position: np.ndarray
    table: BlockTable
    geometry: Geometry
    scale: float = 0.125
    softcap: float = 0.0
    window: int = 0

    def run(self, kernel: str, *, threads: int = 1, state: State | None = None) -> State:
        state = state or self.empty()
        attend_with(
            kernel, state, self.q, self.row_position, self.table, self.geometry,
            scale=self.scale, softcap=self.softcap, window=self.window, threads=threads,
        )  # fmt: skip
        return state

    def out(self, kernel: str, **options) -> tuple[np.ndarray, np.ndarray]:
        return finish(self.run(kernel, **options))

    def empty(self) -> State:
        return State.empty(self.q.shape[0], self.q.shape[1], self.geometry.value_dim)

    def exact(self) -> reference.Exact:
        return reference.attend(
            self.q, self.row_position, self.table, self.geometry,
            scale=self.scale, softcap=self.softcap, window=self.window,
        )  # fmt: skip

    def error(self, kernel: str, **options) -> float:
        """Largest difference from float64, over out and lse. -inf must be where it belongs."""
        (out, lse), exact = self.out(kernel, **options), self.exact()
        assert (np.isneginf(lse) == np.isneginf(exact.lse)).all()
        seen = ~np.isneginf(lse)
        gaps = [np.abs(out - exact.out).ravel(), np.abs(lse[seen] - exact.lse[seen])]
        return float(np.concatenate(gaps).max(initial=0))

    def with_blocks(self, begin: int, end: int) -> Case:
        """The same rows against blocks [begin, end) of the table only."""
        t, cut = self.table, slice(begin, end)
        starts = (np.clip(t.block_start, begin, end) - begin).astype(np.int32)
        table = BlockTable(
            t.buffers, t.buffer[cut], t.offset[cut], t.tokens[cut], t.position[cut], t.row_start, starts
        )  # fmt: skip
        return replace(self, table=table)


def make(
    seed: int = 0,
    *,
    dtype: str = "float32",
    kv_heads: int = 2,
    group: int = 2,
    head_dim: int = 64,
    value_dim: int | None = None,
    block_tokens: int = 16,
    sequences: tuple[tuple[int, int], ...] = ((1, 40),),
    latent: bool = False,
    future: int = 0,
    loud: float = 1.0,
    **options,
) -> Case:
    """`sequences` lists (rows, tokens); a sequence's last row is at its last token, less `future` tokens.

    Blocks hold random counts of tokens, so that partial ones occur everywhere, and junk (NaN) where they hold none.
    """
    rng = np.random.default_rng(seed)
    geometry = Geometry(kv_heads, head_dim, value_dim or head_dim, block_tokens, dtype, latent)
    size = layer_block_bytes(geometry)
    tokens, position, row_position, row_start, block_start = [], [], [], [0], [0]
    for rows, length in sequences:
        at = 0
        while at < length:
            count = min(length - at, block_tokens if rng.random() < 0.6 else int(rng.integers(1, block_tokens + 1)))
            tokens.append(count)
            position.append(at)
            at += count
        row_position += [max(length - future - rows + i, 0) for i in range(rows)]
        row_start.append(row_start[-1] + rows)
        block_start.append(len(tokens))
    n = len(tokens)
    buffers = [np.zeros((n + 1) * (size + 64), np.uint8) for _ in range(2)]
    which = rng.integers(0, 2, n).astype(np.int32)
    offset = (rng.permutation(n) * (size + 64)).astype(np.int64)
    for i in range(n):
        shape = (kv_heads, block_tokens, head_dim) if latent else (kv_heads, 2, block_tokens, head_dim)
        data = rng.standard_normal(shape).astype(np.float32)
        data[..., tokens[i] :, :] = np.nan
        stored = codecs.encode(data, dtype, tokens[i])
        if dtype in QUANTISED:
            codes = stored[: data.size].reshape(shape)
            codes[..., tokens[i] :, :] = 0x7F  # loud, or NaN
        buffers[which[i]][offset[i] : offset[i] + size] = stored
    rows = row_start[-1]
    q = (loud * rng.standard_normal((rows, kv_heads * group, head_dim))).astype(np.float32)
    table = BlockTable(
        buffers, which, offset, np.array(tokens, np.int32), np.array(position, np.int64),
        np.array(row_start, np.int32), np.array(block_start, np.int32),
    )  # fmt: skip
    return Case(q, np.array(row_position, np.int64), table, geometry, **options)


@pytest.fixture(scope="session")
def make_case():
    return make


@pytest.fixture(scope="session", params=kernels.available())
def kernel(request) -> str:
    return request.param
