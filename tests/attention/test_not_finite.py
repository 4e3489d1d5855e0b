"""What is not finite shows in the rows that see it, in no other, with every kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dualpath.attention import State, combine, fallback, finish, fold, join
from dualpath.attention.storage import layer_block_bytes, shape_of
from dualpath.kv import QUANTISED, codecs

DTYPES = ("float32", "bfloat16", "float16", "int8", "float8_e4m3")
K, V = 0, 1
PAYLOADS = {  # of NaN, as stored
    "float32": (0x7FC00000, 0xFFFFFFFF, 0x7FFFFFFF, 0x7F800001),
    "bfloat16": (0x7FC0, 0xFFFF, 0x7FFF, 0x7F81),
    "float16": (0x7E00, 0xFFFF, 0x7FFF, 0x7C01),
}


def block_of(case, token: int) -> tuple[int, np.ndarray]:
    """Where `token` of the first sequence lies: its row in its block, and the block's bytes."""
    table = case.table
    index = int(np.searchsorted(table.position[: table.block_start[1]], token, side="right")) - 1
    start = int(table.offset[index])
    raw = table.buffers[int(table.buffer[index])][start : start + layer_block_bytes(case.geometry)]
    return token - int(table.position[index]), raw


def spoil(case, token: int, stream: int, value: float, head: int = 0, column: int = 3) -> None:
    """Store `value` in place of one element of `token` of the first sequence."""
    row, raw = block_of(case, token)
    tokens = int(case.table.tokens[np.searchsorted(case.table.position[: case.table.block_start[1]], token - row)])
    with np.errstate(invalid="ignore"):
        data = codecs.decode(raw, case.geometry.dtype, shape_of(case.geometry)).copy()
        if case.geometry.latent:
            data[head, row, column] = value
        else:
            data[head, stream, row, column] = value
        raw[:] = codecs.encode(data, case.geometry.dtype, tokens)


def spoil_bits(case, token: int, stream: int, bits: int, column: int = 3) -> None:
    """The same with the bits of a stored float."""
    row, raw = block_of(case, token)
    item = 4 if case.geometry.dtype == "float32" else 2
    raw.view(f"u{item}").reshape(shape_of(case.geometry))[0, stream, row, column] = bits


def assert_agrees(case, kernel: str, **options) -> np.ndarray:
    """Assert that float64 has NaN and infinities where the kernel has them, and the same numbers elsewhere; return
    where out has them."""
    with np.errstate(invalid="ignore"):
        exact = case.exact()
        out, lse = case.out(kernel, **options)
    np.testing.assert_allclose(out, exact.out, rtol=0, atol=1e-5)
    np.testing.assert_allclose(lse, exact.lse, rtol=0, atol=1e-5)
    return ~np.isfinite(out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 4, 40])
