"""The default transport: TCP. A client (`TcpPeer`) and a node's server (`TcpServer`).

Theory of operation. See `peer` and `server`; this file adds only where to connect and what may be listened on. A server
beyond loopback must have a shared key: anybody who reaches an unkeyed one can read and write what it holds.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Mapping, Sequence
from itertools import chain, islice, zip_longest

from dualpath.errors import UsageError
from dualpath.transport.base import Service
from dualpath.transport.dial import Tcp, is_loopback, unpace
from dualpath.transport.peer import StreamPeer
from dualpath.transport.rails import MAX_RAILS
from dualpath.transport.server import StreamServer
from dualpath.wire.frames import Limits
from dualpath.wire.messages import Lane

MOST_TOLD = 64  # addresses found at a wildcard: those of every service of a cluster would not fit into a `Welcome`
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - only with a key, see `TcpServer`


def endpoint(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return str(Tcp(host, port))


class TcpPeer(StreamPeer):
    """A node at `host:port`, connected at first use. `connections` sets how many connections a lane's reads use.

    Where the node listens at several NICs, all rails that lead there are used, at most `max_rails`; `nics` names those
    of this host that may be.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        key: bytes | None = None,
        tenant: str = "default",
        connect_timeout_s: float = 2.0,
        connections: Mapping[Lane, int] | None = None,
        nics: Sequence[str] = (),
        max_rails: int = MAX_RAILS,
    ) -> None:
        super().__init__(
            Tcp(host, port),
            key=key,
            tenant=tenant,
            connect_timeout_s=connect_timeout_s,
            connections=connections,
            nics=nics,
            max_rails=max_rails,
        )


class TcpServer(StreamServer):
    """Serves `service` at `host:port`; port 0 picks a free one. Raises `UsageError` beyond loopback without a key.

    `rails` are further addresses of this host to listen at, one for each NIC; port 0 takes the first one's. A wildcard
    `host` (`0.0.0.0`, `::`) listens at every address, and tells clients of those.
    """

    def __init__(
        self,
        service: Service,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        node_id: str,
        key: bytes | None = None,
        limits: Limits | None = None,
        max_connections: int = 256,
        stall_timeout_s: float = 30.0,
        rails: Sequence[tuple[str, int]] = (),
    ) -> None:
        if len({(host, port), *rails}) <= len(rails):
            raise UsageError(
                f"an address is named twice: {', '.join(endpoint(*one) for one in [(host, port), *rails])}"
            )
        for open_to in (host, *(other for other, _ in rails)):
            if key is None and not is_loopback(open_to):
                raise UsageError(
                    f"refusing to listen on {open_to} without a shared key",
                    hint="set a key on the node and its clients, or listen on 127.0.0.1",
                )
        super().__init__(
            service,
            node_id=node_id,
            key=key,
            limits=limits,
            max_connections=max_connections,
            stall_timeout_s=stall_timeout_s,
        )
        self._host = host
        self._port = port
        self._others = list(rails)
        self._rails: tuple[str, ...] = ()

    @property
    def rails(self) -> tuple[str, ...]:
        """Every address that clients may use, once started; empty where there is one only."""
        return self._rails

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect, once started."""
        return (self._host, self._port)

    @property
    def port(self) -> int:
        """The port, once started."""
        return self._port

    def _listen(self) -> list[socket.socket]:
        with contextlib.ExitStack() as undo:
            first = undo.enter_context(_listener(self._host, self._port))
            self._port = first.getsockname()[1]
            others = [(host, port or self._port) for host, port in self._others]
            listeners = [first, *(undo.enter_context(_listener(host, port)) for host, port in others)]
            undo.pop_all()
        self._rails = self._reachable_at(listeners)
        return listeners

    def _reachable_at(self, listeners: Sequence[socket.socket]) -> tuple[str, ...]:
        """Return the addresses that were listened at, as numbers: what a name means here, it may not mean elsewhere."""
        first, *others = [listener.getsockname()[:2] for listener in listeners]
        places = [first]
        if self._host in _WILDCARDS:
            from dualpath.host.addresses import local_addresses

            nics: dict[str, list[tuple[str, int]]] = {}
            for one in local_addresses():
                if (":" in one.host) == (":" in self._host) and not one.interface.is_loopback:
                    nics.setdefault(one.nic, []).append((one.host, self._port))
            turns = chain.from_iterable(zip_longest(*nics.values()))  # one of each NIC, then another one of each
            places = list(islice(filter(None, turns), MOST_TOLD))
        every = [endpoint(host, port) for host, port in dict.fromkeys((*places, *others))]
        return tuple(every) if len(every) > 1 else ()


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        hint = "name an address of this host: `ip -br address` shows them"
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            hint = "choose another port, or 0 for any"
        raise UsageError(f"cannot listen on {endpoint(host, port)}: {error}", hint=hint) from error
    if is_loopback(host):
        unpace(listener)  # and what it accepts
    return listener
