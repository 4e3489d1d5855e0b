"""Each kind of verdict, and the reason it gives."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.cost.tpot import Scheme
from dualpath.plan.catalogue import names
from dualpath.plan.inputs import Measured, Prices
from dualpath.plan.options import (
    ComputeOptions,
    ModelOptions,
    NetworkOptions,
    PlanOptions,
    PoolOptions,
    WorkloadOptions,
)
from dualpath.plan.resolve import deployment
from dualpath.plan.result import Ruling, Verdict
from dualpath.plan.simulate import simulate
from dualpath.plan.tables import text

from .conftest import Make


def verdict(make: Make, **values: object) -> Verdict:
    return simulate(make(**values)).verdict


def test_kv_that_fits_needs_nothing(make: Make) -> None:
    found = verdict(make, context="8K", concurrency=4)
    assert found.ruling is Ruling.NOT_NEEDED
    assert "all 4 GiB of KV fit" in found.reason
    assert "stay out of the way" in found.reason


def test_kv_that_this_hosts_dram_holds_fast_enough_needs_nothing(make: Make) -> None:
    found = verdict(make, context="128K", concurrency=4, target=2)
    assert found.ruling is Ruling.NOT_NEEDED
    assert "DRAM" in found.reason


def test_worth_it_where_dram_is_too_slow_and_the_pool_is_not(make: Make) -> None:
    found = verdict(make, concurrency=8, target=10)
    assert found.ruling is Ruling.WORTH_IT
    assert "auto over 4 nodes takes" in found.reason
    assert "this host's DRAM would take" in found.reason


def test_what_it_is_worth_stands_beside_more_gpus(make: Make) -> None:
    prices = Prices(gpu=35_064, node=8_766)  # 1 and 0.25 USD an hour
    found = simulate(msgspec.structs.replace(make(concurrency=8), prices=prices)).verdict
    assert found.ruling is Ruling.WORTH_IT
    assert "it costs 2.00 and" in found.reason
    assert "3 GPUs alone 3.00 and" in found.reason


def test_worth_it_where_dram_is_too_small(make: Make) -> None:
    found = verdict(make, concurrency=8, target=10, dram="16GiB")
    assert found.ruling is Ruling.WORTH_IT
    assert "too small" in found.reason


def test_too_few_nodes_will_not_meet_it_and_it_says_how_many_would(make: Make) -> None:
    found = verdict(make, concurrency=16, nodes=1)
    assert found.ruling is Ruling.WILL_NOT_MEET
    assert "would be met with 8 nodes, or on 4 GPUs (21.7 ms)" in found.reason


def test_it_says_how_many_nics_or_gpus_or_which_dtype_would_meet_it(make: Make) -> None:
    few = verdict(make, gpu="L4", gpus=4, concurrency=5, target=5, nodes=8, bandwidth="1GB/s", dram="1GiB")
    assert few.ruling is Ruling.WILL_NOT_MEET
    assert ", or with 2 NICs, or on " in few.reason
    smaller = verdict(make, concurrency=6, nodes=1, bandwidth="40GB/s")
    assert "or on 2 GPUs (17.8 ms), or with KV in fp8 (all-local, 20.3 ms)." in smaller.reason
    none = verdict(make, concurrency=64, target=500)
    assert none.reason.endswith("faster KV does not help. Lower the context, concurrency or target, or take faster "
                                "GPUs or nodes.")  # fmt: skip


def test_nodes_may_be_worth_it_although_hbm_would_hold_it_all(make: Make) -> None:
    """Nodes add the bandwidth of their memory to that of a slow GPU."""
    shape = {"layers": 16, "head_dim": 64, "parameters": 1e9}
    found = verdict(make, **shape, gpu="L4", hot="1GiB", concurrency=1, target=50)
    assert found.ruling is Ruling.WORTH_IT
    assert found.reason.endswith("all of it in HBM would take 21 ms.")


def test_weights_that_do_not_fit(make: Make) -> None:
    plan = simulate(make(parameters=4e11))
    assert plan.verdict.ruling is Ruling.WILL_NOT_MEET
    assert "weights" in plan.verdict.reason
    assert {row.nodes_needed for row in plan.schemes} == {None}
    gpus = plan.schemes[0].gpus_needed
    assert f"would be met on {gpus} GPUs" in plan.verdict.reason
    assert simulate(make(parameters=4e11, gpus=gpus)).verdict.ruling is not Ruling.WILL_NOT_MEET


def test_compute_that_misses_the_target_by_itself(make: Make) -> None:
    slow = msgspec.structs.replace(make(concurrency=8), measured=Measured(compute_s=0.2))
    found = simulate(slow).verdict
    assert found.ruling is Ruling.WILL_NOT_MEET
    assert "faster KV does not help" in found.reason


def test_kv_that_fits_and_is_still_too_slow(make: Make) -> None:
    found = verdict(make, concurrency=3, target=60)
    assert found.ruling is Ruling.WILL_NOT_MEET
    assert "fit HBM" in found.reason


def test_a_pool_that_is_too_small(make: Make) -> None:
    found = verdict(make, concurrency=16, memory="1GiB", nodes=2, dram="1GiB")
    assert found.ruling is Ruling.WILL_NOT_MEET
    assert "2 nodes with 2 GiB cannot hold" in found.reason


@pytest.mark.parametrize(
    ("latency", "words"),
    [
        ("100s", "well under them"),
        ("10s", "27% of the NICs."),
        ("1s", "more than they carry"),
        ("10000000s", "under 1% of the NICs"),
        ("0.001s", "274,878% of the NICs"),
    ],
)
def test_the_deployment_test(make: Make, latency: str, words: str) -> None:
    found = verdict(make, concurrency=8, latency=latency).deployment_test
    assert found.endswith(words) or words in found
    assert found.startswith("all KV (128 GiB) in ")


def test_the_same_load_on_wider_nics_is_well_under_them(make: Make) -> None:
    assert "well under" not in verdict(make, concurrency=8).deployment_test
    assert "well under" in verdict(make, concurrency=8, gpus=8, nics=8).deployment_test


@settings(deadline=None, max_examples=60)
@given(
    model=st.sampled_from(names("models")),
    dtype=st.sampled_from([None, "fp8", "float32"]),
    context=st.sampled_from([None, 1, 4096]),
    concurrency=st.sampled_from([1, 64, 10_000]),
    target=st.sampled_from([0.01, 10.0, 1000.0]),
    compute=st.builds(
        ComputeOptions,
        gpu=st.sampled_from(names("gpus")),
        gpus=st.sampled_from([1, 8, 64]),
        hosts=st.sampled_from([1, 2, 16]),
        hot=st.sampled_from([None, "0"]),
        dram=st.sampled_from([None, "0", "10TiB"]),
    ),
    nic=st.sampled_from([*names("nics"), "1M"]),
    pool=st.builds(PoolOptions, nodes=st.sampled_from([1, 4, 300]), memory=st.sampled_from([None, "0", "1"])),
)
def test_the_ruling_is_what_the_table_says_whatever_the_deployment(
    model: str,
    dtype: str | None,
    context: int | None,
    concurrency: int,
    target: float,
    compute: ComputeOptions,
    nic: str,
    pool: PoolOptions,
) -> None:
    plan = simulate(
        deployment(
            PlanOptions(
                model=ModelOptions(name=model, dtype=dtype),
                workload=WorkloadOptions(context=context, concurrency=concurrency, target=target),
                compute=compute,
                network=NetworkOptions(nic=nic),
                pool=pool,
            )
        )
    )
    meets = {row.scheme for row in plan.schemes if row.meets_target}
    if plan.verdict.ruling is Ruling.NOT_NEEDED:
        assert meets & {Scheme.ALL_LOCAL, Scheme.TIERS}
    else:
        assert not meets & {Scheme.ALL_LOCAL, Scheme.TIERS}
        assert bool(meets) == (plan.verdict.ruling is Ruling.WORTH_IT)
    assert not re.search(r"\b(nan|inf|None|1 tokens|1 nodes|\d+\.?\d*e\+\d+)\b", text(plan))
