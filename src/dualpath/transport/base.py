"""The contract of a transport: how bytes and messages move between a client and one node.

A `Peer` is a client's view of one node, over all lanes. A `Service` is what a node runs. Contract:

* Every operation has a deadline; none waits longer. A peer's death fails its operations within about a second.
* `read` and `write` report an `Outcome` per item. They raise only for bugs of the caller (`UsageError`).
  A dead, silent or misbehaving peer gives `LOST` or `TIMEOUT` items, and `Ticket.error` says why.
* A destination belongs to the transport from `read` until its ticket has `drained`: a timeout or cancel reports an
  outcome but does not release the buffer. After `drained`, nothing is written to it any more.
* `call` raises a `PeerError` when there is no proper reply.
* After a connection fails, the next operation tries to connect anew, once, within its own deadline.
* All methods may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dualpath.errors import PeerError
from dualpath.wire.messages import Lane, Message, Outcome, SlotRef

__all__ = ["Lane", "OnItems", "Outcome", "Peer", "Reply", "Service", "Session", "Ticket", "TransferCounters"]

Buffer = Any  # anything that supports the buffer protocol, C-contiguous
Destination = memoryview | Sequence[memoryview]
"""Where the payload of a reply goes: one buffer, or several. Flat bytes, writable."""
OnItems = Callable[[int, Sequence[Outcome]], None]
"""Hears how items `[first, first + len(outcomes))` of a read ended."""


@dataclass(frozen=True)
class Reply:
    """A message and the raw bytes that follow it. `release`, if any, is called once the payload has been sent.

    `descriptors` go with the message over a Unix socket (`Mapped`); the service goes on owning them.
    """

    message: Message
    payload: Sequence[Buffer] = ()
    release: Callable[[], None] | None = None
    descriptors: tuple[int, ...] = ()


@dataclass
class TransferCounters:
    """Bytes on the wire of one peer, headers included, as handed to and received from the kernel; and operations."""

    tx_bytes: int = 0
    rx_bytes: int = 0
    requests: int = 0


class Ticket(Protocol):
    """An operation under way."""

    @property
    def outcomes(self) -> Sequence[Outcome | None]:
        """Per item its outcome so far, `None` while it is not known."""

    @property
    def error(self) -> PeerError | None:
        """Why items were lost, if they were."""

    @property
    def drained(self) -> bool:
        """Whether the transport has let go of all destinations."""

    def wait(self, timeout_s: float | None = None) -> Sequence[Outcome | None]:
        """Block until every item has an outcome (at most the operation's own deadline, or `timeout_s`)."""

    def wait_drained(self, timeout_s: float) -> bool:
        """Block until the transport has let go of all destinations; return `drained`. Never long: see `Peer.cancel`."""


class Pending(Protocol):
    """A call under way."""

    def result(self, timeout_s: float | None = None) -> tuple[Message, memoryview]:
        """Return the reply and its payload. Raises `PeerError` (at the latest at the call's own deadline)."""


class Peer(Protocol):
    """One node, seen from a client."""

    @property
    def node(self) -> str:
        """The node's id as it introduced itself, or its address before the first connection."""

    @property
    def instance(self) -> bytes:
        """What differs each time the node's process starts; empty before the first connection."""

    @property
    def counters(self) -> TransferCounters:
        """Bytes moved so far (a snapshot)."""

    def call(
        self, message: Message, payload: Sequence[Buffer] = (), *, lane: Lane = Lane.REALTIME, timeout_s: float = 10.0
    ) -> tuple[Message, memoryview]:
        """Send a request and wait for its reply. A `Failure` reply is raised as the matching error."""

    def start(
        self,
        message: Message,
        payload: Sequence[Buffer] = (),
        *,
        lane: Lane = Lane.REALTIME,
        timeout_s: float = 10.0,
        into: Destination | None = None,
    ) -> Pending:
        """Send a request now, collect the reply later (several nodes work at once).

        A reply's payload that fits `into` is received there, and `result` returns that part of it; after an error,
        `into` may have been written in part. Several buffers are filled one after another by a payload of exactly
        their size, and `result` then returns no bytes; any other payload is received elsewhere.
        """

    def read(
        self,
        refs: Sequence[SlotRef],
        destinations: Sequence[memoryview],
        *,
        slot_bytes: int,
        lane: Lane = Lane.PREFETCH,
        timeout_s: float = 10.0,
        on_items: OnItems | None = None,
    ) -> Ticket:
        """Start reading slots straight into `destinations` (each `slot_bytes` long, writable).

        `on_items(first, outcomes)` hears of items `[first, first + len(outcomes))`, of each item once, on a transport
        thread, after their bytes are complete (or they failed). It must be quick and must not raise.
        """

    def write(
        self,
        refs: Sequence[SlotRef],
        sources: Sequence[memoryview],
        *,
        slot_bytes: int,
        lane: Lane = Lane.BULK,
        timeout_s: float = 30.0,
    ) -> Sequence[Outcome]:
        """Fill prepared slots from `sources`, and wait until the node has them. Sources may be reused on return."""

    def cancel(self, ticket: Ticket) -> None:
        """Stop an operation: items without an outcome become `CANCELLED`. Wait for `drained` before reuse."""

    def close(self) -> None:
        """Close all connections; pending operations fail as `LOST`/`UnreachableError`. Idempotent."""


@dataclass
class Session:
    """Server side: what a service may know of a client connection. `state` is the service's own.

    `owner` is `Hello.owner`: the same on all connections of one client.
    """

    peer: str
    tenant: str
    lane: Lane
    state: dict[str, Any] = field(default_factory=dict)
    owner: bytes = b""


class Service(Protocol):
    """What a node runs behind a transport's server. Called from one thread per connection, concurrently."""

    def handle(self, session: Session, message: Message, payload: memoryview) -> Reply:
        """Answer one request. A `DualPathError` raised here becomes a `Failure` reply; the connection goes on."""

    def sink(self, session: Session, message: Message, payload_bytes: int) -> Sequence[memoryview] | None:
        """Where the payload of `message` should be received directly (total `payload_bytes`), or `None` for a buffer.

        Called before the payload is read; `handle` is called after it, with an empty payload if a sink was given.
        """

    def closed(self, session: Session) -> None:
        """The connection is gone: give up what it held."""
