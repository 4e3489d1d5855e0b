"""The checks of QoS, counters, links, CPUs, limits and measurements, over recorded hosts."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.testing.recordings import Fixture, load_fixture

NAMES = (
    "pfc_priority",
    "ecn",
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
