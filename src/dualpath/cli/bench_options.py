"""Options that several benches of the network share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dualpath.cli.key import KEY_VARIABLE
from dualpath.cli.output import ByteSize, byte_size

PoolOption = Annotated[str, typer.Option(metavar="HOST:PORT,...", help="Running pool nodes on other hosts.")]
BlockOption = Annotated[ByteSize, typer.Option(parser=byte_size, metavar="SIZE", help="Bytes of a block.")]
SecondsOption = Annotated[float, typer.Option(help="Of each measurement.", min=0.01)]
RoundsOption = Annotated[int, typer.Option(help="What is compared alternates within a round.", min=1)]
DeadlineOption = Annotated[
    float, typer.Option(metavar="SECONDS", help="Longest wait for one request.", min=0.1, max=86400)
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help=f"File with the shared key; otherwise it is taken from {KEY_VARIABLE}."),
]
