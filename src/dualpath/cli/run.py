"""`dualpath run`: the experiment."""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any

import typer

from dualpath.cli.cores import yield_idle_cores, yield_idle_cores_to
from dualpath.cli.key import shared_key
from dualpath.cli.options import Json
from dualpath.cli.output import (
    ProgressBar,
    check_input,
    check_report,
    emit,
    progress,
    say,
    stdout_console,
    words,
    write_report,
)
from dualpath.cli.run_options import (
    LoadOptions,
    MemoryOptions,
    PoolOptions,
    SchemeOptions,
    WorkOptions,
    check_options,
)
from dualpath.errors import UsageError
from dualpath.units import format_bytes


def run_command(
    given: typer.Context,
    work: WorkOptions,
    memory: MemoryOptions,
    pool: PoolOptions,
    one: SchemeOptions,
    many: LoadOptions,
    as_json: Json = False,
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
        dualpath run --read-fraction 0.25 --block-tokens 64
        dualpath run --fill random --context 131072 --samples 1000 --interleave 10 --dtype bfloat16
        dualpath run --concurrency 4 --context 8000 --hot 1GiB --variant baseline,single,dual
        dualpath run --concurrency 4 --context 8000 --hot 1GiB --variant dual --prefill-every 5 --prefill-tokens 512
        dualpath run --pool 10.0.0.5:7480,10.0.0.6:7480 --model ./my-model --prompt-file book.txt
    """
    if pool.pool:
        yield_idle_cores_to(pool.pool)
    else:
        yield_idle_cores()
    check_options(given, concurrent=many.concurrency > 0)
    shared = _shared(work, memory, pool)
    if many.concurrency:
        _run_many(many, shared, as_json)
    else:
        _run_one(one, shared, as_json)


def _shared(work: WorkOptions, memory: MemoryOptions, pool: PoolOptions) -> dict[str, Any]:
    """Return the settings that both kinds of run take."""
    return {
        "model": work.model,
        "dtype": work.dtype,
        "kv_dtype": work.kv_dtype,
        "context": work.context,
        "new_tokens": work.new_tokens,
        "threads": work.threads,
        "seed": work.seed,
        "hot_bytes": int(memory.hot),
        "window_bytes": int(memory.window),
        "block_tokens": memory.block_tokens,
        "nodes": pool.nodes,
        "pool": pool.pool,
        "key": shared_key(),
        "nics": words(pool.nic),
        "deadline_s": pool.deadline,
    }


def _run_many(many: LoadOptions, shared: dict[str, Any], as_json: bool) -> None:
    from dualpath.bench.load import VARIANTS, LoadConfig, run_load
    from dualpath.cli.run_load import print_load

    config = LoadConfig(
        **shared,
        variants=words(many.variant) or tuple(VARIANTS),
        concurrency=many.concurrency,
        cold=many.cold,
        control_per_s=many.control_rate,
        rounds=many.rounds,
        prefill_every_s=many.prefill_every,
        prefill_tokens=many.prefill_tokens,
        prefill_share=many.prefill_share,
    )
    if many.plot is not None:
        check_report(many.plot, "--plot")
    result = run_load(config, view=TerminalView())
    emit(as_json, result, print_load)
    if many.plot is not None:
        from dualpath.bench.load_plot import load_svg

        write_report(many.plot, load_svg(result), "--plot")


def _run_one(one: SchemeOptions, shared: dict[str, Any], as_json: bool) -> None:
    from dualpath.bench.experiment import run_experiment
    from dualpath.bench.settings import ExperimentConfig

    if one.report is not None:
        check_report(one.report)
    if one.trace_prefetch is not None:
        check_report(one.trace_prefetch, "--trace-prefetch")
    check_input(one.prompt_file)
    schemes = words(one.scheme)
    if one.explain:
        require_auto(schemes)
    config = ExperimentConfig(
        **shared,
        schemes=schemes,
        read_fraction=one.read_fraction,
        prompt_file=one.prompt_file,
        offset=one.offset,
        fill=one.fill,
        interleave=one.interleave,
        max_rails=one.rails,
        trace_prefetch=one.trace_prefetch,
    )
    if one.trace_prefetch is not None:
        one.trace_prefetch.write_text("")  # each scheme appends
    result = run_experiment(config, view=TerminalView())
    emit(as_json, result, print_result)
    if one.explain and not as_json:
        print_choices(result)
    if one.report is not None:
        from dualpath.bench.report import render

        write_report(one.report, render(result))
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


def print_result(result: dict[str, Any]) -> None:
    """Print the table and what its columns mean, for people."""
    from dualpath.bench.report import cell, columns, verdict

    console = stdout_console()
    if not sys.stdout.isatty():
        console.width = 200
    shown = columns(result)
    names = [name for _, name, _ in shown]
    rows = [[cell(field, row.get(field)) for field, _, _ in shown] for row in result["schemes"]]
    console.print(_heading(result), soft_wrap=True)
    grid = _grid(names, rows)
    if (
        console.measure(grid, options=console.options.update(max_width=1000)).maximum > console.width
    ):  # a narrow terminal: schemes side by side
        grid = _grid([names[0], *(row[0] for row in rows)], _turned(names, rows))
    console.print(grid)
    console.print(verdict(result), style="bold", soft_wrap=True)
    for _, name, meaning in shown:
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
    fraction = settings.get("read_fraction", 1.0)
    partly = f"; a step reads {fraction:.0%} of far blocks" if fraction < 1.0 else ""
    return (
        f"{model['name']} ({model['dtype']}), {prompt['tokens']:,} tokens of {prompt['source']}: {kv} in blocks of "
        f"{settings['block_tokens']} tokens; {format_bytes(settings['hot_bytes'])} local, the rest on "
        f"{settings['nodes']} nodes{partly}"
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
