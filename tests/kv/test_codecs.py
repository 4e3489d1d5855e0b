"""Layer blocks as bytes: what decoding gives back, and where the parts lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dualpath.errors import UsageError
from dualpath.kv import DTYPE_BYTES, QUANTISED, KVLayout, Parts, codecs

SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3,
}  # fmt: skip
DEEPSEEK_V3 = {"model_type": "deepseek_v3"}

shapes = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 9), st.integers(1, 20))
values = st.floats(width=32, min_value=-(2.0**120), max_value=2.0**120)


def scales(block: np.ndarray, dtype: str) -> np.ndarray:
    return codecs.split(codecs.encode(block, dtype), dtype, block.shape)[1]


@given(block=shapes.flatmap(lambda shape: arrays.arrays(np.float32, shape, elements=values)))
def test_int8_is_within_half_a_step(block):
    back = codecs.decode(codecs.encode(block, "int8"), "int8", block.shape)
    step = scales(block, "int8")
    assert (np.abs(back.astype(float) - block) <= 0.5001 * step.astype(float)).all()
    high = np.abs(block).max(axis=-2, keepdims=True)
    assert (step <= np.maximum(high / 127 * 1.008, codecs.SMALLEST_SCALE)).all()


@given(block=shapes.flatmap(lambda shape: arrays.arrays(np.float32, shape, elements=values)))
def test_fp8_is_within_a_sixteenth_or_half_a_step(block):
    dtype = "float8_e4m3"
    back = codecs.decode(codecs.encode(block, dtype), dtype, block.shape)
    step = scales(block, dtype).astype(float)
    assert (np.abs(back.astype(float) - block) <= np.maximum(np.abs(block) / 16, step / 1024) * 1.0001).all()


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
@given(data=st.data())
def test_only_the_first_tokens_count(dtype, data):
    shape = data.draw(shapes)
    block = data.draw(arrays.arrays(np.float32, shape, elements=st.floats(-100, 100, width=32)))
    tokens = data.draw(st.integers(1, shape[-2]))
    whole = codecs.decode(codecs.encode(block, dtype, tokens), dtype, shape)
    part = codecs.decode(codecs.encode(block[..., :tokens, :], dtype), dtype, (*shape[:-2], tokens, shape[-1]))
    assert np.array_equal(whole[..., :tokens, :], part)
    if dtype in QUANTISED:
        assert not whole[..., tokens:, :].any()


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_broken_channel_stays_visible_and_alone(dtype, poison):
    block = np.random.default_rng(0).standard_normal((2, 2, 8, 4)).astype(np.float32)
    block[1, 0, 3, 2] = poison
    back = codecs.decode(codecs.encode(block, dtype), dtype, block.shape)
    assert np.isnan(back[1, 0, :, 2]).all()
    back[1, 0, :, 2] = 0
    assert np.isfinite(back).all()


def test_every_finite_fp8_is_a_fixed_point():
    """Decoding and encoding again gives the same byte, subnormals included, where the channel reaches the largest."""
    codes = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
    one = codecs.encode(np.full((1, len(codes), 1), 448.0, np.float32), "float8_e4m3")
    one[: len(codes)] = codes
    again = codecs.encode(codecs.decode(one, "float8_e4m3", (1, len(codes), 1)), "float8_e4m3")
    assert np.array_equal(again, one)


def test_parts_begin_at_multiples_of_64():
    parts = Parts.of(2, 3, 5, "int8")
    assert (parts.data_bytes, parts.scales_at, parts.bytes) == (30, 64, 128)
    assert Parts.of(2, 3, 5, "bfloat16") == Parts(60, 60, 60)


@pytest.mark.parametrize("config", [SMOLLM2, DEEPSEEK_V3], ids=["gqa", "mla"])
@pytest.mark.parametrize("dtype", QUANTISED)
def test_a_block_of_256_is_half_of_bf16_and_under_one_percent(config, dtype):
    wide = KVLayout.from_config(config, dtype="bfloat16")
    kept = KVLayout.from_config(config, dtype="bfloat16", kv_dtype=dtype)
    assert wide.block_bytes / 2 < kept.block_bytes < wide.block_bytes / 2 * 1.01
    assert kept.bytes_per_token == -(-kept.block_bytes // 256)
    assert kept.open == wide
    assert kept.fingerprint != wide.fingerprint
    group = kept.groups[0]
    shape = tuple(256 if size == -1 else size for size in group.layer_block_shape)
    assert codecs.encode(np.zeros(shape, np.float32), dtype).size == kept.layer_block_bytes(group)


def test_kv_dtype_of_a_layout_is_checked():
    same = KVLayout.from_config(SMOLLM2, dtype="bfloat16", kv_dtype="bfloat16")
    assert same == KVLayout.from_config(SMOLLM2, dtype="bfloat16") == same.open
    for wrong in ("float32", "int4"):
        with pytest.raises(UsageError, match="cannot be kept"):
            KVLayout.from_config(SMOLLM2, dtype="bfloat16", kv_dtype=wrong)
    with pytest.raises(UsageError, match="unknown dtype"):
        codecs.encode(np.zeros((1, 1), np.float32), "int4")


def test_a_nan_of_any_bits_stays_one_in_bfloat16() -> None:
    bits = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32)
    values = bits.view(np.float32).reshape(1, 1, -1)
    assert np.isnan(codecs.decode(codecs.encode(values, "bfloat16"), "bfloat16", values.shape)).all()
