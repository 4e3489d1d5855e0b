"""`dualpath doctor`: is my fabric right?"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualpath.cli.output import check_report, emit, progress, say, stdout_console, table
from dualpath.cli.registry import CommandEntry
from dualpath.errors import UsageError

if TYPE_CHECKING:
    from dualpath.doctor.recording import Measured, Recording
    from dualpath.doctor.run import Report

COMMANDS = (
    CommandEntry("collect", __name__, "collect_command", "Record what the checks read into one file."),
    CommandEntry("check", __name__, "check_command", "Judge recorded hosts, and every two of them."),
    CommandEntry("latency", __name__, "latency_command", "Say why decode is slow, from a run and raw bandwidth."),
    CommandEntry("list", __name__, "list_command", "List the checks."),
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show causes, evidence and what is ok.")]
PeerOption = Annotated[str, typer.Option(metavar="ADDRESS", help="Try whether full-size packets reach this host.")]
RawOption = Annotated[Path | None, typer.Option(metavar="RAW.json", help="Measured: dualpath bench raw --json.")]
RunOption = Annotated[Path | None, typer.Option(metavar="RUN.json", help="Measured: dualpath run --json.")]
SecondsOption = Annotated[
    float, typer.Option(metavar="S", help="Time between two readings of counters; 0: read once.", min=0, max=3600)
]

LEVEL_STYLES = {"critical": "bold red", "warning": "yellow", "unknown": "magenta", "info": "cyan", "ok": "green"}
PATIENT_S = 10.0
NOT_ROOT = (
    "not root: what only root may read stays unknown (PCIe capabilities, firewall rules, module EEPROMs, some counters)"
)


def doctor_command(
    verbose: VerboseOption = False,
    peer: PeerOption = "",
    seconds: SecondsOption = 1.0,
    raw: RawOption = None,
    run: RunOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show the NICs' counters over time, until Ctrl-C.")] = False,
    count: Annotated[int, typer.Option(help="With --watch: stop after so many rounds; 0: never.", min=0)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Examine this machine's NICs, PCIe, RDMA and what else remote KV depends on. Changes nothing; needs no root.

    Findings are printed worst first, each with what to do. Exit code 1 if anything is a warning or worse.

    Examples:
        dualpath doctor
        dualpath doctor --verbose --peer 10.0.0.2
        dualpath doctor --watch
        dualpath doctor collect -o host.tar.gz --redact
        dualpath doctor check decode-1.tar.gz pool-1.tar.gz
        dualpath doctor latency run.json --raw raw.json --budget-ms 50
    """
    if watch:
        from dualpath.cli.doctor_watch import watch_nics

        watch_nics(seconds or 1.0, count, as_json=as_json)
        return
    from dualpath.doctor.collect import collect
    from dualpath.doctor.run import single_checks

    measured = _measured(raw, run)
    with ThreadPoolExecutor(1) as beside:
        beside.submit(single_checks)  # imports them while the second reading of counters is waited for
        recording = _with(collect(peer=peer, seconds=seconds), measured)
    _report([recording], verbose=verbose, as_json=as_json)


def collect_command(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write; - is stdout.")],
    redact: Annotated[
        bool, typer.Option("--redact", help="Replace addresses, GUIDs, serial numbers and host names.")
    ] = False,
    salt: Annotated[
        str,
        typer.Option(
            help="With --redact: a secret text; the same on all hosts, so that equal things stay equal across them."
        ),
    ] = "",
    peer: PeerOption = "",
    seconds: SecondsOption = 1.0,
    patience: Annotated[
        float, typer.Option(metavar="S", help="How long commands may take.", min=0.1, max=600)
    ] = PATIENT_S,
    raw: RawOption = None,
    run: RunOption = None,
) -> None:
    """Record what the checks read of this machine into one file: settings, counters, and what tools print.

    It can be judged anywhere with `dualpath doctor check`, and goes with a bug report.

    Examples:
        dualpath doctor collect -o $(hostname).tar.gz
        dualpath doctor collect -o host.tar.gz --redact
        dualpath doctor collect -o host.tar.gz --peer 10.0.0.2
        ssh pool-1 dualpath doctor collect -o - > pool-1.tar.gz
    """
    if salt and not redact:
        raise UsageError("--salt without --redact", hint="add --redact")
    if str(output) != "-":
        check_report(output, "-o")
    from dualpath.doctor.archive import write_archive
    from dualpath.doctor.collect import collect
    from dualpath.doctor.redact import redact as redacted

    measured = _measured(raw, run)
    with progress("recording this machine"):
        recording = _with(collect(peer=peer, seconds=seconds, patience_s=patience), measured)
    if redact:
        recording = redacted(recording, salt=salt.encode() or secrets.token_bytes(32))
    write_archive(recording, output)
    say(f"{output}: {len(recording.files):,} files, {len(recording.commands)} commands of {recording.host}")
    if not recording.root:
        say(NOT_ROOT)


