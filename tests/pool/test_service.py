"""The service, called directly: blocks, leases, eviction, and what malformed requests do."""

from __future__ import annotations

import contextlib
import os
import tracemalloc
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from dualpath.errors import PoolFullError, UsageError
from dualpath.pool import service as service_module
from dualpath.pool.arena import Arena
from dualpath.pool.blocks import Block
from dualpath.pool.service import MANY_KEYS, MOST_NAMED, PoolService
from dualpath.testing.node import DirectConnection as Wire
from dualpath.testing.node import FakeClock
from dualpath.testing.node import block_key as key
from dualpath.transport.peer import WRITE_ITEMS
from dualpath.wire.messages import (
    Abort,
    BlockKey,
    Commit,
    Done,
    Drop,
    ExtendView,
    Geometry,
    Hello,
    Lane,
    Map,
    Mapped,
    Outcome,
    Ping,
    Prepare,
    PrepareItem,
    Read,
    Renew,
    Resolve,
    SlotRef,
    Stats,
    ViewBlock,
    Write,
)

OK, LOST = Outcome.OK, Outcome.LOST
KIB = 1024


def item(number: int, slots: int = 2, slot_bytes: int = KIB) -> PrepareItem:
    return PrepareItem(key(number), slots, slot_bytes, 4)


def fill(byte: int, slots: int = 2) -> list[bytes]:
    return [bytes([byte + i]) * KIB for i in range(slots)]


def test_a_write_to_nowhere_that_has_not_come_takes_no_memory(wire: Wire) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    places = wire.service.sink(wire.session, Write(1 << 28, [SlotRef(0, 1)]), 1 << 28)
    assert places is not None
    assert sum(place.nbytes for place in places) == 1 << 28
    assert process.memory_info().rss - before < 1 << 26


def test_a_view_of_very_many_layers_takes_little_more_than_its_blocks() -> None:
    service = PoolService(KIB * KIB, arena_type=Arena)
    wire, layers = Wire(service, owner=b"a"), 4096
    wire.put(key(1), [bytes(4)] * layers, tokens=1)
    geometry = Geometry(1, 1, 1, 1, "float32", True)
    tracemalloc.start()
    for view in range(8):
        assert wire.call(ExtendView(view, 0, geometry, [ViewBlock(key(1), 0, 1)]))[0].outcomes == [OK]
    assert tracemalloc.get_traced_memory()[0] < 8 * 4 * 8 * layers
    tracemalloc.stop()
    wire.close()
    service.close()


