"""The store of a node: which block is where, who needs it, and what may go. Pure: no lock, no memory, no sockets.

    prepare            write             commit                       drop, owner gone, eviction
    ───────▶ prepared ───────▶ written ─────────▶ sealed ──────────────────────────▶ gone (generation + 1)
                 └── abort, connection closed ──▶ gone

Readers see sealed blocks only, and those never change. A sealed block is kept by

    a pin     of an owner: one client over all its connections. Pinned blocks are never evicted. An owner without a
              connection keeps its pins for `grace_s`; then they lapse, so that a dead client leaks nothing.
    a lease   of `ttl_s` seconds, granted by `resolve`. Slots under an unexpired lease are never reused.
    a hold    of a view, of a read being sent or of a write being received, for as long as that lasts.

A block that nothing keeps stays, since somebody with the same prefix may want it, and is evicted, least recently used
first, when room is needed. Dropping a block's last pin forgets it as soon as nothing else keeps it.

Blocks are named by content, so two owners may prepare the same key at once. Each gets slots of its own; the first
commit wins; the other's commit succeeds too, gives its slots back and pins the block that is there.

Requests of one owner may overtake each other; `serial` says in which order they were made, see `order`.

Capacity counts the bytes of taken slots over all tenants and slot sizes. Pages of freed slots are kept for reuse as
long as all pages together fit into the capacity too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from dualpath.errors import PoolFullError, UsageError
from dualpath.pool.blocks import Block, Connection, Owner
from dualpath.pool.leases import Leases
from dualpath.pool.order import UNORDERED, overtaken
from dualpath.pool.owners import Owners
from dualpath.pool.slab import MakeMemory, Slab, Slabs
from dualpath.units import format_bytes
from dualpath.wire.messages import BlockKey, Outcome, PrepareItem, SlotRef

GRACE_S = 30.0
MAX_TTL_S = 3600.0
MAX_SLABS = 256
MAX_TENANT_SLABS = 64  # so that no tenant can take them all: they are not given back
MAX_LAYERS = 4096
MAX_ID_BYTES = 64


class BlockStore:
    """Blocks of all tenants of a node. Not thread-safe: the service has the lock. A method does all or nothing."""

    def __init__(
        self,
        capacity: int,
        make_memory: MakeMemory,
        clock: Callable[[], float],
        *,
        grace_s: float = GRACE_S,
        first_generation: int = 1,
    ) -> None:
        self.capacity = capacity
        self.used = 0
        self.evictions = 0
        self._clock = clock
        self._slabs = Slabs(capacity, make_memory, first_generation)
        self._at: dict[tuple[Slab, int], Block] = {}
        self._sealed: dict[tuple[str, BlockKey], Block] = {}
        self._prepared: dict[tuple[Owner, BlockKey], Block] = {}
        self._idle: OrderedDict[Block, None] = OrderedDict()  # sealed, kept by nothing; least recently used first
        self._idle_bytes = 0
        self._owners = Owners(grace_s)
        self._leases = Leases()

    # --- owners ----------------------------------------------------------------------------------------------

    def connect(self, tenant: str, owner: bytes) -> Connection:
        """A connection of `owner` opens (empty: an owner of its own)."""
        return self._owners.arrive(tenant, owner)

    def disconnect(self, connection: Connection) -> None:
        """It closed. With its owner's last connection what that has prepared is aborted, and `grace_s` later its pins
        lapse."""
        owner = connection.owner
        self._owners.leave(owner, self._clock())
        for block in [] if owner.connections else list(owner.prepared):
            self._abort(block)
        self.tick()

    # --- writing ---------------------------------------------------------------------------------------------

    def prepare(
        self, connection: Connection, items: Sequence[PrepareItem], *, serial: int = UNORDERED
    ) -> list[list[SlotRef]]:
        """Reserve slots for all items or none; see `wire.Prepare`. What this owner has prepared is returned again.

        Raises `PoolFullError` when the room that eviction could make does not suffice, `UsageError` for bad sizes, and
        for what the owner has given up since it asked.
        """
        self.tick()
        owner = connection.owner
        known: dict[BlockKey, Block] = {}
        fresh: dict[BlockKey, PrepareItem] = {}
        for item in items:
            self._check(item)
            if owner.given_up.since(item.key, serial):
                raise UsageError("a later request gave the block up", hint="prepare it again")
            block = self._sealed.get((owner.tenant, item.key)) or self._prepared.get((owner, item.key))
            if block is not None:
                if not block.sealed and (len(block.slots), block.slab.slot_bytes) != (item.slots, item.slot_bytes):
                    raise UsageError("block is already prepared with another shape", hint="abort it first")
                known[item.key] = block
            else:
                if fresh.setdefault(item.key, item) != item:
                    raise UsageError("one block is wanted twice with different shapes")
        self._check_slabs(owner, {item.slot_bytes for item in fresh.values()})
        wanted = sum(item.slots * item.slot_bytes for item in fresh.values())
        kept = sum(block.bytes for block in known.values() if block in self._idle)
        if self.used - self._idle_bytes + kept + wanted > self.capacity:
            raise PoolFullError(
                f"pool is full: {format_bytes(wanted)} wanted, {format_bytes(self.used)} used of "
                f"{format_bytes(self.capacity)}, {format_bytes(self._idle_bytes - kept)} of it evictable",
                hint="add nodes, raise --capacity, or drop sequences",
            )
        slabs = {item.slot_bytes: self._slabs.open(owner.tenant, item.slot_bytes) for item in fresh.values()}
        for block in known.values():
            if block.sealed:
                self._pin(block, owner, serial)
            else:
                self._prepared_by(block, connection.owner, serial)
        while self.used + wanted > self.capacity:
            self.evictions += 1
            oldest = next(iter(self._idle))
            oldest.doomed = True
            self._settle(oldest)
        for item in fresh.values():
            self._allocate(connection, item, slabs[item.slot_bytes], serial)
        blocks = [self._sealed.get((owner.tenant, i.key)) or self._prepared[owner, i.key] for i in items]
        return [[] if block.sealed else block.refs() for block in blocks]

    def begin_write(self, connection: Connection, slot_bytes: int, refs: Sequence[SlotRef]) -> list[Block | None]:
        """Hold the prepared blocks that `refs` belong to, until `end_write`; `None`: not this owner's."""
        slab = self._slabs.find(connection.owner.tenant, slot_bytes)
        blocks: list[Block | None] = []
        for ref in refs:
            block = self._at.get((slab, ref.slot)) if slab is not None and slab.matches(ref) else None
            if block is not None and self._prepared.get((connection.owner, block.key)) is not block:
                block = None
            if block is not None:
                block.holds += 1
            blocks.append(block)
        return blocks

    def end_write(self, refs: Sequence[SlotRef], blocks: Sequence[Block | None], *, complete: bool) -> list[Outcome]:
        """The bytes have landed (or not): let go, and note which slots are filled."""
        outcomes = []
        for ref, block in zip(refs, blocks, strict=True):
            good = complete and block is not None and not block.doomed
            if good and block is not None:
                block.unwritten.discard(ref.slot)
            outcomes.append(Outcome.OK if good else Outcome.LOST)
        self.release(block for block in blocks if block is not None)
        return outcomes

    def commit(self, connection: Connection, keys: Sequence[BlockKey], *, serial: int = UNORDERED) -> list[Outcome]:
        """Seal what this owner has prepared and fully written, and pin it. Per key, as in `wire.Commit`."""
        self.tick()
        return [self._commit(connection.owner, key, serial) for key in keys]

    def abort(self, connection: Connection, keys: Sequence[BlockKey], *, serial: int = UNORDERED) -> None:
        """Give prepared slots back."""
        owner = connection.owner
        for key in _possible(keys):
            owner.given_up.note(key, serial)
            block = self._prepared.get((owner, key))
            if block is not None and not overtaken(serial, block.prepared_at):
                self._abort(block)

    def drop(self, connection: Connection, keys: Sequence[BlockKey], *, serial: int = UNORDERED) -> None:
        """Take the owner's pins away; a block without any is forgotten as soon as nothing keeps it."""
        self.tick()
        owner = connection.owner
        for key in _possible(keys):
            owner.given_up.note(key, serial)
            block = self._sealed.get((owner.tenant, key))
            if block is not None and block in owner.pinned and not overtaken(serial, owner.pinned[block]):
                self._unpin(block, owner)
                block.doomed = not block.pins
                self._settle(block)

    # --- reading ---------------------------------------------------------------------------------------------

    def resolve(self, tenant: str, keys: Sequence[BlockKey], ttl_s: float) -> tuple[int, list[Block | None]]:
        """Return a lease over those of `keys` that are sealed here, and the blocks."""
        self._check_ttl(ttl_s)
        self.tick()
        found = [self._sealed.get((tenant, key)) for key in keys]
        blocks = tuple({block: None for block in found if block is not None})
        for block in blocks:
            block.leases += 1
            self._settle(block)
        return self._leases.grant(tenant, blocks, self._clock() + ttl_s), found

    def renew(self, tenant: str, leases: Sequence[int], ttl_s: float) -> list[Outcome]:
        """Move the end of leases to `ttl_s` from now; 0 ends them."""
        self._check_ttl(ttl_s)
        self.tick()
        end = self._clock() + ttl_s
        moved = [self._leases.move(lease, tenant, end) for lease in leases]
        self.tick()
        return [Outcome.OK if found else Outcome.LOST for found in moved]

    def hold(self, tenant: str, keys: Sequence[BlockKey]) -> list[Block | None]:
        """Hold sealed blocks until `release`; `None` for what is not here."""
        self.tick()
        return [self._hold(self._sealed.get((tenant, key))) for key in keys]

    def hold_slots(self, tenant: str, slot_bytes: int, refs: Sequence[SlotRef]) -> list[Block | None]:
        """Hold the sealed blocks that `refs` belong to until `release`; `None` for a stale or unsealed slot."""
        slab = self._slabs.find(tenant, slot_bytes)
        blocks = (self._at.get((slab, ref.slot)) if slab is not None and slab.matches(ref) else None for ref in refs)
        return [self._hold(block if block is not None and block.sealed else None) for block in blocks]

    def release(self, blocks: Iterable[Block]) -> None:
        """End one hold per block named."""
        for block in blocks:
            block.holds -= 1
            if not (block.holds or block.pins):
                self._settle(block)

    # --- time and numbers ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let what has run out by now lapse: leases, and pins of owners that stayed away."""
        now = self._clock()
        for leased in self._leases.lapse(now):
            leased.leases -= 1
            self._settle(leased)
        for owner in self._owners.give_up(now):
            for block in list(owner.pinned):
                self._unpin(block, owner)
                self._settle(block)

    def gauges(self) -> dict[str, float]:
        """Return what the node holds at the moment, by metric name."""
        return {
            "capacity_bytes": self.capacity,
            "used_bytes": self.used,
            "evictable_bytes": self._idle_bytes,
            "slots": self._slabs.taken,
            "blocks_sealed": len(self._sealed),
            "blocks_prepared": len(self._prepared),
            "leases": len(self._leases),
            "owners": len(self._owners),
            "evictions_total": self.evictions,
        }

    # --- inside ----------------------------------------------------------------------------------------------

    def _check(self, item: PrepareItem) -> None:
        if not 1 <= item.slots <= MAX_LAYERS or item.slot_bytes < 1 or item.tokens < 1:
            raise UsageError(f"no such block: {item.slots} slots of {item.slot_bytes} bytes, {item.tokens} tokens")
        if not 1 <= len(item.key.id) <= MAX_ID_BYTES:
            raise UsageError(f"a block id has 1 to {MAX_ID_BYTES} bytes, not {len(item.key.id)}")

    def _check_slabs(self, owner: Owner, sizes: set[int]) -> None:
        new = sum(self._slabs.find(owner.tenant, slot_bytes) is None for slot_bytes in sizes)
        own, every = self._slabs.count(owner.tenant), len(self._slabs)
        for who, has, most in (("this tenant", own, MAX_TENANT_SLABS), ("this node", every, MAX_SLABS)):
            if new and has + new > most:
                raise UsageError(
                    f"{new} new kinds of slots, and {who} already has {has} of at most {most}",
                    hint="use fewer block sizes",
                )

    def _check_ttl(self, ttl_s: float) -> None:
        if not 0.0 <= ttl_s <= MAX_TTL_S:
            raise UsageError(f"a lease lasts 0 to {MAX_TTL_S:.0f} s, not {ttl_s}")

    def _allocate(self, connection: Connection, item: PrepareItem, slab: Slab, serial: int) -> None:
        self._slabs.make_pages(slab, item.slots, self.used)
        slots = tuple(slab.take() for _ in range(item.slots))
        block = Block(connection.owner.tenant, item.key, item.tokens, slab, slots, set(slots))
        self.used += block.bytes
        self._at.update(((slab, slot), block) for slot in slots)
        self._prepared[connection.owner, item.key] = block
        self._prepared_by(block, connection.owner, serial)

    def _commit(self, owner: Owner, key: BlockKey, serial: int) -> Outcome:
        if owner.given_up.since(key, serial):
            return Outcome.LOST
        mine, there = self._prepared.get((owner, key)), self._sealed.get((owner.tenant, key))
        if there is None and (mine is None or mine.unwritten):
            return Outcome.LOST
        if mine is not None:
            if there is None:
                self._unprepare(mine)
                mine.sealed = True
                self._sealed[owner.tenant, key] = there = mine
            else:
                self._abort(mine)
        assert there is not None
        self._pin(there, owner, serial)
        return Outcome.OK

    def _prepared_by(self, block: Block, owner: Owner, serial: int) -> None:
        owner.prepared.add(block)
        block.prepared_by = owner
        block.prepared_at = max(block.prepared_at, serial)

    def _unprepare(self, block: Block) -> None:
        owner = block.prepared_by
        assert owner is not None
        del self._prepared[owner, block.key]
        owner.prepared.discard(block)
        block.prepared_by = None

    def _abort(self, block: Block) -> None:
        self._unprepare(block)
        block.doomed = True
        self._settle(block)

    def _pin(self, block: Block, owner: Owner, serial: int) -> None:
        block.pins.add(owner)
        owner.pinned[block] = max(serial, owner.pinned.get(block, UNORDERED))
        block.doomed = False
        self._settle(block)

    def _unpin(self, block: Block, owner: Owner) -> None:
        block.pins.discard(owner)
        owner.pinned.pop(block, None)

    def _hold(self, block: Block | None) -> Block | None:
        if block is not None:
            block.holds += 1
            if block in self._idle:
                self._settle(block)
        return block

    def _settle(self, block: Block) -> None:
        """Put a block where what keeps it says it belongs: kept, idle, or gone. Idle again means most recently used."""
        if block in self._idle:
            del self._idle[block]
            self._idle_bytes -= block.bytes
        if block.holds or block.leases or block.pins:
            return
        if block.doomed:
            self._free(block)
        elif block.sealed:
            self._idle[block] = None
            self._idle_bytes += block.bytes

    def _free(self, block: Block) -> None:
        if block.sealed:
            del self._sealed[block.tenant, block.key]
        for slot in block.slots:
            del self._at[block.slab, slot]
            block.slab.give(slot)
        self.used -= block.bytes


def _possible(keys: Iterable[BlockKey]) -> Iterable[BlockKey]:
    """Return those that can have been prepared: what is remembered of the others could be of any size."""
    return (key for key in keys if len(key.id) <= MAX_ID_BYTES)
