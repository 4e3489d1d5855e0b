"""What the fixtures hold is what a machine is asked for: a check that reads something else would never see it live."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from dualpath.doctor import sources
from dualpath.doctor.globs import alternatives
from dualpath.doctor.host import Host
from dualpath.doctor.run import examine
from dualpath.host.tree import RecordedTree
from dualpath.testing.recordings import load_fixture

FILES = sorted((Path(__file__).parent / "fixtures").rglob("*.toml"))

PATTERNS = (
    *sources.HOST_FILES,
    *sources.NIC_FILES,
    *sources.HARDWARE_FILES,
    *sources.RDMA_FILES,
    *sources.COUNTERS,
    *sources.PCI_FILES,
    f"{sources.DEVICE_NODES}/*",
    *(f"/sys/class/infiniband/DEVICE/ports/PORT/{pattern}" for pattern in sources.GID_FILES),
)
LINES = (*sources.HOST_COMMANDS, *sources.NIC_COMMANDS, *sources.COUNTER_COMMANDS, sources.PROBE)


def expression(pattern: str) -> str:
    """Return `pattern` as a regular expression."""
    text = re.escape(re.sub(r"\b(NIC|DEVICE|PORT|PCI|INDEX|SIZE|PEER)\b", "?", pattern))
    return text.replace(r"\*\*", r".+").replace(r"\*", r"[^/]*").replace(r"\?", r"[^/ ]+")


@cache
def recorded(kind: str) -> re.Pattern[str]:
    wanted = [p.rstrip("@/") for p in PATTERNS if p.endswith("@") == (kind == "link")]
    return re.compile("|".join(expression(one) for pattern in wanted for one in alternatives(pattern)))


COMMANDS = re.compile("|".join(expression(line) for line in LINES))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_machine_is_asked_for_all_that_fixtures_hold(path: Path) -> None:
    recording = load_fixture(path).recording
    assert [file for file in recording.files if not recorded("file").fullmatch(file)] == []
    assert [link for link in recording.links if not recorded("link").fullmatch(link)] == []
    assert [line for line in recording.commands if not COMMANDS.fullmatch(line)] == []


def test_a_machine_is_asked_for_all_that_checks_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[str]] = {"read": set(), "link": set(), "output": set()}

    def spied(owner: type, method: str) -> None:
        original = getattr(owner, method)

        def spy(self: object, asked: str) -> object:
            seen[method].add(asked)
            return original(self, asked)

        monkeypatch.setattr(owner, method, spy)

    for owner, method in ((RecordedTree, "read"), (RecordedTree, "link"), (Host, "output")):
        spied(owner, method)
    recordings = [load_fixture(path).recording for path in FILES[::3]]
    for recording in recordings:
        examine([recording, recordings[0]])
    assert [path for path in seen["read"] if not recorded("file").fullmatch(path)] == []
    assert [path for path in seen["link"] if not recorded("link").fullmatch(path)] == []
    spellings = {"lspci -vvv", "lspci -Dvv"}  # of what others than the collector have recorded
    assert {line for line in seen["output"] if not COMMANDS.fullmatch(line)} <= spellings
