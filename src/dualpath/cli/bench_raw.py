"""`dualpath bench raw`: what the network between this host and a pool node can do."""

from __future__ import annotations

import textwrap
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from dualpath.cli.bench_options import DeadlineOption, KeyFileOption
from dualpath.cli.key import shared_key
from dualpath.cli.options import Json
from dualpath.cli.output import byte_size, emit, progress, table
from dualpath.units import format_bits_per_s, format_bytes, parse_bits_per_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dualpath.host.raw import RawBeside, RawReport, RawRow

WIDTH = 110


def raw_command(
    pool: Annotated[str, typer.Option(metavar="HOST:PORT", help="A running pool node on the other host.")],
    sizes: Annotated[
        str, typer.Option(metavar="SIZE,...", help="Bytes of a block.")
    ] = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB",
    seconds: Annotated[
        float | None,
        typer.Option(help="Of each measurement (default: 0.1 to 0.5, so that the run takes about 40 s).", min=0.01),
    ] = None,
    in_flight: Annotated[
        int | None, typer.Option(help="Blocks in flight (default: 8 MiB of them, 4 to 512).", min=1)
    ] = None,
    nic: Annotated[list[str] | None, typer.Option(help="Use this NIC here only; may be repeated.")] = None,
    every_pair: Annotated[
        bool, typer.Option("--every-pair", help="Each NIC here with each of the node's that it reaches directly.")
    ] = False,
    nominal: Annotated[
        str, typer.Option(metavar="RATE", help="Nominal speed of each link, the slower end: 100Gbit.")
    ] = "",
    deadline: DeadlineOption = 10.0,
    key_file: KeyFileOption = None,
    as_json: Json = False,
) -> None:
    """Measure bandwidth and latency to a pool node: every rail, every lane, a sweep of sizes.

    Run `dualpath pool --listen A:7700,B:7700` on the other host, with the address of each NIC that is to carry data.
    Random blocks are stored there (40 MiB with these sizes), compared when they come back, and dropped again. Exit code
    1 if there are findings.

    Examples:
        dualpath bench raw --pool 10.0.0.5:7700
        dualpath bench raw --pool 10.0.0.5:7700 --nominal 100Gbit --json > raw.json
        dualpath bench raw --pool 10.0.0.5:7700 --nic eth2 --sizes 1MiB,4MiB --seconds 5
    """
    from dualpath.bench.raw import run_raw_bench
    from dualpath.bench.raw_measure import RawSettings

    settings = RawSettings(
        sizes=[int(byte_size(one)) for one in sizes.split(",") if one.strip()],
        seconds=seconds,
        in_flight=in_flight,
        nics=tuple(nic or ()),
        every_pair=every_pair,
        nominal_bits_per_s=parse_bits_per_s(nominal) if nominal else None,
        timeout_s=deadline,
    )
    key = shared_key(key_file)
    with progress("raw bench") as bar:
        report = run_raw_bench(
            pool, settings, key=key, progress=lambda done, of, what: bar.note(f"{done + 1}/{of} {what}")
        )
    emit(as_json, report, _print_report)
    if report.findings:
        raise typer.Exit(1)


def _print_report(report: RawReport) -> None:
    typer.echo(f"{report.local_host} and {report.remote_host}")
    for (local, remote), rows in groupby(
        (*report.rows, *report.together), key=lambda row: (row.local_rail, row.remote_rail)
    ):
        _print_rows(f"{local} → {remote}", list(rows))
    _print_beside(report.beside)
    for text in (report.method, *(f"finding: {one}" for one in report.findings)):
        typer.echo(textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n")
    if not report.findings:
        typer.echo("no findings")


def _print_rows(title: str, rows: Sequence[RawRow]) -> None:
    nominal = rows[0].nominal_bits_per_s
    if nominal:
        title += f", nominal {format_bits_per_s(nominal)}"
    columns = [
        "lane",
        "direction",
        "block",
        "in flight",
        "Gbit/s",
        "of nominal",
        "P50 us",
        "P99 us",
        "samples",
        "counts",
    ]
    table(
        title,
        columns,
        [
            [
                row.lane,
                row.direction,
                format_bytes(row.block_bytes),
                row.in_flight,
                row.bits_per_s / 1e9,
                f"{row.bits_per_s / nominal:.0%}" if nominal else None,
                row.latency_p50_s * 1e6,
                row.latency_p99_s * 1e6,
                row.latency_samples,
                "differ" if row.doubt else "agree",
            ]
            for row in rows
        ],
    )


def _print_beside(found: Sequence[RawBeside]) -> None:
    columns = ["rail", "idle P50 us", "idle P99 us", "beside P50 us", "beside P99 us", "prefetch Gbit/s"]
    table(
        "Real-time round trips, idle and beside a prefetch at full rate",
        columns,
        [
            [
                f"{one.local_rail} → {one.remote_rail}",
                one.idle_p50_s * 1e6,
                one.idle_p99_s * 1e6,
                one.beside_p50_s * 1e6,
                one.beside_p99_s * 1e6,
                one.prefetch_bits_per_s / 1e9,
            ]
            for one in found
        ],
    )
