"""`dualpath run`: the experiment."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from dualpath.cli.key import shared_key
from dualpath.cli.output import (
    ByteSize,
    ProgressBar,
    byte_size,
    check_report,
    emit,
    progress,
    say,
    stdout_console,
    words,
    write_report,
)
from dualpath.errors import UsageError
from dualpath.transport.rails import MAX_RAILS
from dualpath.units import format_bytes

MAX_NODES = 64


def run_command(
    options: typer.Context,
    model: Annotated[str, typer.Option(help="Built-in name, model folder, hub id, or shape:layers=2,...")] = "smollm2",
    prompt_file: Annotated[Path | None, typer.Option(help="Document to decode from; default: Python's own.")] = None,
    offset: Annotated[int, typer.Option(help="First token of the document to use.", min=0)] = 0,
    context: Annotated[int, typer.Option(help="Tokens of the prompt.", min=1)] = 4096,
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", "--samples", help="Tokens to decode with each scheme.", min=2)
    ] = 64,
    hot: Annotated[
        ByteSize, typer.Option(parser=byte_size, metavar="SIZE", help="Local memory kept for recent KV (Path A).")
    ] = ByteSize(16 << 20),
    window: Annotated[
        ByteSize, typer.Option(parser=byte_size, metavar="SIZE", help="Local memory for KV in flight (Path B).")
    ] = ByteSize(64 << 20),
    nodes: Annotated[int, typer.Option(help="Pool nodes to start on this machine.", min=1, max=MAX_NODES)] = 2,
    pool: Annotated[str, typer.Option(metavar="HOST:PORT,...", help="Use these nodes instead.")] = "",
    scheme: Annotated[
        str, typer.Option(help="Any of hf,local,baseline,fetch,sharded,reduce,mapped; default: all. Also single, auto.")
    ] = "",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16, for weights and KV.")] = "float32",
    kv_dtype: Annotated[
        str, typer.Option(help="What sealed KV is kept in: same, int8 or fp8. Changes the output a little.")
    ] = "same",
    threads: Annotated[int, typer.Option(help="Threads of model and attention; 0: all cores.", min=0)] = 0,
    block_tokens: Annotated[int, typer.Option(help="Tokens of a block; 0: as many as suit the hot region.", min=0)] = 0,
    fill: Annotated[str, typer.Option(help="prompt, or random: seeded random KV, no prefill, I/O only.")] = "prompt",
    interleave: Annotated[
        int, typer.Option(help="Schemes take turns every so many tokens; 0: one after another.", min=0)
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of random KV and random token ids.")] = 0,
    deadline: Annotated[
        float, typer.Option(metavar="SECONDS", help="Longest wait for a node.", min=0.1, max=86400)
    ] = 10.0,
    nic: Annotated[str, typer.Option(metavar="NAME,...", help="NICs of this host that may be used; all.")] = "",
    rails: Annotated[
        int, typer.Option(help="Pairs of NICs that may be used for a node.", min=1, max=MAX_RAILS)
    ] = MAX_RAILS,
    trace_prefetch: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the prefetcher's decisions here, for `dualpath replay`.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(help="So many sequences at once, over each --variant; 0: one, by every scheme.", min=0)
    ] = 0,
    variant: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="With --concurrency: baseline,single,dual,dual-prefetch,dual-lanes,dual-rail,dual+reduce; all.",
        ),
    ] = "",
    control_rate: Annotated[float, typer.Option(help="With --concurrency: control messages a second.", min=0)] = 100.0,
    rounds: Annotated[int, typer.Option(help="With --concurrency: turns of each variant.", min=1)] = 3,
    cold: Annotated[bool, typer.Option("--cold", help="With --concurrency: prefixes are computed first.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what scheme auto chose, and by which speeds.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write one HTML page with plots here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Decode a long document by every scheme, on the same prompt, and compare output and cost.

    A small hot region of KV stays local; the rest is on pool nodes, which stand for other hosts and are reached over
    TCP even on this machine (except by scheme mapped). Exit code 1 if a float32 scheme's tokens are not identical; with
    --kv-dtype int8 or fp8 they may differ from hf's, and the schemes are held against each other.

    Examples:
        dualpath run
        dualpath run --context 8000 --report run.html
        dualpath run --scheme local,reduce --dtype bfloat16 --json
        dualpath run --scheme sharded,reduce,auto --explain
        dualpath run --kv-dtype int8 --scheme hf,local,sharded
        dualpath run --fill random --context 131072 --samples 1000 --interleave 10 --dtype bfloat16
        dualpath run --concurrency 4 --context 8000 --hot 1GiB --variant baseline,single,dual
        dualpath run --pool 10.0.0.5:7480,10.0.0.6:7480 --model ./my-model --prompt-file book.txt
    """
    _yield_idle_cores()
    from dualpath.bench.experiment import run_experiment
    from dualpath.bench.settings import ExperimentConfig
    from dualpath.cli.run_load import check_options, print_load

    check_options(options, concurrent=concurrency > 0)
    shared: dict[str, Any] = {  # what both kinds of run take
        "model": model,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "context": context,
        "new_tokens": new_tokens,
        "hot_bytes": int(hot),
        "window_bytes": int(window),
        "block_tokens": block_tokens,
        "nodes": nodes,
        "pool": pool,
        "key": shared_key(),
        "nics": words(nic),
        "threads": threads,
        "seed": seed,
        "deadline_s": deadline,
    }
    if concurrency:
        from dualpath.bench.load import VARIANTS, LoadConfig, run_load

        load = LoadConfig(
            **shared,
            variants=words(variant) or tuple(VARIANTS),
            concurrency=concurrency,
            cold=cold,
            control_per_s=control_rate,
            rounds=rounds,
        )
        emit(as_json, run_load(load, view=TerminalView()), print_load)
        return
    if report is not None:
        check_report(report)
    schemes = words(scheme)
    if explain:
        require_auto(schemes)
    config = ExperimentConfig(
        **shared,
        schemes=schemes,
        prompt_file=prompt_file,
        offset=offset,
        fill=fill,
        interleave=interleave,
        max_rails=rails,
        trace_prefetch=trace_prefetch,
    )
    if trace_prefetch is not None:
        trace_prefetch.write_text("")  # each scheme appends
    result = run_experiment(config, view=TerminalView())
    emit(as_json, result, print_result)
    if explain and not as_json:
        print_choices(result)
    if report is not None:
        from dualpath.bench.report import render

        write_report(report, render(result))
    if not result["ok"]:
        raise typer.Exit(1)


