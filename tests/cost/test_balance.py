"""The split against brute force over a grid, against its corners, in its limits, and monotone in every rate."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.cost.balance import (
    Bottleneck,
    NodeRates,
    Rates,
    Speed,
    Split,
    StepLoad,
    all_local,
    balance,
    balance_blocks,
    fetch_all,
    reduce_all,
    split_at,
)
from dualpath.errors import UsageError

MB = 1e6
ANY_RATE = st.floats(1e6, 1e12)
RATE = st.one_of(ANY_RATE, st.just(0.0), st.just(math.inf))
BYTES = st.one_of(st.just(0.0), st.floats(1e3, 1e9))


@st.composite
def cases(draw: st.DrawFn, rate: st.SearchStrategy[float] = RATE, most: int = 3) -> tuple[StepLoad, Rates]:
    nodes = [
        NodeRates(
            Speed(draw(st.one_of(ANY_RATE, st.just(0.0))), draw(st.one_of(ANY_RATE, st.just(math.inf)))),
            draw(rate),
            draw(st.floats(0.0, 1e-2)),
            draw(st.floats(0.0, 1e-4)),
        )
        for _ in range(draw(st.integers(0, most)))
    ]
    load = StepLoad(
        outside_s=draw(st.one_of(st.just(0.0), st.floats(1e-4, 1.0))),
        layers=draw(st.integers(1, 80)),
        hot_bytes=draw(BYTES),
        remote_bytes=tuple(draw(BYTES) for _ in nodes),
        query_rows=draw(st.integers(1, 8)),
    )
    copy = draw(st.one_of(st.just(0.0), st.floats(1e-12, 1e-9)))
    return load, Rates(Speed(draw(ANY_RATE)), draw(rate), tuple(nodes), copy)


def at_most(a: float, b: float) -> bool:
    return a <= b * (1 + 1e-9) + 1e-15 or (math.isinf(a) and math.isinf(b))


def same(a: float, b: float) -> bool:
    return at_most(a, b) and at_most(b, a)


@given(cases())
def test_no_split_of_a_grid_is_better(case: tuple[StepLoad, Rates]) -> None:
    load, rates = case
    best = balance(load, rates)
    shares = [k / 8 for k in range(9)]
    for grid in itertools.product(shares, repeat=len(load.remote_bytes)):
        fetched = tuple(share * remote for share, remote in zip(grid, load.remote_bytes, strict=True))
        assert at_most(best.step_s, split_at(load, rates, fetched).step_s)
    assert all(0 <= taken <= remote for taken, remote in zip(best.fetched_bytes, load.remote_bytes, strict=True))


@given(cases(ANY_RATE, most=5))
def test_its_time_is_that_of_its_split_and_never_more_than_a_corner(case: tuple[StepLoad, Rates]) -> None:
    load, rates = case
    best = balance(load, rates)
    assert best == split_at(load, rates, best.fetched_bytes)
    assert at_most(best.step_s, fetch_all(load, rates).step_s)
    assert at_most(best.step_s, reduce_all(load, rates).step_s)


@given(cases(ANY_RATE))
def test_fetching_less_from_any_node_takes_longer(case: tuple[StepLoad, Rates]) -> None:
    """Of the splits with the least time it is the one that moves the fewest bytes."""
    load, rates = case
    best = balance(load, rates)
    for i, taken in enumerate(best.fetched_bytes):
        if taken > 1e-3 * load.remote_bytes[i]:
            less = tuple(0.99 * x if j == i else x for j, x in enumerate(best.fetched_bytes))
            assert split_at(load, rates, less).step_s > best.step_s * (1 - 1e-12)


@given(cases(ANY_RATE), st.floats(1.0, 1e3))
def test_no_faster_part_makes_a_step_slower(case: tuple[StepLoad, Rates], by: float) -> None:
    load, rates = case
    before = balance(load, rates).step_s
    faster = [
        replace(rates, local=Speed(rates.local.bytes_per_s * by)),
        replace(rates, receiver_bytes_per_s=rates.receiver_bytes_per_s * by),
        replace(rates, copy_s_per_byte=rates.copy_s_per_byte / by),
    ]
    for i, node in enumerate(rates.nodes):
        for better in (
            replace(node, near=Speed(node.near.bytes_per_s * by, node.near.row_bytes_per_s)),
            replace(node, rail_bytes_per_s=node.rail_bytes_per_s * by),
            replace(node, round_trip_s=node.round_trip_s / by),
            replace(node, reply_s_per_row=node.reply_s_per_row / by),
        ):
            nodes = (*rates.nodes[:i], better, *rates.nodes[i + 1 :])
            faster.append(replace(rates, nodes=nodes))
    for one in faster:
        assert at_most(balance(load, one).step_s, before)
    assert at_most(before, balance(replace(load, outside_s=load.outside_s * by), rates).step_s)


@given(cases(ANY_RATE), st.floats(1e4, 1e8))
def test_whole_blocks_cost_at_most_one_block_of_each_node_more(case: tuple[StepLoad, Rates], block: float) -> None:
    load, rates = case
    load = replace(load, remote_bytes=tuple(block * round(remote / block) for remote in load.remote_bytes))
    smooth, whole = balance(load, rates), balance_blocks(load, rates, block)
    for taken in whole.fetched_bytes:
        assert same(taken / block, round(taken / block))
    up = tuple(
        min(r, block * math.ceil(f / block)) for f, r in zip(smooth.fetched_bytes, load.remote_bytes, strict=True)
    )
    assert at_most(smooth.step_s, whole.step_s)
    assert at_most(whole.step_s, split_at(load, rates, up).step_s)


@given(cases(ANY_RATE, most=2), st.lists(st.integers(0, 4), min_size=2, max_size=2))
def test_no_other_choice_of_whole_blocks_is_better(case: tuple[StepLoad, Rates], counts: list[int]) -> None:
    load, rates = case
    block = 1e6
    load = replace(load, remote_bytes=tuple(block * n for n, _ in zip(counts, rates.nodes, strict=False)))
    best = balance_blocks(load, rates, block)
    for choice in itertools.product(*(range(n + 1) for n, _ in zip(counts, rates.nodes, strict=False))):
        assert best.step_s <= split_at(load, rates, tuple(n * block for n in choice)).step_s * (1 + 1e-6)


TWO = Rates(Speed(18e9), 1.25e9, (NodeRates(Speed(6e9), 125e6, 1e-4), NodeRates(Speed(6e9), 125e6, 1e-4)))
LOAD = StepLoad(outside_s=0.05, layers=30, hot_bytes=1 * MB, remote_bytes=(4 * MB, 4 * MB))


def nodes_with(rates: Rates, **changes: object) -> Rates:
    return replace(rates, nodes=tuple(replace(node, **changes) for node in rates.nodes))  # type: ignore[arg-type]  # any field


def test_by_hand() -> None:
    """One node: near and rail meet. T = C + L(r + (R - F)/v) = L F / b, with C hiding what is fetched."""
    load = StepLoad(outside_s=0.04, layers=10, hot_bytes=0.0, remote_bytes=(10 * MB,))
    rates = Rates(Speed(1e12), math.inf, (NodeRates(Speed(1e9), 1e9, 1e-3),))
    found = balance(load, rates)
    assert found.step_s == pytest.approx(0.075)  # 0.04 + 10 (0.001 + 2.5 MB / 1e9) = 10 * 7.5 MB / 1e9
    assert found.fetched_bytes == (pytest.approx(7.5 * MB),)


def test_without_bandwidth_all_is_reduced() -> None:
    found = balance(LOAD, nodes_with(TWO, rail_bytes_per_s=0.0))
    assert found.fetched_bytes == (0.0, 0.0)
    assert found.step_s == pytest.approx(reduce_all(LOAD, TWO).step_s)
    assert balance(LOAD, replace(TWO, receiver_bytes_per_s=0.0)).fetched_bytes == (0.0, 0.0)


def test_with_unbounded_bandwidth_this_host_does_what_it_can() -> None:
    free = replace(nodes_with(TWO, rail_bytes_per_s=math.inf), receiver_bytes_per_s=math.inf)
    found = balance(LOAD, free)
    assert sum(found.fetched_bytes) > 0
    reduced = 4 * MB - found.fetched_bytes[0]
    assert found.step_s == pytest.approx(0.05 + 30 * (1 * MB + sum(found.fetched_bytes)) / 18e9)
    assert found.step_s == pytest.approx(0.05 + 30 * (1e-4 + reduced / 6e9))  # both sides end at once


def test_a_node_that_cannot_reduce_is_fetched_from() -> None:
    found = balance(LOAD, nodes_with(TWO, near=Speed(0.0)))
    assert found.fetched_bytes == LOAD.remote_bytes
    assert (found.bottleneck, found.node) == (Bottleneck.RAIL, 0)
    assert found == fetch_all(LOAD, nodes_with(TWO, near=Speed(0.0)))


def test_a_little_that_is_remote_hides_behind_compute() -> None:
    little = replace(LOAD, remote_bytes=(0.1 * MB, 0.0))
    found = balance(little, nodes_with(TWO, round_trip_s=5e-3))
    assert found.fetched_bytes == (0.1 * MB, 0.0)
    assert found.bottleneck is Bottleneck.COMPUTE


def test_without_nodes_or_remote_kv_it_is_the_local_step() -> None:
    alone = replace(LOAD, remote_bytes=())
    assert balance(alone, Rates(Speed(18e9), 1e9)) == Split((), 0.05 + 30 * 1 * MB / 18e9, Bottleneck.COMPUTE)
    nothing = replace(LOAD, remote_bytes=(0.0, 0.0))
    assert balance(nothing, TWO).step_s == balance(alone, Rates(Speed(18e9), 1e9)).step_s
    assert all_local(LOAD, TWO).step_s == pytest.approx(0.05 + 30 * 9 * MB / 18e9)


def test_copies_by_the_cpu_add_to_compute_and_shift_work_to_the_nodes() -> None:
    dear = replace(TWO, copy_s_per_byte=1e-9)
    assert fetch_all(LOAD, dear).step_s >= fetch_all(LOAD, TWO).step_s
    fast = replace(nodes_with(TWO, rail_bytes_per_s=4e9), receiver_bytes_per_s=8e9)
    assert sum(balance(LOAD, replace(fast, copy_s_per_byte=1e-9)).fetched_bytes) < sum(
        balance(LOAD, fast).fetched_bytes
    )
    found = fetch_all(LOAD, replace(fast, copy_s_per_byte=1e-9))
    assert found.step_s == pytest.approx(0.05 + 30 * (9 * MB / 18e9 + 8 * MB * 1e-9))
    assert found.bottleneck is Bottleneck.COPY


def test_many_query_rows_are_compute_bound_and_make_replies_longer() -> None:
    speed = Speed(10e9, 20e9)
    assert [1 / speed.s_per_byte(rows) for rows in (1, 2, 4)] == pytest.approx([10e9, 10e9, 5e9])
    slow_reply = nodes_with(TWO, reply_s_per_row=1e-4)
    one, many = (reduce_all(replace(LOAD, query_rows=rows), slow_reply) for rows in (1, 64))
    assert many.step_s - one.step_s == pytest.approx(30 * 63 * 1e-4)
    assert (many.bottleneck, many.node) == (Bottleneck.ROUND_TRIP, 0)


@pytest.mark.parametrize(
    ("rates", "fetched", "bottleneck", "node"),
    [
        (TWO, (0, 0), Bottleneck.COMPUTE, None),
        (nodes_with(TWO, near=Speed(1e8)), (0, 0), Bottleneck.NEAR, 0),
        (replace(TWO, receiver_bytes_per_s=1e8), (4 * MB, 4 * MB), Bottleneck.RECEIVER, None),
        (replace(TWO, local=Speed(1e8)), (0, 0), Bottleneck.LOCAL, None),
    ],
)
def test_the_bottleneck_has_a_name(
    rates: Rates, fetched: tuple[float, float], bottleneck: Bottleneck, node: int | None
) -> None:
    found = split_at(LOAD, rates, fetched)
    assert (found.bottleneck, found.node) == (bottleneck, node)


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(UsageError, match="rates of 2 nodes"):
        balance(replace(LOAD, remote_bytes=(1.0,)), TWO)
    with pytest.raises(UsageError, match="no such load"):
        replace(LOAD, layers=0)
    with pytest.raises(UsageError, match="no such load"):
        replace(LOAD, remote_bytes=(-1.0, 0.0))
