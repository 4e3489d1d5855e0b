"""Each kind of verdict, and the reason it gives."""

from __future__ import annotations

import msgspec
import pytest

from dualpath.plan.inputs import Measured, Prices
from dualpath.plan.result import Ruling, Verdict
from dualpath.plan.simulate import simulate

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
    assert "nodes would meet it" in found.reason


def test_weights_that_do_not_fit(make: Make) -> None:
    found = verdict(make, parameters=4e11)
    assert found.ruling is Ruling.WILL_NOT_MEET
    assert "weights" in found.reason


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
    [("100s", "well under them"), ("10s", "27% of the NICs."), ("1s", "more than they carry")],
)
def test_the_deployment_test(make: Make, latency: str, words: str) -> None:
    found = verdict(make, concurrency=8, latency=latency).deployment_test
    assert found.endswith(words) or words in found
    assert found.startswith(f"all KV (128 GiB) in {latency.replace('s', ' s')}")


def test_the_same_load_on_wider_nics_is_well_under_them(make: Make) -> None:
    assert "well under" not in verdict(make, concurrency=8).deployment_test
    assert "well under" in verdict(make, concurrency=8, gpus=8, nics=8).deployment_test