def check_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What dualpath doctor collect wrote.")],
    verbose: VerboseOption = False,
    raw: RawOption = None,
    run: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge recorded hosts: each alone, and every two of them together (MTU, RoCE version, GIDs, priorities, rates).

    Measurements belong to the host that they were made on; if none is called as they say, to the first.

    Examples:
        dualpath doctor check host.tar.gz
        dualpath doctor check decode-1.tar.gz pool-1.tar.gz pool-2.tar.gz --verbose
        dualpath doctor check decode-1.tar.gz pool-1.tar.gz --raw raw.json --json
    """
    from dualpath.doctor.archive import read_archive

    recordings = [read_archive(path) for path in files]
    measured = _measured(raw, run)
    named = measured.raw.local_host if measured.raw is not None else ""
    at = next((index for index, recording in enumerate(recordings) if recording.host == named), 0)
    recordings[at] = _with(recordings[at], measured)
    _report(recordings, verbose=verbose, as_json=as_json)


def latency_command(
    run: Annotated[Path, typer.Argument(metavar="RUN.json", help="What dualpath run --json wrote.")],
    raw: RawOption = None,
    budget_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="P99 of the time per token that is still fine.", min=0.001)
    ] = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Judge two numbers: peak bandwidth against nominal, and decode's P99 against a budget; and say what they mean.

    Under half of nominal: look at PCIe and NUMA. Over budget: the prefetch window is too small, or QoS is off.
    Without a budget a scheme is held against twice its own median.

    Examples:
        dualpath run --json > run.json
        dualpath doctor latency run.json --budget-ms 50
        dualpath doctor latency run.json --raw raw.json --json
    """
    from dualpath.doctor.latency import latency_checks
    from dualpath.doctor.recording import Recording
    from dualpath.doctor.run import examine
    from dualpath.doctor.runs import read_run

    measured = _measured(raw, run)
    if read_run(measured.run) is None:
        raise UsageError(f"{run} has no schemes", hint="give a file that `dualpath run --json` wrote")
    host = measured.raw.local_host if measured.raw is not None else run.stem
    report = examine([Recording(host, root=True, measured=measured)], checks=latency_checks(budget_ms), pairs=())
    _print_report(report, verbose=verbose, as_json=as_json)


def list_command(as_json: JsonOption = False) -> None:
    """List the checks, and what each makes sure of.

    Examples:
        dualpath doctor list
        dualpath doctor list --json
    """
    from dualpath.doctor.run import pair_checks, single_checks

    rows = [
        {
            "check": check.name,
            "of": kind,
            "title": check.title,
            "reads": list(check.reads),
            "reference": check.reference,
        }
        for kind, checks in (("host", single_checks()), ("pair", pair_checks()))
        for check in checks
    ]
    columns = ["check", "of", "title"]
    emit(
        as_json,
        {"checks": rows},
        lambda found: table("checks", columns, [[row[name] for name in columns] for row in found["checks"]]),
    )


def _measured(raw: Path | None, run: Path | None) -> Measured:
    """Return what was measured. Raises `UsageError` for files that hold something else."""
    import msgspec

    from dualpath.doctor.recording import Measured
    from dualpath.host.raw import RawReport

    def read(path: Path | None, kind: Any, writer: str) -> Any:
        if path is None:
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}", hint="check the path") from error
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UsageError(f"{path}: {error}", hint=f"give a file that `{writer}` wrote") from error

    return Measured(
        raw=read(raw, RawReport, "dualpath bench raw --json"),
        run=read(run, dict[str, object], "dualpath run --json"),
    )


def _with(recording: Recording, measured: Measured) -> Recording:
    """Return `recording` with measurements; what it holds already stays where there is nothing newer."""
    known = recording.measured
    return replace(recording, measured=replace(known, raw=measured.raw or known.raw, run=measured.run or known.run))


def _report(recordings: list[Recording], *, verbose: bool, as_json: bool) -> None:
    from dualpath.doctor.run import examine

    without_root = [recording.host for recording in recordings if not recording.root]
    _print_report(examine(recordings), verbose=verbose, as_json=as_json, without_root=without_root)


def _print_report(report: Report, *, verbose: bool, as_json: bool, without_root: list[str] | None = None) -> None:
    """Print `report`; leave with exit code 1 if anything in it is a warning or worse."""
    emit(
        as_json,
        {
            "hosts": report.hosts,
            "ok": report.ok,
            "without_root": without_root or [],
            "findings": [asdict(finding) for finding in report.findings],
        },
        lambda _: _print_lines(report, verbose=verbose, without_root=without_root or []),
    )
    if not report.ok:
        raise typer.Exit(1)


def _print_lines(report: Report, *, verbose: bool, without_root: list[str]) -> None:
    from rich.text import Text

    from dualpath.doctor.text import one_line, report_lines, summary

    console = stdout_console()
    for line in report_lines(report, verbose=verbose):
        style = LEVEL_STYLES[line.level.value]
        if line.detail:
            console.print(Text(f"{'':10}{line.text}", style="dim"), soft_wrap=True)
        else:
            console.print(Text.assemble((line.head, style), f"  {line.text}"), soft_wrap=True)
    console.print(Text(summary(report), style="bold"), soft_wrap=True)
    if without_root:
        hosts = f"{one_line(', '.join(without_root))}: " if len(report.hosts) > 1 else ""
        console.print(Text(f"{hosts}{NOT_ROOT}", style="dim"), soft_wrap=True)
