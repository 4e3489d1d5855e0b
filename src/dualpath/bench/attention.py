"""How fast the attention kernel is, beside what memory can deliver and what PyTorch does, in the same rounds.

Theory of operation. One decode step (one query row, `QUERY_HEADS` query heads over `KV_HEADS` kv heads, head size
`HEAD_DIM`) reads every K and V once: its limit is the read bandwidth of memory, which is measured by as many threads
over the same arena (huge pages where the system grants them). All candidates run once per round, in rotating order, so
that a machine that drifts hits all of them alike; `ratio` is the median over rounds of speed over read bandwidth.

A prefill chunk is bound by arithmetic: its rows state GFLOP/s, and `ratio` over PyTorch's `sdpa` in the same rounds.
"""

from __future__ import annotations

import importlib.util
import mmap
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dualpath.attention import BlockTable, Geometry, State, get_threads
from dualpath.attention.dispatch import attend_with, check_threads
from dualpath.attention.kernels import chosen, native
from dualpath.attention.storage import layer_block_bytes, shape_of
from dualpath.bench import machine
from dualpath.errors import HostError, UsageError
from dualpath.kv import QUANTISED, codecs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

QUERY_HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8", "fp8": "float8_e4m3"}
PREFILL = ((4096, 256), (8192, 512))  # (context, rows), 9 query heads over 3 kv heads of size 64
PYTHON_ROUNDS = 3

Progress = Callable[[str], None]
Candidates = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Problem:
    """One call of attend: a table over one arena, and queries at its end."""

    geometry: Geometry
    arena: NDArray[np.uint8]
    table: BlockTable
    q: NDArray[np.float32]
    row_position: NDArray[np.int64]
    context: int

    @property
    def bytes(self) -> int:
        """Return the KV bytes that one call reads."""
        return len(self.table.tokens) * layer_block_bytes(self.geometry)

    def attend(self, kernel: str, threads: int) -> None:
        """Run one call from an empty state."""
        rows, heads, dim = self.q.shape
        state = State.empty(rows, heads, self.geometry.value_dim)
        attend_with(
            kernel, state, self.q, self.row_position, self.table, self.geometry, scale=dim**-0.5, threads=threads
        )


