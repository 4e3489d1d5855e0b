from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.cli import main
from dualpath.host.lab import Lab
from dualpath.host.netlink import Link
from dualpath.host.nics import Counters, Nic
from dualpath.host.rails import Observation, RailReading, candidates, rails, readings, use

GBIT = 10**9


def nic(name: str, **fields: object) -> Nic:
    plain = Nic(name, 100 * GBIT, "up", True, 9000, 0, "0000:3b:00.0", "mlx5_core", (), "physical")
    return replace(plain, **fields)  # type: ignore[arg-type]  # any field


def link(name: str, *, rx: int = 0, tx: int = 0, **fields: object) -> Link:
    counters = Counters(rx, tx, 0, 0, 0, 0, 0, 0)
    plain = Link(name, None, "up", True, 9000, False, ("192.0.2.7/24",), None, counters)
    return replace(plain, **fields)  # type: ignore[arg-type]  # any field


@pytest.mark.parametrize(
    ("one", "known", "unfit"),
    [
        (nic("eth0"), link("eth0"), ""),
        (nic("eth0", state="unknown"), link("eth0"), ""),  # a driver that does not report its state
        (nic("eth0", state="down"), link("eth0"), "down"),
        (nic("eth0"), link("eth0", addresses=()), "no address"),
        (nic("eth0"), None, "no address"),
        (nic("eth0", kind="member"), link("eth0", master=True), "belongs to a bridge or bond"),
        (nic("eth0"), link("eth0", master=True), "belongs to a bridge or bond"),
        (nic("bond0", kind="bond"), link("bond0", kind="bond"), ""),
        (nic("data0", kind="virtual"), link("data0", kind="veth"), ""),
        (nic("vlan7", kind="virtual"), link("vlan7", kind="vlan"), ""),
        (nic("docker0", kind="virtual"), link("docker0", kind="bridge"), "bridge"),
        (nic("tun0", kind="virtual"), link("tun0", kind="tun"), "tun"),
        (nic("lo", kind="loopback"), link("lo"), "loopback"),
    ],
)
def test_which_nics_can_carry_data(one: Nic, known: Link | None, unfit: str) -> None:
    known_links = [] if known is None else [known]
    assert [rail.unfit for rail in candidates([one], known_links)] == [unfit]
    assert bool(rails([one], known_links)) is (unfit == "")


def test_what_is_asked_for_by_name_is_taken_unless_it_cannot_work() -> None:
    loopback, bridge = nic("lo", kind="loopback"), nic("br0", kind="virtual", state="down")
    found = candidates([loopback, bridge], [link("lo"), link("br0", kind="bridge")], include=("lo", "br0"))
    assert [rail.unfit for rail in found] == ["", "down"]


@pytest.mark.parametrize(
    ("says", "kind", "shaped", "nominal"),
    [
        (100 * GBIT, None, None, 100 * GBIT),
        (100 * GBIT, None, 25 * GBIT, 25 * GBIT),
        (10 * GBIT, None, 25 * GBIT, 10 * GBIT),
        (None, None, 25 * GBIT, 25 * GBIT),
        (None, None, None, None),
        (10 * GBIT, "veth", 40 * GBIT, 40 * GBIT),  # a veth says 10 Gbit/s whatever it does
        (10 * GBIT, "veth", None, None),
    ],
)
def test_a_rail_is_as_fast_as_its_link_or_its_shape(
    says: int | None, kind: str | None, shaped: int | None, nominal: int | None
) -> None:
    one = nic("x", speed_bits_per_s=says, kind="virtual" if kind else "physical")
    (rail,) = rails([one], [link("x", kind=kind, shaped_bits_per_s=shaped)])
    assert rail.nominal_bits_per_s == nominal


@given(st.integers(0, 2**64), st.integers(0, 2**40), st.floats(0.01, 1000), st.integers(1, 10**12))
def test_use_is_what_went_through_over_what_could_have(start: int, count: int, interval_s: float, nominal: int) -> None:
    before = Counters(start, 5, 0, 0, 0, 0, 0, 0)
    used = use(before, replace(before, rx_bytes=start + count), interval_s, nominal)
    assert used is not None
    assert used.rx_share == pytest.approx(count / (nominal / 8 * interval_s))
    assert (used.tx_bytes_per_s, used.tx_share) == (0, 0)
    unknown = use(before, replace(before, rx_bytes=start + count), interval_s, None)
    assert unknown is not None
    assert (unknown.rx_bytes_per_s, unknown.rx_share) == (used.rx_bytes_per_s, None)


