"""One node of a pool, seen from a client: the protocol's requests as typed methods.

Under failure: `prepare` reserves all or nothing. `write` and `read` report an outcome per slot, as data. `abort`,
`drop` and `drop_view` only let go of things, which a node does by itself when its client is gone: they are best effort,
raise nothing, and do not wait for a node that does not answer; it is told once it does (see `letting_go`). Every other
method raises a `PeerError` when there is no proper answer; whether the node acted on it is then unknown, and every
request may be sent again. Blocks stay pinned for a client as long as it has a connection, and a short grace after. A
request that was given up and comes to the node late undoes nothing that was asked of it since.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from dualpath.errors import BlockLostError, ProtocolError, UsageError
from dualpath.pool.letting_go import LettingGo
from dualpath.transport.base import Buffer, Destination, OnItems, Peer, Pending, Ticket, TransferCounters
from dualpath.wire.messages import (
    Abort,
    Attend,
    BlockKey,
    Commit,
    Done,
    Drop,
    DropView,
    ExtendView,
    Geometry,
    Lane,
    Message,
    Outcome,
    Outcomes,
    Partials,
    Ping,
    Prepare,
    Prepared,
    PrepareItem,
    Rank,
    Ranked,
    Read,
    Renew,
    Resolve,
    Resolved,
    SlotRef,
    Stats,
    StatsReply,
    ViewBlock,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dualpath.transport.mapped import MappedPeer
    from dualpath.transport.mapping import Mapping

M = TypeVar("M", bound=Message)

LET_GO_TIMEOUT_S = 1.0
SILENT_TIMEOUT_S = 0.02
"""How long `abort`, `drop` and `drop_view` wait for a node, and for one that owes an answer to earlier ones."""


@dataclass(frozen=True)
class NodePartials:
    """A node's answer to one `Attend`: views into the received bytes, read-only, in the order of the request's rows.

    `outcomes` per view query; `out` float32 `[rows, query_heads, value_dim]`, `lse` float32 `[rows, query_heads]`; with
    `debug` in the request also `max` and `exp_sum`, like `lse`. `compute_s`: what the node's kernel took; 0: not told.
    `blocks_read`: how many blocks the node attended to.
    """

    outcomes: Sequence[Outcome]
    out: NDArray[np.float32]
    lse: NDArray[np.float32]
    max: NDArray[np.float32] | None = None
    exp_sum: NDArray[np.float32] | None = None
    compute_s: float = 0.0
    blocks_read: int = 0


@dataclass(slots=True)
class PendingAttend:
    """An `Attend` under way."""

    node: PoolNode
    request: Attend
    pending: Pending

    def result(self, timeout_s: float | None = None) -> NodePartials:
        """Wait for the answer. Raises `PeerError`, at the latest at the call's own deadline."""
        reply, payload = self.pending.result(timeout_s)
        name = self.node.name
        return _partials(self.request, _expect(Partials, reply, name), payload, name)


@dataclass(slots=True)
class PendingRank:
    """A `Rank` under way."""

    node: str
    request: Rank
    pending: Pending

    def result(self) -> Ranked:
        """Wait for the answer. Raises `PeerError`, at the latest at the call's own deadline."""
        reply, _ = self.pending.result()
        found = _expect(Ranked, reply, self.node)
        if not len(found.outcomes) == len(found.chosen) == len(self.request.queries):
            raise ProtocolError(f"node {self.node} ranked {len(found.chosen)} queries", node=self.node)
        for query, chosen in zip(self.request.queries, found.chosen, strict=True):
            if any(b <= a for a, b in itertools.pairwise([-1, *chosen, query.blocks])):
                raise ProtocolError(f"node {self.node} chose blocks that it was not asked for", node=self.node)
        return found


@dataclass(frozen=True)
class PendingRead:
    """A read by call under way."""

    node: str
    items: int
    pending: Pending

    def result(self) -> tuple[Sequence[Outcome], memoryview]:
        """Wait for the answer: the outcomes, and the bytes of the `OK` ones one after another. Raises `PeerError`.

        No bytes: they are where the request wanted them.
        """
        reply, payload = self.pending.result()
        outcomes = _expect(Outcomes, reply, self.node).outcomes
        if len(outcomes) != self.items:
            raise ProtocolError(f"node {self.node} answered {len(outcomes)} of {self.items} slots", node=self.node)
        return outcomes, payload


