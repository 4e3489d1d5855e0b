"""Sealing: a layer block in the dtype that a model computes in becomes one of the dtype that is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualpath.attention import kernels
from dualpath.attention.base import Geometry
from dualpath.attention.storage import DTYPE_CODE, layer_block_bytes, shape_of
from dualpath.errors import UsageError
from dualpath.kv import codecs
from dualpath.kv.layout import FLOAT_BYTES, QUANTISED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]


def encode_block(source: Bytes, dtype: str, into: Bytes, geometry: Geometry, tokens: int) -> None:
    """Write the first `tokens` tokens of the layer block `source`, of float `dtype`, to `into` as `geometry` has it.

    `geometry.dtype` is a quantised one; both arrays are 1-D uint8 of exactly a layer block. The bytes are those of
    `kv.codecs.encode`, with every kernel. Raises `UsageError` for what does not fit.
    """
    encode_with(kernels.chosen(), source, dtype, into, geometry, tokens)


def encode_with(kernel: str, source: Bytes, dtype: str, into: Bytes, geometry: Geometry, tokens: int) -> None:
    """Do what `encode_block` does with a kernel of `kernels.available()`: for tests and benches."""
    if dtype not in FLOAT_BYTES or geometry.dtype not in QUANTISED:
        raise UsageError(f"{dtype} is not encoded as {geometry.dtype}", hint=f"from a float dtype to {QUANTISED}")
    shape = shape_of(geometry)
    if kernel == "python":
        if source.size != codecs.parts_of(shape, dtype).bytes or into.size != layer_block_bytes(geometry):
            raise UsageError(f"encode: {source.size} and {into.size} bytes are no layer blocks of {geometry}")
        if not 0 <= tokens <= geometry.block_tokens:
            raise UsageError(f"encode: {tokens} tokens do not fit")
        into[:] = codecs.encode(codecs.decode(source, dtype, shape), geometry.dtype, tokens)
        return
    try:
        kernels.native().encode(
            kernel, source, DTYPE_CODE[dtype], into, DTYPE_CODE[geometry.dtype],
            geometry.kv_heads * (1 if geometry.latent else 2), geometry.block_tokens, tokens, geometry.head_dim,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise UsageError(f"encode: {str(error).splitlines()[0]}") from error