@pytest.mark.parametrize("stream", [K, V])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_rows_that_see_it_alone(make_case, kernel, dtype, rows, stream, value):
    """Two of three heads and another sequence do not, nor do rows before it, nor those behind the window."""
    for window in (0, 7):
        case = make_case(1, dtype=dtype, kv_heads=3, sequences=((rows, 90), (20, 40)), block_tokens=64, window=window)
        spoil(case, 89 - rows // 2, stream, value)
        bad = assert_agrees(case, kernel, threads=2).any(axis=2)
        assert bad.any()
        assert not bad[rows:].any()
        assert not bad[:, 2:].any()
        assert rows == 1 or not bad[0].any() or dtype in QUANTISED  # whose channels have a scale per block


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 4, 40])
def test_a_query(make_case, kernel, dtype, rows):
    for value in (np.nan, np.inf):
        case = make_case(2, dtype=dtype, sequences=((rows, 90), (20, 40)))
        case.q[rows // 2, 1, 5] = value
        bad = assert_agrees(case, kernel, threads=2)
        assert bad[rows // 2, 1].all()
        assert bad.sum() == case.geometry.value_dim


@pytest.mark.parametrize(
    "shape",
    [
        {"head_dim": 20, "sequences": ((1, 50),)},
        {"head_dim": 20, "sequences": ((4, 50),)},
        {"head_dim": 20, "sequences": ((40, 50),)},
        {"latent": True, "kv_heads": 1, "group": 4, "head_dim": 96, "value_dim": 64, "sequences": ((1, 50),)},
        {"latent": True, "kv_heads": 1, "group": 4, "head_dim": 96, "value_dim": 64, "sequences": ((3, 50),)},
        {"latent": True, "kv_heads": 1, "group": 4, "head_dim": 96, "value_dim": 64, "sequences": ((40, 50),)},
        {"group": 1, "sequences": ((9, 50),)},
        {"sequences": ((6, 700),), "block_tokens": 512},
        {"sequences": ((150, 700),), "block_tokens": 512},
        {"sequences": ((40, 90),), "softcap": 5.0},
        {"sequences": ((3, 90),), "softcap": 5.0, "window": 40},
    ],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_every_shape(make_case, kernel, dtype, shape):
    rows, tokens = shape["sequences"][0]
    for stream in (K, V):
        case = make_case(3, dtype=dtype, **shape)
        spoil(case, tokens - 1 - rows // 2, stream, np.nan)
        assert assert_agrees(case, kernel, threads=2).any()


@pytest.mark.parametrize("dtype", PAYLOADS)
@pytest.mark.parametrize("rows", [1, 40])
def test_every_kind_of_nan(make_case, kernel, dtype, rows):
    for stream in (K, V):
        for bits in PAYLOADS[dtype]:
            case = make_case(4, dtype=dtype, sequences=((rows, 60),))
            spoil_bits(case, 10, stream, bits)
            assert assert_agrees(case, kernel)[:, :2].any(axis=2).all(), hex(bits)
    for bits in PAYLOADS["float32"]:
        case = make_case(4, dtype=dtype, sequences=((rows, 60),))
        case.q.view(np.uint32)[:, 0, 7] = bits
        assert assert_agrees(case, kernel)[:, 0].all(), hex(bits)


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_nothing_but_nan_is_not_nothing(make_case, kernel, dtype, rows):
    """Each row sees one key, and so a maximum of -inf would do for one."""
    case = make_case(5, dtype=dtype, sequences=((rows, 60),), window=1)
    for token in range(60 - rows, 60):
        spoil(case, token, K, np.nan)
    assert assert_agrees(case, kernel)[:, :2].all()
    state = case.run(kernel)
    assert np.isnan(state.max[:, :2]).all()
    assert np.isnan(state.exp_sum[:, :2]).all()


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_stays_whatever_follows(make_case, kernel, dtype, rows):
    """Further calls, folds, merges and sinks."""
    case = make_case(6, dtype=dtype, sequences=((rows, 100),))
    spoil(case, 2, K, np.nan)
    n = len(case.table.tokens)
    parts = [case.with_blocks(a, b) for a, b in ((0, 1), (1, n))]
    state = parts[0].run(kernel)
    parts[1].run(kernel, state=state)
    sinks = np.zeros(4, np.float32)
    bad, good = (part.out(kernel) for part in parts)
    folded = [State.empty(*bad[0].shape), State.empty(*bad[0].shape)]
    for into, order in zip(folded, ((bad, good), (good, bad)), strict=True):
        for part in order:
            fold(into, part)
    merged = [combine([bad, good]), combine([good, parts[0].run(kernel)])]
    found = [finish(one, extra) for one in (state, *folded, *merged) for extra in (None, sinks)]
    found += [fallback.finish(one, extra) for one in (state, *folded, *merged) for extra in (None, sinks)]
    for out, lse in (*found, join([bad, good]), join([good, bad], sinks)):
        assert np.isnan(out[:, :2]).all()
        assert np.isnan(lse[:, :2]).all()
        assert np.isfinite(out[:, 2:]).all()
        assert np.isfinite(lse[:, 2:]).all()


def test_a_sum_alone_tells_too():
    state = replace(State.empty(1, 1, 2), exp_sum=np.full((1, 1), np.nan, np.float32))
    for out, lse in (finish(state), fallback.finish(state, None)):
        assert np.isnan(out).all()
        assert np.isnan(lse).all()


def test_what_nobody_sees_changes_no_bit(make_case, kernel):
    """The last tokens of a block that rows see the first of, in all that a kernel can do with rows."""
    for rows in (1, 4, 40):
        for dtype in ("float32", "bfloat16", "float16"):
            case = make_case(7, dtype=dtype, sequences=((rows, 60),), block_tokens=64, future=9)
            before = case.out(kernel)
            for stream in (K, V):
                spoil(case, 55, stream, np.nan)
            for old, new in zip(before, case.out(kernel), strict=True):
                np.testing.assert_allclose(new, old, rtol=0, atol=1e-5)
                if kernel not in ("amx", "python"):  # whose rows go another way then
                    assert new.tobytes() == old.tobytes()
