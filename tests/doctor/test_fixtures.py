"""Every recorded host: what its file expects is found, at that level, and nothing else above `info`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from dualpath.doctor.archive import pack, unpack
from dualpath.doctor.base import Finding, Level
from dualpath.doctor.redact import redact
from dualpath.doctor.run import BAD, ORDER, examine, single_checks
from dualpath.testing.recordings import Fixture, load_fixture

FOLDER = Path(__file__).parent / "fixtures"
FILES = sorted(FOLDER.rglob("*.toml"))
LEAST = 40

load = cache(load_fixture)
everyone = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))


def worst(findings: tuple[Finding, ...], expected: dict[str, Level]) -> dict[str, Level]:
    """Return the worst level of each check above `info`; `unknown` counts only where it is expected."""
    found: dict[str, Level] = {}
    for finding in findings:
        awaited = finding.level is Level.UNKNOWN and expected.get(finding.check) is Level.UNKNOWN
        if finding.level in BAD or awaited:
            found[finding.check] = min(finding.level, found.get(finding.check, Level.OK), key=ORDER.index)
    return found


@everyone
def test_what_is_expected_is_found_and_nothing_else(path: Path) -> None:
    fixture = load(path)
    findings = examine([fixture.recording]).findings
    assert worst(findings, fixture.expect) == fixture.expect
    assert [finding.symptom for finding in findings if "failed: " in finding.symptom] == []


@everyone
def test_whoever_is_to_act_is_told_why_and_what_to_do(path: Path) -> None:
    for finding in examine([load(path).recording]).findings:
        if finding.level in BAD:
            assert finding.symptom
            assert finding.cause, finding
            assert finding.fix, finding


@everyone
def test_redaction_changes_nothing_that_is_found(path: Path) -> None:
    recording = load(path).recording
    before, after = examine([recording]).findings, examine([redact(recording, salt=b"salt")]).findings
    assert sorted((f.check, f.level) for f in before) == sorted((f.check, f.level) for f in after)


@everyone
def test_a_host_agrees_with_another_like_it(path: Path) -> None:
    recording = load(path).recording
    found = examine([recording, replace(recording, host="its-twin")], checks=()).findings
    assert [one for one in found if one.level is not Level.OK] == []


def test_an_archive_changes_nothing() -> None:
    recordings = [load(path).recording for path in FILES[::10]]
    assert [unpack(pack(recording)) for recording in recordings] == recordings


def test_expectations_name_checks_that_exist() -> None:
    known = {check.name for check in single_checks()}
    fixtures: list[Fixture] = [load(path) for path in FILES]
    assert {name for fixture in fixtures for name in fixture.expect} <= known


def test_there_are_enough_and_healthy_ones_among_them() -> None:
    fixtures = [load(path) for path in FILES]
    assert len(fixtures) >= LEAST
    assert sum(not fixture.expect for fixture in fixtures) >= 5
