"""The lanes bench measures every case and compares them round by round; how fast is not a test's business."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.bench.nodes import PROGRAM, WITH_KEY, node_here, node_in
from tests.host.conftest import needs_namespaces

from dualpath.bench import lanes
from dualpath.bench.control import Control, _Caller, control_messages
from dualpath.bench.lanes import CASES, LanesSettings, Sample, report, run_lanes_bench, turned
from dualpath.bench.raw_clock import Moved, linger, pumping
from dualpath.bench.spread import Spread, ratios, spread
from dualpath.cli import main
from dualpath.errors import PeerError, UnreachableError, UsageError
from dualpath.host.lab import lab
from dualpath.wire.messages import Lane

QUICK = LanesSettings(seconds=0.1, rounds=2, per_s=500.0, block_bytes=4096, in_flight_bytes=64 << 10)


@pytest.fixture(scope="module")
def node() -> Iterator[SimpleNamespace]:
    with node_here() as found:
        yield found


def sample(p50_s: float, p99_s: float, rate: float | None = None) -> Sample:
    return Sample([p50_s] * 90 + [p99_s] * 10, 0, rate, None)


def test_a_spread_is_the_median_between_the_extremes() -> None:
    assert spread([3.0, None, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread([None]) is None
    assert ratios([2.0, 9.0, None], [1.0, 3.0, 5.0]) == Spread(2.5, 2.0, 3.0)
    assert ratios([1.0], [0.0]) is None


def test_cases_are_compared_within_a_round() -> None:
    rounds = {
        "idle": [sample(1.0, 2.0), sample(10.0, 20.0)],  # the machine was ten times slower in the second round
        "lanes": [sample(1.0, 3.0, 90.0), sample(10.0, 30.0, 90.0)],
        "shared": [sample(5.0, 30.0, 90.0), sample(50.0, 300.0, 90.0)],
        "prefetch": [Sample([], 0, 100.0, None), Sample([], 0, 200.0, None)],
        "control": [Sample([1.0], 2, 98.0, None), Sample([1.0], 0, 190.0, None)],
    }
    found = report(QUICK, ("n",), "eth2", rounds)
    assert found.p99_lanes_over_idle == Spread(1.5, 1.5, 1.5)
    assert found.p99_shared_over_idle == Spread(15.0, 15.0, 15.0)
    assert found.p99_lanes_over_shared is not None
    assert found.p99_lanes_over_shared.median == pytest.approx(0.1)
    assert found.p50_lanes_over_shared is not None
    assert found.p50_lanes_over_shared.high == pytest.approx(0.2)
    assert found.control_costs is not None
    costs = found.control_costs
    assert (costs.low, costs.median, costs.high) == pytest.approx((0.02, 0.035, 0.05))
    by_case = {row.case: row for row in found.rows}
    assert (by_case["control"].requests, by_case["control"].failed) == (4, 2)
    assert by_case["prefetch"].p99_s is by_case["idle"].prefetch_bits_per_s is None
    assert by_case["lanes"].max_s == 30.0


def test_every_case_has_its_turn_at_every_place() -> None:
    orders = [turned(CASES, round_) for round_ in range(2 * len(CASES))]
    assert all(sorted(case.name for case in order) == sorted(case.name for case in CASES) for order in orders)
    for rounds in (orders[: len(CASES)], orders[len(CASES) :]):
        assert [order[0] for order in rounds] == list(CASES)
    for case in CASES:
        assert sum(order.index(case) for order in orders) == len(CASES) * (len(CASES) - 1)


def test_a_sender_that_breaks_does_not_keep_who_collects_waiting() -> None:
    def start(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    node: Any = SimpleNamespace(peer=SimpleNamespace(start=start))
    caller = _Caller(node, Control(), threading.Event(), Lane.REALTIME, 1.0)
    with pytest.raises(RuntimeError):
        caller._send(0.0, 1.0)
    assert caller._sent.get_nowait() is None


@pytest.mark.parametrize("compute", [0, 1])
def test_every_case_is_measured_and_nothing_stays(node: SimpleNamespace, compute: int) -> None:
    told: list[str] = []
    found = run_lanes_bench(node.spec, replace(QUICK, compute=compute), progress=told.append)
    assert len(told) == 2 * len(CASES)
    for row, case in zip(found.rows, CASES, strict=True):
        assert row.case == case.name
        assert row.failed == 0
        assert (row.requests > 0) == bool(case.requests) == (row.p99_s is not None)
        assert (row.prefetch_bits_per_s is not None) == bool(case.blocks)
        assert (row.compute_bytes_per_s is not None) == bool(compute)
    assert found.nodes == ("n",)
    assert node.service.stats()["used_bytes"] == 0


class FakeNode:
    """Answers every request at once, or with an error; `third` is set by the third."""

    def __init__(self, error: PeerError | None = None) -> None:
        self.peer, self.timeout_s, self.lanes, self.third = self, 1.0, list[Lane](), threading.Event()
        self._error = error

    def start(self, message: object, *, lane: Lane, timeout_s: float) -> FakeNode:
        self.lanes.append(lane)
        if len(self.lanes) == 3:
            self.third.set()
        return self

    def result(self) -> None:
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("lane", [Lane.REALTIME, Lane.BULK])
@pytest.mark.parametrize("error", [None, UnreachableError("gone", node="n")])
def test_control_messages_are_sent_to_all_nodes_and_waited_for(lane: Lane, error: PeerError | None) -> None:
    nodes: Any = [FakeNode(error), FakeNode(error)]
    with control_messages(nodes, 4000.0, lane=lane) as control:
        assert all(node.third.wait(60.0) for node in nodes)
    sent = [one for node in nodes for one in node.lanes]
    assert set(sent) == {lane}
    assert (len(control.seconds), control.failed) == ((len(sent), 0) if error is None else (0, len(sent)))


def test_every_node_is_asked_at_least_once() -> None:
    nodes: Any = [FakeNode(), FakeNode()]
    with control_messages(nodes, 1e-3) as control:
        pass  # long before the second one's turn
    assert [len(node.lanes) for node in nodes] == [1, 1]
    assert len(control.seconds) == 2


def test_an_exception_waits_for_no_reply() -> None:
    """Before anybody closes the connection, a node that hangs would be waited for until the deadline."""
    asked, closed, waited = threading.Event(), threading.Event(), threading.Event()

    class Hanging(FakeNode):
        def result(self) -> None:
            asked.set()
            closed.wait(10.0)  # its deadline
            waited.set()

    def interrupted() -> None:
        node: Any = Hanging()
        with control_messages([node], 1.0):
            assert asked.wait(60.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not waited.is_set()
    closed.set()
    assert waited.wait(60.0)


def test_no_control_messages_at_no_rate() -> None:
    node: Any = FakeNode()
    with control_messages([node], 0.0) as control:
        pass
    assert (node.lanes, control.seconds, control.failed) == ([], [], 0)


class Failing:
    depth, group, block_bytes = 1, 1, 1

    def start(self, number: int, count: int) -> None:
        raise UnreachableError("gone", node="n")

    def verify(self) -> None:
        """Nothing to compare."""


def test_a_pump_that_fails_ends_the_measurement() -> None:
    with pytest.raises(PeerError, match="gone"), pumping([Failing()], lambda: None) as under_way:
        linger(under_way, 100.0)


def test_an_exception_meanwhile_interrupts_what_is_under_way() -> None:
    interrupted: list[bool] = []

    def measure() -> None:
        with pumping([], lambda: interrupted.append(True)):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure()
    assert interrupted == [True]


def test_nothing_stays_at_a_node_after_an_interruption(node: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(under_way: list[Future[Moved]], seconds: float) -> None:
        if under_way:
            raise KeyboardInterrupt

    monkeypatch.setattr(lanes, "linger", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_lanes_bench(node.spec, QUICK)
    assert node.service.stats()["used_bytes"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": 0.0},
        {"seconds": float("nan")},
        {"rounds": 0},
        {"per_s": 0.0},
        {"control_per_s": 1e6},
        {"block_bytes": 0},
        {"block_bytes": 1 << 20, "in_flight_bytes": 4 << 20},
        {"compute": -1},
        {"timeout_s": 0.0},
        {"nics": ("no-such-nic",)},
    ],
)
def test_misuse(changes: dict[str, object], node: SimpleNamespace) -> None:
    with pytest.raises(UsageError):
        run_lanes_bench(node.spec, replace(QUICK, **changes))  # type: ignore[arg-type]  # any field


def test_the_command_prints_a_table_or_json(
    node: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DUALPATH_KEY", raising=False)
    words = ["bench", "lanes", "--pool", node.spec, "--seconds", "0.02", "--rounds", "1", "--block", "4KiB"]
    words += ["--in-flight", "64KiB", "--rate", "500", "--compute", "1"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "P99 with lanes / without" in out
    assert "1000 control messages a second cost the prefetch" in out
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["case"] for row in found["rows"]] == [case.name for case in CASES]
    assert found["settings"]["block_bytes"] == 4096


def test_lanes_are_worth_something_where_the_link_is_10_gbit() -> None:
    needs_namespaces()
    with lab("two-hosts-one-nic-10g", name=f"lanes10{os.getpid()}") as emulated, node_in(emulated) as ready:
        assert emulated.host("a").nic("data0").link().shaped_bits_per_s == 10**10
        words = ["bench", "lanes", "--pool", ready[1], "--seconds", "0.2", "--rounds", "1", "--json"]
        done = emulated.host("a").run(
            [*PROGRAM, *words], env=WITH_KEY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100
        )
    found = json.loads(done.stdout)
    rows = {row["case"]: row for row in found["rows"]}
    assert all(row["failed"] == 0 for row in found["rows"])
    assert 1e9 < rows["prefetch"]["prefetch_bits_per_s"]["median"] < 1.1e10  # more than the other labs' links can do