def run_attention_bench(
    *,
    tokens: int = 32768,
    block_tokens: int = 256,
    dtypes: Sequence[str] = tuple(DTYPES),
    threads: int | None = None,
    repeat: int = 15,
    prefill: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure decode for every dtype, and prefill chunks where `prefill`.

    Returns `{"rows": [...], "prefill": [...], "machine": {...}}`. A row: kernel, dtype, block_tokens, context, threads,
    gbps and read_gbps (GB/s, medians), ratio (median of rounds), ratio_low and ratio_high (quartiles), ms_p50, ms_min;
    over_bf16: for `native` over quantised KV, how much faster it is than over bf16 in the same rounds (median).
    Kernels: `native`, `python`, and, where torch is installed, `sdpa` (grouped heads), `sdpa-packed` (query heads of a
    group as rows) and `flash-merge` (flash attention per 1024 tokens, merged by log-sum-exp).
    """
    wanted = [_dtype(one) for one in dtypes]
    if tokens % block_tokens:
        raise UsageError(f"{tokens} tokens are no multiple of blocks of {block_tokens}")
    check_threads(threads or 0)
    count, say = threads or get_threads(), progress or (lambda _: None)
    rows: list[dict[str, Any]] = []
    chunks: list[dict[str, Any]] = []
    for dtype in wanted:
        say(f"decode, {dtype}, {tokens} tokens")
        rows += _decode(dtype, tokens, block_tokens, count, repeat)
    if prefill:
        for dtype in wanted:
            for context, chunk in PREFILL:
                say(f"prefill, {dtype}, {chunk} rows at {context} tokens")
                chunks += _prefill(dtype, context, chunk, count, max(3, repeat // 3))
    return {"rows": rows, "prefill": chunks, "machine": machine.describe()}


def _dtype(name: str) -> str:
    found = DTYPES.get(name, name)
    if found not in DTYPES.values():
        raise UsageError(f"unknown dtype {name}", hint=f"one of {', '.join(DTYPES)}")
    return found


def decode_problem(dtype: str, context: int, block_tokens: int) -> Problem:
    """Return one decode step: a query at the end of random KV of `context` tokens, kept as `dtype`."""
    return _problem(dtype, (QUERY_HEADS, KV_HEADS, HEAD_DIM), context, block_tokens, 1)


def _problem(dtype: str, heads: tuple[int, int, int], context: int, block_tokens: int, rows: int) -> Problem:
    """Return random KV in an arena with huge pages, and `rows` queries at the end of the context."""
    import numpy as np

    query_heads, kv_heads, dim = heads
    geometry = Geometry(kv_heads, dim, dim, block_tokens, dtype, False)
    size, blocks = layer_block_bytes(geometry), context // block_tokens
    memory = mmap.mmap(-1, blocks * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    arena = np.frombuffer(memory, np.uint8)
    random = np.random.default_rng(0)
    shape = (max(1, (1 << 20) // (size // kv_heads)), *shape_of(geometry)) if dtype in QUANTISED else (1 << 20,)
    numbers = random.standard_normal(shape, np.float32)
    piece = (
        np.concatenate([codecs.encode(one, dtype) for one in numbers])
        if dtype in QUANTISED
        else codecs.encode(numbers, dtype)
    )
    for start in range(0, arena.size, piece.size):
        arena[start : start + piece.size] = piece[: arena.size - start]
    table = BlockTable(
        [arena],
        np.zeros(blocks, np.int32),
        np.arange(blocks, dtype=np.int64) * size,
        np.full(blocks, block_tokens, np.int32),
        np.arange(blocks, dtype=np.int64) * block_tokens,
        np.array([0, rows], np.int32),
        np.array([0, blocks], np.int32),
    )
    q = random.standard_normal((rows, query_heads, dim), np.float32)
    return Problem(geometry, arena, table, q, np.arange(context - rows, context, dtype=np.int64), context)


def _decode(dtype: str, context: int, block_tokens: int, threads: int, repeat: int) -> list[dict[str, Any]]:
    problem = decode_problem(dtype, context, block_tokens)
    candidates = _ours(problem, threads)
    try:
        module = native()
    except HostError:
        candidates["read"] = lambda: int(problem.arena.view("uint64").max())
    else:
        candidates["read"] = lambda: module.read_bandwidth(problem.arena, threads)
    quantised = dtype in QUANTISED
    if quantised and "native" in candidates:
        wide = decode_problem("bfloat16", context, block_tokens)
        candidates["bf16"] = _ours(wide, threads)["native"]
    with _TorchThreads(threads):
        if importlib.util.find_spec("torch") is not None and not quantised:
            candidates |= _torch_decode(problem)
        times = _rounds(candidates, repeat)
    read, bf16 = times.pop("read"), times.pop("bf16", None)
    rows = [_decode_row(name, problem, threads, found, read) for name, found in times.items()]
    for row in rows:
        if row["kernel"] == "native" and bf16 is not None:
            ratios = [b / own for b, own in zip(bf16, times["native"], strict=True)]
            row["over_bf16"] = round(statistics.median(ratios), 3)
    return rows


def _decode_row(name: str, problem: Problem, threads: int, times: list[float], read: list[float]) -> dict[str, Any]:
    low, middle, high = _quartiles([limit / own for limit, own in zip(read, times, strict=False)])
    return {
        "kernel": name,
        "dtype": problem.geometry.dtype,
        "block_tokens": problem.geometry.block_tokens,
        "context": problem.context,
        "threads": threads,
        "gbps": round(problem.bytes / statistics.median(times) / 1e9, 2),
        "read_gbps": round(problem.bytes / statistics.median(read) / 1e9, 2),
        "ratio": round(middle, 3),
        "ratio_low": round(low, 3),
        "ratio_high": round(high, 3),
        "ms_p50": round(statistics.median(times) * 1e3, 3),
        "ms_min": round(min(times) * 1e3, 3),
    }


def _prefill(dtype: str, context: int, rows: int, threads: int, repeat: int) -> list[dict[str, Any]]:
    problem = _problem(dtype, (9, 3, 64), context, 256, rows)
    candidates = _ours(problem, threads)
    candidates.pop("python", None)
    with _TorchThreads(threads):
        if importlib.util.find_spec("torch") is not None and dtype not in QUANTISED:
            candidates["sdpa"] = _torch_prefill(problem)
        times = _rounds(candidates, repeat)
    heads, dim = problem.q.shape[1:]
    flops = 4 * heads * dim * sum(int(p) + 1 for p in problem.row_position)
    base = times.get("sdpa")
    return [
        {
            "kernel": name,
            "dtype": dtype,
            "context": context,
            "rows": rows,
            "threads": threads,
            "gflops": round(flops / statistics.median(found) / 1e9, 1),
            "ratio": round(_quartiles([b / f for b, f in zip(base, found, strict=True)])[1], 3) if base else None,
            "ms_p50": round(statistics.median(found) * 1e3, 3),
            "ms_min": round(min(found) * 1e3, 3),
        }
        for name, found in times.items()
    ]


def _ours(problem: Problem, threads: int) -> Candidates:
    kernel = chosen()
    found: Candidates = {"python": lambda: problem.attend("python", threads)}
    if kernel != "python":
        found = {"native": lambda: problem.attend(kernel, threads), **found}
    return found


def _rounds(candidates: Candidates, repeat: int) -> dict[str, list[float]]:
    """Run every candidate once per round, each round starting with another one; the first round is not counted."""
    names, times = list(candidates), {name: list[float]() for name in candidates}
    for index in range(repeat + 1):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            if name == "python" and index > PYTHON_ROUNDS:
                continue
            began = time.perf_counter()
            candidates[name]()
            if index:
                times[name].append(time.perf_counter() - began)
    return times


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


# --- PyTorch, where there is one -------------------------------------------------------------------------------------


class _TorchThreads:
    """Give torch as many threads as the kernel has, for a while."""

    def __init__(self, threads: int) -> None:
        self.threads, self.before = threads, 0

    def __enter__(self) -> None:
        if importlib.util.find_spec("torch") is not None:
            import torch

            self.before = torch.get_num_threads()
            torch.set_num_threads(self.threads)

    def __exit__(self, *_: object) -> None:
        if self.before:
            import torch

            torch.set_num_threads(self.before)


def _torch_kv(problem: Problem) -> tuple[Any, Any, Any]:
    """Return q `[1, heads, rows, dim]` and K, V `[1, kv_heads, context, dim]`, contiguous, in the stored dtype."""
    import torch

    g = problem.geometry
    dtype = getattr(torch, g.dtype)
    stored = torch.frombuffer(problem.arena, dtype=dtype).view(-1, g.kv_heads, 2, g.block_tokens, g.head_dim)
    k, v = (stored[:, :, i].transpose(0, 1).reshape(1, g.kv_heads, -1, g.head_dim).contiguous() for i in (0, 1))
    q = torch.from_numpy(problem.q).to(dtype).transpose(0, 1)[None].contiguous()
    return q, k, v


def _torch_decode(problem: Problem) -> Candidates:
    import torch

    q, k, v = _torch_kv(problem)
    attention = torch.nn.functional.scaled_dot_product_attention
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    packed = q.view(1, problem.geometry.kv_heads, -1, q.shape[-1])

    def flash_merge() -> Any:
        parts = [flash(packed, k[:, :, at : at + 1024], v[:, :, at : at + 1024]) for at in range(0, k.shape[2], 1024)]
        lse = torch.stack([part[1] for part in parts])
        weight = torch.softmax(lse.float(), dim=0)
        return sum(w[..., None] * out for w, (out, _) in zip(weight, parts, strict=True))

    return {
        "sdpa": lambda: attention(q, k, v, enable_gqa=True),
        "sdpa-packed": lambda: attention(packed, k, v),
        "flash-merge": flash_merge,
    }


def _torch_prefill(problem: Problem) -> Callable[[], object]:
    import torch

    q, k, v = _torch_kv(problem)
    seen = torch.arange(problem.context)[None] <= torch.from_numpy(problem.row_position)[:, None]
    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(q, k, v, attn_mask=seen[None, None], enable_gqa=True)
