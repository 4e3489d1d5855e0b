"""`dualpath rails`: the NICs that can carry KV data, and how idle they are."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualpath.cli.output import emit, stdout_console

if TYPE_CHECKING:
    from rich.table import Table

    from dualpath.host.rails import RailReading

BAR_CELLS = 10
STYLES = {"idle": "green", "headroom": "green", "unused": "yellow", "busy": "red"}


def rails_command(
    watch: Annotated[bool, typer.Option("--watch", help="Measure again and again until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(metavar="S", min=0.01, help="Seconds over which use is measured.")] = 1.0,
    everything: Annotated[bool, typer.Option("--all", help="Show NICs that cannot carry data too, and why.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; with --watch, one a line.")] = False,
) -> None:
    """Show the NICs that can carry KV data: speed, place, and the share of each direction that is used.

    Idle: under 5 % used. Headroom: under 20 %. Unused: idle, with counters two orders of magnitude under its busiest
    peer's and a link at a quarter of the fastest one's speed or less, which is a NIC that somebody forgot.

    Examples:
        dualpath rails
        dualpath rails --watch --interval 0.5
        dualpath rails --all --json
        sudo dualpath lab exec two-hosts-two-nics a -- dualpath rails
    """
    measured = _measure(interval)
    if not everything:
        measured = ([one for one in found if not one.rail.unfit] for found in measured)
    if not watch:
        emit(as_json, _result(next(measured), interval), lambda result: _print(result["rails"]))
        return
    try:
        if as_json:
            _stream(measured, interval)
        else:
            _follow(measured)
    except KeyboardInterrupt:
        return  # how watching ends


def _measure(interval_s: float) -> Iterator[list[RailReading]]:
    from dualpath.host.rails import observe, readings
    from dualpath.host.tree import LiveTree

    before, before_s = observe(LiveTree()), time.monotonic()
    while True:
        time.sleep(interval_s)
        after, after_s = observe(LiveTree()), time.monotonic()
        yield readings(before, after, interval_s=after_s - before_s)
        before, before_s = after, after_s


def _result(found: list[RailReading], interval_s: float) -> dict[str, Any]:
    return {"interval_s": interval_s, "rails": found}


def _stream(measured: Iterator[list[RailReading]], interval_s: float) -> None:
    import msgspec

    for found in measured:
        sys.stdout.write(msgspec.json.encode(_result(found, interval_s)).decode() + "\n")
        sys.stdout.flush()


def _follow(measured: Iterator[list[RailReading]]) -> None:
    from rich.live import Live

    if not sys.stdout.isatty():
        for found in measured:
            _print(found)
            sys.stdout.flush()
        return
    with Live(console=stdout_console(), auto_refresh=False) as live:
        for found in measured:
            live.update(_grid(found), refresh=True)


def _print(found: list[RailReading]) -> None:
    if not found:
        typer.echo("no NIC here can carry data; `dualpath rails --all` says why")
        return
    console = stdout_console()
    if not sys.stdout.isatty():
        console.width = 200  # piped output keeps every column whole
    console.print(_grid(found))


def _grid(found: list[RailReading]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dualpath.units import format_bits_per_s

    grid = Table(box=box.SIMPLE_HEAD)
    for name in ("rail", "address", "speed", "MTU", "NUMA", "RDMA", "driver", "received", "sent", "verdict"):
        grid.add_column(name, no_wrap=True)
    for one in found:
        nic, used = one.rail.nic, one.use
        speed = one.rail.nominal_bits_per_s
        said = f"unfit: {one.rail.unfit}" if one.rail.unfit else one.verdict
        grid.add_row(
            nic.name,
            "\n".join(one.rail.addresses) or "-",
            "-" if speed is None else format_bits_per_s(speed),
            "-" if nic.mtu is None else str(nic.mtu),
            "-" if nic.numa_node is None else str(nic.numa_node),
            ", ".join(nic.rdma_devices) or "-",
            nic.driver or "-",
            "-" if used is None else _bar(used.rx_share, format_bits_per_s(8 * used.rx_bytes_per_s)),
            "-" if used is None else _bar(used.tx_share, format_bits_per_s(8 * used.tx_bytes_per_s)),
            Text(said, style=STYLES.get(one.verdict, "")),
        )
    return grid


def _bar(share: float | None, rate: str) -> str:
    """Return a bar of the used share, the share in percent where it is known, and the rate."""
    if share is None:
        return rate
    filled = min(BAR_CELLS, round(share * BAR_CELLS))
    return f"{'█' * filled}{'·' * (BAR_CELLS - filled)} {share:4.0%}  {rate}"
