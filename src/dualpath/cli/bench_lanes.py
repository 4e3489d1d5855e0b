"""`dualpath bench lanes`: what lanes are worth to small requests, and what small requests cost a prefetch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dualpath.cli.bench_options import (
    BlockOption,
    DeadlineOption,
    KeyFileOption,
    PoolOption,
    RoundsOption,
    SecondsOption,
)
from dualpath.cli.key import shared_key
from dualpath.cli.options import Json
from dualpath.cli.output import ByteSize, byte_size, emit, progress, stdout_console, table, words
from dualpath.cli.rounds import median_of, print_ratios, range_of
from dualpath.units import format_bytes

if TYPE_CHECKING:
    from dualpath.bench.lanes import LanesReport


def lanes_command(
    pool: PoolOption,
    nics: Annotated[
        str, typer.Option(metavar="NAME", help="The NIC here to use; default: the first that leads there.")
    ] = "",
    seconds: SecondsOption = 2.0,
    rounds: RoundsOption = 5,
    rate: Annotated[float, typer.Option(help="Requests a second whose round trips are measured.")] = 200.0,
    control_rate: Annotated[
        float, typer.Option(help="Control messages a second whose cost to the prefetch is measured.")
    ] = 1000.0,
    block: BlockOption = ByteSize(256 << 10),
    in_flight: Annotated[
        ByteSize, typer.Option(parser=byte_size, metavar="SIZE", help="Bytes that the prefetch has in flight.")
    ] = ByteSize(8 << 20),
    compute: Annotated[
        int, typer.Option(help="Threads that compute attention over local blocks meanwhile.", min=0)
    ] = 0,
    deadline: DeadlineOption = 10.0,
    key_file: KeyFileOption = None,
    as_json: Json = False,
) -> None:
    """Measure real-time round trips idle, beside a prefetch with lanes, and beside one without; all over one NIC.

    The cases take turns in every round, with the same bytes in flight. Figures are medians over the rounds, with the
    least and the greatest round after them. The prefetch is measured with and without control messages, too.

    Examples:
        dualpath bench lanes --pool 10.0.0.5:7700
        dualpath bench lanes --pool 10.0.0.5:7700 --nics eth2 --control-rate 1000 --json > lanes.json
        dualpath bench lanes --pool 10.0.0.5:7700 --compute 2 --seconds 5
    """
    from dualpath.bench.lanes import CASES, LanesSettings, run_lanes_bench

    settings = LanesSettings(
        seconds=seconds,
        rounds=rounds,
        per_s=rate,
        control_per_s=control_rate,
        block_bytes=int(block),
        in_flight_bytes=int(in_flight),
        compute=compute,
        nics=words(nics),
        timeout_s=deadline,
    )
    key = shared_key(key_file)
    with progress("lanes", total=rounds * len(CASES), unit="cases") as bar:

        def tell(case: str) -> None:
            bar.note(case)
            bar.advance()

        found = run_lanes_bench(pool, settings, key=key, progress=tell)
    emit(as_json, found, print_lanes)


def print_lanes(found: LanesReport) -> None:
    """Print the cases, and how they compare."""
    settings = found.settings
    whole_s = settings.rounds * settings.seconds
    beside = f", beside {settings.compute} threads of attention" if settings.compute else ""
    over = f" over {found.nic}" if found.nic else ""
    table(
        f"{settings.rounds} rounds of {settings.seconds:g} s a case{over}{beside}; "
        f"{format_bytes(settings.in_flight_bytes)} of prefetch in flight",
        [
            *("case", "requests/s", "failed", "P50 ms", "P99 ms", "P99 by round", "max ms"),
            *("prefetch Mbit/s", "Mbit/s by round"),
            *(["compute GB/s"] if settings.compute else []),
        ],
        [
            [
                row.case,
                row.requests / whole_s,
                row.failed,
                median_of(row.p50_s, 1e3),
                median_of(row.p99_s, 1e3),
                range_of(row.p99_s, 1e3),
                None if row.max_s is None else row.max_s * 1e3,
                median_of(row.prefetch_bits_per_s, 1e-6),
                range_of(row.prefetch_bits_per_s, 1e-6),
            ]
            + ([median_of(row.compute_bytes_per_s, 1e-9)] if settings.compute else [])
            for row in found.rows
        ],
    )
    print_ratios(
        {
            "P99 with lanes / idle": found.p99_lanes_over_idle,
            "P99 without lanes / idle": found.p99_shared_over_idle,
            "P99 with lanes / without": found.p99_lanes_over_shared,
            "P50 with lanes / idle": found.p50_lanes_over_idle,
            "P50 with lanes / without": found.p50_lanes_over_shared,
        }
    )
    if not any(row.realtime for row in found.rows):
        stdout_console().print(
            "requests were scheduled like all else here: lane REALTIME runs ahead as root, with CAP_SYS_NICE, or after "
            "`ulimit -r 1`",
            markup=False,
            soft_wrap=True,
        )
    cost = found.control_costs
    if cost is not None:
        stdout_console().print(
            f"{settings.control_per_s:g} control messages a second cost the prefetch {cost.median:.1%}"
            f"  ({cost.low:.1%} to {cost.high:.1%} by round)",
            markup=False,
            soft_wrap=True,
        )
