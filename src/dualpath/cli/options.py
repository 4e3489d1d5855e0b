"""Options that several commands take, word for word alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dualpath.cli.output import ByteSize, byte_size

Model = Annotated[str, typer.Option(help="Built-in name, model folder, hub id, or shape:layers=2,...")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16, for weights and KV.")]
KVDtype = Annotated[
    str, typer.Option(help="What sealed KV is kept in: same, int8 or fp8. Changes the output a little.")
]
ReadFraction = Annotated[
    float, typer.Option(help="Share of far blocks that a step reads (fetch, sharded, reduce). Changes the output.")
]
Hot = Annotated[
    ByteSize, typer.Option(parser=byte_size, metavar="SIZE", help="Local memory kept for recent KV (Path A).")
]
Window = Annotated[
    ByteSize, typer.Option(parser=byte_size, metavar="SIZE", help="Local memory for KV in flight (Path B).")
]
Seed = Annotated[int, typer.Option(help="Seed of random KV and random token ids.")]
Threads = Annotated[int, typer.Option(help="Threads of model and attention; 0: all cores.", min=0)]
Nodes = Annotated[int, typer.Option(help="Pool nodes to start on this machine.", min=1, max=64)]
Deadline = Annotated[float, typer.Option(metavar="SECONDS", help="Longest wait for a node.", min=0.1, max=86400)]
Explain = Annotated[bool, typer.Option("--explain", help="Say what scheme auto chose, and by which speeds.")]
Report = Annotated[Path | None, typer.Option(help="Write one HTML page with plots here.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
