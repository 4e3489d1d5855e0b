"""A pool node as a process: service, data port, Unix socket, management port, and a clean end.

    stdout     one line when it can be used, one line of totals when it ends; with `json` both are JSON
    stderr     the log
    SIGINT, SIGTERM, or the end of `parent`     stop listening, drop connections, print totals, exit 0

Blocks live in memory and end with the process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import msgspec

from dualpath.errors import UsageError
from dualpath.pool.arena import Arena, SharedArena
from dualpath.pool.management import Management
from dualpath.pool.service import PoolService
from dualpath.transport.dial import is_loopback
from dualpath.transport.tcp import TcpServer
from dualpath.units import format_bytes

_log = logging.getLogger(__name__)


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a node runs.

    | field | meaning |
    |---|---|
    | `capacity` | bytes of KV it holds at most |
    | `host`, `port` | data port; 0 takes a free one |
    | `rails` | addresses (`host`, `port`) of further NICs to listen at; port 0: the same as the first |
    | `management_host`, `management_port` | HTTP port for `/healthz`, `/stats`, `/metrics`; -1: none |
    | `socket` | path of a Unix socket for clients on this host, which map the memory; empty: none |
    | `node_id` | how it introduces itself; empty: host name and process id |
    | `threads` | what one `Attend` may use; 0: all cores |
    | `parent` | end when this process ends; 0: run until told to stop |
    | `json` | print JSON lines |

    The shared key is not in here, so that it never lands in a command line or a log.
    """

    capacity: int
    host: str = "127.0.0.1"
    port: int = 0
    rails: tuple[tuple[str, int], ...] = ()
    management_host: str = "127.0.0.1"
    management_port: int = 0
    socket: str = ""
    node_id: str = ""
    threads: int = 0
    parent: int = 0
    json: bool = False


@dataclass(frozen=True)
class Ready:
    """Where a running node can be reached. `socket` and `management` are empty if there is none."""

    node: str
    tcp: str
    socket: str
    management: str
    pid: int


def serve(config: NodeConfig, *, key: bytes | None = None) -> None:
    """Run a node until SIGINT, SIGTERM or the end of its parent. Call from the main thread.

    Raises `UsageError` if it cannot start: an address in use or open to anyone without a key, or no capacity.
    """
    check(config, key)
    with ExitStack() as closing:
        told_to_stop = closing.enter_context(_stop_signals())
        _warm_up()
        service = PoolService(
            config.capacity, threads=config.threads, arena_type=SharedArena if config.socket else Arena
        )
        closing.callback(service.close)
        ready = _listen(config, key, service, closing)
        _say(config, {"event": "ready", **asdict(ready)}, _ready_line(ready))
        _log.info("node %s holds up to %s", ready.node, format_bytes(config.capacity))
        _await_end(told_to_stop, config.parent)
        stats = service.stats()
    _say(config, {"event": "ended", "node": ready.node, "totals": stats}, _totals_line(stats))


def check(config: NodeConfig, key: bytes | None) -> None:
    """Raise `UsageError` for a configuration that must not run."""
    if config.capacity < 1:
        raise UsageError("a node needs capacity", hint="for example --capacity 8GiB")
    from dualpath.attention.dispatch import check_threads

    check_threads(config.threads)
    hint = "set --key-file or DUALPATH_KEY, or listen on 127.0.0.1"
    data = [("data", host) for host in (config.host, *(host for host, _ in config.rails))]
    for name, host in (*data, ("management", config.management_host)):
        if key is None and not is_loopback(host):
            raise UsageError(f"the {name} port would be open to anyone at {host}", hint=hint)


def _listen(config: NodeConfig, key: bytes | None, service: PoolService, closing: ExitStack) -> Ready:
    """Open all ports; `closing` closes them in the opposite order."""
    node_id = config.node_id or f"{socket.gethostname()}-{os.getpid()}"
    tcp = TcpServer(service, config.host, config.port, key=key, node_id=node_id, rails=config.rails)
    closing.enter_context(tcp)
    if config.socket:
        from dualpath.transport.mapped import MappedServer

        closing.enter_context(MappedServer(service, config.socket, key=key, node_id=node_id))
    url = ""
    if config.management_port >= 0:
        management = Management(service.stats, service.meter, config.management_host, config.management_port, key=key)
        closing.callback(management.close)
        url = management.url
    host = f"[{config.host}]" if ":" in config.host else config.host
    return Ready(node_id, f"tcp://{host}:{tcp.address[1]}", config.socket, url, os.getpid())


def _warm_up() -> None:
    """Import what the first `Attend` needs, so that it is not slow."""
    import dualpath.attention  # noqa: F401  for what loading it does


@contextlib.contextmanager
def _stop_signals() -> Iterator[socket.socket]:
    """Give a socket that becomes readable at SIGINT or SIGTERM, whichever thread the kernel delivers it to.

    A handler alone would not do: Python runs it on the main thread, and nothing wakes that one if another thread got
    the signal, as happens to a process that was stopped (SIGSTOP) when it came.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(before)


def _await_end(told_to_stop: socket.socket, parent: int) -> None:
    """Return when told to stop, or when process `parent` (0: none) is gone.

    (PR_SET_PDEATHSIG would follow the thread that forked, not the process.)
    """
    with ExitStack() as closing:
        ends: list[int] = [told_to_stop.fileno()]
        if parent:
            try:
                ends.append(os.pidfd_open(parent))
            except ProcessLookupError:
                return
            closing.callback(os.close, ends[-1])
        select.select(ends, [], [])


def _ready_line(ready: Ready) -> str:
    parts = ["ready", ready.tcp]
    if ready.socket:
        parts.append(f"mapped:{ready.socket}")
    if ready.management:
        parts += ["management", ready.management]
    return " ".join(parts)


def _totals_line(stats: dict[str, float]) -> str:
    names = ("prepares_total", "reads_total", "writes_total", "attends_total", "evictions_total")
    counts = ", ".join(f"{stats.get(name, 0):.0f} {name.removesuffix('_total')}" for name in names)
    return (
        f"ended after {counts}; {format_bytes(stats['bytes_in_total'])} in, {format_bytes(stats['bytes_out_total'])} "
        f"out; {stats['blocks_sealed']:.0f} blocks, {format_bytes(stats['used_bytes'])} held"
    )


def _say(config: NodeConfig, record: dict[str, object], line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # whoever started us may have gone
        sys.stdout.write((json.dumps(record) if config.json else line) + "\n")
        sys.stdout.flush()
