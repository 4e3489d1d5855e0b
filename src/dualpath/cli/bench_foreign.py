"""`dualpath bench foreign`: bursts of foreign traffic, to see what they do to others on the same NIC."""

from __future__ import annotations

from typing import Annotated

import typer

from dualpath.cli.output import emit
from dualpath.units import format_bytes


def foreign_command(
    to: Annotated[str, typer.Option(metavar="ADDRESS", help="Address of the NIC that the bursts go to.")],
    seconds: Annotated[float, typer.Option(help="How long.", min=0.01)] = 60.0,
    gap_ms: Annotated[float, typer.Option(help="Mean silence between bursts.", min=0.1)] = 200.0,
    burst_ms: Annotated[float, typer.Option(help="Mean length of a burst.", min=0.1)] = 30.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bursts.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Send seeded bursts of unmarked datagrams as fast as the link takes them. Nobody needs to listen.

    Only towards hosts that are yours: it fills the link.

    Examples:
        dualpath bench foreign --to 10.77.0.1 --seconds 30
        sudo dualpath lab exec two-hosts-two-nics b -- dualpath bench foreign --to 10.77.0.1 --seed 1
    """
    from dualpath.bench.foreign import send_bursts

    sent = send_bursts(to, seed=seed, gap_s=gap_ms / 1e3, length_s=burst_ms / 1e3, seconds=seconds)
    result = {"to": to, "seconds": seconds, "sent_bytes": sent, "mean_bits_per_s": sent * 8 / seconds}
    emit(as_json, result, lambda one: print(f"sent {format_bytes(sent)} in bursts to {to}"))  # noqa: T201 - the result