class PoolNode:
    """One node of a pool. All methods may be called from any thread; views belong to the REALTIME connection."""

    def __init__(self, peer: Peer, address: str, *, timeout_s: float = 10.0) -> None:
        self.peer = peer
        self.address = address
        self.timeout_s = timeout_s
        self._letting_go = {lane: LettingGo(peer, lane, timeout_s=timeout_s) for lane in (Lane.BULK, Lane.REALTIME)}
        self._serials = itertools.count(1)  # in which order blocks were taken and given up: see `wire.Prepare`

    @property
    def name(self) -> str:
        """The node's id as it introduced itself."""
        return self.peer.node

    @property
    def label(self) -> str:
        """Its id and the address that it is reached at, for people, who may know only one of them."""
        return f"{self.name} ({self.address})"

    @property
    def instance(self) -> bytes:
        """What differs each time the node's process starts."""
        return self.peer.instance

    @property
    def counters(self) -> TransferCounters:
        """Bytes moved so far."""
        return self.peer.counters

    # --- writing ---------------------------------------------------------------------------------------------

    def prepare(self, items: Sequence[PrepareItem]) -> list[list[SlotRef]]:
        """Reserve slots, for all items or none; per item its slots, or none if the block is there already (now pinned).

        Raises `PoolFullError`.
        """
        return self._call(Prepare(list(items), next(self._serials)), Prepared, Lane.BULK).refs

    def write(
        self,
        refs: Sequence[SlotRef],
        sources: Sequence[memoryview],
        slot_bytes: int,
        *,
        lane: Lane = Lane.BULK,
        timeout_s: float = 30.0,
    ) -> Sequence[Outcome]:
        """Fill prepared slots and wait until the node has them."""
        return self.peer.write(refs, sources, slot_bytes=slot_bytes, lane=lane, timeout_s=timeout_s)

    def commit(self, keys: Sequence[BlockKey]) -> list[Outcome]:
        """Seal and pin; `LOST`: not prepared (any more) or not fully written."""
        return self._call(Commit(list(keys), next(self._serials)), Outcomes, Lane.BULK).outcomes

    def abort(self, keys: Sequence[BlockKey]) -> None:
        """Give prepared slots back. Best effort."""
        self._let_go(Abort(list(keys), next(self._serials)), Lane.BULK)

    def drop(self, keys: Sequence[BlockKey]) -> None:
        """Unpin blocks; what no other client pins is forgotten. Best effort."""
        self._let_go(Drop(list(keys), next(self._serials)), Lane.BULK)

    # --- reading ---------------------------------------------------------------------------------------------

    def resolve(self, keys: Sequence[BlockKey], ttl_s: float) -> Resolved:
        """Return where blocks are, under a lease of `ttl_s` seconds."""
        return self._call(Resolve(list(keys), ttl_s), Resolved, Lane.REALTIME)

    def renew(self, leases: Sequence[int], ttl_s: float) -> list[Outcome]:
        """Let leases run until `ttl_s` from now; 0 ends them. `LOST`: it had run out."""
        return self._call(Renew(list(leases), ttl_s), Outcomes, Lane.REALTIME).outcomes

    def read(
        self,
        refs: Sequence[SlotRef],
        destinations: Sequence[memoryview],
        slot_bytes: int,
        *,
        lane: Lane = Lane.PREFETCH,
        timeout_s: float = 10.0,
        on_items: OnItems | None = None,
    ) -> Ticket:
        """Start reading slots; see `transport.Peer.read` for who owns the destinations until when."""
        return self.peer.read(
            refs, destinations, slot_bytes=slot_bytes, lane=lane, timeout_s=timeout_s, on_items=on_items
        )

    def start_read_by_call(
        self, refs: Sequence[SlotRef], into: Destination, slot_bytes: int, *, timeout_s: float
    ) -> PendingRead:
        """Read slots as an ordinary request, on the connection that carries control messages too (lane BULK).

        What a transport without a data path of its own does. See `transport.Peer.start` for `into`.
        """
        pending = self.peer.start(Read(slot_bytes, list(refs)), lane=Lane.BULK, timeout_s=timeout_s, into=into)
        return PendingRead(self.name, len(refs), pending)

    def cancel(self, ticket: Ticket) -> None:
        """Stop a read. Its destinations are free once it has drained."""
        self.peer.cancel(ticket)

    def view(self, ref: SlotRef, slot_bytes: int) -> tuple[NDArray[np.uint8], int]:
        """Return the node's arena in this process's memory (1-D uint8, read-only) and where in it the slot starts.

        Only over `mapped:`. Use the bytes under the lease that `ref` came with, then ask `current`. Raises
        `BlockLostError` if `ref` is stale, `UsageError` if this node's memory is not mapped here.
        """
        found = self._mapped().view(ref, slot_bytes)
        if found is None:
            raise BlockLostError(f"slot {ref.slot} of node {self.name} holds another block by now", node=self.name)
        return found

    def mapping(self, slot_bytes: int) -> Mapping:
        """Return the node's arena and its generations, as mapped here: the same object until the node restarts.

        Judge bytes by the generations of the mapping that they were read from. Raises as `view` does.
        """
        return self._mapped().mapping(slot_bytes)

    def current(self, ref: SlotRef, slot_bytes: int) -> bool:
        """Whether the slot, as mapped, still holds what `ref` names."""
        return self._mapped().current(ref, slot_bytes)

    def _mapped(self) -> MappedPeer:
        from dualpath.transport.mapped import MappedPeer

        if not isinstance(self.peer, MappedPeer):
            raise UsageError(f"the memory of {self.address} is not mapped here", hint="connect to mapped:/path.sock")
        return self.peer

    # --- attention near the data -----------------------------------------------------------------------------

    def extend_view(
        self, view: int, group: int, geometry: Geometry, blocks: Sequence[ViewBlock], known: int = -1
    ) -> list[Outcome]:
        """Append blocks to a view of `known` blocks (negative: not said), creating it if it is new.

        `LOST`: not at this node; the view has a hole there. Raises `UnknownViewError` if the node knows of another
        number of blocks: the connection was lost since.
        """
        request = ExtendView(view, group, geometry, list(blocks), known)
        return self._call(request, Outcomes, Lane.REALTIME).outcomes

    def drop_view(self, view: int) -> None:
        """Forget a view and let go of its blocks. Best effort."""
        self._let_go(DropView(view), Lane.REALTIME)

    def start_attend(self, request: Attend, queries: Buffer, *, timeout_s: float | None = None) -> PendingAttend:
        """Send q (float32 `[rows, query_heads, head_dim]`, C-contiguous) and return at once.

        What goes wrong is raised by `result`; `UnknownViewError` there means that the connection was lost since the
        views were made: extend them anew.
        """
        deadline = self.timeout_s if timeout_s is None else timeout_s
        payload = [memoryview(queries).cast("B")]
        return PendingAttend(self, request, self.peer.start(request, payload, lane=Lane.REALTIME, timeout_s=deadline))

    def start_rank(self, request: Rank, queries: Buffer, *, timeout_s: float) -> PendingRank:
        """Send q as `start_attend` does, to learn which blocks to read. What goes wrong is raised by `result`."""
        payload = [memoryview(queries).cast("B")]
        pending = self.peer.start(request, payload, lane=Lane.REALTIME, timeout_s=timeout_s)
        return PendingRank(self.name, request, pending)

    # --- the node itself -------------------------------------------------------------------------------------

    def ping(self, timeout_s: float | None = None, *, lane: Lane = Lane.REALTIME) -> None:
        """Return if the node answers, else raise a `PeerError`."""
        self._call(Ping(), Done, lane, timeout_s)

    def stats(self) -> dict[str, float]:
        """Return the node's counters and gauges."""
        return self._call(Stats(), StatsReply, Lane.REALTIME).values

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self.peer.close()
        for letting_go in self._letting_go.values():
            letting_go.close()

    def _call(self, message: Message, wanted: type[M], lane: Lane, timeout_s: float | None = None) -> M:
        deadline = self.timeout_s if timeout_s is None else timeout_s
        reply, _ = self.peer.call(message, lane=lane, timeout_s=deadline)
        for letting_go in self._letting_go.values():
            letting_go.heard()
        return _expect(wanted, reply, self.name)

    def _let_go(self, message: Message, lane: Lane) -> None:
        """Send a request whose answer changes nothing."""
        self._letting_go[lane].send(
            message,
            patience_s=min(self.timeout_s, LET_GO_TIMEOUT_S),
            patience_behind_s=min(self.timeout_s, SILENT_TIMEOUT_S),
        )


