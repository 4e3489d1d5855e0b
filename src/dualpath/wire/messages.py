"""The messages of the pool protocol: typed, msgpack-encoded by msgspec, arrays of fields for compactness.

Raw payloads (KV, queries, partials) are not in here: they follow a frame's message as bytes (see `frames`).
Every request has one reply: its own reply type, or `Failure`. All integers are unsigned unless stated.
"""

from __future__ import annotations

import enum

import msgspec

from dualpath.attention.base import Geometry as Geometry

PROTOCOL_VERSION = 1


class Lane(enum.IntEnum):
    """Traffic classes, highest priority first. Each lane has its own connections."""

    REALTIME = 0
    PREFETCH = 1
    BULK = 2


class Outcome(enum.IntEnum):
    """What became of one item of a transfer. Data, not an exception."""

    OK = 0
    LOST = 1
    TIMEOUT = 2
    CANCELLED = 3


class FailureCode(enum.StrEnum):
    """Why a request as a whole failed; each maps to one error of `dualpath.errors`."""

    PROTOCOL = "protocol"
    VERSION = "version"
    AUTH = "auth"
    FULL = "full"
    UNKNOWN_VIEW = "unknown-view"
    INVALID = "invalid"
    INTERNAL = "internal"


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages; the tag is the class name."""


# --- handshake ---------------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """Client to node, first frame of every connection. `nonce` is 32 random bytes.

    `owner` is random per client and the same on all its connections: blocks are pinned for it, for as long as it has a
    connection (and a short grace after the last). Empty: the connection is an owner of its own.
    """

    version: int
    lane: Lane
    tenant: str
    nonce: bytes
    owner: bytes = b""


class Challenge(Message, frozen=True):
    """Node to client. `proof` is the node's own MAC when `keyed`, so that the client also knows the node."""

    version: int
    keyed: bool
    nonce: bytes
    proof: bytes


class Proof(Message, frozen=True):
    """Client to node: the client's MAC (empty when the node is not keyed)."""

    mac: bytes


class Welcome(Message, frozen=True):
    """Node to client: the connection may be used. `instance` is random per process start.

    `rails` are all the addresses (`host:port`) at which the node takes connections, one for each of its NICs; empty
    where there is one only.
    """

    node: str
    instance: bytes
    rails: tuple[str, ...] = ()


# --- requests and replies ----------------------------------------------------------------------------------------


class SlotRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One layer block at a node: a fixed place in its arena for slots of this size, and that place's generation."""

    slot: int
    generation: int


class BlockKey(msgspec.Struct, frozen=True, array_like=True):
    """What a pool stores: the part of a block that one layer group keeps."""

    id: bytes
    group: int


class PrepareItem(msgspec.Struct, frozen=True, array_like=True):
    """Room wanted for one block of `tokens` tokens: `slots` slots (one per layer of the group) of `slot_bytes`."""

    key: BlockKey
    slots: int
    slot_bytes: int
    tokens: int


class Prepare(Message, frozen=True):
    """Reserve slots. All or none; a full pool is `Failure(FULL)`. Prepared slots are invisible to readers.

    `serial`, here and in `Commit`, `Abort` and `Drop`: in which order an owner made these requests over all its
    connections, upwards from 1. One that comes after a later one about the same block does not undo it: what was given
    up since is not reserved (`Failure(INVALID)`) or sealed (`LOST`), what is wanted since is not given up. 0: no order.
    """

    items: list[PrepareItem]
    serial: int = 0


class Prepared(Message, frozen=True):
    """Per item its slots in layer order. Empty: the block is there already, sealed, and now pinned (do not write)."""

    refs: list[list[SlotRef]]


class Write(Message, frozen=True):
    """Fill prepared slots; the payload is the slots' bytes one after another, `slot_bytes` each."""

    slot_bytes: int
    refs: list[SlotRef]


class Outcomes(Message, frozen=True):
    """Per item of the request what became of it."""

    outcomes: list[Outcome]


class Commit(Message, frozen=True):
    """Seal prepared blocks: from now on readers see them, and they never change. Pinned for this connection's owner.

    A key that is already sealed is pinned too. Reply `Outcomes`: `LOST` means neither prepared here nor sealed, or not
    fully written, or given up since (see `Prepare`).
    """

    keys: list[BlockKey]
    serial: int = 0


class Abort(Message, frozen=True):
    """Give prepared slots back. Unknown keys are ignored. Reply `Done`."""

    keys: list[BlockKey]
    serial: int = 0


class Resolve(Message, frozen=True):
    """Where are these blocks? Grants a lease of `ttl_s` seconds: slots under an unexpired lease are never reused."""

    keys: list[BlockKey]
    ttl_s: float


class Resolved(Message, frozen=True):
    """Per key its slots in layer order (empty: not here), and the tokens it holds. `lease` is extended by `Renew`."""

    lease: int
    refs: list[list[SlotRef]]
    tokens: list[int]


