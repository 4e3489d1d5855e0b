"""Reading stored blocks as float32: what the Python kernel and the reference share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualpath.attention.base import BlockTable, Geometry
from dualpath.errors import UsageError
from dualpath.kv.layout import DTYPE_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]

DTYPE_CODE = {"float32": 0, "bfloat16": 1, "float16": 2}


def layer_block_bytes(geometry: Geometry) -> int:
    """Return the bytes of one layer block of this geometry."""
    streams = 1 if geometry.latent else 2
    rows = geometry.kv_heads * streams * geometry.block_tokens
    return rows * geometry.head_dim * DTYPE_BYTES[geometry.dtype]


def decode(raw: NDArray[np.uint8], dtype: str) -> Float32:
    """Return the elements of `raw` as float32, exactly. numpy has no bfloat16: it is the upper half of a float32."""
    import numpy as np

    if dtype == "bfloat16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return raw.view(np.float16 if dtype == "float16" else np.float32).astype(np.float32)


def encode(values: Float32, dtype: str) -> NDArray[np.uint8]:
    """Return `values` as stored bytes (1-D), rounded to nearest even. The inverse of `decode` up to rounding."""
    import numpy as np

    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    if dtype == "bfloat16":
        bits = flat.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.uint8)
    if dtype == "float16":
        return flat.astype(np.float16).view(np.uint8)
    if dtype == "float32":
        return flat.view(np.uint8)
    raise UsageError(f"unknown dtype {dtype}", hint=f"one of {', '.join(DTYPE_CODE)}")


def read_block(blocks: BlockTable, index: int, geometry: Geometry) -> tuple[Float32, Float32]:
    """Return K `[kv_heads, tokens, head_dim]` and V `[kv_heads, tokens, value_dim]` of block `index`."""
    start, tokens = int(blocks.offset[index]), int(blocks.tokens[index])
    raw = blocks.buffers[int(blocks.buffer[index])][start : start + layer_block_bytes(geometry)]
    stored = decode(raw, geometry.dtype)
    if geometry.latent:
        keys = stored.reshape(geometry.kv_heads, geometry.block_tokens, geometry.head_dim)[:, :tokens]
        return keys, keys[..., : geometry.value_dim]
    both = stored.reshape(geometry.kv_heads, 2, geometry.block_tokens, geometry.head_dim)
    return both[:, 0, :tokens], both[:, 1, :tokens]
