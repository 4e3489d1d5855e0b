"""`dualpath pool`: run one pool node in the foreground."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from dualpath.cli.key import KEY_VARIABLE, shared_key
from dualpath.cli.output import ByteSize, byte_size, host_port
from dualpath.errors import UsageError
from dualpath.units import format_bytes


def pool_command(
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT[,HOST:PORT...]",
            help="Data port, at the address of each NIC that carries data. Port 0 takes a free one.",
        ),
    ] = "127.0.0.1:0",
    capacity: Annotated[
        ByteSize, typer.Option(parser=byte_size, metavar="SIZE", help="KV bytes that the node holds at most.")
    ] = ByteSize(1 << 30),
    management: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="HTTP port for /healthz, /stats and /metrics; `off` for none.")
    ] = "127.0.0.1:0",
    socket: Annotated[
        str, typer.Option(metavar="PATH", help="Unix socket for clients on this host, which map the node's memory.")
    ] = "",
    key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"File with the shared key; otherwise it is taken from {KEY_VARIABLE}."),
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Threads that attention may use here; 0: all cores.")] = 0,
    node_id: Annotated[str, typer.Option(metavar="NAME", help="How the node introduces itself.")] = "",
    parent: Annotated[int, typer.Option(metavar="PID", min=0, help="End when this process ends; 0: do not.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines: `ready`, then `ended`.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what the node does, on stderr.")] = False,
) -> None:
    """Run a pool node that holds KV blocks and computes attention on them.

    It prints one line when it is ready, and one of totals when SIGINT or SIGTERM ends it. Blocks live in memory.
    Beyond loopback it wants a shared key, which every client must have too.

    Examples:
        dualpath pool --capacity 8GiB
        dualpath pool --listen 127.0.0.1:7700 --socket /run/user/1000/dualpath.sock
        DUALPATH_KEY=... dualpath pool --listen 10.0.0.5:7700 --capacity 64GiB --threads 8
        DUALPATH_KEY=... dualpath pool --listen 10.0.0.5:7700,10.0.1.5:7700 --capacity 64GiB
    """
    from dualpath.pool.server import NodeConfig, serve

    check_capacity(int(capacity))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    (host, port), *rails = [host_port(one.strip()) for one in listen.split(",")]
    management_host, management_port = ("127.0.0.1", -1) if management == "off" else host_port(management)
    config = NodeConfig(
        capacity=int(capacity),
        host=host,
        port=port,
        rails=tuple(rails),
        management_host=management_host,
        management_port=management_port,
        socket=socket,
        node_id=node_id,
        threads=threads,
        parent=parent,
        json=as_json,
    )
    serve(config, key=shared_key(key_file))


def check_capacity(capacity: int) -> None:
    """Raise `UsageError` for more than this machine has: a node takes memory as blocks arrive, until it is killed."""
    from dualpath.host.memory import limit_bytes

    most = limit_bytes()
    if most is not None and capacity > most:
        raise UsageError(
            f"a capacity of {format_bytes(capacity)} is more than the {format_bytes(most)} of memory here",
            hint="give --capacity less, and leave some for the rest of the machine",
        )
