"""What the runner makes of checks: order, crashes, pairs, long lists; and lines for people."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualpath.doctor.base import Check, Finding, Level, PairCheck, Unknown
from dualpath.doctor.collect import collect
from dualpath.doctor.host import Host
from dualpath.doctor.recording import Recording
from dualpath.doctor.reference import render
from dualpath.doctor.run import BAD, Report, examine, fold, pair_checks, single_checks
from dualpath.doctor.text import report_lines, summary
from dualpath.host.tree import LiveTree

HOST = Recording("decode-1")


def check(name: str, *found: Finding | Exception) -> Check:
    def judge(_host: Host) -> Iterator[Finding]:
        for one in found:
            if isinstance(one, Exception):
                raise one
            yield one

    return Check(name, "A title", (), "", judge)


def finding(level: Level, symptom: str = "s", **fields: str) -> Finding:
    return Finding(level=level, symptom=symptom, **fields)


def test_worst_first_then_by_check_and_subject() -> None:
    report = examine(
        [HOST],
        checks=[
            check("b", finding(Level.OK), finding(Level.WARNING, subject="y"), finding(Level.WARNING, subject="x")),
            check("a", finding(Level.INFO), finding(Level.WARNING), finding(Level.CRITICAL), finding(Level.UNKNOWN)),
        ],
    )
    assert [(f.level.value, f.check, f.subject) for f in report.findings] == [
        ("critical", "a", ""),
        ("warning", "a", ""),
        ("warning", "b", "x"),
        ("warning", "b", "y"),
        ("unknown", "a", ""),
        ("info", "a", ""),
        ("ok", "b", ""),
    ]
    assert {f.host for f in report.findings} == {"decode-1"}
    assert not report.ok


def test_what_cannot_be_known_is_a_finding_with_its_fix() -> None:
    (found,) = examine([HOST], checks=[check("a", Unknown("no lspci", fix="install pciutils"))]).findings
    assert (found.level, found.symptom, found.fix) == (Level.UNKNOWN, "no lspci", "install pciutils")


@pytest.mark.parametrize("error", [KeyError("mtu"), RecursionError(), ZeroDivisionError("x\ny"), AssertionError()])
def test_a_check_that_crashes_is_unknown_and_the_others_go_on(error: Exception) -> None:
    before = finding(Level.WARNING, "seen before")
    report = examine([HOST], checks=[check("a", before, error), check("b", finding(Level.OK))])
    assert [(f.check, f.level) for f in report.findings] == [
        ("a", Level.WARNING),
        ("a", Level.UNKNOWN),
        ("b", Level.OK),
    ]
    crash = report.findings[1]
    assert "the check a failed" in crash.symptom
    assert type(error).__name__ in crash.symptom
    assert "\n" not in crash.symptom


def test_unknown_is_not_bad() -> None:
    assert examine([HOST], checks=[check("a", Unknown("no tool"))]).ok
    assert BAD == (Level.CRITICAL, Level.WARNING)


def test_every_two_hosts_are_judged_once_and_named_apart() -> None:
    seen: list[tuple[str, str]] = []

    def judge(one: Host, other: Host) -> list[Finding]:
        seen.append((one.name, other.name))
        return [finding(Level.INFO)]

    pair = PairCheck("p", "A title", (), "", judge)
    report = examine([HOST, Recording("pool-1"), HOST], checks=(), pairs=[pair])
    assert report.hosts == ("decode-1", "pool-1", "decode-1#2")
    assert seen == [("decode-1", "pool-1"), ("decode-1", "decode-1#2"), ("pool-1", "decode-1#2")]
    assert report.findings[0].host == "decode-1, decode-1#2"


def test_checks_are_found_by_their_modules_and_named_once() -> None:
    names = [one.name for one in (*single_checks(), *pair_checks())]
    assert len(names) == len(set(names))
    assert {"pair-mtu", "pair-gid"} <= set(names)
    for one in (*single_checks(), *pair_checks()):
        assert one.name == one.name.lower()
        assert " " not in one.name
        assert one.title
        assert one.reads
        assert one.reference


def test_every_check_survives_a_host_that_says_nothing() -> None:
    report = examine([HOST, Recording("pool-1", root=True)])
    assert [f for f in report.findings if "failed" in f.symptom] == []
    assert report.ok


def test_long_lists_are_folded() -> None:
    many = [finding(Level.WARNING, f"eth{n}", check="mtu", host="a", subject=f"eth{n}") for n in range(20)]
    few = [finding(Level.CRITICAL, "x", check="pcie", host="a")]
    shown = fold([*many, *few])
    assert [f.symptom for f in shown[:4]] == ["x", "eth0", "eth1", "eth2"]
    assert shown[4].symptom.startswith("and 17 more like it: eth3, eth4,")
    assert "(17 in all)" in shown[4].symptom
    assert len(shown) == 5
    assert fold(many[:4]) == many[:4]


def test_lists_over_hosts_name_the_hosts() -> None:
    many = [finding(Level.WARNING, check="irq", host=f"node-{n}") for n in range(6)]
    assert fold(many)[-1].symptom == "and 3 more like it: node-3, node-4, node-5"


def lines(report: Report, *, verbose: bool = False) -> list[str]:
    return [f"{line.head}  {line.text}" for line in report_lines(report, verbose=verbose)]


def test_one_line_each_with_the_fix() -> None:
    found = finding(Level.WARNING, "MTU\n1500", check="mtu", fix="ip link set mtu 9000", cause="why", host="a")
    assert lines(Report(("a",), (found,))) == ["warning   mtu  MTU 1500  → ip link set mtu 9000"]
    assert lines(Report(("a", "b"), (found,))) == ["warning   mtu  a: MTU 1500  → ip link set mtu 9000"]


def test_verbose_shows_causes_evidence_and_what_is_ok() -> None:
    found = Finding(level=Level.OK, symptom="fine", cause="why", evidence=("file: 1",), check="mtu", host="a")
    report = Report(("a",), (found,))
    assert lines(report) == []
    assert lines(report, verbose=True) == ["ok        mtu  fine", "  cause: why", "  file: 1"]


def test_one_missing_tool_is_one_line() -> None:
    found = [finding(Level.UNKNOWN, "no lspci", check=name, fix="install pciutils", host="a") for name in "xyz"]
    assert lines(Report(("a",), tuple(found[:2]))) == ["unknown   x, y  no lspci  → install pciutils"]
    assert lines(Report(("a",), tuple(found))) == ["unknown   3 checks  no lspci  → install pciutils"]


def test_the_last_line_counts() -> None:
    findings = (finding(Level.WARNING), finding(Level.WARNING), finding(Level.OK))
    assert summary(Report(("a",), findings)) == "a: 2 warning, 1 ok"
    assert summary(Report(("a", "b"), ())) == "2 hosts: nothing to judge"


def test_no_false_alarm_on_this_machine() -> None:
    """A machine without RDMA, such as CI's container, has nothing that needs mending for TCP to work."""
    if LiveTree().names("/sys/class/infiniband"):
        pytest.skip("a machine with RDMA may have something to report")
    report = examine([collect(seconds=0.01, patience_s=5.0)])
    assert [f for f in report.findings if f.level in BAD or "failed:" in f.symptom] == []


def test_the_reference_has_every_check_with_what_it_reads() -> None:
    page = render()
    for one in (*single_checks(), *pair_checks()):
        assert f"### {one.name}\n\n{one.title}.\n" in page
        for read in one.reads:
            assert f"- `{read}`\n" in page
