"""`attend`: partial attention of query rows over blocks, folded into a running state."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dualpath.attention import fallback, kernels
from dualpath.attention.base import BlockTable, Geometry, State
from dualpath.attention.storage import ALIGNMENT, DTYPE_CODE, layer_block_bytes
from dualpath.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]

MAX_THREADS = 1024
_threads = 0


def check_threads(threads: int) -> None:
    """Raise `UsageError` unless attention can use so many threads; 0 means all cores."""
    if not 0 <= threads <= MAX_THREADS:
        raise UsageError(f"cannot use {threads} threads", hint=f"0 (all cores) to {MAX_THREADS}")


def set_threads(threads: int) -> None:
    """Set how many threads `attend` uses by default; 0 means as many as this process may run on."""
    global _threads
    check_threads(threads)
    _threads = threads


def get_threads() -> int:
    """Return how many threads `attend` uses by default."""
    return _threads or min(len(os.sched_getaffinity(0)), MAX_THREADS)


def attend(
    state: State,
    q: Float32,
    row_position: NDArray[np.int64],
    blocks: BlockTable,
    geometry: Geometry,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    threads: int = 0,
) -> None:
    """Fold all blocks of the table into `state`, in place, each sequence's in token order.

    q             float32 `[rows, query_heads, head_dim]`, C-contiguous; query head h uses kv head
                  h // (query_heads // kv_heads)
    row_position  int64 `[rows]`: a key at position p is visible to a row at position r iff p <= r and
                  (window == 0 or p > r - window)
    scale         score = q·k · scale; with a softcap c > 0: c · tanh(score / c)
    threads       0: the default of `set_threads`

    The state afterwards is bitwise the same however the blocks are spread over calls, wherever they lie, and whatever
    the number of threads, if all is finite. A NaN in what a row sees, or a score of +inf, makes its `out` NaN, and its
    lse too where q or K is to blame; a row that does not see it is none the worse. Blocks that no row sees are not
    read. Raises `UsageError`, the state unchanged, for shapes,
    dtypes, offsets or tokens that do not fit. The GIL is released; calls from several threads may overlap as long as
    their states differ.
    """
    attend_with(
        kernels.chosen(), state, q, row_position, blocks, geometry,
        scale=scale, softcap=softcap, window=window, threads=threads,
    )  # fmt: skip


def partial(
    out: Float32,
    lse: Float32,
    q: Float32,
    row_position: NDArray[np.int64],
    blocks: BlockTable,
    geometry: Geometry,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    threads: int = 0,
) -> None:
    """Overwrite `out` and `lse` with the partial of all blocks of the table: `finish` of what `attend` makes of an
    empty state, bitwise, in one step.

    out, lse      float32 `[rows, query_heads, value_dim]` and `[rows, query_heads]`, C-contiguous; not read
    The rest, and what is raised, as in `attend`.
    """
    kernel = kernels.chosen()
    if kernel == "python":
        state = State.empty(q.shape[0], q.shape[1], geometry.value_dim)
        attend_with(
            kernel, state, q, row_position, blocks, geometry,
            scale=scale, softcap=softcap, window=window, threads=threads,
        )  # fmt: skip
        if out.shape != state.acc.shape or lse.shape != state.max.shape:
            raise UsageError(f"attend: out and lse have shapes {out.shape} and {lse.shape}")
        out[:], lse[:] = fallback.finish(state, None)
        return
    _native(kernel, lse, None, out, q, row_position, blocks, geometry, scale, softcap, window, threads)


def attend_with(
    kernel: str,
    state: State,
    q: Float32,
    row_position: NDArray[np.int64],
    blocks: BlockTable,
    geometry: Geometry,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    threads: int = 0,
) -> None:
    """Do what `attend` does with a kernel of `kernels.available()`: for tests and benches."""
    if kernel == "python":
        _check(state, q, row_position, blocks, geometry, scale, softcap, window, threads)
        fallback.attend(state, q, row_position, blocks, geometry, scale=scale, softcap=softcap, window=window)
        return
    _native(
        kernel, state.max, state.exp_sum, state.acc, q, row_position, blocks, geometry, scale, softcap, window, threads
    )


def _native(
    kernel: str,
    largest: Float32,
    exp_sum: Float32 | None,
    acc: Float32,
    q: Float32,
    row_position: NDArray[np.int64],
    blocks: BlockTable,
    geometry: Geometry,
    scale: float,
    softcap: float,
    window: int,
    threads: int,
) -> None:
    """Without an `exp_sum`: write lse to `largest` and out to `acc`."""
    code = _code(geometry, threads)
    try:
        kernels.native().attend(
            kernel, largest, exp_sum, acc, q, row_position,
            blocks.buffers, blocks.buffer, blocks.offset, blocks.tokens, blocks.position,
            blocks.row_start, blocks.block_start,
            geometry.kv_heads, geometry.head_dim, geometry.value_dim, geometry.block_tokens, code, geometry.latent,
            scale, softcap, window, threads or get_threads(),
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise UsageError(f"attend: {str(error).splitlines()[0]}") from error


def _code(geometry: Geometry, threads: int) -> int:
    """Return the dtype as the native kernel names it, if it is one and there may be so many threads."""
    code = DTYPE_CODE.get(geometry.dtype)
    if code is None:
        raise UsageError(f"unknown dtype {geometry.dtype}", hint=f"one of {', '.join(DTYPE_CODE)}")
    check_threads(threads)
    return code


def explain_blocks(
    q: Float32,
    row_position: NDArray[np.int64],
    blocks: BlockTable,
    geometry: Geometry,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
) -> list[tuple[Float32, Float32]]:
    """Return per block of the table its max and exp-sum apart, float32 `[rows, query_heads]`.

    Where a row sees nothing of a block they are `-inf` and 0. For debugging: folding them in order gives
    the max and exp-sum of `attend`.
    """
    import numpy as np

    found = []
    for sequence in range(len(blocks.block_start) - 1):
        for index in range(int(blocks.block_start[sequence]), int(blocks.block_start[sequence + 1])):
            state = State.empty(q.shape[0], q.shape[1], geometry.value_dim)
            one = slice(index, index + 1)
            starts = np.zeros(len(blocks.block_start), np.int32)
            starts[sequence + 1 :] = 1
            alone = BlockTable(
                blocks.buffers, blocks.buffer[one], blocks.offset[one], blocks.tokens[one], blocks.position[one],
                blocks.row_start, starts,
            )  # fmt: skip
            attend(state, q, row_position, alone, geometry, scale=scale, softcap=softcap, window=window)
            found.append((state.max, state.exp_sum))
    return found


def _check(
    state: State,
    q: Any,
    row_position: Any,
    blocks: BlockTable,
    geometry: Geometry,
    scale: float,
    softcap: float,
    window: int,
    threads: int,
) -> None:
    """Raise `UsageError` for what the native kernel refuses too."""
    import numpy as np

    _code(geometry, threads)

    def need(holds: bool, message: str) -> None:
        if not holds:
            raise UsageError(f"attend: {message}")

    def array(name: str, value: Any, dtype: Any, dimensions: int) -> None:
        good = isinstance(value, np.ndarray) and value.dtype == dtype and value.ndim == dimensions
        need(good and value.flags.c_contiguous, f"{name} must be C-contiguous {dtype.__name__}, {dimensions}-D")

    g = geometry
    need(min(g.kv_heads, g.head_dim, g.value_dim, g.block_tokens) > 0, "geometry must be positive")
    dims_fit = g.value_dim <= g.head_dim if g.latent else g.value_dim == g.head_dim
    need(dims_fit, "geometry: value_dim must equal head_dim, or be at most head_dim for a latent layer")
    need(bool(np.isfinite(scale)) and bool(np.isfinite(softcap)) and softcap >= 0, "scale, softcap must be finite")
    need(window >= 0, "window must not be negative")
    array("q", q, np.float32, 3)
    array("row_position", row_position, np.int64, 1)
    rows, heads, dim = q.shape
    need(dim == g.head_dim, f"q has head_dim {dim}, expected {g.head_dim}")
    need(heads > 0 and heads % g.kv_heads == 0, f"q has {heads} heads, no multiple of {g.kv_heads} kv heads")
    need(len(row_position) == rows and bool((row_position >= 0).all()), "row_position must be [rows], >= 0")
    for name, value, shape in (
        ("state.max", state.max, (rows, heads)),
        ("state.exp_sum", state.exp_sum, (rows, heads)),
        ("state.acc", state.acc, (rows, heads, g.value_dim)),
    ):
        array(name, value, np.float32, len(shape))
        need(value.shape == shape and value.flags.writeable, f"{name} must be a writable {shape}")
    _check_table(blocks, rows, g, array, need)


def _check_table(blocks: BlockTable, rows: int, geometry: Geometry, array: Any, need: Any) -> None:
    import numpy as np

    for buffer in blocks.buffers:
        array("each of buffers", buffer, np.uint8, 1)
    count = len(blocks.buffer)
    for name, dtype in (("buffer", np.int32), ("offset", np.int64), ("tokens", np.int32), ("position", np.int64)):
        array(name, getattr(blocks, name), dtype, 1)
        need(len(getattr(blocks, name)) == count, f"{name} must have {count} entries, one per block")
    for name, end in (("row_start", rows), ("block_start", count)):
        starts = getattr(blocks, name)
        array(name, starts, np.int32, 1)
        need(len(starts) > 0 and starts[0] == 0 and starts[-1] == end, f"{name} must go from 0 to {end}")
        need(bool((np.diff(starts) >= 0).all()), f"{name} must not decrease")
    need(len(blocks.row_start) == len(blocks.block_start), "row_start and block_start must have equal lengths")
    size, item = layer_block_bytes(geometry), ALIGNMENT[geometry.dtype]
    for i in range(count):
        which, start = int(blocks.buffer[i]), int(blocks.offset[i])
        need(0 <= which < len(blocks.buffers), f"block {i}: there is no buffer {which}")
        memory = blocks.buffers[which]
        need(0 <= start <= memory.size - size, f"block {i}: offset {start} + {size} bytes exceed its buffer")
        need((memory.ctypes.data + start) % item == 0, f"block {i}: its address is not aligned to {item} bytes")
        tokens = int(blocks.tokens[i])
        need(1 <= tokens <= geometry.block_tokens, f"block {i}: {tokens} tokens do not fit")
        need(int(blocks.position[i]) >= 0, f"block {i}: position is negative")
