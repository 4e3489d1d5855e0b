"""A report as lines for people: worst first, one line for each finding with what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dualpath.doctor.base import Finding, Level
from dualpath.doctor.run import Report, fold


@dataclass(frozen=True, slots=True)
class Line:
    """One line to print. `level` is that of its finding, for its colour; `detail` for what stands below a finding."""

    level: Level
    head: str
    """The level and the check, padded; empty for a detail."""
    text: str
    detail: bool = False


def report_lines(report: Report, *, verbose: bool) -> Iterator[Line]:
    """Yield the lines of `report`. If `verbose`: long lists whole, what is `ok` too, causes and evidence."""
    findings = report.findings if verbose else fold(_joined(one for one in report.findings if one.level != Level.OK))
    width = max((len(finding.check) for finding in findings), default=0)
    several = len(report.hosts) > 1
    for finding in findings:
        host = f"{finding.host}: " if several and finding.host else ""
        fix = f"  → {_one_line(finding.fix)}" if finding.fix else ""
        yield Line(
            finding.level,
            f"{finding.level.value:<8}  {finding.check:<{width}}",
            f"{host}{_one_line(finding.symptom)}{fix}",
        )
        if verbose:
            for text in (*([f"cause: {finding.cause}"] if finding.cause else ()), *finding.evidence):
                yield Line(finding.level, "", _one_line(text), detail=True)


def summary(report: Report) -> str:
    """Return the last line: how many of each level, over how many hosts."""
    counts = [f"{report.count(level)} {level.value}" for level in Level if report.count(level)]
    hosts = report.hosts[0] if len(report.hosts) == 1 else f"{len(report.hosts)} hosts"
    return f"{hosts}: {', '.join(counts) or 'nothing to judge'}"


def _joined(findings: Iterable[Finding]) -> list[Finding]:
    """Return `findings` with those that say the same made one: a missing tool is one line."""
    same: dict[tuple[str, ...], Finding] = {}
    names: dict[tuple[str, ...], dict[str, None]] = {}
    for finding in findings:
        key = (finding.level, finding.host, finding.symptom, finding.fix)
        if key in same:
            names[key][finding.check] = None
            continue
        same[key], names[key] = finding, {finding.check: None}
    return [
        replace(finding, check=", ".join(names[key]) if len(names[key]) < 3 else f"{len(names[key])} checks")
        for key, finding in same.items()
    ]


def _one_line(text: str) -> str:
    return " ".join(text.split())
