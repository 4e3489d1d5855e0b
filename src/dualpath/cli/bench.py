"""`dualpath bench`: raw speed of the parts, each beside its limit measured in the same run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dualpath.cli.options import Json
from dualpath.cli.output import ByteSize, byte_size, emit, say, table, words
from dualpath.cli.registry import CommandEntry
from dualpath.errors import UsageError

COMMANDS = (
    CommandEntry(
        "attention", __name__, "attention_command", "The attention kernel against the memory's read bandwidth."
    ),
    CommandEntry("transport", __name__, "transport_command", "Each transport against a plain stream or memcpy."),
    CommandEntry(
        "accuracy",
        "dualpath.cli.bench_accuracy",
        "accuracy_command",
        "What quantised KV and partial reads cost in output.",
    ),
    CommandEntry("foreign", "dualpath.cli.bench_foreign", "foreign_command", "Bursts of foreign traffic on a NIC."),
    CommandEntry("overlap", "dualpath.cli.bench_overlap", "overlap_command", "Whether fetching hides behind compute."),
    CommandEntry("auto", "dualpath.cli.bench_auto", "auto_command", "Scheme auto against the best fixed scheme."),
    CommandEntry("raw", "dualpath.cli.bench_raw", "raw_command", "The network to a pool node: each rail, each lane."),
    CommandEntry("lanes", "dualpath.cli.bench_lanes", "lanes_command", "Small requests beside a prefetch."),
    CommandEntry("rails", "dualpath.cli.bench_rails", "rails_command", "One NIC, each, all; and one that is pulled."),
)


def attention_command(
    tokens: Annotated[int, typer.Option(help="Context length in tokens.", min=1)] = 32768,
    block_tokens: Annotated[int, typer.Option(help="Tokens of a block.", min=1)] = 256,
    dtype: Annotated[str, typer.Option(help="Stored types, separated by commas.")] = "fp32,bf16,fp16,int8,fp8",
    threads: Annotated[int | None, typer.Option(help="Threads (default: one per core).", min=1)] = None,
    repeat: Annotated[int, typer.Option(help="Rounds; the kernels alternate within a round.", min=1)] = 15,
    prefill: Annotated[bool, typer.Option(help="Measure chunks of prefill too.")] = True,
    as_json: Json = False,
) -> None:
    """Measure one decode step of attention out of an arena: 32 query heads, 8 KV heads, head size 128.

    Beside each kernel stand the bytes it read per second and the rate at which this machine can read memory at all,
    measured in the same run by as many threads. Rows for PyTorch appear where it is installed; those for quantised KV
    state how much faster they are than bf16 in the same rounds.

    Examples:
        dualpath bench attention
        dualpath bench attention --dtype bf16 --threads 1
        dualpath bench attention --json > attention.json
    """
    from dualpath.bench.attention import run_attention_bench

    result = run_attention_bench(
        tokens=tokens,
        block_tokens=block_tokens,
        dtypes=_words(dtype, "--dtype"),
        threads=threads,
        repeat=repeat,
        prefill=prefill,
        progress=say,
    )
    emit(as_json, result, _print_attention)


def transport_command(
    size: Annotated[
        list[ByteSize] | None,
        typer.Option(parser=byte_size, metavar="SIZE", help="Bytes of a layer block; may be repeated."),
    ] = None,
    in_flight: Annotated[int, typer.Option(help="Layer blocks in flight.", min=1)] = 16,
    repeat: Annotated[int, typer.Option(help="Rounds; transports and limits alternate within a round.", min=1)] = 5,
    as_json: Json = False,
) -> None:
    """Measure how fast layer blocks come from a pool node on this machine, for every transport.

    The limit beside TCP is a plain stream over as many sockets; beside the mapped arena it is memcpy. Both are measured
    in the same run, since they vary from hour to hour.

    Examples:
        dualpath bench transport
        dualpath bench transport --size 256KiB --size 4MiB --in-flight 32
        dualpath bench transport --json > transport.json
    """
    from dualpath.bench.transport import run_transport_bench

    sizes = [int(one) for one in size or (ByteSize(256 << 10), ByteSize(1 << 20), ByteSize(4 << 20))]
    emit(
        as_json,
        run_transport_bench(sizes=sizes, in_flight=in_flight, repeat=repeat, progress=say),
        _print_transport,
    )


def _print_attention(found: dict[str, Any]) -> None:
    _print_rows("Decode: one query token over the context", found["rows"])
    if found.get("prefill"):
        _print_rows("Prefill: a chunk of query tokens", found["prefill"])


def _print_transport(found: dict[str, Any]) -> None:
    _print_rows("Layer blocks out of a node", found["rows"])
    for transport, times in found.get("call_us", {}).items():
        typer.echo(f"  {transport}: an empty call takes " + ", ".join(f"{t:.0f} us ({p})" for p, t in times.items()))


def _words(text: str, option: str) -> list[str]:
    named = words(text)
    if not named:
        raise UsageError(f"{option} is empty", hint="name one or more, separated by commas")
    return list(named)


def _print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table(title, columns, [[row.get(name) for name in columns] for row in rows])
