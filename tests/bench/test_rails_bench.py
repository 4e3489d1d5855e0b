"""The rails bench counts each NIC apart, and a NIC that it pulls is up again; how fast is not a test's business."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.bench.nodes import PROGRAM, WITH_KEY, node_here, node_in
from tests.host.conftest import needs_namespaces

from dualpath.bench.rails import RailsSample, RailsSettings, _nominal, report, run_rails_bench
from dualpath.bench.rails_pull import longest_gap, per_s
from dualpath.bench.spread import Spread
from dualpath.cli import main
from dualpath.errors import UsageError
from dualpath.host import pulling
from dualpath.host.lab import Lab, lab
from dualpath.host.tree import LiveTree

QUICK = RailsSettings(seconds=0.02, rounds=1, block_bytes=4096, in_flight_bytes=64 << 10)
GBIT = 10**9


@pytest.fixture(scope="module")
def node() -> Iterator[SimpleNamespace]:
    with node_here() as found:
        yield found


def sample(**by_nic: float) -> RailsSample:
    return RailsSample(sum(by_nic.values()), by_nic, {nic: rate * 1.01 for nic, rate in by_nic.items()})


def test_rows_state_each_nic_and_what_all_bring_together() -> None:
    samples = {
        ("eth2",): [sample(eth2=900.0), sample(eth2=800.0)],
        ("eth3",): [sample(eth3=100.0), sample(eth3=200.0)],
        ("eth2", "eth3"): [sample(eth2=850.0, eth3=100.0), sample(eth2=800.0, eth3=150.0)],
    }
    found = report(QUICK, ("n",), {"eth2": 1000, "eth3": 200}, samples, [])
    assert found.all_over_first == Spread((950 / 900 + 950 / 800) / 2, 950 / 900, 950 / 800)
    assert found.all_over_sum == Spread(0.95, 0.95, 0.95)
    assert [row.nics for row in found.rows] == [("eth2",), ("eth3",), ("eth2", "eth3")]
    together = found.rows[-1]
    assert together.of_nominal is not None
    assert together.of_nominal.median == pytest.approx(950 / 1200)
    assert [one.payload_bits_per_s for one in together.each] == [Spread(825, 800, 850), Spread(125, 100, 150)]
    assert [one.nominal_bits_per_s for one in together.each] == [1000, 200]
    assert report(QUICK, ("n",), {"eth2": None}, {("eth2",): [sample(eth2=1.0)]}, []).rows[0].of_nominal is None


def test_nominal_speeds_are_those_of_the_nics_that_lead_there() -> None:
    settings = replace(QUICK, nics=("eth1", "eth2", "eth3"), nominal_bits_per_s=(GBIT, 2 * GBIT))
    assert _nominal(["eth3", "eth2"], settings, LiveTree()) == {"eth2": GBIT, "eth3": 2 * GBIT}


def test_gaps_and_rates_of_a_pull() -> None:
    stamps = [[1.0, 2.0, 5.0, 6.0], [1.5, 2.5, 4.5, 5.5]]
    assert longest_gap(stamps, 1.0, 6.0) == 3.0  # 2.0 to 5.0 in one flow, though the other went on
    assert longest_gap(stamps, 2.5, 4.0) == 1.5  # nothing ended: the whole time is a gap
    assert per_s(stamps, 1.0, 3.0) == 2.0


def test_one_nic_is_measured_alone_and_nothing_stays(node: SimpleNamespace) -> None:
    found = run_rails_bench(node.spec, replace(QUICK, nominal_bits_per_s=(GBIT,)))
    (row,) = found.rows
    assert row.nics == ("lo",)
    assert row.bits_per_s is not None
    assert row.of_nominal is not None
    assert row.of_nominal.median == pytest.approx(row.bits_per_s.median / GBIT)
    (each,) = row.each
    assert each.payload_bits_per_s is not None
    assert each.interface_bits_per_s is not None
    assert each.interface_bits_per_s.median > each.payload_bits_per_s.median == pytest.approx(row.bits_per_s.median)
    assert "sent" not in row.doubt  # others may use loopback, but not this node
    assert found.all_over_first is found.all_over_sum is None
    assert node.service.stats()["used_bytes"] == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounds": 0}, "rounds"),
        ({"seconds": 0.0}, "at most 3600"),
        ({"block_bytes": 1 << 30}, "one block"),
        ({"pull": "lo"}, "lo is not one of several NICs"),
        ({"nominal_bits_per_s": (GBIT, GBIT)}, "2 nominal speeds for 1 NICs"),
        ({"nics": ("no-such-nic",)}, "no-such-nic"),
    ],
)
def test_misuse(changes: dict[str, object], said: str, node: SimpleNamespace) -> None:
    with pytest.raises(UsageError, match=said):
        run_rails_bench(node.spec, replace(QUICK, **changes))  # type: ignore[arg-type]  # any field
    with pytest.raises(UsageError, match="not a node over the network"):
        run_rails_bench("mapped:/x.sock", QUICK)


def test_the_command_prints_a_table(
    node: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DUALPATH_KEY", raising=False)
    words = ["bench", "rails", "--pool", node.spec, "--seconds", "0.02", "--rounds", "1", "--block", "4KiB"]
    assert main([*words, "--in-flight", "64KiB"]) == 0
    assert "its counter Mbit/s" in capsys.readouterr().out


def test_a_nic_of_the_machine_itself_is_pulled_only_by_who_means_it(
    node: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "rails", "--pool", node.spec, "--pull"]
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main([*words, "lo"]) == 1
    assert "needs root" in capsys.readouterr().err
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(pulling, "in_named_namespace", lambda: False)
    with_ipv4 = SimpleNamespace(nic="eth2", interface=SimpleNamespace(version=4))
    with_ipv6 = SimpleNamespace(nic="eth3", interface=SimpleNamespace(version=6))
    monkeypatch.setattr(pulling, "local_addresses", lambda: [with_ipv4, with_ipv6])
    assert main([*words, "eth2"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert main([*words, "eth3", "--yes"]) == 2
    assert "IPv6" in capsys.readouterr().err
    assert main([*words, "eth4", "--yes"]) == 2
    assert "no NIC called eth4" in capsys.readouterr().err
    pulling.check_pull("eth2", on_the_machine_itself=True)


@pytest.mark.parametrize(
    ("own", "started_by", "in_a_lab"),
    [("lab", ["lab", "machine"], True), ("machine", ["machine"], False), ("lab", ["lab"], False),
     ("lab", ["hidden"], False), ("unnamed", ["machine"], False)],
)  # fmt: skip
def test_the_machine_itself_is_no_lab_whatever_its_namespace_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, started_by: list[str], in_a_lab: bool
) -> None:
    names, proc = tmp_path / "netns", tmp_path / "proc"
    names.mkdir()
    for namespace in ("machine", "lab", "unnamed"):
        (tmp_path / namespace).touch()
    (names / "dp-lab-a").hardlink_to(tmp_path / "lab")
    (names / "host").hardlink_to(tmp_path / "machine")
    for pid, namespace in enumerate(["self", *started_by]):
        folder = proc / (str(pid) if pid else "self") / "ns"
        folder.mkdir(parents=True)
        if namespace != "hidden":
            (folder / "net").hardlink_to(tmp_path / (namespace if pid else own))
    monkeypatch.setattr(pulling, "NAMESPACES", names)
    monkeypatch.setattr(pulling, "PROC", proc)
    monkeypatch.setattr(pulling, "ancestors", lambda: [pid + 1 for pid in range(len(started_by))])
    assert pulling.in_named_namespace() is in_a_lab


def test_a_lost_remote_shell_leaves_no_nic_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert main(["bench", "rails", "--pool", "127.0.0.1:1", "--pull", "eth2"]) == 1
        assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_just_as_a_nic_went_down_has_it_set_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[str] = []

    def set_state(nic: str, state: str) -> None:
        states.append(state)
        if state == "down":
            raise KeyboardInterrupt

    monkeypatch.setattr(pulling, "_set_state", set_state)
    with pytest.raises(KeyboardInterrupt), pulling.pulled("eth2"):
        pass
    assert states == ["down", "up"]


@pytest.fixture
def two_rails() -> Iterator[Lab]:
    needs_namespaces()
    with lab("two-hosts-two-nics", name=f"rb{os.getpid()}") as emulated:
        yield emulated


def test_a_nic_is_pulled_and_comes_back(two_rails: Lab) -> None:
    with node_in(two_rails) as ready:
        words = ["bench", "rails", "--pool", ready[1], "--seconds", "0.2", "--rounds", "1", "--pull", "data1", "--json"]
        host = two_rails.host("a")
        done = host.run([*PROGRAM, *words], env=WITH_KEY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100)
    found = json.loads(done.stdout)
    assert [row["nics"] for row in found["rows"]] == [["data0"], ["data1"], ["data0", "data1"]]
    assert all(row["doubt"] == "" for row in found["rows"])
    for row in found["rows"]:
        for one in row["each"]:
            assert one["nominal_bits_per_s"] == GBIT
            assert one["interface_bits_per_s"]["median"] > one["payload_bits_per_s"]["median"] > 0
    (pull,) = found["pulled"]
    assert pull["rejoined_s"] is not None
    assert pull["after_bits_per_s"] > 0
    assert two_rails.host("a").nic("data1").link().state == "up"