def test_counters_that_went_back_say_nothing() -> None:
    assert use(Counters(9, 9, 0, 0, 0, 0, 0, 0), Counters(9, 8, 0, 0, 0, 0, 0, 0), 1.0, GBIT) is None


def measured(*pairs: tuple[Nic, Link, Link]) -> list[RailReading]:
    found = tuple(one for one, _, _ in pairs)
    before = Observation(found, tuple(first for _, first, _ in pairs))
    after = Observation(found, tuple(last for _, _, last in pairs))
    return readings(before, after, interval_s=1.0)


@pytest.mark.parametrize(
    ("per_cent", "word"), [(0, "idle"), (4.9, "idle"), (5, "headroom"), (19.9, "headroom"), (20, "busy"), (100, "busy")]
)  # fmt: skip
@pytest.mark.parametrize("direction", ["rx", "tx"])
def test_the_busier_direction_gives_the_word(per_cent: float, word: str, direction: str) -> None:
    count = {direction: int(per_cent / 100 * 100e9 / 8)}
    (one,) = measured((nic("eth0"), link("eth0"), link("eth0", **count)))  # type: ignore[arg-type]  # any counter
    assert one.verdict == word


@pytest.mark.parametrize(
    ("speed", "count", "word"),
    [
        (25 * GBIT, 10**10, "unused"),
        (25 * GBIT, 0, "unused"),  # it never carried anything at all
        (25 * GBIT, 10**11, "idle"),  # a tenth of what the other carried: in use, only not now
        (50 * GBIT, 10**10, "idle"),  # half the speed is a NIC of another kind
    ],
)
def test_a_nic_that_was_forgotten_is_told_from_one_that_rests(speed: int, count: int, word: str) -> None:
    used = (nic("eth0"), link("eth0", rx=10**12), link("eth0", rx=10**12 + 10**10))
    other = (nic("eth1", speed_bits_per_s=speed), link("eth1", rx=count), link("eth1", rx=count))
    assert [one.verdict for one in measured(used, other)] == ["busy", word]


def test_what_is_not_known_is_not_judged() -> None:
    silent = (nic("eth0", speed_bits_per_s=None), link("eth0"), link("eth0", rx=10**6))
    unfit = (nic("lo", kind="loopback"), link("lo"), link("lo"))
    new = nic("eth1")
    found = readings(
        Observation((silent[0], unfit[0]), (silent[1], unfit[1])),
        Observation((silent[0], unfit[0], new), (silent[2], unfit[2], link("eth1"))),
        interval_s=1.0,
    )
    assert [(one.rail.nic.name, one.verdict) for one in found] == [
        ("eth0", "unknown"),
        ("lo", "unfit"),
        ("eth1", "unknown"),
    ]


def test_the_command_reports_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rails", "--interval", "0.01", "--all", "--json"]) == 0
    found = {one["rail"]["nic"]["name"]: one for one in json.loads(capsys.readouterr().out)["rails"]}
    assert found["lo"]["rail"]["unfit"] == "loopback"
    assert main(["rails", "--interval", "0.01", "--all"]) == 0
    assert "unfit: loopback" in capsys.readouterr().out


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_watching_ends_with_ctrl_c(
    form: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    naps: list[float] = []

    def nap(interval_s: float) -> None:
        naps.append(interval_s)
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", nap)
    assert main(["rails", "--watch", "--all", "--interval", "7", *form]) == 0
    out, err = capsys.readouterr()
    assert (naps, err) == ([7, 7, 7], "")
    assert out.count("loopback") == (2 if not form else 4)  # twice; JSON says it as kind and as reason


def test_in_a_lab_the_shape_is_the_speed(pair: Lab) -> None:
    command = [sys.executable, "-m", "dualpath", "rails", "--interval", "0.01", "--json"]
    done = pair.host("a").run(command, stdout=subprocess.PIPE)
    found = {one["rail"]["nic"]["name"]: one["rail"] for one in json.loads(done.stdout)["rails"]}
    assert {name: rail["nominal_bits_per_s"] for name, rail in found.items()} == {"data0": 2 * 10**8, "six0": GBIT}
    assert found["six0"]["addresses"] == ["fd00:99::1/64"]