def test_a_write_for_which_there_is_no_memory_keeps_nothing(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = wire.call(Prepare([item(1)]))[0].refs[0]

    def no_room(count: int) -> memoryview:
        raise MemoryError

    monkeypatch.setattr(service_module, "room", no_room)
    with pytest.raises(MemoryError):
        wire.call(Write(KIB, [*refs, SlotRef(99, 1)]), bytes(3 * KIB))
    assert wire.call(Write(KIB, refs), bytes(2 * KIB))[0].outcomes == [OK, OK]
    wire.call(Abort([key(1)]))
    assert wire.service.stats()["used_bytes"] == 0


@pytest.mark.parametrize(
    "message",
    [
        Prepare([item(1)] * (MOST_NAMED + 1)),
        Write(1, [SlotRef(0, 1)] * (MOST_NAMED + 1)),
        Read(1, [SlotRef(0, 1)] * (MOST_NAMED + 1)),
        Renew([1] * (MOST_NAMED + 1), 1.0),
        *(kind([key(1)] * (MOST_NAMED + 1)) for kind in (Commit, Abort, Drop)),
        Resolve([key(1)] * (MOST_NAMED + 1), 1.0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_request_that_names_too_much_is_refused(wire: Wire, message: Any) -> None:
    payload = bytes(MOST_NAMED + 1) if isinstance(message, Write) else b""
    with pytest.raises(UsageError, match="may name"):
        wire.call(message, payload)
    assert wire.call(Renew([1] * MOST_NAMED, 1.0))[0].outcomes == [LOST] * MOST_NAMED
    assert WRITE_ITEMS <= MOST_NAMED


def test_what_was_written_is_read(wire: Wire) -> None:
    refs = wire.put(key(1), fill(1))
    reply, payload = wire.call(Read(KIB, refs))
    assert reply.outcomes == [OK, OK]
    assert payload == b"".join(fill(1))
    resolved = wire.call(Resolve([key(1), key(2)], 5.0))[0]
    assert (resolved.refs, resolved.tokens) == ([refs, []], [4, 0])


def test_a_reference_means_nothing_to_another_node() -> None:
    first, second = (Wire(PoolService(64 * KIB), owner=b"a") for _ in range(2))
    refs = first.put(key(1), fill(1))
    second.put(key(2), fill(7))  # into the same slots
    assert first.call(Read(KIB, refs))[0].outcomes == [OK, OK]
    assert second.call(Read(KIB, refs))[0].outcomes == [LOST, LOST]


def test_reads_send_from_the_arena_and_hold_it(wire: Wire, service: PoolService) -> None:
    refs = wire.put(key(1), fill(1))
    reply = service.handle(wire.session, Read(KIB, refs), memoryview(b""))
    wire.call(Drop([key(1)]))
    wire.call(Prepare([item(n) for n in range(2, 33 - 1)]))  # all the room that is left
    with pytest.raises(PoolFullError):
        wire.call(Prepare([item(40, slots=4)]))
    assert b"".join(reply.payload) == b"".join(fill(1))
    assert reply.release is not None
    reply.release()
    assert wire.call(Read(KIB, refs))[0].outcomes == [LOST, LOST]


def test_unsealed_blocks_are_invisible(wire: Wire) -> None:
    refs = wire.call(Prepare([item(1)]))[0].refs[0]
    assert wire.call(Read(KIB, refs))[0].outcomes == [LOST, LOST]
    assert wire.call(Resolve([key(1)], 1.0))[0].refs == [[]]
    wire.call(Write(KIB, refs[:1]), fill(1)[0])
    assert wire.call(Commit([key(1)]))[0].outcomes == [LOST], "half of it was never written"
    wire.call(Write(KIB, refs[1:]), fill(1)[1])
    assert wire.call(Commit([key(1), key(9)]))[0].outcomes == [OK, LOST]


def test_a_full_pool_names_its_numbers_and_stores_nothing(wire: Wire) -> None:
    wire.put(key(1), fill(1))
    with pytest.raises(PoolFullError, match=r"64 KiB wanted, 2 KiB used of 64 KiB"):
        wire.call(Prepare([item(2), item(3, slots=62)]))
    assert wire.call(Stats())[0].values["used_bytes"] == 2 * KIB
    assert wire.call(Prepare([item(3, slots=62)]))[0].refs[0]


def test_prepare_of_a_sealed_block_says_so_and_pins_it(wire: Wire, service: PoolService) -> None:
    wire.put(key(1), fill(1))
    other = Wire(service)
    assert other.call(Prepare([item(1)]))[0].refs == [[]]
    wire.call(Drop([key(1)]))
    assert other.call(Resolve([key(1)], 0.0))[0].tokens == [4]
    other.call(Drop([key(1)]))
    assert other.call(Resolve([key(1)], 0.0))[0].tokens == [0]


def test_a_wanted_block_is_not_evicted_for_its_neighbours(service: PoolService, clock: FakeClock) -> None:
    gone, reader = Wire(service), Wire(service)
    gone.put(key(1), fill(1))
    gone.close()
    clock.now += 60.0
    with pytest.raises(PoolFullError):
        reader.call(Prepare([item(1), item(2, slots=63)]))
    assert reader.call(Prepare([item(1), item(2, slots=62)]))[0].refs[0] == []
    with pytest.raises(PoolFullError):
        reader.call(Prepare([item(3)]))


def test_two_writers_of_one_block(wire: Wire, service: PoolService) -> None:
    other = Wire(service)
    mine, theirs = wire.call(Prepare([item(1)]))[0].refs[0], other.call(Prepare([item(1)]))[0].refs[0]
    assert not set(mine) & set(theirs)
    assert wire.call(Prepare([item(1)]))[0].refs[0] == mine, "asking again changes nothing"
    assert other.call(Write(KIB, mine), b"".join(fill(7)))[0].outcomes == [LOST, LOST]
    wire.call(Write(KIB, mine), b"".join(fill(1)))
    other.call(Write(KIB, theirs), b"".join(fill(1)))
    assert other.call(Commit([key(1)]))[0].outcomes == [OK]
    assert wire.call(Commit([key(1)]))[0].outcomes == [OK]
    assert wire.call(Resolve([key(1)], 0.0))[0].refs == [theirs]
    assert wire.call(Stats())[0].values["used_bytes"] == 2 * KIB


def test_abort_and_a_closed_connection_give_slots_back(wire: Wire, service: PoolService) -> None:
    other = Wire(service)
    refs = wire.call(Prepare([item(1)]))[0].refs[0]
    other.call(Prepare([item(2)]))
    assert isinstance(wire.call(Abort([key(1), key(5)]))[0], Done)
    other.close()
    other.close()
    assert wire.call(Stats())[0].values["used_bytes"] == 0
    assert wire.call(Write(KIB, refs), b"".join(fill(1)))[0].outcomes == [LOST, LOST]


def test_a_write_under_way_keeps_its_slots(wire: Wire, service: PoolService) -> None:
    refs = wire.call(Prepare([item(1)]))[0].refs[0]
    message = Write(KIB, refs)
    assert service.sink(wire.session, message, 2 * KIB) is not None
    service_side = Wire(service)
    wire.call(Abort([key(1)]))
    assert service_side.call(Stats())[0].values["used_bytes"] == 2 * KIB
    wire.close()
    assert service_side.call(Stats())[0].values["used_bytes"] == 0


def test_a_lease_protects_slots_from_reuse(wire: Wire, clock: FakeClock) -> None:
    refs = wire.put(key(1), fill(1))
    lease = wire.call(Resolve([key(1)], 5.0))[0].lease
    wire.call(Drop([key(1)]))
    wire.call(Prepare([item(2, slots=62)]))
    with pytest.raises(PoolFullError):
        wire.call(Prepare([item(3)]))
    clock.now += 4.0
    assert wire.call(Renew([lease, 999], 5.0))[0].outcomes == [OK, LOST]
    clock.now += 4.0
    assert wire.call(Read(KIB, refs))[0].outcomes == [OK, OK]
    clock.now += 1.0
    again = wire.call(Prepare([item(3)]))[0].refs[0]
    assert {ref.slot for ref in again} == {ref.slot for ref in refs}
    assert wire.call(Read(KIB, refs))[0].outcomes == [LOST, LOST], "the generation has moved on"
    assert wire.call(Renew([lease], 5.0))[0].outcomes == [LOST]


def test_a_lease_can_be_given_back(wire: Wire) -> None:
    refs = wire.put(key(1), fill(1))
    lease = wire.call(Resolve([key(1)], 60.0))[0].lease
    wire.call(Drop([key(1)]))
    assert wire.call(Read(KIB, refs))[0].outcomes == [OK, OK]
    wire.call(Renew([lease], 0.0))
    assert wire.call(Read(KIB, refs))[0].outcomes == [LOST, LOST]


def test_blocks_of_a_client_that_left_stay_until_room_is_needed(service: PoolService, clock: FakeClock) -> None:
    bulk, realtime, reader = Wire(service, owner=b"a"), Wire(service, owner=b"a"), Wire(service, owner=b"b")
    realtime.call(Ping())
    for number in (1, 2, 3):
        bulk.put(key(number), fill(number))
    bulk.close()
    clock.now += 1000.0
    with pytest.raises(PoolFullError):
        reader.call(Prepare([item(9, slots=60)]))
    realtime.close()
    clock.now += 29.0
    with pytest.raises(PoolFullError):
        reader.call(Prepare([item(9, slots=60)]))
    clock.now += 1.0
    reader.call(Resolve([key(1)], 0.0))  # used lately
    reader.call(Prepare([item(9, slots=60)]))
    assert reader.call(Resolve([key(1), key(2), key(3)], 0.0))[0].tokens == [4, 0, 4]
    assert reader.call(Stats())[0].values["evictions_total"] == 1


def test_a_client_that_comes_back_in_time_keeps_its_pins(service: PoolService, clock: FakeClock) -> None:
    first = Wire(service, owner=b"a")
    first.put(key(1), fill(1))
    first.close()
    clock.now += 20.0
    second = Wire(service, owner=b"a")
    second.call(Ping())
    second.close()
    clock.now += 20.0
    with pytest.raises(PoolFullError):
        Wire(service).call(Prepare([item(9, slots=64)]))
    clock.now += 10.0
    assert Wire(service).call(Prepare([item(9, slots=64)]))[0].refs[0]


def test_memory_is_opened_for_clients_once_whoever_asks(
    wire: Wire, service: PoolService, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.put(key(1), fill(1))
    alone, really_open = [], os.open

    def opened(*args: Any) -> int:
        alone.append(service._lock.locked())
        return really_open(*args)

    monkeypatch.setattr(os, "open", opened)
    for client in (wire, Wire(service)):
        assert isinstance(client.call(Map(KIB))[0], Mapped)
    assert alone == [True, True]  # data and generations


def test_tenants_see_nothing_of_each_other(wire: Wire, service: PoolService) -> None:
    refs = wire.put(key(1), fill(1))
    lease = wire.call(Resolve([key(1)], 5.0))[0].lease
    other = Wire(service, tenant="other")
    assert other.call(Resolve([key(1)], 0.0))[0].refs == [[]]
    assert other.call(Read(KIB, refs))[0].outcomes == [LOST, LOST]
    assert other.call(Renew([lease], 0.0))[0].outcomes == [LOST]
    other.put(key(1), fill(9))
    assert wire.call(Read(KIB, refs))[1] == b"".join(fill(1))
    assert service.arena("other", KIB) is not service.arena("default", KIB)


@pytest.mark.parametrize(
    ("message", "payload"),
    [
        (Prepare([PrepareItem(key(1), 0, KIB, 4)]), b""),
        (Prepare([PrepareItem(key(1), 1, 0, 4)]), b""),
        (Prepare([PrepareItem(key(1), 1, KIB, 0)]), b""),
        (Prepare([PrepareItem(BlockKey(b"", 0), 1, KIB, 4)]), b""),
        (Prepare([item(1), item(1, slots=3)]), b""),
        (Write(KIB, [SlotRef(0, 1)]), b"short"),
        (Resolve([key(1)], float("nan")), b""),
        (Resolve([key(1)], -1.0), b""),
        (Renew([1], 1e9), b""),
        (Hello(1, Lane.BULK, "", b""), b""),
    ],
)
def test_malformed_requests_are_refused_and_change_nothing(wire: Wire, message, payload: bytes) -> None:
    wire.call(Ping())
    before = wire.call(Stats())[0].values
    with pytest.raises(UsageError):
        wire.call(message, payload)
    after = wire.call(Stats())[0].values
    assert {k: v for k, v in after.items() if "total" not in k} == {k: v for k, v in before.items() if "total" not in k}


def test_wild_references_are_lost(wire: Wire) -> None:
    refs = wire.put(key(1), fill(1))
    wild = [SlotRef(-1, 1), SlotRef(2**62, 1), SlotRef(refs[0].slot, 2**70), SlotRef(63, 0), SlotRef(5, 0)]
    assert wire.call(Read(KIB, wild))[0].outcomes == [LOST] * 5
    assert wire.call(Read(17, refs))[0].outcomes == [LOST, LOST]
    assert wire.call(Write(KIB, wild), bytes(5 * KIB))[0].outcomes == [LOST] * 5


@pytest.mark.parametrize(("count", "times"), [(MANY_KEYS, 0), (MANY_KEYS + 1, 1)])
@pytest.mark.parametrize("kind", [Resolve, Drop, ExtendView])
def test_what_names_many_blocks_is_answered_by_an_ordinary_thread(
    kind: type[Any], count: int, times: int, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[str] = []

    @contextlib.contextmanager
    def noted() -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    monkeypatch.setattr("dualpath.pool.service.ordinary", noted)
    keys = [key(number) for number in range(count)]
    blocks = [ViewBlock(one, 4 * number, 4) for number, one in enumerate(keys)]
    geometry = Geometry(1, 8, 8, 4, "float32", False)
    wire.call({Resolve: Resolve(keys, 1.0), Drop: Drop(keys), ExtendView: ExtendView(1, 0, geometry, blocks)}[kind])
    assert entered == ["in", "out"] * times


def test_slots_are_named_without_the_lock_and_do_not_change_meanwhile(
    wire: Wire, service: PoolService, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = wire.put(key(1), fill(1))
    name = Block.refs

    def dropped_meanwhile(block: Block) -> list[SlotRef]:
        assert not service._lock.locked()
        wire.call(Drop([key(1)]))
        clock.now += 2.0
        service.stats()  # the lease has run out by now
        return name(block)

    monkeypatch.setattr(Block, "refs", dropped_meanwhile)
    assert wire.call(Resolve([key(1)], 1.0))[0].refs == [refs]
    assert not wire.call(Stats())[0].values["used_bytes"]


def test_kinds_of_slots_are_bounded_within_one_request_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualpath.pool.store.MAX_SLABS", 3)
    made: list[int] = []

    def noted(slots: int, slot_bytes: int) -> Arena:
        made.append(slot_bytes)
        return Arena(slots, slot_bytes)

    wire = Wire(PoolService(64 * KIB, arena_type=noted))  # type: ignore[arg-type]  # a stand-in
    with pytest.raises(UsageError, match=r"4 new kinds of slots, and this node already has 0 of at most 3"):
        wire.call(Prepare([item(number, slot_bytes=KIB + number) for number in range(4)]))
    assert not made
    wire.call(Prepare([item(number, slot_bytes=KIB + number % 3) for number in range(6)]))
    wire.call(Prepare([item(7, slot_bytes=KIB + 2)]))
    with pytest.raises(UsageError, match="1 new kinds of slots"):
        wire.call(Prepare([item(8, slot_bytes=KIB + 2), item(9, slot_bytes=KIB + 3)]))
    assert made == [KIB, KIB + 1, KIB + 2]


def test_one_tenant_cannot_take_all_kinds_of_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualpath.pool.store.MAX_TENANT_SLABS", 2)
    service = PoolService(64 * KIB)
    greedy, other = Wire(service, tenant="a"), Wire(service, tenant="b")
    greedy.call(Prepare([item(1, slot_bytes=KIB), item(2, slot_bytes=2 * KIB)]))
    with pytest.raises(UsageError, match="this tenant already has 2 of at most 2"):
        greedy.call(Prepare([item(3, slot_bytes=3 * KIB)]))
    other.call(Prepare([item(3, slot_bytes=3 * KIB)]))


def test_what_a_client_has_prepared_outlives_a_connection_but_not_its_last_one(service: PoolService) -> None:
    first, second = (Wire(service, owner=b"client") for _ in range(2))
    second.call(Ping())
    refs = first.call(Prepare([item(1)]))[0].refs[0]
    first.call(Write(KIB, refs), b"".join(fill(7)))
    first.close()  # a NIC was pulled: the client goes on over the other one
    assert second.call(Commit([key(1)]))[0].outcomes == [OK]
    second.call(Prepare([item(2)]))
    second.close()
    assert service.stats()["blocks_prepared"] == 0
    assert service.stats()["blocks_sealed"] == 1
