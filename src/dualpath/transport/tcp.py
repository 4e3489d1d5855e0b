"""The default transport: TCP. A client (`TcpPeer`) and a node's server (`TcpServer`).

Theory of operation. See `peer` and `server`; this file adds only where to connect and what may be listened on. A server
beyond loopback must have a shared key: anybody who reaches an unkeyed one can read and write what it holds.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from dualpath.errors import UsageError
from dualpath.transport.base import Service
from dualpath.transport.dial import Tcp
from dualpath.transport.peer import StreamPeer
from dualpath.transport.server import StreamServer
from dualpath.wire.frames import Limits
from dualpath.wire.messages import Lane


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host` (a literal address, or `localhost`)."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TcpPeer(StreamPeer):
    """A node at `host:port`, connected at first use. `connections` sets how many connections a lane's reads use."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        key: bytes | None = None,
        tenant: str = "default",
        connect_timeout_s: float = 2.0,
        connections: Mapping[Lane, int] | None = None,
    ) -> None:
        super().__init__(
            Tcp(host, port), key=key, tenant=tenant, connect_timeout_s=connect_timeout_s, connections=connections
        )


class TcpServer(StreamServer):
    """Serves `service` at `host:port`; port 0 picks a free one. Raises `UsageError` beyond loopback without a key."""

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
    ) -> None:
        if key is None and not is_loopback(host):
            raise UsageError(
                f"refusing to listen on {host} without a shared key",
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

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect, once started."""
        return (self._host, self._port)

    @property
    def port(self) -> int:
        """The port, once started."""
        return self._port

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listener = socket.create_server((self._host, self._port), family=family, backlog=128)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self._host}:{self._port}: {error}", hint="choose another port, or 0 for any"
            ) from error
        self._port = listener.getsockname()[1]
        return listener
