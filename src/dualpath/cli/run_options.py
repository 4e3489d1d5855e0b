"""Options of `dualpath run`, in groups. Two of them belong to one kind of run each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from dualpath.cli.options import (
    Deadline,
    Dtype,
    Explain,
    Hot,
    KVDtype,
    Model,
    Nodes,
    ReadFraction,
    Report,
    Seed,
    Threads,
    Window,
)
from dualpath.cli.output import ByteSize
from dualpath.errors import UsageError
from dualpath.transport.rails import MAX_RAILS

HOT, WINDOW = ByteSize(16 << 20), ByteSize(64 << 20)


@dataclass(frozen=True)
class WorkOptions:
    """What is computed."""

    title: ClassVar[str] = "Model and work"
    model: Model = "smollm2"
    dtype: Dtype = "float32"
    kv_dtype: KVDtype = "same"
    context: Annotated[int, typer.Option(help="Tokens of the prompt.", min=1)] = 4096
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", "--samples", help="Tokens to decode with each scheme.", min=2)
    ] = 64
    threads: Threads = 0
    seed: Seed = 0


@dataclass(frozen=True)
class MemoryOptions:
    """What is kept here."""

    title: ClassVar[str] = "Local memory"
    hot: Hot = HOT
    window: Window = WINDOW
    block_tokens: Annotated[int, typer.Option(help="Tokens of a block; 0: as many as suit the hot region.", min=0)] = 0


@dataclass(frozen=True)
class PoolOptions:
    """Where the rest is, and how it is reached."""

    title: ClassVar[str] = "Pool and network"
    nodes: Nodes = 2
    pool: Annotated[str, typer.Option(metavar="HOST:PORT,...", help="Use these nodes instead.")] = ""
    nic: Annotated[str, typer.Option(metavar="NAME,...", help="NICs of this host that may be used; all.")] = ""
    deadline: Deadline = 10.0


@dataclass(frozen=True)
class SchemeOptions:
    """A run of one sequence by every scheme."""

    title: ClassVar[str] = "One sequence, by every scheme"
    scheme: Annotated[
        str, typer.Option(help="Any of hf,local,baseline,fetch,sharded,reduce,mapped; default: all. Also single, auto.")
    ] = ""
    read_fraction: ReadFraction = 1.0
    prompt_file: Annotated[Path | None, typer.Option(help="Document to decode from; default: Python's own.")] = None
    offset: Annotated[int, typer.Option(help="First token of the document to use.", min=0)] = 0
    fill: Annotated[str, typer.Option(help="prompt, or random: seeded random KV, no prefill, I/O only.")] = "prompt"
    interleave: Annotated[
        int, typer.Option(help="Schemes take turns every so many tokens; 0: one after another.", min=0)
    ] = 0
    rails: Annotated[int, typer.Option(help="Pairs of NICs that may be used for a node.", min=1, max=MAX_RAILS)] = (
        MAX_RAILS
    )
    trace_prefetch: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the prefetcher's decisions here, for `dualpath replay`.")
    ] = None
    explain: Explain = False
    report: Report = None


@dataclass(frozen=True)
class LoadOptions:
    """A run of many sequences at once."""

    title: ClassVar[str] = "Many sequences at once, with --concurrency"
    concurrency: Annotated[
        int, typer.Option(help="So many sequences, over each --variant; 0: one, by every scheme.", min=0)
    ] = 0
    variant: Annotated[
        str,
        typer.Option(
            metavar="NAME,...", help="baseline,single,dual,dual-prefetch,dual-lanes,dual-rail,dual+reduce; all."
        ),
    ] = ""
    control_rate: Annotated[float, typer.Option(help="Control messages a second.", min=0)] = 100.0
    rounds: Annotated[int, typer.Option(help="Turns of each variant.", min=1)] = 3
    cold: Annotated[bool, typer.Option("--cold", help="Prefixes are computed first.")] = False
    prefill_every: Annotated[
        float, typer.Option(metavar="SECONDS", help="A cold prompt arrives so often, in further rows; 0: never.", min=0)
    ] = 0.0
    prefill_tokens: Annotated[int, typer.Option(help="Tokens of each of these prompts.", min=1)] = 2048
    prefill_share: Annotated[
        float, typer.Option(help="How much longer than alone a step may take for their sake, as a share.")
    ] = 0.25
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw time per token of every variant here.")
    ] = None


def check_options(given: typer.Context, *, concurrent: bool) -> None:
    """Raise `UsageError` for an option that was given and would do nothing in this kind of run."""
    idle: Any = SchemeOptions if concurrent else LoadOptions
    for name in (field.name for field in fields(idle) if field.name != "concurrency"):
        source = given.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            option, how = name.replace("_", "-"), "does not go with" if concurrent else "goes with"
            raise UsageError(f"--{option} {how} --concurrency")
