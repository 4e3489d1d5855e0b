"""The contract of a check.

A check looks at one `Host` and yields findings; a pair check looks at two. It reads nothing but what it is given.
What it cannot know it says by raising `Unknown` (or by yielding a finding of that level, where other subjects can be
judged); whatever else it raises becomes an `unknown` finding that says so, never a traceback.

A healthy subject yields at most an `ok` or `info` finding. Levels above `info` ask the user to act, so they carry a
cause and a fix.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dualpath.doctor.host import Host


class Level(enum.StrEnum):
    """How bad it is. The order is that of the report: worst first."""

    CRITICAL = "critical"
    WARNING = "warning"
    UNKNOWN = "unknown"
    INFO = "info"
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found about one subject."""

    level: Level
    symptom: str
    """What is seen, in one line, with the subject and the numbers: `eth2 trained at Gen3 x4, capable of Gen4 x16`."""
    cause: str = ""
    fix: str = ""
    """A command to run, or what to change; no placeholder that the check could have filled in."""
    evidence: tuple[str, ...] = ()
    """Lines that were read, each with where it came from: `/sys/class/net/eth2/mtu: 1500`."""
    subject: str = ""
    """What it is about: a NIC, a GPU, a file; empty for the host as a whole."""
    check: str = ""
    """Name of the check; set by the runner."""
    host: str = ""
    """Name of the host, or of both (`a, b`); set by the runner."""


class Unknown(Exception):
    """A check cannot know: a tool is missing, a file may not be read. `fix` says what would help."""

    def __init__(self, why: str, *, fix: str = "") -> None:
        super().__init__(why)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a single host. Its module holds it as `CHECK`."""

    name: str
    """Kebab case, such as `pcie-link`."""
    title: str
    """What it makes sure of, one line."""
    reads: tuple[str, ...]
    """Files and commands that it looks at, for the reference page."""
    reference: str
    """Where the rule comes from: a kernel document, a vendor's manual, an RFC, with its address."""
    judge: Callable[[Host], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class PairCheck:
    """One check of two hosts that are to talk with each other. Its module holds it as `CHECK`."""

    name: str
    title: str
    reads: tuple[str, ...]
    reference: str
    judge: Callable[[Host, Host], Iterable[Finding]]
