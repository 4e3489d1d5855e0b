"""The store against a model: whatever clients do in whatever order, nothing promised is lost and nothing leaks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from dualpath.errors import PoolFullError, UsageError
from dualpath.pool.blocks import Block, Connection
from dualpath.pool.store import BlockStore
from dualpath.testing.node import FakeClock, block_key
from dualpath.wire.messages import Outcome, PrepareItem, SlotRef

CAPACITY = 12
GRACE_S = 10.0
keys = st.integers(0, 4)
owners = st.sampled_from([b"a", b"b"])


def size_of(number: int) -> int:
    """A block's slot size goes with its number, so that both sizes compete."""
    return 1 + number % 2


class ListMemory:
    def __init__(self, tenant: str, slots: int, slot_bytes: int) -> None:
        self.slots, self.slot_bytes = slots, slot_bytes
        self.generations = [0] * slots
        self.pages: set[int] = set()

    def discard(self, slot: int) -> None:
        self.pages.discard(slot)


@dataclass
class Client:
    """What one connection believes."""

    connection: Connection
    owner: bytes
    prepared: dict[int, list[SlotRef]] = field(default_factory=dict)


@dataclass
class Promise:
    """Something that keeps a block: until `end`, or until it is let go."""

    number: int
    refs: list[SlotRef]
    slot_bytes: int
    end: float
    block: Block | None = None


