"""The contract of attention over blocks: what a kernel is given, and what it must return.

A kernel folds blocks into a running state, one block after another in token order:

    for each block b:   m' = max(m, m_b);  z' = z·e^(m−m') + z_b·e^(m_b−m');  acc' = acc·e^(m−m') + acc_b·e^(m_b−m')

where (m_b, z_b, acc_b) depend on block b and the query row alone; with many rows, e^(s − m') may be computed at once
instead. Online softmax: Milakov, Gimelshein 2018, arXiv 1805.02867; split over keys: FlashDecoding, Dao et al. 2023.
Either way the operations on a row are fixed by the order of its blocks, so the result does not depend on how blocks are
grouped into calls, on where they lie, or on the number of threads: `local`, `fetch` and `sharded` are bitwise equal.
Which way is taken, and the last bits with it, may depend on the number of query rows of a sequence.
`finish` gives `out = acc / z` and `lse = m + ln z`. An empty partial is `(0, -inf)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]


class Geometry(msgspec.Struct, frozen=True, array_like=True):
    """What must be known of a layer block to compute attention over it. `dtype` is one of `kv.layout.DTYPE_BYTES`; in
    a dtype of one byte the block's scales lie behind what is drawn here (`kv.layout.Parts`).

    full    `[kv_heads, 2, block_tokens, head_dim]`: K rows, then V rows, of each head; `value_dim == head_dim`
    latent  `[kv_heads, block_tokens, head_dim]`: V is the first `value_dim` columns of the same row
    """

    kv_heads: int
    head_dim: int
    value_dim: int
    block_tokens: int
    dtype: str
    latent: bool


@dataclass
class State:
    """Running online softmax of `rows` query rows: max and exp-sum float32 `[rows, query_heads]`, and the unnormalised
    accumulator float32 `[rows, query_heads, value_dim]`. Empty: `(-inf, 0, 0)`."""

    max: Float32
    exp_sum: Float32
    acc: Float32

    @staticmethod
    def empty(rows: int, query_heads: int, value_dim: int) -> State:
        """Return the state before any key has been seen."""
        import numpy as np

        largest = np.empty((rows, query_heads), np.float32)
        largest.fill(-np.inf)
        exp_sum = np.zeros((rows, query_heads), np.float32)
        return State(largest, exp_sum, np.zeros((rows, query_heads, value_dim), np.float32))


@dataclass(frozen=True)
class BlockTable:
    """The blocks that the query rows of each sequence attend to (a page table).

    Block `i` starts at byte `offset[i]` of `buffers[buffer[i]]` (1-D uint8, C-contiguous), holds `tokens[i]` valid
    tokens (1..block_tokens), and its first token has position `position[i]` in its sequence. Sequence `s` owns query
    rows `[row_start[s], row_start[s+1])` and blocks `[block_start[s], block_start[s+1])`, in token order.

    dtypes: buffer int32, offset int64, tokens int32, position int64, row_start int32, block_start int32.
    """

    buffers: Sequence[NDArray[np.uint8]]
    buffer: NDArray[np.int32]
    offset: NDArray[np.int64]
    tokens: NDArray[np.int32]
    position: NDArray[np.int64]
    row_start: NDArray[np.int32]
    block_start: NDArray[np.int32]


Partial = tuple[Any, Any]
"""`(out, lse)`: float32 `[rows, query_heads, value_dim]` and float32 `[rows, query_heads]`, natural log."""