def require_auto(schemes: Collection[str]) -> None:
    """Raise `UsageError` if no scheme is among them that has something to explain."""
    from dualpath.bench.settings import AUTO

    if AUTO not in schemes:
        raise UsageError("there is no choice to explain", hint="--explain goes with --scheme auto")


class TerminalView:
    """Shows progress on stderr."""

    def say(self, text: str) -> None:
        """Print one line."""
        say(text)

    def progress(
        self, title: str, *, total: float | None = None, unit: str = ""
    ) -> AbstractContextManager[ProgressBar]:
        """Show a bar, or lines where there is no terminal."""
        return progress(title, total=total, unit=unit)


def _yield_idle_cores() -> None:
    """Let idle threads of the model sleep rather than spin: nodes may share the cores. Read when torch is loaded."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def print_result(result: dict[str, Any]) -> None:
    """Print the table and what its columns mean, for people."""
    from dualpath.bench.report import COLUMNS, cell, verdict

    console = stdout_console()
    if not sys.stdout.isatty():
        console.width = 200
    names = [name for _, name, _ in COLUMNS]
    rows = [[cell(field, row.get(field)) for field, _, _ in COLUMNS] for row in result["schemes"]]
    console.print(_heading(result), soft_wrap=True)
    grid = _grid(names, rows)
    if (
        console.measure(grid, options=console.options.update(max_width=1000)).maximum > console.width
    ):  # a narrow terminal: schemes side by side
        grid = _grid([names[0], *(row[0] for row in rows)], _turned(names, rows))
    console.print(grid)
    console.print(verdict(result), style="bold", soft_wrap=True)
    for _, name, meaning in COLUMNS:
        console.print(f"  {name:<15}{meaning}", style="dim", markup=False)


def print_choices(result: dict[str, Any]) -> None:
    """Print what scheme `auto` chose, as one sentence."""
    for row in result["schemes"]:
        if "choice" in row:
            stdout_console().print(f"{row['scheme']}: {row['choice']['sentence']}", soft_wrap=True, markup=False)


def _heading(result: dict[str, Any]) -> str:
    model, prompt, settings = result["model"], result["prompt"], result["settings"]
    kept = settings.get("kv_dtype", "same")
    kv = f"{format_bytes(result['expected']['kv_bytes'])} of KV{'' if kept == 'same' else f' kept in {kept}'}"
    return (
        f"{model['name']} ({model['dtype']}), {prompt['tokens']:,} tokens of {prompt['source']}: {kv} in blocks of "
        f"{settings['block_tokens']} tokens; {format_bytes(settings['hot_bytes'])} local, the rest on "
        f"{settings['nodes']} nodes"
    )


def _grid(names: list[str], rows: list[list[str]]) -> Any:
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for index, name in enumerate(names):
        grid.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    return grid


def _turned(names: list[str], rows: list[list[str]]) -> list[list[str]]:
    """Return the table with one line per column of `rows`, without the first (the schemes)."""
    return [[names[index], *(row[index] for row in rows)] for index in range(1, len(names))]
