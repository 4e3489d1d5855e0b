"""The checks of the fabric, over recorded hosts: each sick one is found by its check alone, healthy ones are silent."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.recording import Recording
from dualpath.testing.recordings import load_fixture

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.toml"))
NAMES = (
    "gpu_nic_distance",
    "iommu_acs",
    "mtu",
    "nic_idle",
    "nic_inventory",
    "nic_numa",
    "pcie_link",
    "peer_memory",
    "rdma_capable",
    "rdma_link",
    "roce_gid",
)
CHECKS: dict[str, Check] = {
    check.name: check for check in (importlib.import_module(f"dualpath.doctor.checks.{name}").CHECK for name in NAMES)
}


def findings(check: Check, recording: Recording) -> list[Finding]:
    try:
        return list(check.judge(Host(recording)))
    except Unknown as why:
        return [Finding(level=Level.UNKNOWN, symptom=str(why), fix=why.fix)]


def worst(found: list[Finding]) -> Level | None:
    """Return the worst level above `info`."""
    levels = [finding.level for finding in found]
    return next((level for level in (Level.CRITICAL, Level.WARNING, Level.UNKNOWN) if level in levels), None)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_each_check_says_what_is_expected_and_no_more(path: Path) -> None:
    fixture = load_fixture(path)
    said = {name: level for name, check in CHECKS.items() if (level := worst(findings(check, fixture.recording)))}
    assert said == {name: level for name, level in fixture.expect.items() if name in CHECKS}
