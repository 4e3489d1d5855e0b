"""`dualpath bench auto`: scheme `auto` against the best fixed scheme."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dualpath.cli.cores import yield_idle_cores
from dualpath.cli.lab import heed_hangup
from dualpath.cli.numbers import numbers, whole_numbers
from dualpath.cli.options import Deadline, Dtype, Json, Model, Seed, Threads, Window
from dualpath.cli.output import ByteSize, emit, table, words
from dualpath.cli.run import TerminalView
from dualpath.units import format_bits_per_s, format_bytes, parse_bits_per_s


def auto_command(
    model: Model = "smollm2",
    dtype: Dtype = "float32",
    link: Annotated[str, typer.Option(metavar="RATE,...", help="Rates of each node's link.")] = "200Mbit,1Gbit,4Gbit",
    nodes: Annotated[str, typer.Option(metavar="N,...", help="Numbers of nodes.")] = "1,2",
    context: Annotated[str, typer.Option(metavar="N,...", help="Tokens of random KV.")] = "1024,4096",
    hot: Annotated[str, typer.Option(metavar="X,...", help="Shares of the KV that stay local.")] = "0.2,0.7",
    combinations: Annotated[int, typer.Option(help="Run only the first so many; 0: all.", min=0)] = 0,
    samples: Annotated[int, typer.Option(help="Measured tokens of each scheme in each combination.", min=1)] = 24,
    window: Window = ByteSize(64 << 20),
    block_tokens: Annotated[int, typer.Option(help="Tokens of a block.", min=16)] = 128,
    threads: Threads = 0,
    seed: Seed = 0,
    deadline: Deadline = 30.0,
    as_json: Json = False,
) -> None:
    """Decode by scheme auto and by each fixed scheme, over combinations of link, nodes, context and hot region.

    Emulates the hosts on this machine, which needs root: this process decodes in one, each node has a host and a link
    of its own. The first 96 steps of auto, in which it learns how fast everything is, do not count. A scheme that the
    links alone make more than twice as slow as the others is not run: ≥ is what its bytes take. Exit code 1 if a
    float32 scheme's tokens differ from another's.

    Examples:
        sudo dualpath bench auto
        sudo dualpath bench auto --link 1Gbit,2Gbit --nodes 2 --context 8192 --hot 0.5 --samples 100
        sudo dualpath bench auto --json > auto.json
    """
    yield_idle_cores()
    from dualpath.bench.auto import AutoConfig, run_auto

    config = AutoConfig(
        model=model,
        dtype=dtype,
        links_bits_per_s=tuple(parse_bits_per_s(one) for one in words(link)),
        nodes=whole_numbers(nodes, "--nodes"),
        contexts=whole_numbers(context, "--context"),
        hot_shares=numbers(hot, "--hot"),
        combinations=combinations,
        samples=samples,
        block_tokens=block_tokens,
        window_bytes=int(window),
        threads=threads,
        seed=seed,
        deadline_s=deadline,
    )
    heed_hangup()
    result = run_auto(config, view=TerminalView())
    emit(as_json, result, _print)
    if not result["ok"]:
        raise typer.Exit(1)


def _print(result: dict[str, Any]) -> None:
    table(
        "TPOT P50 in ms; of each node's link",
        ["link", "nodes", "context", "hot", "remote", "fetch", "sharded", "reduce", "auto", "of best", "auto does"],
        [
            [
                format_bits_per_s(row["link_bits_per_s"]),
                row["nodes"],
                row["context"],
                f"{row['hot_share']:.0%}",
                format_bytes(row["far_bytes"]),
                *(_time(row, name) for name in ("fetch", "sharded", "reduce", "auto")),
                f"{row['auto_over_best']:.2f}",
                _does(row["choice"]),
            ]
            for row in result["combinations"]
        ],
    )
    typer.echo(
        f"auto over the best fixed scheme: at worst {result['worst_auto_over_best']:.2f}, "
        f"median {result['median_auto_over_best']:.2f}; {result['asked_auto_over_best']:g} asked"
    )


def _time(row: dict[str, Any], scheme: str) -> str:
    found = row["schemes"].get(scheme)
    if found is not None:
        return f"{found['tpot_ms_p50']:.1f}"
    least = row["at_least_ms"].get(scheme)
    return "-" if least is None else f"≥ {least:.0f}"


def _does(choice: dict[str, Any]) -> str:
    if choice["form"] != "mixed":
        return str(choice["form"])
    shares = [node["fetched_share"] for node in choice["nodes"]]
    return f"fetches {sum(shares) / len(shares):.0%}"
