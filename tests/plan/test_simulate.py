"""What a plan says of memory, links, schemes, costs and the 2 x 2."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.cost import tpot
from dualpath.cost.tpot import Scheme
from dualpath.errors import CapacityError
from dualpath.plan import budget, needs
from dualpath.plan.inputs import Prices
from dualpath.plan.model import Experts
from dualpath.plan.options import ComputeOptions, ModelOptions, PlanOptions
from dualpath.plan.resolve import deployment
from dualpath.plan.result import Plan, SchemeRow
from dualpath.plan.simulate import simulate, sweep

from .conftest import Make, options

GiB = 1 << 30


def row(plan: Plan, scheme: Scheme) -> SchemeRow:
    return next(row for row in plan.schemes if row.scheme is scheme)


def test_memory_is_deducted_to_the_byte(make: Make) -> None:
    found = simulate(make(concurrency=8)).memory
    hbm = 85_520_809_984
    room = hbm - 16_000_000_000 - 34 * (8192 + 8) * 4096 - hbm * 0.1
    assert found.room_bytes == pytest.approx(room)
    assert found.hot_bytes + found.window_bytes == pytest.approx(room)
    assert found.hot_bytes + found.remote_bytes == pytest.approx(8 * 16 * GiB)


def test_time_per_token_by_hand(make: Make) -> None:
    plan = simulate(make(concurrency=8, hot="0GiB", nodes=4, bandwidth="300GB/s"))
    outside = 16e9 / 3.35e12
    kv = 128 * GiB
    assert row(plan, Scheme.ALL_LOCAL).tpot_s == pytest.approx(outside + kv / 3.35e12)
    assert row(plan, Scheme.FETCH).tpot_s == pytest.approx(kv / 50e9)
    exchange = 8 * 32 * (128 + 129) * 4 / (50e9 / 4)  # queries and partials of four nodes through one NIC
    near = kv / 4 / 300e9 + 32 * (16e-6 + exchange)
    assert row(plan, Scheme.REDUCE).tpot_s == pytest.approx(outside + near)
    assert row(plan, Scheme.REDUCE).wire_bytes_per_step == 4 * 8 * 32 * 32 * (128 + 129) * 4


def test_a_cold_prompt_and_one_that_lies_in_the_pool(make: Make) -> None:
    plan = simulate(make(concurrency=1, hot="0GiB"))
    linear, attention = 2 * 8e9 * 131_072, 131_072 * 32 * 2 * 32 * 256 * 65_536
    compute = (linear + attention) / 989.4e12
    assert row(plan, Scheme.ALL_LOCAL).ttft_s == pytest.approx(compute)
    assert row(plan, Scheme.SHARDED).ttft_s == pytest.approx(max(compute, 16 * GiB * 7.5 / 50e9))
    assert row(plan, Scheme.SHARDED).resume_s == pytest.approx(16 * GiB / 50e9)
    assert row(plan, Scheme.REDUCE).resume_s < row(plan, Scheme.SHARDED).resume_s / 10


def test_a_short_prompt_takes_what_reading_the_weights_takes(make: Make) -> None:
    plan = simulate(make(context=100, concurrency=1))
    assert row(plan, Scheme.ALL_LOCAL).ttft_s == pytest.approx(16e9 / 3.35e12, rel=1e-3)
    chunks = simulate(make(context=1000, concurrency=1, chunk=10))
    assert row(chunks, Scheme.ALL_LOCAL).ttft_s == pytest.approx(100 * 16e9 / 3.35e12, rel=1e-2)


def test_a_prompt_of_latent_attention_is_computed_with_kv_expanded() -> None:
    """61 layers of 128 heads: 128 + 64 elements of q·k and 128 of p·v, where decoding takes 576 and 512."""
    values = PlanOptions(model=ModelOptions(name="deepseek-v3"), compute=ComputeOptions(gpu="h200", gpus=8))
    d = deployment(values)
    attention = 131_072 * 65_536 * 61 * 128 * 2 * (128 + 64 + 128)
    linear = 2 * d.model.active_parameters * 131_072
    assert row(simulate(d), Scheme.ALL_LOCAL).ttft_s == pytest.approx((attention + linear) / (8 * 989.4e12))


def test_more_senders_do_not_help_one_receiver(make: Make) -> None:
    few, many = (simulate(make(nodes=nodes, hot="0GiB")) for nodes in (1, 32))
    assert row(few, Scheme.SHARDED).tpot_s == row(many, Scheme.SHARDED).tpot_s
    assert row(many, Scheme.REDUCE).tpot_s < row(few, Scheme.REDUCE).tpot_s


def test_what_a_scheme_needs_does_meet_the_target(make: Make) -> None:
    plan = simulate(make(concurrency=16, nodes=1, target=10))
    assert not row(plan, Scheme.REDUCE).meets_target
    wanted = row(plan, Scheme.REDUCE).nodes_needed
    assert wanted is not None
    assert row(simulate(make(concurrency=16, nodes=wanted, target=10)), Scheme.REDUCE).meets_target
    assert not row(simulate(make(concurrency=16, nodes=wanted - 1, target=10)), Scheme.REDUCE).meets_target
    gpus = row(plan, Scheme.ALL_LOCAL).gpus_needed
    assert gpus is not None
    assert row(simulate(make(concurrency=16, gpus=gpus)), Scheme.ALL_LOCAL).fits
    assert not row(simulate(make(concurrency=16, gpus=gpus - 1)), Scheme.ALL_LOCAL).fits


@pytest.mark.parametrize("scheme", [Scheme.SHARDED, Scheme.REDUCE, Scheme.AUTO])
@pytest.mark.parametrize("nic", ["25G", "400G"])
def test_the_least_number_of_nodes_is_found_where_more_are_slower_again(make: Make, scheme: Scheme, nic: str) -> None:
    d = make(concurrency=64, gpus=4, nic=nic, nodes=1)
    found, has = budget.memory(d), budget.links(d)
    first = -(-int(found.remote_bytes) // int(d.pool.memory_bytes))
    times = {n: tpot.tpot(scheme, *budget.step(d, found, has, nodes=n)).seconds for n in range(first, 300)}
    for wanted_s in (min(times.values()), *list(times.values())[:8], min(times.values()) * 0.999):
        target = 1 / wanted_s * (1 - 1e-9)  # where all are bound by one receiver they differ in the last bit
        workload = msgspec.structs.replace(d.workload, target_tokens_per_s=target)
        other = msgspec.structs.replace(d, workload=workload)
        least = next((n for n, time in times.items() if time <= workload.budget_s), None)
        assert needs.nodes_needed(other, found, has, scheme) == least


def test_nics_needed_bring_the_bytes_in_time(make: Make) -> None:
    base = {"concurrency": 4, "context": "64K", "hot": "24GiB", "gpus": 4, "nodes": 8}  # 8 GiB in 0.1 s: 85.9 GB/s
    assert row(simulate(make(**base, nics=1)), Scheme.SHARDED).nics_needed == 2
    assert row(simulate(make(**base, nics=2)), Scheme.SHARDED).meets_target
    assert row(simulate(make(**base, nics=1)), Scheme.FETCH).nics_needed is None  # its one sender has 50 GB/s
    assert row(simulate(make(**base | {"nodes": 1}, nics=1)), Scheme.SHARDED).nics_needed is None


def test_no_number_of_nics_helps_where_pcie_is_too_slow(make: Make) -> None:
    base = {"concurrency": 4, "context": "64K", "hot": "24GiB", "gpus": 1}  # 63 GB/s
    assert row(simulate(make(**base, nics=1)), Scheme.SHARDED).nics_needed is None


@pytest.mark.parametrize("memory", ["0", "1"])
def test_nodes_without_memory_are_never_enough(make: Make, memory: str) -> None:
    reduce = row(simulate(make(concurrency=8, memory=memory)), Scheme.REDUCE)
    assert (reduce.fits, reduce.nodes_needed) == (False, None)


def test_a_hot_region_larger_than_what_is_left_is_refused(make: Make) -> None:
    with pytest.raises(CapacityError, match="hot region of 70 GiB"):
        simulate(make(hot="70GiB"))


def test_expert_traffic_comes_off_the_nics_and_pcie(make: Make) -> None:
    dense = make(hosts=4, concurrency=1, target=10)
    model = dataclasses.replace(dense.model, experts=Experts(count=64, active=8, layers=30), hidden_size=4096)
    d = msgspec.structs.replace(dense, model=model)
    busy, found = 30 * 8 * 4096 * 3 * 0.75 * 10, simulate(d).links
    assert found.all_to_all_bytes_per_s == pytest.approx(busy)
    assert found.receiver_bytes_per_s == pytest.approx(4 * 50e9 - busy)
    wide = msgspec.structs.replace(d, network=msgspec.structs.replace(d.network, nics=8))  # PCIe is the narrower
    assert simulate(wide).links.receiver_bytes_per_s == pytest.approx(found.pcie_bytes_per_s - busy)
    assert simulate(dense).links.all_to_all_bytes_per_s == 0


def test_the_2_x_2_halves_bytes_and_each_half_helps(make: Make) -> None:
    plain, plain_dual, small, small_dual = simulate(make(concurrency=8)).compression
    assert [cell.dual_path for cell in (plain, plain_dual, small, small_dual)] == [False, True, False, True]
    assert small.total_bytes == pytest.approx(
        plain.total_bytes / 2 * (1 + 2 / 256)
    )  # with a scale of two bytes a channel
    times = [cell.tpot_s for cell in (plain, plain_dual, small, small_dual)]
    assert all(time is not None for time in times)
    assert times[0] > times[1] > times[3]  # type: ignore[operator]  # they are numbers
    assert times[0] > times[2] > times[3]  # type: ignore[operator]  # they are numbers
    assert simulate(make(dtype="int8")).compression == ()


def test_four_plans_and_their_cost(make: Make) -> None:
    prices = Prices(gpu=35_064, node=17_532, lifetime_years=4)  # 1 and 0.5 USD an hour
    plan = simulate(msgspec.structs.replace(make(concurrency=8, nodes=4), prices=prices))
    big, tiers, fetch, reduce = plan.costs
    assert [one.plan for one in plan.costs] == ["big HBM", "local tiers", "dual path, fetch", "dual path, reduce"]
    assert (big.usd_per_hour, tiers.usd_per_hour) == (pytest.approx(3), pytest.approx(1))
    assert (fetch.usd_per_hour, reduce.usd_per_hour) == (pytest.approx(3), pytest.approx(3))
    assert reduce.tpot_s is not None
    assert reduce.usd_per_million_tokens == pytest.approx(3 / (8 / reduce.tpot_s * 3600) * 1e6)


def test_without_a_price_there_is_no_cost_and_it_says_which(make: Make) -> None:
    fetch = simulate(make(concurrency=8)).costs[2]
    assert fetch.usd_per_million_tokens is None
    assert fetch.missing == "give --price-node"


def test_prefill_and_decode(make: Make) -> None:
    found = simulate(make(gpus=8, dram_bandwidth="500GB/s")).prefill_decode
    assert found is not None
    assert (found.lowest, found.highest) == (pytest.approx(1 / 7), pytest.approx(3.5))
    assert simulate(make(gpus=1)).prefill_decode is None


def test_the_window_is_bounded_and_comes_off_the_hot_region(make: Make) -> None:
    free = simulate(make(concurrency=8))
    assert free.window is not None
    assert free.memory.window_bytes == free.window.bytes
    tight = simulate(make(concurrency=8, window="2MiB"))
    assert tight.window is not None
    assert tight.window.blocks == 2
    assert simulate(make(concurrency=1)).window is None


def test_a_sweep_grows(make: Make) -> None:
    values = tuple(8192 << step for step in range(8))
    found = sweep(make(concurrency=4), "context", values)
    assert [point.value for point in found.points] == list(values)
    for scheme in (Scheme.TIERS, Scheme.SHARDED, Scheme.REDUCE, Scheme.AUTO):
        times = [time for point in found.points if (time := point.tpot_s[scheme]) is not None]
        assert times == sorted(times)
    assert [point.total_kv_bytes for point in found.points] == [4 * value * 128 * 1024 for value in values]
    fits = [point.tpot_s[Scheme.ALL_LOCAL] is not None for point in found.points]
    assert fits == sorted(fits, reverse=True)


@settings(max_examples=40, deadline=None)
@given(
    context=st.integers(1, 1 << 20), concurrency=st.integers(1, 64), gpus=st.integers(1, 8), nodes=st.integers(1, 64),
    nics=st.integers(1, 8), dtype=st.sampled_from(["bfloat16", "float32", "int8", "fp8"]),
)  # fmt: skip
def test_auto_is_at_most_every_pooled_scheme_and_bytes_add_up(
    context: int, concurrency: int, gpus: int, nodes: int, nics: int, dtype: str
) -> None:
    values = {
        "context": context,
        "concurrency": concurrency,
        "gpus": gpus,
        "nodes": nodes,
        "nics": nics,
        "dtype": dtype,
    }
    plan = simulate(deployment(options(**values)))
    auto = row(plan, Scheme.AUTO).tpot_s
    for scheme in (Scheme.FETCH, Scheme.SHARDED, Scheme.REDUCE):
        assert auto <= row(plan, scheme).tpot_s * (1 + 1e-9)
    assert plan.memory.hot_bytes + plan.memory.remote_bytes == pytest.approx(plan.kv.total_bytes)
    assert plan.memory.hot_bytes <= max(0.0, plan.memory.room_bytes)