class Renew(Message, frozen=True):
    """Extend leases to `ttl_s` from now. `ttl_s` 0 gives them back. Reply `Outcomes`: `LOST` means already expired."""

    leases: list[int]
    ttl_s: float


class Read(Message, frozen=True):
    """Send slots. The reply is `Outcomes`; its payload holds the bytes of the `OK` ones only, in order."""

    slot_bytes: int
    refs: list[SlotRef]


class Drop(Message, frozen=True):
    """The owner no longer needs these blocks: unpin them, and forget those that no other owner pins once no lease or
    view covers them. Unknown keys are ignored. Reply `Done`."""

    keys: list[BlockKey]
    serial: int = 0


class ViewBlock(msgspec.Struct, frozen=True, array_like=True):
    """One block of a view: its key, the position of its first token in the sequence, and its length in tokens."""

    key: BlockKey
    position: int
    tokens: int


class ExtendView(Message, frozen=True):
    """Append blocks to a view (a sequence's block table at this node), creating it if `view` is new.

    Afterwards `Attend` names the view only, so that its bytes do not grow with the context. A view holds a lease on
    its blocks until `DropView` or the end of its connection's session. Reply `Outcomes`, one per block; or `Failure`
    `UNKNOWN_VIEW` if the view does not have `known` blocks (negative: not said), since it ended with a connection.
    """

    view: int
    group: int
    geometry: Geometry
    blocks: list[ViewBlock]
    known: int = -1


class DropView(Message, frozen=True):
    """Forget a view. Unknown views are ignored. Reply `Done`."""

    view: int


class ViewQuery(msgspec.Struct, frozen=True, array_like=True):
    """Rows `rows` of the payload attend to the first `blocks` blocks of `view`; the first row is at `position`.

    Blocks that lie wholly outside the attention window of all rows are skipped by the node.
    """

    view: int
    blocks: int
    rows: int
    position: int


class Attend(Message, frozen=True):
    """Partial attention near the data, for all sequences of a step at once. Lane REALTIME.

    `layer` indexes the layers of the views' group. Payload: q, float32 `[rows, query_heads, head_dim]`, rows of all
    `queries` one after another. Reply `Partials`.

    `read_fraction` below 1: a query of one row attends only to that share of its blocks (rounded up), the ones that the
    node finds most relevant to it and the one at position 0. A node that does not know the field reads all.
    """

    layer: int
    query_heads: int
    scale: float
    softcap: float
    window: int
    debug: bool
    queries: list[ViewQuery]
    read_fraction: float = 1.0


class Partials(Message, frozen=True):
    """Per view query its outcome. Payload: out float32 `[rows, query_heads, value_dim]`, then lse float32
    `[rows, query_heads]`; with `debug` in the request two more arrays like lse follow: max, and exp-sum.

    Rows of a query that is not `OK` are `(0, -inf)`. `compute_s`: seconds that the node's kernel took; 0: not told.
    `blocks_read`: blocks attended to, over all queries that are `OK`; `None`: all that were asked for.
    """

    outcomes: list[Outcome]
    compute_s: float = 0.0
    blocks_read: int | None = None


class Rank(Message, frozen=True):
    """Which blocks does each query need most? For whoever reads them then. Lane REALTIME. Fields and payload as in
    `Attend`, `read_fraction` too; every query has one row. Reply `Ranked`.
    """

    layer: int
    query_heads: int
    scale: float
    read_fraction: float
    queries: list[ViewQuery]


class Ranked(Message, frozen=True):
    """Per view query its outcome, and the blocks to read: their indices in the view, ascending. None if not `OK`."""

    outcomes: list[Outcome]
    chosen: list[list[int]]


class Map(Message, frozen=True):
    """Same host only (Unix socket): pass the tenant's arena of slots of this size as descriptors. Reply `Mapped`."""

    slot_bytes: int


class Mapped(Message, frozen=True):
    """With this reply come two read-only, sealed memfds (SCM_RIGHTS): the arena, `slots` x `slot_bytes`, and the
    generation table, `slots` little-endian uint64. A reader checks the generation after it has used a slot."""

    slots: int
    slot_bytes: int


class Ping(Message, frozen=True):
    """Are you there? Reply `Done`."""


class Done(Message, frozen=True):
    """Done, nothing to report."""


class Stats(Message, frozen=True):
    """Ask for the node's counters."""


class StatsReply(Message, frozen=True):
    """Counters and gauges by name, as on the management port."""

    values: dict[str, float]


class Failure(Message, frozen=True):
    """The request as a whole failed; nothing of it was done."""

    code: FailureCode
    message: str
    hint: str = ""


AnyMessage = (
    Hello | Challenge | Proof | Welcome
    | Prepare | Prepared | Write | Outcomes | Commit | Abort | Resolve | Resolved | Renew | Read | Drop
    | ExtendView | DropView | Attend | Partials | Rank | Ranked
    | Map | Mapped | Ping | Done | Stats | StatsReply | Failure
)  # fmt: skip
