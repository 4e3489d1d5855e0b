"""Where a node listens, and how a connection to it is made: connect, socket options per lane, handshake."""

from __future__ import annotations

import contextlib
import ipaddress
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dualpath.errors import AuthError, DeadlineError, ProtocolError, UnreachableError
from dualpath.host.lanes import LANES
from dualpath.transport.stream import Stream
from dualpath.wire.auth import ClientHandshake
from dualpath.wire.failures import error_of
from dualpath.wire.frames import HANDSHAKE_LIMITS, Limits
from dualpath.wire.messages import Failure, Lane, Message, Proof, Welcome

# Unacknowledged data for this long means that the host is gone. The kernel counts a closed receive window too, and a
# node that computes may leave a large request waiting: only connections that carry small requests use the short one.
READER_USER_TIMEOUT_MS = 1500
CALLER_USER_TIMEOUT_MS = 10_000
RAILED_USER_TIMEOUT_MS = 800  # where another rail can take over

# A host that is gone shows in `Dialer.connect_timeout_s`: its kernel would have answered. Then it is the node's process
# that answers, which may have to wait for a core. It waits for as long itself.
HANDSHAKE_TIMEOUT_S = 5.0

# Between two processes of one host there is no distance to fill. Buffers of this size keep the bytes in the processor's
# cache from the sender's copy to the receiver's: a fifth less time per byte. Below 192 KiB segments get small, above
# 256 KiB the gain is gone. Elsewhere the kernel sizes them by the path.
SAME_HOST_BUFFER_BYTES = 224 << 10
# Nor is there anything to be congested: where a host's default paces what it sends (BBR), one connection moved 3.1 GB/s
# over loopback, and without pacing 4.1. Every kernel has Reno, and every user may choose it.
SAME_HOST_CONGESTION = b"reno"


@dataclass(frozen=True)
class Tcp:
    """A node at `host:port`."""

    host: str
    port: int
    source: str = ""
    """Address of the NIC here that the connection leaves from; empty: the kernel chooses."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connect(self, lane: Lane, user_timeout_ms: int, timeout_s: float) -> socket.socket:
        """Return a connected blocking socket. Raises `OSError`, after `timeout_s` however many addresses `host` has."""
        deadline = time.monotonic() + timeout_s
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        problems: list[OSError] = []
        for number, (family, kind, protocol, _, address) in enumerate(found):
            share_s = max(0.001, deadline - time.monotonic()) / (len(found) - number)
            try:
                return self._connect(socket.socket(family, kind, protocol), address, share_s, lane, user_timeout_ms)
            except OSError as error:
                problems.append(error)
        raise problems[-1] if problems else OSError(f"{self.host} has no address")

    def _connect(
        self, sock: socket.socket, address: Any, timeout_s: float, lane: Lane, user_timeout_ms: int
    ) -> socket.socket:
        try:
            if self.source:
                sock.bind((self.source, 0))
            if is_loopback(address[0]):
                unpace(sock)
            sock.settimeout(timeout_s)
            sock.connect(address)
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_ms)
            tune(sock, lane)
        except BaseException:
            sock.close()
            raise
        return sock


@dataclass(frozen=True)
class Unix:
    """A node on this host, listening at a path."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"

    def connect(self, lane: Lane, user_timeout_ms: int, timeout_s: float) -> socket.socket:
        """Return a connected blocking socket. Raises `OSError`. Lanes have no meaning to the kernel here."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(self.path)
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise
        return sock


def is_same_host(sock: socket.socket) -> bool:
    """Whether both ends of a connection are on this host; no, of one that has no other end any more."""
    try:
        return sock.family == socket.AF_UNIX or bool(sock.getsockname()[0] == sock.getpeername()[0])
    except OSError:
        return False


def unpace(sock: socket.socket) -> None:
    """Let a socket send as fast as it can; if possible before it is connected: later, its pace is only a high one."""
    with contextlib.suppress(OSError):  # some sandboxes refuse it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, SAME_HOST_CONGESTION)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host` (a literal address, or `localhost`)."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tune(sock: socket.socket, lane: Lane | None = None) -> None:
    """Set what every TCP connection wants, and the lane's priority once it is known."""
    if sock.family == socket.AF_UNIX:
        return
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    if is_same_host(sock):
        unpace(sock)
        if lane is Lane.PREFETCH:
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                sock.setsockopt(socket.SOL_SOCKET, option, SAME_HOST_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 2)):
        sock.setsockopt(tcp, option, value)
    if lane is not None:
        with contextlib.suppress(OSError):  # a hint; some systems refuse it
            marks = LANES[lane.name.lower()]
            if sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, marks.tos)
            else:
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, marks.tos)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, marks.so_priority)


