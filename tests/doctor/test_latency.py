"""Two numbers: peak bandwidth and decode's P99, and which cause is named when."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dualpath.doctor.base import Finding, Level
from dualpath.doctor.latency import latency_checks
from dualpath.doctor.recording import Measured, Recording
from dualpath.doctor.run import examine
from dualpath.host.raw import RawReport

from .test_archive import RAW


def row(scheme: str, p99: float, *, stall: float = 0.0, wire: float = 1e6, wasted: float = 0) -> dict[str, Any]:
    """A row whose tokens take 50 ms at the median, 20 a second."""
    return {
        "scheme": scheme,
        "tpot_ms_p50": 50.0,
        "tpot_ms_p99": p99,
        "tokens_per_s": 20.0,
        "stall_ms_per_token": stall,
        "wire_bytes_per_token": wire,
        "wasted_bytes": wasted,
        "peak_local_kv_bytes": 1.0,
    }


def raw(gigabits: float, nominal: float | None = 100.0) -> RawReport:
    measured = msgspec.structs.replace(
        RAW.rows[0],
        bits_per_s=gigabits * 1e9,
        nominal_bits_per_s=None if nominal is None else nominal * 1e9,
    )
    return msgspec.structs.replace(RAW, rows=(measured,))


def advice(
    *rows: dict[str, Any],
    budget_ms: float | None = None,
    report: RawReport | None = None,
    pool: str = "pool-1:7700",
) -> list[Finding]:
    run = {"schemes": list(rows), "settings": {"window_bytes": 64 << 20, "new_tokens": 64, "pool": pool}}
    recording = Recording("run", measured=Measured(raw=report, run=run))
    return list(examine([recording], checks=latency_checks(budget_ms), pairs=()).findings)


def test_within_budget_is_said_with_the_numbers() -> None:
    (found,) = advice(row("fetch", 60.0), budget_ms=80)
    assert (found.level, found.fix) == (Level.INFO, "")
    assert found.symptom == "fetch: decode P99 60 ms, within 80 ms"


def test_without_a_budget_twice_the_median_counts() -> None:
    assert advice(row("fetch", 99.0))[0].level == Level.INFO
    found = advice(row("fetch", 101.0))[0]
    assert found.level == Level.WARNING
    assert "over 100 ms (2 times its median)" in found.symptom


@pytest.mark.parametrize(
    ("rows", "options", "cause", "fix"),
    [
        ([row("fetch", 90, stall=10)], {}, "window is too small", "raise --window (now 64 MiB)"),
        ([row("fetch", 90, stall=1)], {}, "QoS is off", "PFC-enabled priority"),
        ([row("fetch", 90, stall=1)], {"pool": "child processes"}, "share this machine's cores", "--threads"),
        ([row("fetch", 90, stall=10, wasted=64e5)], {}, "dropped before use", "lower --window"),
        ([row("fetch", 90, stall=10, wire=5e8)], {"report": raw(90)}, "link is full", "--scheme reduce"),
        ([row("fetch", 90, stall=10, wire=1e8)], {"report": raw(90)}, "window is too small", "raise --window"),
        ([row("reduce", 90, stall=10)], {}, "does not prefetch", "more nodes"),
        ([row("local", 90), row("fetch", 90, stall=10)], {}, "compute alone", "network is not the limit"),
        ([row("local", 60), row("fetch", 90, stall=10)], {}, "window is too small", "raise --window"),
    ],
)
def test_which_cause(rows: list[dict[str, Any]], options: dict[str, Any], cause: str, fix: str) -> None:
    found = advice(*rows, budget_ms=80, **options)[0]
    assert found.level == Level.WARNING
    assert cause in found.cause
    assert fix in found.fix


def test_peak_bandwidth_is_held_against_nominal() -> None:
    found = advice(row("fetch", 60), report=raw(90))
    assert "peak 90 Gbit/s, 90% of nominal 100 Gbit/s" in " ".join(one.symptom for one in found)
    assert all(one.level == Level.INFO for one in found)


def test_under_half_of_nominal_is_a_warning_about_pcie_and_numa() -> None:
    found = advice(row("fetch", 60), report=raw(31))
    (bad,) = [one for one in found if one.level == Level.WARNING]
    assert bad.check == "peak-bandwidth"
    assert "PCIe" in bad.cause
    assert "NUMA" in bad.cause


def test_a_nic_that_does_not_say_its_rate_is_unknown() -> None:
    assert Level.UNKNOWN in {one.level for one in advice(row("fetch", 60), report=raw(31, None))}


def test_rows_in_doubt_are_no_peak_and_it_is_said_if_no_others_are_left() -> None:
    good, spoilt = raw(40).rows[0], msgspec.structs.replace(raw(95).rows[0], doubt="other traffic shares it")
    found = advice(row("fetch", 60), report=msgspec.structs.replace(RAW, rows=(spoilt, good)))
    assert "peak 40 Gbit/s" in " ".join(one.symptom for one in found)
    found = advice(row("fetch", 60), report=msgspec.structs.replace(RAW, rows=(spoilt,)))
    (unknown,) = [one for one in found if one.level == Level.UNKNOWN]
    assert unknown.evidence == ("raw: other traffic shares it",)
    assert not [one for one in found if "peak" in one.symptom]


def test_what_was_written_is_no_room_for_reads() -> None:
    written = msgspec.structs.replace(raw(90).rows[0], direction="write")
    report = msgspec.structs.replace(RAW, rows=(raw(5).rows[0], written))
    assert "link is full" in advice(row("fetch", 90, stall=10, wire=5e7), budget_ms=80, report=report)[0].cause


def test_rows_without_times_are_unknown() -> None:
    (found,) = advice({"scheme": "fetch"}, budget_ms=80)
    assert (found.level, found.symptom) == (Level.UNKNOWN, "fetch: no time per token")


def test_local_schemes_are_the_control_and_not_judged() -> None:
    assert advice(row("hf", 500), row("local", 500), budget_ms=80) == []