class StoreMachine(RuleBasedStateMachine):
    clients = Bundle("clients")
    leases = Bundle("leases")
    holds = Bundle("holds")
    late = Bundle("late")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.memories: list[ListMemory] = []
        self.serials = itertools.count(1)
        self.store = BlockStore(CAPACITY, self.make_memory, self.clock, grace_s=GRACE_S)
        self.promises: list[Promise] = []
        self.pins: dict[tuple[bytes, int], list[SlotRef]] = {}  # of owners that are here

    def make_memory(self, tenant: str, slots: int, slot_bytes: int) -> ListMemory:
        self.memories.append(ListMemory(tenant, slots, slot_bytes))
        return self.memories[-1]

    def lapse(self) -> None:
        self.promises = [p for p in self.promises if p.end > self.clock.now]

    @initialize(target=clients)
    def two_clients(self) -> MultipleResults[Client]:
        return multiple(self.connect(b"a"), self.connect(b"b"))

    @rule(target=clients, owner=owners)
    def connect(self, owner: bytes) -> Client:
        self.lapse()
        return Client(self.store.connect("t", owner), owner)

    @rule(client=consumes(clients))
    def disconnect(self, client: Client) -> None:
        self.lapse()
        self.store.disconnect(client.connection)
        if not client.connection.owner.connections:  # it may come back in time, which this model does not follow
            self.pins = {pin: refs for pin, refs in self.pins.items() if pin[0] != client.owner}

    @rule(client=clients, number=keys, slots=st.integers(2, 4))
    def prepare(self, client: Client, number: int, slots: int) -> None:
        self.lapse()
        before, size = self.store.used, size_of(number)
        try:
            (refs,) = self.store.prepare(
                client.connection, [PrepareItem(block_key(number), slots, size, 1)], serial=next(self.serials)
            )
        except PoolFullError:
            assert self.store.used == before
            return
        except UsageError:  # it is prepared with another shape
            return
        for memory in self.memories:
            if memory.slot_bytes == size:
                memory.pages |= {ref.slot for ref in refs}
        client.prepared[number] = refs

    @rule(client=clients, number=keys, write=st.booleans())
    def commit(self, client: Client, number: int, write: bool) -> None:
        self.lapse()
        refs, key = client.prepared.get(number, []), block_key(number)
        if write:
            blocks = self.store.begin_write(client.connection, size_of(number), refs)
            self.store.end_write(refs, blocks, complete=True)
        (outcome,) = self.store.commit(client.connection, [key], serial=next(self.serials))
        block = self.store.resolve("t", [key], 0.0)[1][0]
        assert (block is not None) == (outcome is Outcome.OK)
        if block is not None:
            self.pins[client.owner, number] = block.refs()

    @rule(client=clients, number=keys, slots=st.integers(2, 4))
    def put(self, client: Client, number: int, slots: int) -> None:
        self.prepare(client, number, slots)
        self.commit(client, number, write=True)

    @rule(client=clients, number=keys)
    def abort_or_drop(self, client: Client, number: int) -> None:
        self.give_up(client, number, next(self.serials))
        self.pins.pop((client.owner, number), None)

    def give_up(self, client: Client, number: int, serial: int) -> None:
        self.store.abort(client.connection, [block_key(number)], serial=serial)
        self.store.drop(client.connection, [block_key(number)], serial=serial)

    @rule(target=late, client=clients, number=keys)
    def put_while_a_drop_is_on_its_way(self, client: Client, number: int) -> tuple[bytes, int, int]:
        serial = next(self.serials)
        self.pins.pop((client.owner, number), None)
        self.put(client, number, slots=2)
        return client.owner, number, serial

    @rule(client=clients, drop=late)
    def drop_arrives(self, client: Client, drop: tuple[bytes, int, int]) -> None:
        """It may come by any connection of its owner, more than once, and takes nothing that is wanted since."""
        owner, number, serial = drop
        if client.owner == owner:
            self.give_up(client, number, serial)

    @rule(target=leases, number=keys, ttl_s=st.sampled_from([1.0, 5.0]))
    def resolve(self, number: int, ttl_s: float) -> int:
        self.lapse()
        lease, (block,) = self.store.resolve("t", [block_key(number)], ttl_s)
        if block is not None:
            self.promises.append(Promise(lease, block.refs(), size_of(number), self.clock.now + ttl_s))
        return lease

    @rule(lease=leases, ttl_s=st.sampled_from([0.0, 5.0]))
    def renew(self, lease: int, ttl_s: float) -> None:
        self.lapse()
        (outcome,) = self.store.renew("t", [lease], ttl_s)
        for promise in self.promises:
            if promise.number == lease:
                assert outcome is Outcome.OK
                promise.end = self.clock.now + ttl_s
        self.lapse()

    @rule(target=holds, number=keys)
    def hold(self, number: int) -> Promise | None:
        (block,) = self.store.hold("t", [block_key(number)])
        if block is None:
            return None
        promise = Promise(-1, block.refs(), size_of(number), float("inf"), block)
        self.promises.append(promise)
        return promise

    @rule(target=holds, client=clients, number=keys)
    def put_and_hold(self, client: Client, number: int) -> Promise | None:
        self.put(client, number, slots=2)
        return self.hold(number)

    @rule(promise=consumes(holds))
    def release(self, promise: Promise | None) -> None:
        if promise is not None and promise.block is not None:
            self.promises.remove(promise)
            self.store.release([promise.block])

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.lapse()
        self.store.tick()

    @invariant()
    def promised_slots_are_intact(self) -> None:
        for promise in self.promises:
            blocks = self.store.hold_slots("t", promise.slot_bytes, promise.refs)
            assert None not in blocks
            self.store.release(block for block in blocks if block is not None)

    @invariant()
    def pinned_blocks_are_where_they_were(self) -> None:
        for (_, number), refs in self.pins.items():
            _, (block,) = self.store.resolve("t", [block_key(number)], 0.0)
            assert block is not None
            assert block.refs() == refs

    @invariant()
    def the_books_balance(self) -> None:
        gauges = self.store.gauges()
        assert 0 <= gauges["evictable_bytes"] <= gauges["used_bytes"] <= CAPACITY
        taken = list(self.store._at)
        assert gauges["slots"] == len(taken)
        assert gauges["used_bytes"] == sum(slab.slot_bytes for slab, _ in taken)

    @invariant()
    def all_pages_fit(self) -> None:
        assert sum(len(memory.pages) * memory.slot_bytes for memory in self.memories) <= CAPACITY

    def teardown(self) -> None:
        """When everybody has gone and time has passed, all room can be had again."""
        self.store.release(promise.block for promise in self.promises if promise.block is not None)
        for owner in list(self.store._owners._owners.values()):
            while owner.connections:
                self.store.disconnect(Connection(owner))
        self.clock.now += 10_000.0
        last = self.store.connect("t", b"last")
        assert self.store.prepare(last, [PrepareItem(block_key(99), CAPACITY, 1, 1)])[0]


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