class Openings:
    """The connections of a peer that are being made, so that closing it does not wait for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._closed = False

    @contextlib.contextmanager
    def holding(self, stream: Stream, node: str) -> Iterator[None]:
        """`stream` to `node` is being made during the block. Raises `UnreachableError` once `close` was called."""
        with self._lock:
            if self._closed:
                raise UnreachableError(f"{node}: this peer is closed", node=node)
            self._streams.add(stream)
        try:
            yield
        finally:
            with self._lock:
                self._streams.discard(stream)

    def close(self) -> None:
        """End those that are being made; none is made from now on. Idempotent."""
        with self._lock:
            self._closed = True
            for stream in self._streams:
                stream.shutdown()


@dataclass(frozen=True)
class Dialer:
    """How a peer connects to its node."""

    address: Tcp | Unix
    key: bytes | None = field(repr=False)  # never in a log
    tenant: str
    connect_timeout_s: float
    owner: bytes = b""
    rail: str = ""
    """How the rail that it uses is called; empty where there is one only."""
    leads_there: Callable[[Welcome], bool] | None = None
    """Whether who answers is the node; `None`: whoever does."""
    openings: Openings = field(default_factory=Openings, compare=False)

    def dial(self, lane: Lane, *, user_timeout_ms: int, deadline: float = math.inf) -> tuple[Stream, Welcome]:
        """Return a stream past its handshake. Takes `connect_timeout_s` and `HANDSHAKE_TIMEOUT_S` at most.

        Raises `UnreachableError`, `DeadlineError`, `AuthError`, `VersionError` or `ProtocolError`, naming the node.
        """
        node = str(self.address)
        try:
            timeout_s = max(0.001, min(self.connect_timeout_s, deadline - time.monotonic()))
            stream = Stream(self.address.connect(lane, user_timeout_ms, timeout_s), HANDSHAKE_LIMITS)
        except TimeoutError as error:
            raise DeadlineError(f"{node}: no connection in time", node=node) from error
        except (OSError, ValueError) as error:  # `ValueError`: no name can be like this
            hint = "is the node running, and is the address right?"
            raise UnreachableError(f"{node}: cannot connect: {error}", node=node, hint=hint) from error
        try:
            with self.openings.holding(stream, node):
                welcome = self._shake_hands(stream, lane, min(deadline, time.monotonic() + HANDSHAKE_TIMEOUT_S))
            if self.leads_there is not None and not self.leads_there(welcome):
                hint = f"let the node listen only at addresses that mean it everywhere: not at {node}"
                raise UnreachableError(f"{node}: another node answers there, {welcome.node}", node=node, hint=hint)
        except BaseException:
            stream.close()
            raise
        return stream, welcome

    def _shake_hands(self, stream: Stream, lane: Lane, deadline: float) -> Welcome:
        node = str(self.address)
        shake = ClientHandshake(self.key, lane, self.tenant, self.owner)
        try:
            stream.send_frame(0, shake.hello, deadline=deadline)
            proof: Proof = shake.answer(self._reply(stream, deadline))
            stream.send_frame(0, proof, deadline=deadline)
            welcome = self._reply(stream, deadline)
            if not isinstance(welcome, Welcome):
                raise ProtocolError(f"expected Welcome, got {type(welcome).__name__}")
        except TimeoutError as error:
            hint = "the node accepts connections but does not answer: is it stopped or overloaded?"
            raise DeadlineError(f"{node}: no handshake in time", node=node, hint=hint) from error
        except OSError as error:
            raise UnreachableError(f"{node}: lost during the handshake: {error}", node=node) from error
        except (ProtocolError, AuthError) as error:
            if error.node:  # the node's own words
                raise
            raise type(error)(f"{node}: {error}", node=node, hint=error.hint) from error
        stream.parser.limits = Limits()
        stream.takes_descriptors = isinstance(self.address, Unix)
        return welcome

    def _reply(self, stream: Stream, deadline: float) -> Message:
        head = stream.recv_head(deadline)
        node = str(self.address)
        if head is None:
            raise UnreachableError(f"{node}: closed the connection during the handshake", node=node)
        if isinstance(head.message, Failure):
            raise error_of(head.message, node)
        return head.message
