"""`dualpath doctor --watch`: what the NICs do, round by round."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from dualpath.cli.output import say, stdout_console
from dualpath.doctor.collect import run_command
from dualpath.doctor.watch import Rates, rates, sample
from dualpath.host.tree import LiveTree

Show = Callable[[list[Rates]], None]

COLUMNS = ("NIC", "rx Gbit/s", "tx Gbit/s", "used", "rx pauses", "tx pauses", "discards", "drops", "errors")

PLAIN_WIDTH = 120
"""Columns of a table that no terminal limits."""


def watch_nics(seconds: float, count: int, *, as_json: bool) -> None:
    """Show rates every `seconds`, `count` times (0: until Ctrl-C, which ends it well).

    On a terminal one table is redrawn; elsewhere each round is a table of its own, or a JSON object on a line.
    """
    tree = LiveTree()
    before = sample(tree, run_command)
    if not before.counters:
        say("no NIC on a bus is up: nothing to watch")
        return
    done = 0
    with contextlib.suppress(KeyboardInterrupt), _screen(as_json=as_json) as show:
        while not count or done < count:
            time.sleep(seconds)
            after = sample(tree, run_command)
            show(rates(before, after))
            before, done = after, done + 1


@contextlib.contextmanager
def _screen(*, as_json: bool) -> Iterator[Show]:
    if as_json:
        yield _print_json
        return
    console = stdout_console()
    if not sys.stdout.isatty():
        console.width = max(console.width, PLAIN_WIDTH)
        yield lambda found: console.print(_table(found))
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        yield lambda found: live.update(_table(found), refresh=True)


def _print_json(found: list[Rates]) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.encode({"nics": [asdict(one) for one in found]}).decode() + "\n")
    sys.stdout.flush()


def _table(found: list[Rates]) -> Any:
    from rich import box
    from rich.table import Table

    grid = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        caption="counts are per second",
        caption_justify="left",
    )
    for index, name in enumerate(COLUMNS):
        grid.add_column(name, justify="right" if index else "left", no_wrap=not index)
    for one in found:
        used = "—" if one.used is None else f"{one.used:.1%}{' idle' if one.idle else ''}"
        counts = (one.rx_pauses_per_s, one.tx_pauses_per_s, one.discards_per_s, one.drops_per_s, one.errors_per_s)
        grid.add_row(
            one.nic,
            f"{one.rx_bits_per_s / 1e9:.3f}",
            f"{one.tx_bits_per_s / 1e9:.3f}",
            used,
            *(f"{count:.0f}" for count in counts),
        )
    return grid
