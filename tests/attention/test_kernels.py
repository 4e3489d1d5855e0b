"""Every kernel of this machine against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dualpath.attention import explain_blocks, finish, reference
from dualpath.attention.kernels import available
from dualpath.kv import QUANTISED, codecs

DTYPES = ("float32", "bfloat16", "float16", "int8", "float8_e4m3")

SHAPES = {
    "one token": {"sequences": ((1, 1),)},
    "no tokens": {"sequences": ((3, 0),)},
    "no rows": {"sequences": ((0, 30),)},
    "9q/3kv": {"kv_heads": 3, "group": 3, "sequences": ((1, 700),), "block_tokens": 256},
    "mha": {"group": 1, "sequences": ((4, 100),)},
    "32q/8kv": {"kv_heads": 8, "group": 4, "head_dim": 128, "sequences": ((1, 300),), "block_tokens": 256},
    "group 5": {"group": 5, "head_dim": 96, "sequences": ((1, 50),)},
    "group 7, two rows": {"group": 7, "sequences": ((2, 50),)},
    "group 128": {"kv_heads": 1, "group": 128, "sequences": ((1, 50),)},
    "dim 80": {"group": 8, "head_dim": 80, "sequences": ((1, 100), (40, 60))},
    "dim 16": {"head_dim": 16, "sequences": ((1, 100), (40, 60))},
    "dim 20": {"head_dim": 20, "sequences": ((1, 100), (40, 60))},
    "dim 192": {"head_dim": 192, "sequences": ((1, 60), (20, 60))},
    "dim 256": {"head_dim": 256, "sequences": ((1, 60), (20, 60))},
    "long block": {"sequences": ((1, 900), (40, 900)), "block_tokens": 1024},
    "chunk": {"group": 3, "kv_heads": 3, "sequences": ((130, 400),), "block_tokens": 256},
    "batch": {"group": 3, "sequences": ((40, 100), (1, 77), (0, 20), (3, 0), (5, 33))},
    "latent": {"latent": True, "kv_heads": 1, "group": 16, "head_dim": 576, "value_dim": 512, "sequences": ((1, 70),)},
    "latent rows": {
        "latent": True,
        "kv_heads": 1,
        "group": 9,
        "head_dim": 48,
        "value_dim": 40,
        "sequences": ((7, 70),),
    },
    "fully masked rows": {"future": 50, "sequences": ((3, 100), (60, 100))},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_float64(make_case, kernel, dtype, shape):
    case = make_case(1, dtype=dtype, **SHAPES[shape])
    assert case.error(kernel, threads=2) < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize(("softcap", "window"), [(5.0, 0), (50.0, 0), (0.0, 1), (0.0, 20), (30.0, 33), (0.0, 10**12)])
def test_softcap_and_window(make_case, kernel, dtype, rows, softcap, window):
    case = make_case(2, dtype=dtype, sequences=((rows, 100),), softcap=softcap, window=window)
    assert case.error(kernel) < 1e-5


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("loud", [30.0, 1000.0])
def test_large_logits(make_case, kernel, rows, loud):
    """Scores up to ±4000: one rounding of a score of size s moves its weight by s·2^-24, and a dot product has 64."""
    case = make_case(3, sequences=((rows, 200),), loud=loud)
    top = np.abs(case.exact().max).max()
    assert case.error(kernel) < 1e-5 + top * 2.0**-21


@pytest.mark.parametrize("rows", [1, 40])
def test_one_dominant_key(make_case, kernel, rows):
    case = make_case(4, sequences=((rows, 200),))
    keys = case.table.buffers[int(case.table.buffer[3])][int(case.table.offset[3]) :].view(np.float32)
    keys[:64] = 8 * case.q[-1, 0]  # K of its first token, kv head 0
    assert case.exact().max.max() > 40
    assert case.error(kernel) < 2e-5


def test_exponential_is_exact_to_single_precision(make_case, kernel):
    """Two keys whose scores differ by x: exp-sum is 1 + e^-x, and of V = (0, 1) the output is e^-x / (1 + e^-x)."""
    for x in np.linspace(0.0, 86.0, 200):
        case = make_case(5, kv_heads=1, group=1, head_dim=32, block_tokens=2, sequences=((1, 2),), scale=1.0)
        stored = np.zeros((2, 2, 32), np.float32)
        stored[0, 1, 0] = -np.float32(x)
        stored[1, 1, :] = 1
        buffer = np.zeros(case.table.buffers[0].shape, np.uint8)
        buffer[: stored.nbytes] = stored.reshape(-1).view(np.uint8)
        table = replace(
            case.table, buffers=[buffer], buffer=np.zeros(1, np.int32), offset=np.zeros(1, np.int64),
            tokens=np.full(1, 2, np.int32), position=np.zeros(1, np.int64), block_start=np.array([0, 1], np.int32),
        )  # fmt: skip
        case = replace(case, q=np.eye(1, 32, dtype=np.float32)[None], row_position=np.array([5]), table=table)
        state = case.run(kernel)
        weight = float(np.exp(-np.float64(np.float32(x))))
        assert state.acc[0, 0, 0] == pytest.approx(weight, rel=3e-7)


def test_all_kernels_read_halves_alike(make_case):
    """bf16 and fp16 are widened exactly, subnormals and all: storing what fits in fp16 gives what float32 gives."""
    raw = np.arange(1 << 16, dtype=np.uint16)
    for dtype, view in (("float16", raw.view(np.float16).astype(np.float32)), ("bfloat16", None)):
        wide = view if view is not None else (raw.astype(np.uint32) << 16).view(np.float32)
        keep = np.isfinite(wide) & (np.abs(wide) < 1e30)
        values = wide[keep][:57_600].reshape(-1, 64)
        tokens = len(values)
        case = make_case(6, dtype=dtype, kv_heads=1, group=1, block_tokens=tokens, sequences=((1, tokens),))
        stored = np.zeros((2, tokens, 64), np.uint16)
        stored[1] = raw[keep][: values.size].reshape(-1, 64)
        buffer = stored.reshape(-1).view(np.uint8)
        table = replace(
            case.table, buffers=[buffer], buffer=np.zeros(1, np.int32), offset=np.zeros(1, np.int64),
            tokens=np.full(1, tokens, np.int32), position=np.zeros(1, np.int64), block_start=np.array([0, 1], np.int32),
        )  # fmt: skip
        case = replace(case, table=table)
        for name in available():
            for token in (0, 7, tokens - 1):  # K is zero, so every seen key weighs the same: look at one at a time
                alone = replace(case, row_position=np.array([token]), window=1)
                out, _ = alone.out(name)
                assert np.array_equal(out[0, 0], values[token]), (name, dtype, token)


@pytest.mark.parametrize("dtype", QUANTISED)
def test_all_kernels_read_bytes_alike(make_case, dtype):
    """Every code that is ever stored, at a scale of one, comes out as the codec reads it."""
    codes = np.array([c for c in range(256) if c not in ((0x80,) if dtype == "int8" else (0x7F, 0xFF))], np.uint8)
    case = make_case(6, dtype=dtype, kv_heads=1, group=1, block_tokens=len(codes), sequences=((1, len(codes)),))
    stored = codecs.encode(np.zeros((1, 2, len(codes), 64), np.float32), dtype)
    stored[: 2 * codes.size * 64].reshape(2, -1, 64)[1] = codes[:, None]
    scales_at = codecs.parts_of((1, 2, len(codes), 64), dtype).scales_at
    stored[scales_at : scales_at + 256].view(np.uint16)[:] = 0x3F80
    values = codecs.decode(stored, dtype, (2, len(codes), 64))[1]
    assert len(np.unique(values)) >= len(codes) - 1  # 0 and -0
    table = replace(
        case.table, buffers=[stored], buffer=np.zeros(1, np.int32), offset=np.zeros(1, np.int64),
        tokens=np.full(1, len(codes), np.int32), position=np.zeros(1, np.int64), block_start=np.array([0, 1], np.int32),
    )  # fmt: skip
    for name in available():
        for token in range(len(codes)):
            alone = replace(case, table=table, row_position=np.array([token]), window=1)
            assert np.array_equal(alone.out(name)[0][0, 0], values[token]), (name, token)


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("rows", [1, 40])
def test_channels_of_very_different_size(make_case, kernel, dtype, rows):
    """What scales per channel are for: columns of K and V from 1e-6 to 1e3, and columns of zeros."""
    case = make_case(9, dtype=dtype, sequences=((rows, 90),))
    rng = np.random.default_rng(0)
    columns = np.float32(10.0) ** rng.integers(-6, 4, (2, 2, 1, 64))
    columns[..., ::7] = 0
    for i, (buffer, offset) in enumerate(zip(case.table.buffer, case.table.offset, strict=True)):
        block = rng.standard_normal((2, 2, 16, 64)).astype(np.float32) * columns.astype(np.float32)
        stored = codecs.encode(block, dtype, int(case.table.tokens[i]))
        case.table.buffers[buffer][offset : offset + stored.size] = stored
    case = replace(case, q=(case.q / np.maximum(columns[0, 0], 1e-6)).astype(np.float32) * np.float32(0.1))
    exact = case.exact()
    (out, lse), top = case.out(kernel), np.abs(exact.out).max()
    assert np.abs(out - exact.out).max() < 1e-5 * top
    assert np.abs(lse - exact.lse).max() < 1e-5 * max(1.0, np.abs(exact.lse).max())


def test_explain_blocks_adds_up(make_case):
    case = make_case(7, sequences=((3, 90), (20, 50)))
    parts = explain_blocks(case.q, case.row_position, case.table, case.geometry, scale=case.scale)
    assert len(parts) == len(case.table.tokens)
    exact = case.exact()
    high = np.max([m for m, _ in parts], axis=0)
    total = sum(z * np.exp(np.where(np.isneginf(m), -np.inf, m - high)) for m, z in parts)
    np.testing.assert_allclose(high, exact.max, atol=1e-5)
    np.testing.assert_allclose(total, exact.exp_sum, rtol=1e-5)


def test_sinks(make_case, kernel):
    case = make_case(8, sequences=((2, 40), (2, 0)))
    sinks = np.array([0.5, -3.0, 7.0, -np.inf], np.float32)
    out, lse = finish(case.run(kernel), sinks)
    exact = reference.attend(case.q, case.row_position, case.table, case.geometry, scale=case.scale, sinks=sinks)
    np.testing.assert_allclose(out, exact.out, atol=1e-5)
    np.testing.assert_allclose(lse, exact.lse, atol=1e-5)
    assert (lse[2:] == sinks).all()
    assert not out[2:].any()
