"""`dualpath bench overlap`: whether fetching hides behind compute."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dualpath.cli.cores import yield_idle_cores
from dualpath.cli.lab import heed_hangup
from dualpath.cli.numbers import numbers
from dualpath.cli.options import Deadline, Dtype, Json, Model, Seed, Threads, Window
from dualpath.cli.output import ByteSize, emit, table
from dualpath.cli.run import TerminalView
from dualpath.units import format_bits_per_s, format_bytes, parse_bits_per_s


def overlap_command(
    model: Model = "smollm2",
    dtype: Dtype = "float32",
    context: Annotated[int, typer.Option(help="Tokens of random KV.", min=32)] = 4096,
    link: Annotated[
        str, typer.Option(metavar="RATE", help="About the link's rate at ratio 1; decides how much KV is remote.")
    ] = "2Gbit",
    ratio: Annotated[str, typer.Option(metavar="X,...", help="Bytes ÷ link, in compute times.")] = "0.7,1,1.4",
    samples: Annotated[int, typer.Option(help="Measured tokens of each scheme at each ratio.", min=1)] = 64,
    nodes: Annotated[int, typer.Option(help="Pool nodes behind the link.", min=1, max=16)] = 2,
    window: Window = ByteSize(64 << 20),
    block_tokens: Annotated[int, typer.Option(help="Tokens of a block.", min=16)] = 256,
    threads: Threads = 0,
    seed: Seed = 0,
    deadline: Deadline = 30.0,
    as_json: Json = False,
) -> None:
    """Decode with remote KV where fetching it takes about as long as computing: how much of it is hidden?

    Emulates two hosts on this machine, which needs root: this process decodes in one, the nodes are in the other, and
    the link between them is held to the rate at which each ratio holds. Compute is the median of scheme local, all KV
    in hand, in the same turns. A perfect overlap takes the larger of compute and bytes ÷ link. Exit code 1 if a float32
    scheme's tokens differ from local's.

    Examples:
        sudo dualpath bench overlap
        sudo dualpath bench overlap --ratio 1 --samples 200 --link 1Gbit
        sudo dualpath bench overlap --json > overlap.json
    """
    yield_idle_cores()
    from dualpath.bench.overlap import OverlapConfig, run_overlap

    config = OverlapConfig(
        model=model,
        dtype=dtype,
        context=context,
        block_tokens=block_tokens,
        link_bits_per_s=parse_bits_per_s(link),
        ratios=numbers(ratio, "--ratio"),
        samples=samples,
        nodes=nodes,
        window_bytes=int(window),
        threads=threads,
        seed=seed,
        deadline_s=deadline,
    )
    heed_hangup()
    result = run_overlap(config, view=TerminalView())
    emit(as_json, result, _print)
    if not result["ok"]:
        raise typer.Exit(1)


def _print(result: dict[str, Any]) -> None:
    settings = result["settings"]
    typer.echo(
        f"{settings['model']} ({settings['dtype']}), {settings['context']:,} tokens: "
        f"{format_bytes(result['far_bytes'])} of {format_bytes(result['kv_bytes'])} of KV remote"
    )
    for one in result["ratios"]:
        table(
            f"bytes ÷ link = {one['ratio']:g} x compute ({one['measured_ratio']:.2f} measured): "
            f"{one['transfer_ms']:.1f} ms at {format_bits_per_s(one['link_bits_per_s'])}, "
            f"compute {one['compute_ms']:.1f} ms",
            ["scheme", "prefetch", "TPOT P50 ms", "P99 ms", "of max", "stall ms", "wire/token", "samples", "tokens"],
            [
                [
                    row["scheme"].removesuffix("-prefetch"),
                    "on" if row["prefetch"] else "off",
                    row["tpot_ms_p50"],
                    row["tpot_ms_p99"],
                    row["over_bound"],
                    row["stall_ms_per_token"],
                    format_bytes(row["wire_bytes_per_token"]),
                    row["samples"],
                    "same" if row["identical"] else "differ",
                ]
                for row in one["schemes"]
            ],
        )
    typer.echo(
        f"with prefetch at most {result['worst_over_bound']:.3g} x the larger of compute and bytes ÷ link; "
        f"{result['asked_over_bound']:g} asked"
    )
