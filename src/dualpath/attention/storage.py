"""Stored layer blocks as a kernel sees them: sizes, and reading them as float32, which the Python kernel and the
reference share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualpath.attention.base import BlockTable, Geometry
from dualpath.kv import codecs
from dualpath.kv.layout import FLOAT_BYTES, QUANTISED, Parts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]

DTYPE_CODE = {"float32": 0, "bfloat16": 1, "float16": 2, "int8": 3, "float8_e4m3": 4}
ALIGNMENT = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 2, "float8_e4m3": 2}


def shape_of(geometry: Geometry) -> tuple[int, ...]:
    """Return the shape of a layer block's data."""
    tokens, width = geometry.block_tokens, geometry.head_dim
    return (geometry.kv_heads, tokens, width) if geometry.latent else (geometry.kv_heads, 2, tokens, width)


def layer_block_bytes(geometry: Geometry) -> int:
    """Return the bytes of one layer block of this geometry, scales included."""
    streams = geometry.kv_heads * (1 if geometry.latent else 2)
    return Parts.of(streams, geometry.block_tokens, geometry.head_dim, geometry.dtype).bytes


def read_block(blocks: BlockTable, index: int, geometry: Geometry) -> tuple[Float32, Float32]:
    """Return K `[kv_heads, tokens, head_dim]` and V `[kv_heads, tokens, value_dim]` of block `index`."""
    start, tokens = int(blocks.offset[index]), int(blocks.tokens[index])
    raw = blocks.buffers[int(blocks.buffer[index])][start : start + layer_block_bytes(geometry)]
    stored = codecs.decode(raw, geometry.dtype, shape_of(geometry))
    if geometry.latent:
        keys = stored[:, :tokens]
        return keys, keys[..., : geometry.value_dim]
    return stored[:, 0, :tokens], stored[:, 1, :tokens]


def read_keys(raw: NDArray[np.uint8], geometry: Geometry, tokens: int) -> Float32:
    """Return the first `tokens` keys of the layer block `raw` (1-D uint8): `[kv_heads, tokens, head_dim]`."""
    if geometry.dtype in QUANTISED:
        stored = codecs.decode(raw, geometry.dtype, shape_of(geometry))
        return stored[:, :tokens] if geometry.latent else stored[:, 0, :tokens]
    import numpy as np

    row_bytes = geometry.head_dim * FLOAT_BYTES[geometry.dtype]
    streams = raw.reshape(geometry.kv_heads, -1, geometry.block_tokens * row_bytes)  # V, if apart, is not decoded
    keys = np.ascontiguousarray(streams[:, 0, : tokens * row_bytes]).reshape(-1)
    return codecs.decode(keys, geometry.dtype, (geometry.kv_heads, tokens, geometry.head_dim))
