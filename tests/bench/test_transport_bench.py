"""The transport bench runs and reports what it says; how fast is not a test's business."""

import pytest

from dualpath.bench import limits, transport
from dualpath.errors import HostError, UsageError


def test_rows(monkeypatch):
    monkeypatch.setattr(transport, "MIN_ROUND_BYTES", 8 << 20)
    told = []
    found = transport.run_transport_bench(sizes=[1 << 20], in_flight=4, repeat=1, progress=told.append)
    assert [row["transport"] for row in found["rows"]] == ["tcp", "call", "mapped"]
    for row in found["rows"]:
        counted = {"payload_bytes", "received_bytes", "served_bytes"}
        mapped = row["transport"] == "mapped"
        streams = set() if mapped else {"unpaced_gbps"}
        assert (
            set(row) == {"transport", "bytes", "in_flight", "gbps", "limit_gbps", "ratio", "spread"} | counted | streams
        )
        assert row["payload_bytes"] == 8 << 20
        assert row["served_bytes"] == (0 if mapped else row["payload_bytes"])
        assert (row["received_bytes"] > row["payload_bytes"]) != mapped
        assert row["gbps"] > 0
        assert row["ratio"] > 0
    assert set(found["call_us"]) == {"tcp", "call", "mapped"}
    assert len(told) == 3


def test_a_measurement_of_which_a_thread_fails_has_no_result():
    def work(number, _count):
        if number == 1:
            raise HostError("cut short")

    with pytest.raises(HostError, match="cut short"):
        limits.timed([(work, (number, 0)) for number in range(2)])


def test_misuse():
    for wrong in (
        {"sizes": [0]},
        {"sizes": [3]},
        {"in_flight": 100_000_000},
        {"sizes": [1 << 40]},
        {"in_flight": 0},
        {"repeat": 0},
    ):
        with pytest.raises(UsageError):
            transport.run_transport_bench(**wrong)
