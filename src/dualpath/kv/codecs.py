"""Layer blocks as stored bytes: the float dtypes, and one byte an element with a scale per channel.

A *channel* is one column of one stream (K or V of a head; a latent row). Its scale is `amax / largest`, where amax is
the largest magnitude among the block's tokens and `largest` what the dtype reaches, rounded up to bfloat16 so that no
element is clipped:

    int8          code = round(x / scale) in -127..127                       |x - decoded| <= scale / 2
    float8_e4m3   code = x / scale to the nearest of 1.4.3, no infinities    |x - decoded| <= |x| / 16, or scale / 1024

Because a scale belongs to a column, a kernel needs it once per query and block, not once per element:
q·(k * s) = (q * s)·k, and Σ w (v * s) = (Σ w v) * s. Keys of trained models have a few channels far larger than the
rest (Liu et al. 2024, KIVI, arXiv 2402.02750), which a scale per head would spend the codes of all others on.

A channel with an element that is not finite decodes to NaN: what went wrong stays visible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualpath.errors import UsageError
from dualpath.kv.layout import DTYPE_BYTES, QUANTISED, SCALE_BYTES, Parts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Float32 = NDArray[np.float32]

LARGEST = {"int8": 127.0, "float8_e4m3": 448.0}
SMALLEST_SCALE = 2.0**-126  # the smallest normal float32: a channel of zeros has it, and no division is by zero


def parts_of(shape: tuple[int, ...], dtype: str) -> Parts:
    """Return the parts of a layer block `[..., block_tokens, width]`."""
    streams = 1
    for size in shape[:-2]:
        streams *= size
    return Parts.of(streams, shape[-2], shape[-1], dtype)


def encode(block: Float32, dtype: str, tokens: int | None = None) -> Bytes:
    """Return a layer block `[..., block_tokens, width]` as stored bytes (1-D), rounded to nearest even.

    Only the first `tokens` tokens count; in a quantised dtype the others are stored as zeros. The inverse of `decode`
    up to rounding. An array of a float dtype may have any shape. Raises `UsageError` for an unknown dtype.
    """
    import numpy as np

    values = np.ascontiguousarray(block, np.float32)
    if dtype == "bfloat16":
        return _to_bfloat16(values).reshape(-1).view(np.uint8)
    if dtype == "float16":
        return values.astype(np.float16).reshape(-1).view(np.uint8)
    if dtype == "float32":
        return values.reshape(-1).view(np.uint8)
    if dtype not in QUANTISED:
        raise UsageError(f"unknown dtype {dtype}", hint=f"one of {', '.join(DTYPE_BYTES)}")
    parts = parts_of(values.shape, dtype)
    out = np.zeros(parts.bytes, np.uint8)
    used = values[..., :tokens, :]
    scales = _scales(used, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        quotients = used * (np.float32(1) / scales)[..., None, :]
    quotients = np.where(np.isfinite(quotients), quotients, np.float32(0))
    codes = np.zeros(values.shape, np.uint8)
    codes[..., :tokens, :] = _to_int8(quotients) if dtype == "int8" else _to_float8(quotients)
    out[: parts.data_bytes] = codes.reshape(-1)
    stored = (scales.view(np.uint32) >> 16).astype(np.uint16).reshape(-1).view(np.uint8)
    out[parts.scales_at : parts.scales_at + stored.size] = stored
    return out


def decode(raw: Bytes, dtype: str, shape: tuple[int, ...]) -> Float32:
    """Return the layer block of `shape` `[..., block_tokens, width]` that `raw` holds, as float32.

    Exact, also where quantised: the mantissas of element and scale have 8 bits at most each.
    """
    import numpy as np

    if dtype in QUANTISED:
        codes, scales = split(raw, dtype, shape)
        return codes * scales
    if dtype == "bfloat16":  # numpy has none: it is the upper half of a float32
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return raw.view(np.float16 if dtype == "float16" else np.float32).astype(np.float32).reshape(shape)


def split(raw: Bytes, dtype: str, shape: tuple[int, ...]) -> tuple[Float32, Float32]:
    """Return elements (of `shape`) and scales `[..., 1, width]` of a quantised layer block, exactly, as float32."""
    import numpy as np

    parts = parts_of(shape, dtype)
    data = raw[: parts.data_bytes]
    codes = data.view(np.int8).astype(np.float32) if dtype == "int8" else _from_float8(data)
    size = parts.data_bytes // shape[-2] * SCALE_BYTES
    stored = np.frombuffer(raw[parts.scales_at : parts.scales_at + size].tobytes(), np.uint16)
    scales = (stored.astype(np.uint32) << 16).view(np.float32)
    return codes.reshape(shape), scales.reshape(*shape[:-2], 1, shape[-1])


def _scales(used: Float32, dtype: str) -> Float32:
    """Return the scale of each channel, float32 that bfloat16 holds exactly."""
    import numpy as np

    high = np.abs(used).max(axis=-2, initial=0)
    high = np.where(np.isfinite(high), high, np.float32(np.nan))
    exact = np.maximum(high / np.float32(LARGEST[dtype]), np.float32(SMALLEST_SCALE))
    return ((exact.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)


def _to_bfloat16(values: Float32) -> NDArray[np.uint16]:
    import numpy as np

    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)  # rounding could carry a NaN away


def _to_int8(quotients: Float32) -> Bytes:
    import numpy as np

    return np.clip(np.rint(quotients), -127, 127).astype(np.int8).view(np.uint8)


def _to_float8(quotients: Float32) -> Bytes:
    """Return the nearest of sign, 4 bits of exponent (bias 7), 3 of mantissa. Below 2^-6 steps are of 2^-9."""
    import numpy as np

    bits = quotients.view(np.uint32)
    magnitude = np.minimum(np.abs(quotients), np.float32(LARGEST["float8_e4m3"]))
    own = magnitude.view(np.uint32)
    normal = ((own + 0x7FFFF + ((own >> 20) & 1)) >> 20) - np.uint32((127 - 7) << 3)
    tiny = np.rint(magnitude * np.float32(512)).astype(np.uint32)
    code = np.where(magnitude < np.float32(2.0**-6), tiny, normal)
    signed: Bytes = (code | ((bits >> 24) & 0x80)).astype(np.uint8)
    return signed


def _from_float8(data: Bytes) -> Float32:
    """Return the value of each byte. 0x7f and 0xff, NaN in this format, are never stored."""
    import numpy as np

    wide = data.astype(np.uint16)
    half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)  # as float16, whose exponents are 8 smaller
    values: Float32 = half.view(np.float16).astype(np.float32) * np.float32(256)
    return values
