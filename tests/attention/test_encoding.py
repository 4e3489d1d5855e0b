"""Sealing a block: every kernel writes the bytes of the codec."""

from __future__ import annotations

import numpy as np
import pytest

from dualpath.attention import Geometry, encode_block
from dualpath.attention.encoding import encode_with
from dualpath.attention.storage import layer_block_bytes, shape_of
from dualpath.errors import UsageError
from dualpath.kv import FLOAT_BYTES, QUANTISED, codecs

GEOMETRIES = {
    "64": Geometry(2, 64, 64, 32, "int8", False),
    "20": Geometry(3, 20, 20, 7, "int8", False),
    "one": Geometry(1, 1, 1, 1, "int8", False),
    "latent": Geometry(1, 72, 64, 16, "int8", True),
}


def blocks(geometry: Geometry) -> list[np.ndarray]:
    """Return adversarial layer blocks: ordinary, of all magnitudes, ties, zeros, with NaN and infinities."""
    rng, shape = np.random.default_rng(1), shape_of(geometry)
    plain = rng.standard_normal(shape).astype(np.float32)
    wide = plain * np.float32(2.0) ** rng.integers(-140, 120, shape)
    ties = (rng.integers(-254, 255, shape) / 2).astype(np.float32)
    ties[..., 0, :] = 127
    broken = plain.copy()
    broken[..., 0, ::3] = np.nan
    broken[..., -1, ::5] = np.inf
    broken[..., -1, ::7] = -np.inf
    loud = plain.copy()
    loud[..., 0, :] = 3e38
    return [plain, wide, ties, np.zeros(shape, np.float32), broken, loud]


@pytest.mark.parametrize("source", FLOAT_BYTES)
@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # what float16 cannot hold is infinite
def test_kernels_write_the_bytes_of_the_codec(kernel, source, dtype, name):
    g = GEOMETRIES[name]
    geometry = Geometry(g.kv_heads, g.head_dim, g.value_dim, g.block_tokens, dtype, g.latent)
    for block in blocks(geometry):
        raw = codecs.encode(block, source)
        for tokens in {geometry.block_tokens, geometry.block_tokens // 2, 0}:
            into = np.full(layer_block_bytes(geometry), 0xAA, np.uint8)
            encode_with(kernel, raw, source, into, geometry, tokens)
            wanted = codecs.encode(codecs.decode(raw, source, shape_of(geometry)), dtype, tokens)
            assert np.array_equal(into, wanted), (kernel, tokens, np.flatnonzero(into != wanted)[:9])


def test_what_does_not_fit_is_refused(kernel):
    geometry = GEOMETRIES["64"]
    raw, into = np.zeros(2 * 2 * 32 * 64 * 4, np.uint8), np.zeros(layer_block_bytes(geometry), np.uint8)
    for source, dtype, to, tokens in (
        (raw[:-1], "float32", into, 32),
        (raw, "bfloat16", into, 32),
        (raw, "float32", into[:-1], 32),
        (raw, "float32", into, 33),
        (raw, "float32", into, -1),
        (raw, "int8", into, 32),
    ):
        with pytest.raises(UsageError):
            encode_with(kernel, source, dtype, to, geometry, tokens)
    encode_block(raw, "float32", into, geometry, 32)
