"""`dualpath bench rails`: reads over one NIC, over each, over all, and over what is left when one is pulled."""

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
from dualpath.cli.lab import heed_hangup
from dualpath.cli.options import Json
from dualpath.cli.output import ByteSize, byte_size, emit, progress, stdout_console, table, words
from dualpath.cli.rounds import median_of, print_ratios, range_of
from dualpath.units import format_bytes, parse_bits_per_s

if TYPE_CHECKING:
    from dualpath.bench.rails import RailsReport


def rails_command(
    pool: PoolOption,
    nics: Annotated[
        str, typer.Option(metavar="NAME,...", help="NICs of this host that may be used; default: all that lead there.")
    ] = "",
    seconds: SecondsOption = 2.0,
    rounds: RoundsOption = 5,
    block: BlockOption = ByteSize(256 << 10),
    in_flight: Annotated[
        ByteSize, typer.Option(parser=byte_size, metavar="SIZE", help="Bytes in flight for each NIC and node.")
    ] = ByteSize(8 << 20),
    nominal: Annotated[
        str,
        typer.Option(metavar="RATE,...", help="Nominal speed of the NICs, the slower end: 1Gbit, or one for each."),
    ] = "",
    pull: Annotated[
        str, typer.Option(metavar="NIC", help="Take this NIC of this host down and up again, once a round; needs root.")
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="Pull it on the machine itself, outside of any lab or network namespace.")
    ] = False,
    deadline: DeadlineOption = 10.0,
    key_file: KeyFileOption = None,
    as_json: Json = False,
) -> None:
    """Measure reads from pool nodes over each NIC alone and over all at once; and what a pulled NIC does to them.

    Payload is counted here by NIC and at the nodes; the NICs' own counters stand beside it. Figures are medians over
    the rounds, with the least and the greatest round after them. A pulled NIC is set up again however this ends, short
    of SIGKILL.

    Examples:
        dualpath bench rails --pool 10.0.0.5:7700
        dualpath bench rails --pool 10.0.0.5:7700 --nominal 1Gbit,200Mbit --json > rails.json
        sudo -E dualpath lab exec two-hosts-two-nics a -- dualpath bench rails --pool 10.77.0.2:7700 --pull data1
    """
    from dualpath.bench.rails import RailsSettings, run_rails_bench
    from dualpath.host.pulling import check_pull

    if pull:
        heed_hangup()  # it may be the NIC that a remote shell comes over
        check_pull(pull, on_the_machine_itself=yes)
    settings = RailsSettings(
        seconds=seconds,
        rounds=rounds,
        block_bytes=int(block),
        in_flight_bytes=int(in_flight),
        nics=words(nics),
        nominal_bits_per_s=tuple(parse_bits_per_s(one) for one in words(nominal)),
        pull=pull,
        timeout_s=deadline,
    )
    key = shared_key(key_file)
    with progress("rails", unit="measurements") as bar:

        def tell(what: str) -> None:
            bar.note(what)
            bar.advance()

        found = run_rails_bench(pool, settings, key=key, progress=tell)
    emit(as_json, found, print_rails)


def print_rails(found: RailsReport) -> None:
    """Print what each NIC brought alone and all together, how that compares, and what a pull did."""
    settings = found.settings
    rows = []
    for row in found.rows:
        for number, one in enumerate(row.each):
            first = number == 0
            rows.append(
                [
                    "+".join(row.nics) if first else "",
                    median_of(row.bits_per_s, 1e-6) if first else "",
                    range_of(row.bits_per_s, 1e-6) if first else "",
                    (f"{row.of_nominal.median:.1%}" if row.of_nominal else None) if first else "",
                    one.nic,
                    median_of(one.payload_bits_per_s, 1e-6),
                    median_of(one.interface_bits_per_s, 1e-6),
                    ("differ" if row.doubt else "agree") if first else "",
                ]
            )
    table(
        f"Reads, {settings.rounds} rounds of {settings.seconds:g} s; "
        f"{format_bytes(settings.in_flight_bytes)} in flight for each NIC",
        ["over", "Mbit/s", "by round", "of nominal", "NIC", "payload Mbit/s", "its counter Mbit/s", "counts"],
        rows,
    )
    print_ratios({"all / the first alone": found.all_over_first, "all / sum of each alone": found.all_over_sum})
    for doubt in dict.fromkeys(row.doubt for row in found.rows if row.doubt):
        stdout_console().print(f"not to be relied on: {doubt}", markup=False, soft_wrap=True)
    if found.pulled:
        table(
            f"{settings.pull} pulled for {settings.seconds:g} s",
            ["before Mbit/s", "down Mbit/s", "after Mbit/s", "gap before s", "longest gap s", "rejoined after s"],
            [
                [
                    one.before_bits_per_s / 1e6,
                    one.down_bits_per_s / 1e6,
                    None if one.after_bits_per_s is None else one.after_bits_per_s / 1e6,
                    one.longest_gap_before_s,
                    one.longest_gap_s,
                    one.rejoined_s,
                ]
                for one in found.pulled
            ],
        )
