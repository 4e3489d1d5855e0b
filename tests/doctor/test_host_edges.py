"""What the recorded hosts do not show of QoS, counters, links, CPUs, limits, measurements; and damaged recordings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.doctor.base import Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.recording import Measured, Output, Recording
from dualpath.doctor.run import single_checks
from dualpath.doctor.runs import SchemeRow, read_run
from dualpath.host.raw import RawRow
from dualpath.testing.recordings import load_fixture

CHECKS = single_checks()
FIXTURES = tuple(load_fixture(path) for path in sorted((Path(__file__).parent / "fixtures").glob("*.toml")))
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


def with_rows(recording: Recording, *rows: RawRow) -> Recording:
    assert recording.measured.raw is not None
    return replace(recording, measured=Measured(raw=msgspec.structs.replace(recording.measured.raw, rows=rows)))


@pytest.mark.parametrize(
    ("fixture", "check"),
    [("raw-under-half", "peak-bandwidth"), ("raw-large-slow", "size-sweep"), ("raw-gpu-staged", "gpu-bandwidth")],
)
def test_rows_in_doubt_are_not_judged(fixture: str, check: str) -> None:
    bad = BY_NAME[fixture]
    rows = bad.measured.raw.rows if bad.measured.raw else ()
    assert judged(check, bad)
    assert judged(check, with_rows(bad, *(msgspec.structs.replace(row, doubt="counts differ") for row in rows))) == []


@pytest.mark.parametrize(
    ("fixture", "check"),
    [("raw-under-half", "peak-bandwidth"), ("raw-large-slow", "size-sweep"), ("raw-gpu-staged", "gpu-bandwidth")],
)
def test_each_direction_is_judged_by_itself(fixture: str, check: str) -> None:
    bad = BY_NAME[fixture]
    rows = bad.measured.raw.rows if bad.measured.raw else ()
    healthy = [
        msgspec.structs.replace(row, bits_per_s=95e9, nominal_bits_per_s=100e9, direction="write") for row in rows
    ]
    (found,) = judged(check, with_rows(bad, *healthy, *rows))
    assert "reads" in found.symptom
    (found,) = judged(check, with_rows(bad, *(msgspec.structs.replace(row, direction="write") for row in rows)))
    assert "writes" in found.symptom


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


def test_pfc_off_without_ethtool_may_have_pause_in_its_place() -> None:
    sick = BY_NAME["e810-pfc-off"]
    commands = {line: output for line, output in sick.commands.items() if not line.startswith("ethtool ")}
    levels = {f.level for f in judged("pfc-priority", replace(sick, commands=commands, missing=("ethtool",)))}
    assert levels == {Level.UNKNOWN}


def test_a_carrier_count_that_was_read_once_has_not_moved() -> None:
    healthy = BY_NAME["e810-healthy"]
    files = {path: text for path, text in healthy.files.items() if not path.endswith("/carrier_changes")}
    assert judged("link-errors", replace(healthy, files=files)) == []


def test_half_of_a_firewall_is_not_judged() -> None:
    healthy = BY_NAME["bnxt-nft-opens-roce"]
    half = healthy.commands["nft list ruleset"].stdout.partition("udp dport")[0]
    with pytest.raises(Unknown, match="was stopped"):
        judged("firewall", with_output(healthy, "nft list ruleset", Output(half, "stopped: it took too long", -1)))
