"""The service of a node: each request of the pool protocol, answered over the store and the arenas.

    store      who has what, under one lock that is held for bookkeeping only, never while bytes move
    arenas     where the bytes are: reads are sent straight from them, writes are received straight into them,
               attention is computed in place
    session    one connection of a client: its views end with it, what the client prepared with its last one

Views are named per connection: a client sends `ExtendView`, `DropView`, `Attend` and `Rank` on the same one (REALTIME).
What a request touches is held until its reply has been sent, so that no slot is reused under a transfer.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dualpath.errors import DualPathError, UsageError
from dualpath.host.scheduling import ordinary
from dualpath.pool import near
from dualpath.pool.arena import Arena, SharedArena
from dualpath.pool.blocks import Block, Connection
from dualpath.pool.meter import Meter
from dualpath.pool.store import GRACE_S, BlockStore
from dualpath.pool.views import View
from dualpath.transport.base import Reply, Session
from dualpath.transport.stream import room
from dualpath.wire import messages as wire
from dualpath.wire.failures import UnknownViewError
from dualpath.wire.messages import Message, Outcome, Outcomes, Write

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_VIEWS = 65536
MANY_KEYS = 64
"""A request that names more than this many blocks is work, not a message: docs/adr/0006-real-time-threads.md."""

MOST_NAMED = 1 << 17
"""No request names more than this many things: each is looked up under the lock, for which all other clients wait."""
_NAMING = {
    wire.Prepare: "items", Write: "refs", wire.Commit: "keys", wire.Abort: "keys", wire.Resolve: "keys",
    wire.Renew: "leases", wire.Read: "refs", wire.Drop: "keys", wire.ExtendView: "blocks", wire.Attend: "queries",
    wire.Rank: "queries",
}  # fmt: skip


@dataclass
class Landing:
    """A write whose bytes are being received: the request, per slot its held block, and where the bytes go."""

    request: Write
    blocks: list[Block | None]
    places: list[memoryview]


@dataclass
class Client:
    """What the service keeps of a connection."""

    connection: Connection
    views: dict[int, View] = field(default_factory=dict)
    landing: Landing | None = None


class PoolService:
    """A node without its sockets: a `transport.Service`. `threads` is what one `Attend` may use; 0: all cores."""

    def __init__(
        self,
        capacity: int,
        *,
        threads: int = 0,
        arena_type: type[Arena] = SharedArena,
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.threads = threads
        self._arena_type = arena_type
        self.meter = Meter()
        self._lock = threading.Lock()
        self._arenas: dict[tuple[str, int], Arena] = {}
        self._store = BlockStore(
            capacity, self._make_arena, clock, grace_s=grace_s, first_generation=1 + secrets.randbits(32)
        )
        self._views = 0
        self._answers: dict[type[Message], Callable[[Session, Any, memoryview], Reply]] = {
            wire.Prepare: self._prepare,
            Write: self._write,
            wire.Commit: self._commit,
            wire.Abort: self._abort,
            wire.Resolve: self._resolve,
            wire.Renew: self._renew,
            wire.Read: self._read,
            wire.Drop: self._drop,
            wire.ExtendView: self._extend_view,
            wire.DropView: self._drop_view,
            wire.Attend: self._attend,
            wire.Rank: self._rank,
            wire.Map: self._map,
            wire.Ping: lambda *_: Reply(wire.Done()),
            wire.Stats: lambda *_: Reply(wire.StatsReply(self.stats())),
        }

    # --- transport.Service -----------------------------------------------------------------------------------

    def handle(self, session: Session, message: Message, payload: memoryview) -> Reply:
        """Answer one request; see `wire.messages` for what each does."""
        answer = self._answers.get(type(message))
        name = type(message).__name__.lower()
        if answer is None:
            raise UsageError(f"{name} is not a request to a pool node")
        _check_named(message)
        started, received = time.perf_counter(), payload.nbytes
        if self._client(session).landing is not None and isinstance(message, Write):
            received = message.slot_bytes * len(message.refs)
        try:
            with ordinary() if _names_many(message) else contextlib.nullcontext():
                reply = answer(session, message, payload)
        except DualPathError:
            self.meter.observe(name, time.perf_counter() - started, bytes_in=received, failures=1)
            raise
        outcomes: Sequence[Outcome] = getattr(reply.message, "outcomes", ())
        self.meter.observe(
            name,
            time.perf_counter() - started,
            bytes_in=received,
            bytes_out=sum([part.nbytes for part in reply.payload]),
            lost=len(outcomes) - outcomes.count(Outcome.OK),
        )
        return reply

    def sink(self, session: Session, message: Message, payload_bytes: int) -> Sequence[memoryview] | None:
        """Let the bytes of a `Write` land in their slots; those of a slot that is not the writer's land nowhere."""
        if not isinstance(message, Write) or payload_bytes != message.slot_bytes * len(message.refs):
            return None
        _check_named(message)
        landing = self._client(session).landing = self._begin_write(session, message)
        return landing.places

    def closed(self, session: Session) -> None:
        """Drop the connection's views, and with the client's last one what that had prepared."""
        client: Client | None = session.state.pop("pool", None)
        if client is None:
            return
        with self._lock:
            if client.landing is not None:
                self._store.end_write(client.landing.request.refs, client.landing.blocks, complete=False)
            for view in client.views.values():
                self._store.release(view.held)
            self._views -= len(client.views)
            self._store.disconnect(client.connection)

    # --- for the server --------------------------------------------------------------------------------------

    def arena(self, tenant: str, slot_bytes: int) -> Arena | None:
        """Return the tenant's arena for slots of this size, if it has one by now."""
        return self._arenas.get((tenant, slot_bytes))

    def stats(self) -> dict[str, float]:
        """Return all counters and gauges by name."""
        with self._lock:
            self._store.tick()
            own = {"views": self._views, "cpu_seconds_total": time.process_time()}
            return {**self._store.gauges(), **own, **self.meter.counters()}

    def close(self) -> None:
        """Let go of the memory. No request may follow."""
        for arena in self._arenas.values():
            arena.close()

    # --- requests --------------------------------------------------------------------------------------------

    def _prepare(self, session: Session, message: wire.Prepare, payload: memoryview) -> Reply:
        client = self._client(session)
        with self._lock:
            return Reply(wire.Prepared(self._store.prepare(client.connection, message.items, serial=message.serial)))

    def _write(self, session: Session, message: Write, payload: memoryview) -> Reply:
        client = self._client(session)
        landing, client.landing = client.landing, None
        if landing is None:
            expected = message.slot_bytes * len(message.refs)
            if payload.nbytes != expected:
                raise UsageError(f"a write of {len(message.refs)} slots has {payload.nbytes} bytes, not {expected}")
            landing = self._begin_write(session, message)
            start = 0
            for place in landing.places:
                place[:] = payload[start : start + place.nbytes]
                start += place.nbytes
        with self._lock:
            return Reply(Outcomes(self._store.end_write(message.refs, landing.blocks, complete=True)))

    def _commit(self, session: Session, message: wire.Commit, payload: memoryview) -> Reply:
        client = self._client(session)
        with self._lock:
            return Reply(Outcomes(self._store.commit(client.connection, message.keys, serial=message.serial)))

    def _abort(self, session: Session, message: wire.Abort, payload: memoryview) -> Reply:
        client = self._client(session)
        with self._lock:
            self._store.abort(client.connection, message.keys, serial=message.serial)
        return Reply(wire.Done())

    def _drop(self, session: Session, message: wire.Drop, payload: memoryview) -> Reply:
        client = self._client(session)
        with self._lock:
            self._store.drop(client.connection, message.keys, serial=message.serial)
        return Reply(wire.Done())

    def _resolve(self, session: Session, message: wire.Resolve, payload: memoryview) -> Reply:
        with self._lock:
            lease, _ = self._store.resolve(session.tenant, message.keys, message.ttl_s)
            blocks = self._store.hold(session.tenant, message.keys)  # for as long as their slots are being named
        refs = [[] if block is None else block.refs() for block in blocks]
        self._release([block for block in blocks if block is not None])
        return Reply(wire.Resolved(lease, refs, [0 if block is None else block.tokens for block in blocks]))

    def _renew(self, session: Session, message: wire.Renew, payload: memoryview) -> Reply:
        with self._lock:
            return Reply(Outcomes(self._store.renew(session.tenant, message.leases, message.ttl_s)))

    def _read(self, session: Session, message: wire.Read, payload: memoryview) -> Reply:
        with self._lock:
            blocks = self._store.hold_slots(session.tenant, message.slot_bytes, message.refs)
        outcomes = [Outcome.LOST if block is None else Outcome.OK for block in blocks]
        held = [block for block in blocks if block is not None]
        if not held:
            return Reply(Outcomes(outcomes))
        view = self._arenas[session.tenant, message.slot_bytes].view
        parts = [view(ref.slot) for ref, block in zip(message.refs, blocks, strict=True) if block is not None]
        return Reply(Outcomes(outcomes), parts, lambda: self._release(held))

    def _extend_view(self, session: Session, message: wire.ExtendView, payload: memoryview) -> Reply:
        client = self._client(session)
        view = client.views.get(message.view)
        has = 0 if view is None else view.count
        if message.known not in (-1, has):
            raise UnknownViewError(f"view {message.view} has {has} blocks here, not {message.known}")
        if view is None:
            if len(client.views) >= MAX_VIEWS:
                raise UsageError(f"a connection has at most {MAX_VIEWS} views", hint="drop views of ended sequences")
            view = View(message.group, message.geometry)
        view.check(message.group, message.geometry, message.blocks)
        with self._lock:
            blocks = self._store.hold(session.tenant, [block.key for block in message.blocks])
        try:
            outcomes = view.append(message.blocks, blocks)
        except UsageError:
            self._release([block for block in blocks if block is not None])
            raise
        if message.view not in client.views:
            client.views[message.view] = view
            with self._lock:
                self._views += 1
        return Reply(Outcomes(outcomes))

    def _drop_view(self, session: Session, message: wire.DropView, payload: memoryview) -> Reply:
        view = self._client(session).views.pop(message.view, None)
        if view is not None:
            self._release(view.held)
            with self._lock:
                self._views -= 1
        return Reply(wire.Done())

    def _attend(self, session: Session, message: wire.Attend, payload: memoryview) -> Reply:
        views = self._client(session).views
        return near.answer(message, payload, views, self._buffer(session, message, views), threads=self.threads)

    def _rank(self, session: Session, message: wire.Rank, payload: memoryview) -> Reply:
        views = self._client(session).views
        return near.ranked(message, payload, views, self._buffer(session, message, views))

    def _map(self, session: Session, message: wire.Map, payload: memoryview) -> Reply:
        arena = self.arena(session.tenant, message.slot_bytes)
        if arena is None:
            raise UsageError(f"this tenant has no slots of {message.slot_bytes} bytes here", hint="write blocks first")
        if not isinstance(arena, SharedArena):
            raise UsageError("this node does not share its memory", hint="start it with --socket PATH")
        with self._lock:  # the first to ask opens them
            descriptors = arena.descriptors()
        return Reply(wire.Mapped(arena.slots, arena.slot_bytes), descriptors=descriptors)

    # --- inside ----------------------------------------------------------------------------------------------

    def _client(self, session: Session) -> Client:
        client: Client | None = session.state.get("pool")
        if client is None:
            with self._lock:
                client = session.state["pool"] = Client(self._store.connect(session.tenant, session.owner))
        return client

    def _begin_write(self, session: Session, message: Write) -> Landing:
        client = self._client(session)
        with self._lock:
            blocks = self._store.begin_write(client.connection, message.slot_bytes, message.refs)
        try:
            return Landing(message, blocks, self._places(session, message, blocks))
        except BaseException:  # no memory for what lands nowhere
            with self._lock:
                self._store.end_write(message.refs, blocks, complete=False)
            raise

    def _places(self, session: Session, message: Write, blocks: Sequence[Block | None]) -> list[memoryview]:
        arena = self._arenas.get((session.tenant, message.slot_bytes))
        nowhere = room(message.slot_bytes) if None in blocks else memoryview(b"")
        return [
            nowhere if arena is None or block is None else arena.view(ref.slot)
            for ref, block in zip(message.refs, blocks, strict=True)
        ]

    def _buffer(self, session: Session, message: wire.Attend | wire.Rank, views: dict[int, View]) -> NDArray[np.uint8]:
        """Return the arena of the views that `message` is about; nothing if there is none."""
        import numpy as np

        first = views.get(message.queries[0].view) if message.queries else None
        arena = self._arenas.get((session.tenant, first.slot_bytes)) if first is not None else None
        return np.empty(0, np.uint8) if arena is None else arena.array

    def _release(self, blocks: Sequence[Block]) -> None:
        with self._lock:
            self._store.release(blocks)

    def _make_arena(self, tenant: str, slots: int, slot_bytes: int) -> Arena:
        """Called by the store, under the lock."""
        arena = self._arenas[tenant, slot_bytes] = self._arena_type(slots, slot_bytes)
        return arena


def _check_named(message: Message) -> None:
    field = _NAMING.get(type(message))
    if field is not None and (count := len(getattr(message, field))) > MOST_NAMED:
        raise UsageError(f"a request may name {MOST_NAMED} things, not {count}", hint="split the request")


def _names_many(message: Message) -> bool:
    named: Sequence[object] = getattr(message, "keys", ()) or getattr(message, "blocks", ())
    return len(named) > MANY_KEYS
