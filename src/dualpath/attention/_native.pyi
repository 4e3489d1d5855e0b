from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

def attend(
    kernel: str,
    max: NDArray[np.float32],
    exp_sum: NDArray[np.float32] | None,
    acc: NDArray[np.float32],
    q: NDArray[np.float32],
    row_position: NDArray[np.int64],
    buffers: Sequence[NDArray[np.uint8]],
    buffer: NDArray[np.int32],
    offset: NDArray[np.int64],
    tokens: NDArray[np.int32],
    position: NDArray[np.int64],
    row_start: NDArray[np.int32],
    block_start: NDArray[np.int32],
    kv_heads: int,
    head_dim: int,
    value_dim: int,
    block_tokens: int,
    dtype: int,
    latent: bool,
    scale: float,
    softcap: float,
    window: int,
    threads: int,
    /,
) -> None: ...
def combine(
    parts: Sequence[tuple[NDArray[np.float32], NDArray[np.float32] | None, NDArray[np.float32]]],
    max: NDArray[np.float32],
    exp_sum: NDArray[np.float32] | None,
    acc: NDArray[np.float32],
    sinks: NDArray[np.float32] | None,
    /,
) -> None: ...
def finish(
    max: NDArray[np.float32],
    exp_sum: NDArray[np.float32],
    acc: NDArray[np.float32],
    sinks: NDArray[np.float32] | None,
    out: NDArray[np.float32],
    lse: NDArray[np.float32],
    /,
) -> None: ...
def copy_blocks(
    source: NDArray[np.uint8], offsets: Sequence[int], destinations: Sequence[memoryview], block_bytes: int, /
) -> None: ...
def encode(
    kernel: str,
    source: NDArray[np.uint8],
    source_dtype: int,
    destination: NDArray[np.uint8],
    dtype: int,
    streams: int,
    block_tokens: int,
    tokens: int,
    width: int,
    /,
) -> None: ...
def read_bandwidth(buffer: Any, threads: int) -> float: ...
def variants() -> tuple[str, ...]: ...
