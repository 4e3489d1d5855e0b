"""Judges hosts: every check over every host, every pair check over every pair, and what came of it in order."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations
from types import ModuleType
from typing import TypeVar

from dualpath.doctor import checks as single_package
from dualpath.doctor import pairs as pair_package
from dualpath.doctor.base import Check, Finding, Level, PairCheck, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.recording import Recording

T = TypeVar("T")

ORDER = tuple(Level)
BAD = (Level.CRITICAL, Level.WARNING)
MOST_ALIKE = 4
"""Findings of one check and level that are shown before the rest becomes one line."""


@cache
def single_checks() -> tuple[Check, ...]:
    """Return every check of a host: the `CHECK` of each module of `checks/`, by name."""
    return tuple(sorted(_members(single_package, Check), key=lambda check: check.name))


@cache
def pair_checks() -> tuple[PairCheck, ...]:
    """Return every check of two hosts: the `CHECK` of each module of `pairs/`, by name."""
    return tuple(sorted(_members(pair_package, PairCheck), key=lambda check: check.name))


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, worst first."""

    hosts: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Return whether nothing is a warning or worse."""
        return not any(finding.level in BAD for finding in self.findings)

    def count(self, level: Level) -> int:
        """Return how many findings are of `level`."""
        return sum(finding.level is level for finding in self.findings)


def examine(
    recordings: Sequence[Recording],
    *,
    checks: Sequence[Check] | None = None,
    pairs: Sequence[PairCheck] | None = None,
) -> Report:
    """Judge every host alone and every two of them together. Never raises for what a recording says.

    `checks` and `pairs` default to all there are. Two recordings of one name are told apart by a number.
    """
    hosts = [Host(recording) for recording in _told_apart(recordings)]
    found: list[Finding] = []
    for host in hosts:
        for check in single_checks() if checks is None else checks:
            found += _judge(check.name, host.name, partial(check.judge, host))
    for one, other in combinations(hosts, 2):
        for pair in pair_checks() if pairs is None else pairs:
            names = f"{one.name}, {other.name}"
            found += _judge(pair.name, names, partial(pair.judge, one, other))
    return Report(tuple(host.name for host in hosts), ordered(found))


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return `findings` worst first, then by check, host and subject."""
    return tuple(sorted(findings, key=_place))


def fold(findings: Iterable[Finding], *, most: int = MOST_ALIKE) -> list[Finding]:
    """Return `findings` with long lists cut short: after `most - 1` of one check and level, one line for the rest."""
    groups: dict[tuple[str, Level], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.check, finding.level), []).append(finding)
    shown: list[Finding] = []
    for group in groups.values():
        if len(group) <= most:
            shown += group
            continue
        rest = group[most - 1 :]
        several = len({finding.host for finding in group}) > 1
        names = dict.fromkeys(_label(finding, with_host=several) for finding in rest)
        listing = ", ".join(name for name in list(names)[:8] if name)
        more = f", … ({len(names)} in all)" if len(names) > 8 else ""
        shown += group[: most - 1]
        shown.append(
            replace(
                rest[0],
                symptom=f"and {len(rest)} more like it" + (f": {listing}{more}" if listing else ""),
                cause="",
                fix="see all with --verbose",
                evidence=(),
                subject="",
                host="" if several else rest[0].host,
            )
        )
    return sorted(shown, key=lambda finding: ORDER.index(finding.level))  # stable: groups stay together


def _label(finding: Finding, *, with_host: bool) -> str:
    return " ".join(part for part in (f"{finding.host}:" if with_host else "", finding.subject) if part).rstrip(":")


def _judge(name: str, host: str, judge: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return what a check yields. What it cannot know, and its own bugs, are findings too; those before them count."""
    found: list[Finding] = []
    try:
        found.extend(judge())  # extends one by one: what came before an exception stays
    except Unknown as unknown:
        found.append(Finding(level=Level.UNKNOWN, symptom=str(unknown), fix=unknown.fix))
    except Exception as error:  # noqa: BLE001 - a check that crashes is a finding; the others go on
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        found.append(
            Finding(
                level=Level.UNKNOWN,
                symptom=f"the check {name} failed: {' '.join(what.split())}",
                cause="a bug of the check, or output that it does not know",
                fix="report it with the file that `dualpath doctor collect --redact -o host.tar.gz` writes",
            )
        )
    return [replace(finding, check=name, host=host) for finding in found]


def _place(finding: Finding) -> tuple[int, str, str, str]:
    return ORDER.index(finding.level), finding.check, finding.host, finding.subject


def _told_apart(recordings: Sequence[Recording]) -> list[Recording]:
    seen: dict[str, int] = {}
    told: list[Recording] = []
    for recording in recordings:
        seen[recording.host] = count = seen.get(recording.host, 0) + 1
        told.append(recording if count == 1 else replace(recording, host=f"{recording.host}#{count}"))
    return told


def _members(package: ModuleType, kind: type[T]) -> list[T]:
    found = []
    for module in pkgutil.iter_modules(package.__path__):
        check = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "CHECK", None)
        if isinstance(check, kind):
            found.append(check)
    return found
