"""The checks of QoS, counters, links, CPUs, limits and measurements, over recorded hosts."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.recording import Measured, Output, Recording
from dualpath.doctor.runs import SchemeRow, read_run
from dualpath.testing.recordings import Fixture, load_fixture

NAMES = (
    "pfc_priority",
    "ecn",
    "ets",
    "pause_counters",
    "discards",
    "link_errors",
    "optics",
    "irq_affinity",
    "busy_poll",
    "rings",
    "cpu_governor",
    "memlock",
    "huge_pages",
    "firewall",
    "bonding",
    "container",
    "socket_buffers",
    "window_memory",
    "peak_bandwidth",
    "gpu_bandwidth",
    "size_sweep",
    "decode_p99",
)
CHECKS: tuple[Check, ...] = tuple(importlib.import_module(f"dualpath.doctor.checks.{name}").CHECK for name in NAMES)
OWN = {check.name for check in CHECKS}
FIXTURES = tuple(load_fixture(path) for path in sorted((Path(__file__).parent / "fixtures").glob("*.toml")))
ORDER = tuple(Level)


def findings(fixture: Fixture) -> list[tuple[Check, Finding]]:
    host = Host(fixture.recording)
    found = []
    for check in CHECKS:
        try:
            found += [(check, finding) for finding in check.judge(host)]
        except Unknown as why:
            found.append((check, Finding(level=Level.UNKNOWN, symptom=str(why), fix=why.fix)))
    return found


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_a_fixture_is_judged_as_it_expects(fixture: Fixture) -> None:
    worst: dict[str, Level] = {}
    for check, finding in findings(fixture):
        if ORDER.index(finding.level) < ORDER.index(Level.INFO):
            worst[check.name] = min(finding.level, worst.get(check.name, finding.level), key=ORDER.index)
    assert worst == {name: level for name, level in fixture.expect.items() if name in OWN}


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_who_is_asked_to_act_is_told_why_and_how(fixture: Fixture) -> None:
    for _, finding in findings(fixture):
        assert finding.symptom
        assert "\n" not in finding.symptom + finding.fix
        if finding.level in (Level.CRITICAL, Level.WARNING):
            assert finding.cause
            assert finding.fix
            assert finding.evidence
            assert not {"None", "nan"} & set(finding.symptom.split() + finding.fix.split())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_check_can_fail(check: Check) -> None:
    hints_only = {"huge-pages"}
    assert check.name in hints_only or any(check.name in fixture.expect for fixture in FIXTURES)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_names_its_sources(check: Check) -> None:
    assert check.name == check.name.lower().replace("_", "-")
    assert check.reads
    assert check.reference.startswith("https://")


BY_NAME = {fixture.name: fixture.recording for fixture in FIXTURES}


def judged(name: str, recording: Recording) -> list[Finding]:
    """Return what one check says of a recording."""
    return list(next(check for check in CHECKS if check.name == name).judge(Host(recording)))


def with_files(recording: Recording, files: Mapping[str, str]) -> Recording:
    return replace(recording, files={**recording.files, **files})


def with_output(recording: Recording, line: str, output: Output) -> Recording:
    return replace(recording, commands={**recording.commands, line: output})


def test_one_busy_queue_is_a_single_flow_and_no_fault() -> None:
    healthy = BY_NAME["connectx6-healthy"]
    first, *rest = healthy.files["/proc/interrupts"].splitlines()
    quiet = [rest[0], *(line.replace("421", "000", 1) if "mlx5_comp" in line else line for line in rest[1:])]
    assert judged("irq-affinity", with_files(healthy, {"/proc/interrupts": "\n".join([first, *quiet])})) == []


def test_a_firewall_that_only_root_may_see_is_unknown() -> None:
    denied = Output("", "Operation not permitted (you must be root)", 1)
    recording = BY_NAME["bnxt-healthy"]
    for line in ("nft list ruleset", "iptables-save"):
        recording = with_output(recording, line, denied)
    with pytest.raises(Unknown) as caught:
        judged("firewall", recording)
    assert caught.value.fix == "run the doctor as root"


def test_lanes_that_a_link_does_not_use_are_no_dark_ones() -> None:
    line = "ethtool -m ens5f0np0"
    text = BY_NAME["bnxt-healthy"].commands[line].stdout
    for lane in (2, 3, 4):
        for power in (
            f"Transmit avg optical power (Channel {lane})    :",
            f"Rcvr signal avg optical power(Channel {lane})  :",
        ):
            before, _, after = text.partition(power)
            text = before + power + " 0.0000 mW / -inf dBm\n" + after.partition("\n")[2]
    assert judged("optics", with_output(BY_NAME["bnxt-healthy"], line, Output(text))) == []
    all_dark = text.replace("0.8318 mW / -0.80 dBm", "0.0 mW / -inf dBm").replace("0.7413 mW / -1.30", "0.0 mW / -inf")
    assert judged("optics", with_output(BY_NAME["bnxt-healthy"], line, Output(all_dark)))[0].level is Level.CRITICAL


def test_root_may_pin_memory_whatever_the_limit() -> None:
    limited = BY_NAME["e810-memlock"]
    status = BY_NAME["e810-healthy"].files["/proc/self/status"]
    assert [finding.level for finding in judged("memlock", with_files(limited, {"/proc/self/status": status}))] == [
        Level.INFO
    ]


def test_pages_that_are_switched_off_are_a_hint() -> None:
    files = {"/sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"}
    (finding,) = judged("huge-pages", with_files(BY_NAME["e810-healthy"], files))
    assert finding.level is Level.INFO


def test_a_slow_tail_on_tcp_blames_no_priority_of_a_nic() -> None:
    run = BY_NAME["run-qos-off"].measured
    (finding,) = judged("decode-p99", replace(BY_NAME["plain-container"], measured=run))
    assert finding.cause.startswith("QoS is off:")
    assert "window" not in finding.fix


def test_a_veth_has_no_nominal_speed_to_miss() -> None:
    slow = BY_NAME["raw-under-half"]
    assert judged("peak-bandwidth", slow)
    virtual = {path: text for path, text in slow.files.items() if "ens3f0np0/device" not in path}
    assert judged("peak-bandwidth", replace(slow, files=virtual, links={})) == []


def test_a_few_damaged_symbols_are_within_the_specification() -> None:
    sick = BY_NAME["mlx5-symbol-errors"]
    line = "ethtool -S ens3f0np0"
    few = sick.commands[line].stdout.replace("rx_pcs_symbol_err_phy: 18223", "rx_pcs_symbol_err_phy: 18225")
    assert judged("link-errors", replace(sick, later_commands={line: Output(few)})) == []


def test_rings_as_drivers_start_them_are_a_hint_at_most() -> None:
    line = "ethtool -g ens3f0np0"
    healthy = BY_NAME["connectx6-healthy"]
    text = healthy.commands[line].stdout.replace("settings:\nRX:\t\t8192", "settings:\nRX:\t\t512")
    (finding,) = judged("rings", with_output(healthy, line, Output(text)))
    assert finding.level is Level.INFO


def test_a_run_that_says_nothing_is_not_judged() -> None:
    assert read_run(None) is read_run({}) is read_run({"schemes": "all"}) is read_run({"schemes": []}) is None
    assert judged("window-memory", Recording("h", measured=Measured(run={"schemes": [{"scheme": "fetch"}]}))) == []


NUMBERS = st.sampled_from([0, -1, 1, 0.001, 5.0, 1e308, math.inf, math.nan, 10**400, "1", None, True, [], {}])
FIELDS = [field for field in SchemeRow.__slots__ if field != "scheme"]
ROW = st.fixed_dictionaries({"scheme": st.just("fetch"), **dict.fromkeys(FIELDS, NUMBERS)})
SETTINGS = st.fixed_dictionaries(dict.fromkeys(("hot_bytes", "window_bytes", "new_tokens"), NUMBERS))
RUN = st.fixed_dictionaries(
    {"schemes": st.lists(ROW | NUMBERS, max_size=3) | NUMBERS},
    optional={"settings": SETTINGS | NUMBERS, "machine": st.fixed_dictionaries({"memory_bytes": NUMBERS}) | NUMBERS},
)


@given(run=RUN)
@settings(max_examples=300, deadline=None)
def test_no_run_makes_a_check_raise(run: dict[str, object]) -> None:
    for name in ("window-memory", "decode-p99"):
        judged(name, Recording("h", measured=Measured(run=run)))


SICK = sorted(f.name for f in FIXTURES if f.expect and f.recording.files and f.recording.commands)


@given(name=st.sampled_from(SICK), data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_recording_makes_a_check_raise(name: str, data: st.DataObject) -> None:
    """What a check reads may be cut off, missing or nonsense: it may not know then, but it must not crash."""
    recording = BY_NAME[name]
    files, commands = dict(recording.files), dict(recording.commands)
    nonsense = st.sampled_from(["", "-1", "n/a", "\x00", "9" * 30, "1 2 3", "0-3,8", "yes: no"])
    for path in data.draw(st.lists(st.sampled_from(sorted(files)), max_size=20)):
        files[path] = data.draw(nonsense)
    for line in data.draw(st.lists(st.sampled_from(sorted(commands) or ["ip"]), max_size=5)):
        text = commands[line].stdout if line in commands else ""
        commands[line] = Output(
            text[: data.draw(st.integers(0, len(text)))], "", data.draw(st.sampled_from([-1, 0, 1]))
        )
    host = Host(replace(recording, files=files, commands=commands))
    for check in CHECKS:
        try:
            list(check.judge(host))
        except Unknown:
            continue
