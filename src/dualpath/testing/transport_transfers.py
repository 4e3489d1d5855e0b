"""Conformance of transports while all is well: calls and transfers."""

# ruff: noqa: D102, S311  the names of tests say what they test; seeded noise is wanted
from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence

from dualpath.errors import PeerError, UsageError
from dualpath.testing.transport_case import (
    PATIENCE_S,
    POISON,
    TransportCase,
    buffers,
    finish,
    raised,
    refs,
    run_threads,
)
from dualpath.transport.base import Lane, Outcome, Ticket
from dualpath.wire.messages import Done, DropView, Ping, SlotRef


class TransferTests(TransportCase):
    """Round trips, order, sizes, stale references, many threads, misuse."""

    # --- calls ---------------------------------------------------------------------------------------------------

    def test_call_round_trip(self) -> None:
        with self.pair() as (_, peer):
            for size in (0, 1, 17, 16_384, 70_001, 3 << 20):
                sent = random.Random(size).randbytes(size)
                cut = size // 3
                reply, payload = peer.call(Ping(), [sent[:cut], memoryview(sent)[cut:]], timeout_s=PATIENCE_S)
                assert reply == Done()
                assert bytes(payload) == sent
            assert peer.node == "node"
            assert peer.counters.requests == 6
            assert peer.counters.tx_bytes > 3 << 20
            assert peer.counters.rx_bytes > 3 << 20

    def test_replies_are_collected_in_any_order(self) -> None:
        with self.pair() as (_, peer):
            calls = [peer.start(Ping(), [bytes([n])]) for n in range(20)]
            for n in reversed(range(20)):
                assert bytes(calls[n].result(PATIENCE_S)[1]) == bytes([n])

    def test_large_calls_may_overlap(self) -> None:
        with self.pair() as (_, peer):
            sent = bytes(12 << 20)  # more than both socket buffers hold
            calls = [peer.start(Ping(), [sent], timeout_s=PATIENCE_S) for _ in range(3)]
            assert [len(call.result()[1]) for call in calls] == [len(sent)] * 3

    def test_failure_names_the_node_and_the_connection_goes_on(self) -> None:
        with self.pair() as (_, peer):
            error = raised(PeerError, lambda: peer.call(DropView(1)))
            assert "DropView" in str(error)
            assert error.node
            assert peer.call(Ping())[0] == Done()

    def test_callers_in_many_threads(self) -> None:
        with self.pair() as (_, peer):
            wrong: list[int] = []

            def work(seed: int) -> None:
                noise = random.Random(seed)
                for _ in range(40):
                    sent = noise.randbytes(noise.choice([0, 10, 3000, 100_000]))
                    if bytes(peer.call(Ping(), [sent], timeout_s=PATIENCE_S)[1]) != sent:
                        wrong.append(seed)

            run_threads(work, 4)
            assert wrong == []

    # --- transfers -----------------------------------------------------------------------------------------------

    def test_write_then_read(self) -> None:
        for slot_bytes, slots in ((1, 300), (97, 200), (4099, 64), (300_001, 16), (5 << 20, 3)):
            with self.pair(slots, slot_bytes) as (_, peer):
                noise = random.Random(slot_bytes)
                sources = [memoryview(noise.randbytes(slot_bytes)) for _ in range(slots)]
                written = peer.write(refs(slots), sources, slot_bytes=slot_bytes, timeout_s=PATIENCE_S)
                assert list(written) == [Outcome.OK] * slots
                order = noise.sample(range(slots), slots)
                into = buffers(slots, slot_bytes)
                told: list[tuple[int, Outcome]] = []
                ticket = peer.read(
                    [SlotRef(slot, 1) for slot in order],
                    into,
                    slot_bytes=slot_bytes,
                    timeout_s=PATIENCE_S,
                    on_items=lambda first, found, told=told: told.extend(enumerate(found, first)),
                )
                assert finish(ticket) == [Outcome.OK] * slots
                assert ticket.error is None
                assert sorted(told) == [(index, Outcome.OK) for index in range(slots)]
                assert all(into[i] == sources[slot] for i, slot in enumerate(order))

    def test_item_is_complete_when_it_is_reported(self) -> None:
        with self.pair(16, 200_000) as (service, peer):
            into = buffers(16, 200_000)
            wrong: list[int] = []

            def on_items(first: int, outcomes: Sequence[Outcome]) -> None:
                ended = range(first, first + len(outcomes))
                wrong.extend(index for index in ended if into[index] != service.slot(index))

            finish(peer.read(refs(16), into, slot_bytes=200_000, on_items=on_items))
            assert wrong == []

    def test_stale_references_are_lost_and_leave_the_destination_alone(self) -> None:
        with self.pair(40, 5000) as (service, peer):
            service.generations[3] = 2
            service.generations[20] = 7
            wanted, into = [*refs(40), SlotRef(1000, 1)], buffers(41, 5000)
            outcomes = finish(peer.read(wanted, into, slot_bytes=5000))
            assert [i for i, outcome in enumerate(outcomes) if outcome is not Outcome.OK] == [3, 20, 40]
            assert {outcomes[i] for i in (3, 20, 40)} == {Outcome.LOST}
            assert all(set(into[i]) == {POISON} for i in (3, 20, 40))
            assert all(into[i] == service.slot(i) for i in range(40) if i not in (3, 20))
            written = peer.write(refs(5), [memoryview(bytes(5000))] * 5, slot_bytes=5000)
            assert [outcome is Outcome.LOST for outcome in written] == [False, False, False, True, False]

    def test_readers_in_many_threads_and_lanes(self) -> None:
        with self.pair(32, 70_000) as (service, peer):
            wrong: list[int] = []

            def work(seed: int) -> None:
                noise = random.Random(seed)
                for _ in range(12):
                    slots = noise.sample(range(32), noise.randint(1, 32))
                    into = buffers(len(slots), 70_000)
                    lane = noise.choice(list(Lane))
                    wanted = [SlotRef(slot, 1) for slot in slots]
                    ticket = peer.read(wanted, into, slot_bytes=70_000, lane=lane, timeout_s=PATIENCE_S)
                    if finish(ticket) != [Outcome.OK] * len(slots):
                        wrong.append(seed)
                    if any(into[i] != service.slot(slot) for i, slot in enumerate(slots)):
                        wrong.append(seed)

            run_threads(work, 4)
            assert wrong == []

    def test_on_items_may_read_on(self) -> None:
        with self.pair(8, 1000) as (_, peer):
            second: list[Ticket] = []
            into = buffers(2, 1000)

            def on_items(first: int, outcomes: Sequence[Outcome]) -> None:
                second.append(peer.read([SlotRef(1, 1)], into[1:], slot_bytes=1000))

            finish(peer.read([SlotRef(0, 1)], into[:1], slot_bytes=1000, on_items=on_items))
            assert finish(second[0]) == [Outcome.OK]

    def test_nothing_to_do(self) -> None:
        with self.pair() as (_, peer):
            ticket = peer.read([], [], slot_bytes=4096)
            assert ticket.drained
            assert finish(ticket) == []
            assert list(peer.write([], [], slot_bytes=4096)) == []

    def test_destinations_may_be_items_of_any_kind(self) -> None:
        with self.pair(slots=2, slot_bytes=4000) as (service, peer):
            wanted = [bytes(service.slot(slot)) for slot in range(2)]
            for kind in (
                ctypes.c_byte,
                ctypes.c_bool,
                ctypes.c_ubyte,
                ctypes.c_char,
                ctypes.c_float,
                ctypes.c_ubyte * 8,
            ):
                into = [memoryview((kind * (4000 // ctypes.sizeof(kind)))()) for _ in range(2)]
                ticket = peer.read(refs(2), into, slot_bytes=4000, timeout_s=PATIENCE_S)
                assert finish(ticket) == [Outcome.OK] * 2
                assert [view.tobytes() for view in into] == wanted

    def test_misuse_is_refused(self) -> None:
        with self.pair() as (_, peer):
            readonly = [memoryview(bytes(4096))]
            raised(UsageError, lambda: peer.read(refs(2), buffers(1, 4096), slot_bytes=4096))
            raised(UsageError, lambda: peer.read(refs(1), buffers(1, 4095), slot_bytes=4096))
            raised(UsageError, lambda: peer.read(refs(1), readonly, slot_bytes=4096))
            raised(UsageError, lambda: peer.read(refs(1), buffers(1, 0), slot_bytes=0))
            raised(UsageError, lambda: peer.write(refs(1), buffers(1, 1), slot_bytes=4096))
