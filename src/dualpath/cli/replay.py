"""`dualpath replay`: play the prefetcher's decisions again, out of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dualpath.cli.output import check_input, emit
from dualpath.units import format_bytes


def replay_command(
    trace: Annotated[Path, typer.Argument(help="What `dualpath run --trace-prefetch FILE` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Play a prefetch trace again and compare each decision with the one that was made.

    The prefetcher is a pure state machine: from the same events it must decide the same. Exit code 1 if it does not.

    Examples:
        dualpath run --scheme sharded --trace-prefetch out.jsonl
        dualpath replay out.jsonl
    """
    from dualpath.path.trace import Replayed, replay

    check_input(trace, "the path")
    with trace.open(encoding="utf-8", errors="replace") as lines:
        found = replay(lines)

    def show(one: Replayed) -> None:
        print(  # noqa: T201 - the result
            f"{one.events:,} events: {one.fetched:,} layer blocks fetched ahead, {one.late:,} only when needed, "
            f"{one.dropped:,} dropped unused; at most {format_bytes(one.most_bytes)} held\n"
            + (f"differs: {one.first_difference}" if one.first_difference else "every decision is the same")
        )

    emit(as_json, found, show)
    if found.first_difference:
        raise typer.Exit(1)
