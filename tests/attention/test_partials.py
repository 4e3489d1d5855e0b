"""Merging partials: order, grouping, emptiness, and what a wrong merge would do."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath import attention
from dualpath.attention import State, attend, combine, fallback, finish, fold, join, merge
from dualpath.attention.kernels import available
from dualpath.errors import UsageError


def cut(case, cuts: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    edges = [0, *sorted(cuts), len(case.table.tokens)]
    return [case.with_blocks(a, b).out(available()[0]) for a, b in pairwise(edges)]


@given(data=st.data())
def test_any_cuts_merge_to_the_whole(make_case, data):
    case = make_case(data.draw(st.integers(0, 5)), sequences=((2, 150),), loud=data.draw(st.sampled_from([1.0, 30.0])))
    cuts = data.draw(st.lists(st.integers(0, len(case.table.tokens)), max_size=5))
    out, lse = merge(cut(case, cuts))
    exact = case.exact()
    tolerance = 1e-5 + np.abs(exact.max).max() * 2.0**-22  # lse itself is rounded to float32
    np.testing.assert_allclose(out, exact.out, atol=tolerance)
    np.testing.assert_allclose(lse, exact.lse, atol=tolerance)


@given(order=st.permutations(range(4)))
def test_order_moves_only_the_last_bits(make_case, order):
    case = make_case(1, sequences=((1, 200),))
    n = len(case.table.tokens)
    partials = cut(case, [n // 4, n // 2, 3 * n // 4])
    out, lse = merge([partials[i] for i in order])
    straight, straight_lse = merge(partials)
    np.testing.assert_allclose(out, straight, atol=1e-6)
    np.testing.assert_allclose(lse, straight_lse, atol=1e-6)


def test_the_order_given_is_deterministic(make_case):
    case = make_case(2, sequences=((3, 200),))
    partials = cut(case, [2, 5])
    assert all(merge(partials)[0].tobytes() == merge(partials)[0].tobytes() for _ in range(3))


def test_empty_partials_change_nothing(make_case):
    case = make_case(3, sequences=((2, 60),))
    part = case.out(available()[0])
    empty = (np.full_like(part[0], np.nan), np.full_like(part[1], -np.inf))
    state = State.empty(*part[0].shape)
    for partial in (empty, part, empty):
        fold(state, partial)
    assert state.max.tobytes() == part[1].tobytes()
    assert state.acc.tobytes() == part[0].tobytes()


@given(data=st.data())
def test_combining_states_is_merging_them(make_case, data):
    case = make_case(data.draw(st.integers(0, 5)), sequences=((2, 150),), loud=data.draw(st.sampled_from([1.0, 30.0])))
    cuts = data.draw(st.lists(st.integers(0, len(case.table.tokens)), max_size=5))
    states = [State(lse, np.ones_like(lse), out) for out, lse in cut(case, cuts)]
    before = [state.acc.tobytes() for state in states]
    out, lse = finish(combine(states))
    exact = case.exact()
    tolerance = 1e-5 + np.abs(exact.max).max() * 2.0**-22
    np.testing.assert_allclose(out, exact.out, atol=tolerance)
    np.testing.assert_allclose(lse, exact.lse, atol=tolerance)
    assert before == [state.acc.tobytes() for state in states]
    with pytest.raises(UsageError, match="nothing to combine"):
        combine([])


def test_all_empty_is_empty():
    assert np.isneginf(finish(combine([State.empty(2, 3, 8)] * 2))[1]).all()
    out, lse = merge([finish(State.empty(2, 3, 8))] * 3)
    assert not out.any()
    assert np.isneginf(lse).all()


def test_a_state_goes_on_after_a_fold(make_case):
    """local blocks, then a partial from a node, then local blocks: as one state."""
    case = make_case(4, sequences=((1, 200),))
    kernel, n = available()[0], len(case.table.tokens)
    state = case.with_blocks(0, 3).run(kernel)
    fold(state, case.with_blocks(3, 7).out(kernel))
    case.with_blocks(7, n).run(kernel, state=state)
    np.testing.assert_allclose(finish(state)[0], case.exact().out, atol=1e-5)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="nothing to merge"):
        merge([])
    with pytest.raises(UsageError, match="partial has shapes"):
        fold(State.empty(1, 2, 8), (np.zeros((1, 2, 4), np.float32), np.zeros((1, 2), np.float32)))
    with pytest.raises(UsageError, match="sinks have shape"):
        finish(State.empty(1, 2, 8), np.zeros(3, np.float32))
    with pytest.raises(UsageError, match="combine"):
        combine([State.empty(1, 2, 8), State.empty(1, 2, 4)])
    with pytest.raises(UsageError, match="combine"):
        join([State.empty(1, 2, 8), State.empty(2, 2, 8)])
    with pytest.raises(UsageError, match="nothing to combine"):
        join([])
    with pytest.raises(UsageError, match="sinks have shape"):
        join([State.empty(1, 2, 8)], np.zeros(3, np.float32))


@given(data=st.data())
def test_the_native_merge_is_the_one_in_python(data):
    rows, heads, width = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 9)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    loud = data.draw(st.sampled_from([1.0, 60.0]))
    states = []
    for _ in range(data.draw(st.integers(1, 4))):
        high = (rng.standard_normal((rows, heads)) * loud).astype(np.float32)
        total = (rng.random((rows, heads)) + 0.5).astype(np.float32)
        acc = rng.standard_normal((rows, heads, width)).astype(np.float32)
        empty = rng.random((rows, heads)) < 0.3
        high[empty], total[empty], acc[empty] = -np.inf, 0, 0
        states.append(State(high, total, acc))
    sinks = rng.standard_normal(heads).astype(np.float32) if data.draw(st.booleans()) else None
    whole, plain = combine(states), fallback.combine(states)
    assert (whole.max == plain.max).all()
    np.testing.assert_allclose(whole.exp_sum, plain.exp_sum, rtol=1e-6)
    np.testing.assert_allclose(whole.acc, plain.acc, rtol=1e-6, atol=1e-6)
    (out, lse), (plain_out, plain_lse) = finish(whole, sinks), fallback.finish(plain, sinks)
    np.testing.assert_allclose(out, plain_out, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(lse, plain_lse, rtol=1e-6, atol=1e-6)
    joined = join([*states[:-1], states[-1]], sinks)
    assert (joined[0].tobytes(), joined[1].tobytes()) == (out.tobytes(), lse.tobytes())
    none_seen = np.isneginf(whole.max) if sinks is None else np.zeros((rows, heads), bool)
    assert (np.isneginf(lse) == none_seen).all()


def test_a_partial_counts_as_the_state_that_it_stands_for(make_case):
    case = make_case(3, sequences=((2, 90),))
    partials = cut(case, [2, 4])
    states = [State(lse, np.ones_like(lse), out) for out, lse in partials]
    mixed, plain = combine([partials[0], states[1], partials[2]]), combine(states)
    assert all((getattr(mixed, name) == getattr(plain, name)).all() for name in ("max", "exp_sum", "acc"))
    assert (join(partials)[0] == finish(plain)[0]).all()


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_partial_in_one_step_is_attending_and_finishing(make_case, rows):
    """The same bits, whatever lay in the arrays; 40 rows take the other way through the kernel."""
    case = make_case(6, sequences=((rows, 100), (1, 0)))
    state = State.empty(len(case.q), case.q.shape[1], case.geometry.value_dim)
    attend(state, case.q, case.row_position, case.table, case.geometry, scale=0.2, window=7)
    out, lse = np.full_like(state.acc, np.nan), np.full_like(state.max, np.nan)
    attention.partial(out, lse, case.q, case.row_position, case.table, case.geometry, scale=0.2, window=7)
    expected = finish(state)
    assert (out.tobytes(), lse.tobytes()) == (expected[0].tobytes(), expected[1].tobytes())
    with pytest.raises(UsageError, match="attend"):
        attention.partial(out[:, :1], lse, case.q, case.row_position, case.table, case.geometry, scale=0.2)
    with pytest.raises(UsageError, match="attend"):
        attention.partial(out, lse[1:], case.q, case.row_position, case.table, case.geometry, scale=0.2)


def test_a_nan_is_not_lost_in_a_merge():
    good, bad = State.empty(1, 1, 2), State.empty(1, 1, 2)
    good.max[:], good.exp_sum[:], good.acc[:] = 1.0, 1.0, 1.0
    bad.max[:], bad.exp_sum[:] = np.nan, 1.0
    for states in ([good, bad], [bad, good]):
        assert np.isnan(combine(states).acc).all()


def unscaled(partials) -> np.ndarray:
    """The classic mistake: averaging outputs as if every partial had the same exp-sum."""
    return np.mean([out for out, _ in partials], axis=0)


def test_a_merge_without_rescaling_is_noticed(make_case):
    """With one partial of 16 tokens and another of the rest, it is wrong by more than any tolerance from the first
    token of the second partial on, and by over a tenth of the output's size at every length."""
    found = {}
    for length in (17, 24, 32, 64, 128, 256, 1024):
        case = make_case(5, sequences=((1, length),), block_tokens=16, group=4)
        first = int(np.searchsorted(case.table.position, 16))
        partials = [
            case.with_blocks(a, b).out(available()[0]) for a, b in ((0, first), (first, len(case.table.tokens)))
        ]
        exact = case.exact().out
        assert np.abs(merge(partials)[0] - exact).max() < 1e-5
        found[length] = float(np.abs(unscaled(partials) - exact).max() / np.abs(exact).max())
    assert min(found) == 17
    assert all(error > 0.1 for error in found.values()), found
