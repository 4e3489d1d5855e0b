"""The simulated time per token against a measured one."""

from __future__ import annotations

from typing import Any

import pytest

from dualpath.cost.tpot import Scheme
from dualpath.errors import UsageError
from dualpath.plan.check import Fabric, check, table
from dualpath.plan.tables import as_text

FABRIC = Fabric(link_bytes_per_s=125e6, rails=1, round_trip_s=0.2e-3, near_bytes_per_s=5e9)


def run(pool: str = "10.0.0.2:7480,10.0.0.3:7480", **tpot_ms: float) -> dict[str, Any]:
    """Return what `dualpath run --json` prints: 180 MB of KV, 170 of them remote, read in 18 ms of a usual 80 ms step.

    On the mean a step took 100 ms, 22.5 of them in attention.
    """
    rows = [
        {"scheme": name, "tpot_ms_p50": value, "attend_ms_per_token": 40.0, "tokens_per_s": 1.0}
        for name, value in tpot_ms.items()
    ]
    local = {"scheme": "local", "tpot_ms_p50": 80.0, "attend_ms_per_token": 22.5, "tokens_per_s": 10.0}
    return {
        "schemes": [local, *rows],
        "reference": {"scheme": "hf", "tpot_ms_p50": 110.0, "attend_ms_per_token": 0.0},
        "model": {"layers": 30},
        "prompt": {"tokens": 4096},
        "settings": {"nodes": 2, "pool": pool},
        "expected": {
            "kv_bytes": 180_000_000,
            "fetch_wire_bytes_per_token": 170_000_000,
            "reduce_wire_bytes_per_token": 280_000,
        },
    }


def test_fetching_over_a_link_by_hand() -> None:
    found = check({"run.json": run(fetch=1400.0, sharded=1300.0)}, FABRIC)
    fetch, sharded = found.rows
    assert fetch.simulated_ms == pytest.approx(170e6 / 125e6 * 1e3)
    assert fetch.error == pytest.approx(1360 / 1400 - 1)
    assert sharded.simulated_ms == pytest.approx(1360)  # one receiver
    assert found.ok


def test_reduction_by_hand() -> None:
    found = check({"run.json": run(reduce=90.0)}, FABRIC).rows[0]
    exchange = 280_000 / 30 / 125e6  # by layer; both nodes share the receiver's link
    near = 30 * (0.2e-3 + exchange) + 85e6 / 5e9
    assert found.simulated_ms == pytest.approx((0.062 + near) * 1e3)


def test_on_loopback_the_same_cores_move_bytes_and_compute() -> None:
    fabric = Fabric(link_bytes_per_s=4e9, rails=1, round_trip_s=0.1e-3)
    found = check({"run.json": run("child processes", fetch=130.0, reduce=85.0)}, fabric)
    assert found.rows[0].simulated_ms == pytest.approx(80 + 170e6 / 4e9 * 1e3)
    near = 170e6 / 10e9  # two nodes at half the local rate each
    assert found.rows[1].simulated_ms == pytest.approx((0.062 + near + 30 * (0.1e-3 + 280_000 / 30 / 4e9)) * 1e3)


def test_a_nodes_rate_is_what_the_balancer_measured() -> None:
    fabric = Fabric(link_bytes_per_s=125e6, rails=1, round_trip_s=0.2e-3)
    both = run(reduce=90.0, auto=85.0)
    both["schemes"][2]["choice"] = {"nodes": [{"near_bytes_per_s": 4e9}, {"near_bytes_per_s": 6e9}]}
    given = check({"run.json": both}, FABRIC).rows[0].simulated_ms
    assert check({"run.json": both}, fabric).rows[0].simulated_ms == pytest.approx(given)
    assert check({"run.json": run(reduce=90.0)}, fabric).rows[0].simulated_ms == pytest.approx(given)  # 10 GB/s over 2


def test_beyond_the_tolerance_is_not_ok_and_marked() -> None:
    found = check({"a.json": run(fetch=1360.0), "b.json": run(fetch=1000.0)}, FABRIC)
    assert not found.ok
    assert found.largest_error == pytest.approx(0.36)
    lines = as_text(table(found))
    assert [line for line in lines if "!" in line] == [line for line in lines if "b.json" in line]


def test_rows_that_are_not_simulated_are_left_out() -> None:
    found = check({"run.json": run(baseline=200.0, mapped=80.0, auto=90.0)}, FABRIC)
    assert [row.scheme for row in found.rows] == [Scheme.AUTO]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({}, "not what `dualpath run --json` prints"),
        ([], "not what `dualpath run --json` prints"),
        (run(), "no scheme to check"),
        ({**run(fetch=1.0), "schemes": []}, "no row local"),
        ({**run(fetch=1.0), "settings": {"nodes": 0, "pool": ""}}, "not what"),
    ],
)
def test_what_is_no_run_is_refused(broken: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        check({"x.json": broken}, FABRIC)
    assert caught.value.hint