def _expect(wanted: type[M], reply: Message, node: str) -> M:
    if not isinstance(reply, wanted):
        raise ProtocolError(f"node {node} answered {type(reply).__name__}, not {wanted.__name__}", node=node)
    return reply


def _partials(request: Attend, reply: Partials, payload: memoryview, node: str) -> NodePartials:
    import numpy as np

    rows = sum([query.rows for query in request.queries])
    scalars = rows * request.query_heads
    extra = 3 if request.debug else 1
    values = payload.nbytes // 4 - extra * scalars
    if (
        payload.nbytes % 4
        or not scalars
        or values < 0
        or values % scalars
        or len(reply.outcomes) != len(request.queries)
    ):
        raise ProtocolError(f"node {node} answered {payload.nbytes} bytes for {rows} rows", node=node)
    shape = (rows, request.query_heads)
    out = np.ndarray((*shape, values // scalars), np.float32, payload)
    rest = [np.ndarray(shape, np.float32, payload, 4 * (values + n * scalars)) for n in range(extra)]
    largest, exp_sum = rest[1:] if request.debug else (None, None)
    read = sum(query.blocks for query in request.queries) if reply.blocks_read is None else reply.blocks_read
    return NodePartials(reply.outcomes, out, rest[0], largest, exp_sum, reply.compute_s, read)
