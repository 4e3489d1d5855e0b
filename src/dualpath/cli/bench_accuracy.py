"""`dualpath bench accuracy`: what it costs to keep KV in fewer bytes, or to read a part of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dualpath.cli.cores import yield_idle_cores
from dualpath.cli.key import shared_key
from dualpath.cli.numbers import numbers, whole_numbers
from dualpath.cli.options import Deadline, Dtype, Hot, Json, Nodes, Threads
from dualpath.cli.output import ByteSize, check_input, complain, emit, table, words
from dualpath.units import format_bytes

HOT = ByteSize(16 << 20)


def accuracy_command(
    model: Annotated[str, typer.Option(help="Built-in name, model folder or hub id.")] = "smollm2",
    read_fraction: Annotated[str, typer.Option(metavar="F,...", help="Shares of far blocks that a step reads.")] = "1",
    kv_dtype: Annotated[str, typer.Option(metavar="NAME,...", help="Any of same, int8, fp8.")] = "same",
    context: Annotated[int, typer.Option(help="Tokens of the document.", min=2)] = 4096,
    scored: Annotated[int, typer.Option(help="Of these, the last so many are predicted one by one.", min=1)] = 128,
    needles: Annotated[
        str, typer.Option(metavar="TOKENS,...", help="Lengths of haystacks, each with three needles; 0: none.")
    ] = "512,1024,1536,2048",
    prompt_file: Annotated[Path | None, typer.Option(help="The document; default: Python's own.")] = None,
    offset: Annotated[int, typer.Option(help="First token of the document to use.", min=0)] = 0,
    hot: Hot = HOT,
    block_tokens: Annotated[
        int, typer.Option(help="Tokens of a block; 0: as many as suit the hot region.", min=0)
    ] = 64,
    dtype: Dtype = "float32",
    nodes: Nodes = 2,
    pool: Annotated[str, typer.Option(metavar="HOST:PORT,...", help="Use these nodes instead.")] = "",
    threads: Threads = 0,
    seed: Annotated[int, typer.Option(help="Seed of the keys that are hidden.")] = 0,
    deadline: Deadline = 10.0,
    as_json: Json = False,
) -> None:
    """Measure perplexity over a document and needle retrieval, against exact attention over unchanged KV.

    A row for each dtype of KV and each fraction, all in scheme reduce. What comes before is prefilled, which reads
    everything; the scored tokens, and the questions for the needles, are fed one by one, whatever was predicted.
    Exit code 1 if a prediction is not finite.

    Examples:
        dualpath bench accuracy --read-fraction 1,0.5,0.25,0.125
        dualpath bench accuracy --kv-dtype same,int8,fp8
        dualpath bench accuracy --kv-dtype int8 --read-fraction 0.25 --block-tokens 32
        dualpath bench accuracy --read-fraction 0.25 --context 8000 --needles 0 --json > accuracy.json
    """
    check_input(prompt_file)
    yield_idle_cores()
    from dualpath.bench.accuracy import AccuracyConfig, run_accuracy
    from dualpath.cli.run import TerminalView

    config = AccuracyConfig(
        model=model,
        dtype=dtype,
        kv_dtypes=words(kv_dtype),
        read_fractions=numbers(read_fraction, "--read-fraction"),
        prompt_file=prompt_file,
        offset=offset,
        context=context,
        scored=scored,
        needles=tuple(length for length in whole_numbers(needles, "--needles") if length),
        hot_bytes=int(hot),
        block_tokens=block_tokens,
        nodes=nodes,
        pool=pool,
        key=shared_key(),
        threads=threads,
        seed=seed,
        deadline_s=deadline,
    )
    result = run_accuracy(config, view=TerminalView())
    emit(as_json, result, print_accuracy)
    if report_not_finite(result):
        raise typer.Exit(1)


def report_not_finite(result: dict[str, Any]) -> bool:
    """Say on stderr which rows have logits that are no numbers; return whether there are any."""
    bad = [row for row in result["rows"] if row["not_finite"]]
    for row in bad:
        complain(
            f"KV {row['kv_dtype']}, {row['read_fraction']:g} read: {row['not_finite']} of {row['tokens']} predictions, "
            "or the exact ones beside them, are not finite",
            hint="`dualpath explain` holds each layer's attention against float64",
        )
    return bool(bad)


def print_accuracy(result: dict[str, Any]) -> None:
    """Print the table, and what its columns mean."""
    settings, prompt = result["settings"], result["prompt"]
    table(
        f"{result['model']['name']} ({result['model']['dtype']}), {prompt['tokens']:,} tokens of {prompt['source']}, "
        f"the last {settings['scored']} scored; blocks of {settings['block_tokens']} tokens, "
        f"{format_bytes(settings['hot_bytes'])} local, the rest on {settings['nodes']} nodes",
        ["KV", "read", "far read", "perplexity", "ratio", "mean KL", "P99 KL", "turned", "logit error", "needles",
         "KV/token", "wire/token"],
        [_cells(row) for row in result["rows"]],
    )  # fmt: skip
    for line in (
        "far read: of the far layer blocks, how many were read; ratio: of the perplexity to the first row's, exact",
        "KL: of the predictions from the exact ones, in nats; turned: another most likely token; needles: keys found",
    ):
        typer.echo(line)


def _cells(row: dict[str, Any]) -> list[Any]:
    return [
        row["kv_dtype"],
        f"{row['read_fraction']:g}",
        f"{row['far_blocks_read'] / row['far_blocks']:.0%}" if row["far_blocks"] else "-",
        f"{row['perplexity']:.4g}",
        f"{row['perplexity_ratio']:.4f}",
        f"{row['kl_mean']:.2g}",
        f"{row['kl_p99']:.2g}",
        f"{row['turned']} of {row['tokens']}",
        f"{row['logit_error']:.2g}",
        f"{row['needles_found']} of {row['needles']}",
        format_bytes(row["kv_bytes_per_token"]),
        format_bytes(row["wire_bytes_per_token"]),
    ]
