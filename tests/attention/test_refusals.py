"""What cannot work is refused with a `UsageError`, by every kernel, before anything is read or changed."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from dualpath.attention import State, kernels, set_threads
from dualpath.attention.dispatch import get_threads
from dualpath.errors import HostError, UsageError


def table(**changes):
    return lambda case: replace(case, table=replace(case.table, **{k: f(case.table) for k, f in changes.items()}))


def geometry(**changes):
    return lambda case: replace(case, geometry=msgspec.structs.replace(case.geometry, **changes))


def last(values, value):
    changed = values.copy()
    changed[-1] = value
    return changed


BROKEN = {
    "q float64": lambda c: replace(c, q=c.q.astype(np.float64)),
    "q not contiguous": lambda c: replace(c, q=np.repeat(c.q, 2, axis=2)[..., ::2]),
    "q two-dimensional": lambda c: replace(c, q=c.q[0]),
    "q of another head_dim": lambda c: replace(c, q=c.q[..., :32].copy()),
    "heads no multiple of kv heads": lambda c: replace(c, q=c.q[:, :3].copy()),
    "row_position int32": lambda c: replace(c, row_position=c.row_position.astype(np.int32)),
    "row_position too short": lambda c: replace(c, row_position=c.row_position[:0]),
    "row_position negative": lambda c: replace(c, row_position=c.row_position - 100),
    "softcap negative": lambda c: replace(c, softcap=-1.0),
    "scale not finite": lambda c: replace(c, scale=float("nan")),
    "window negative": lambda c: replace(c, window=-1),
    "buffer index": table(buffer=lambda t: last(t.buffer, 2)),
    "buffer index negative": table(buffer=lambda t: last(t.buffer, -1)),
    "buffer not bytes": table(buffers=lambda t: [b.view(np.float32) for b in t.buffers]),
    "offset past the end": table(offset=lambda t: last(t.offset, t.buffers[0].size - 100)),
    "offset huge": table(offset=lambda t: last(t.offset, 2**63 - 1)),
    "offset negative": table(offset=lambda t: last(t.offset, -4)),
    "offset unaligned": table(offset=lambda t: last(t.offset, t.offset[-1] + 1)),
    "tokens zero": table(tokens=lambda t: last(t.tokens, 0)),
    "tokens too many": table(tokens=lambda t: last(t.tokens, 17)),
    "tokens of another length": table(tokens=lambda t: t.tokens[:-1]),
    "position negative": table(position=lambda t: last(t.position, -1)),
    "offset int32": table(offset=lambda t: t.offset.astype(np.int32)),
    "row_start not ending at rows": table(row_start=lambda t: last(t.row_start, 7)),
    "row_start not from 0": table(row_start=lambda t: t.row_start + 1),
    "block_start not ending at blocks": table(block_start=lambda t: last(t.block_start, 1)),
    "starts decreasing": table(
        row_start=lambda t: np.array([0, 2, 1, 1], np.int32),
        block_start=lambda t: np.array([0, 0, 0, len(t.tokens)], np.int32),
    ),
    "starts of unequal length": table(row_start=lambda t: np.array([0, 1, 1], np.int32)),
    "starts empty": table(row_start=lambda t: t.row_start[:0], block_start=lambda t: t.block_start[:0]),
    "value_dim other than head_dim": geometry(value_dim=32),
    "value_dim above head_dim": geometry(value_dim=128, latent=True),
    "no kv heads": geometry(kv_heads=0),
    "dtype unknown": geometry(dtype="int4"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_calls_are_refused(make_case, kernel, what):
    case = make_case(1, sequences=((1, 60),))
    state = case.empty()
    with pytest.raises(UsageError):
        BROKEN[what](case).run(kernel, state=state)
    assert np.isneginf(state.max).all()


def test_broken_states_are_refused(make_case, kernel):
    case = make_case(1, sequences=((1, 60),))
    good = case.empty()
    frozen = case.empty()
    frozen.acc.setflags(write=False)
    for state in (
        State.empty(2, 4, 64),
        State.empty(1, 4, 32),
        frozen,
        State(good.max, good.exp_sum, good.acc.astype(np.float64)),
        State(good.max, good.exp_sum, good.acc[..., ::-1]),
    ):
        with pytest.raises(UsageError):
            case.run(kernel, state=state)


def test_read_only_buffers_are_fine(make_case, kernel):
    case = make_case(1, sequences=((1, 60),))
    for buffer in case.table.buffers:
        buffer.setflags(write=False)
    assert case.error(kernel) < 1e-5


def test_threads_out_of_range(make_case):
    case = make_case(1)
    for threads in (-1, 10**6):
        with pytest.raises(UsageError, match="threads"):
            set_threads(threads)
        with pytest.raises(UsageError, match="threads"):
            case.run(kernels.available()[0], threads=threads)


def test_default_threads():
    before = get_threads()
    try:
        set_threads(3)
        assert get_threads() == 3
    finally:
        set_threads(0)
    assert get_threads() == before


def test_the_native_kernel_is_built():
    if kernels.available() == ("python",):
        pytest.skip("capability: the native kernel is not built")
    assert kernels.choose("") == kernels.choose("native") == kernels.available()[0]
    assert "portable" in kernels.available()


def test_kernels_are_chosen_by_name(monkeypatch):
    assert kernels.choose("python") == "python"
    with pytest.raises(UsageError, match="neon"):
        kernels.choose("neon")
    monkeypatch.setattr(kernels, "available", lambda: ("python",))
    with pytest.raises(HostError, match="avx512"):
        kernels.choose("avx512")


def test_python_is_used_with_a_warning_where_nothing_is_built(monkeypatch, caplog):
    monkeypatch.setattr(kernels, "available", lambda: ("python",))
    assert kernels.choose("") == "python"
    assert "not built" in caplog.text
