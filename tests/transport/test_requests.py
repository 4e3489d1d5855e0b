"""How reads are cut and put together, what a ticket lets through when, and what a mapping calls stale."""

import threading
import time
from collections import deque

import numpy as np

from dualpath.testing.transport_case import PATIENCE_S
from dualpath.transport.mapping import Mapping
from dualpath.transport.requests import REQUEST_BYTES, REQUEST_ITEMS, Batch, split
from dualpath.transport.ticket import ReadTicket, Watchdog
from dualpath.wire.messages import Outcome, SlotRef

OK, LOST = Outcome.OK, Outcome.LOST


def read(items, slot_bytes=8, on_items=None):
    ticket = ReadTicket(items, time.monotonic() + 10, on_items)
    places = [memoryview(bytearray(slot_bytes)) for _ in range(items)]
    requests = split(ticket, [SlotRef(n, 1) for n in range(items)], places, slot_bytes)
    ticket.hold(len(requests))
    return ticket, requests, places


def test_a_read_is_cut_by_items_and_by_bytes():
    assert [len(request.refs) for request in read(2 * REQUEST_ITEMS + 8)[1]] == [REQUEST_ITEMS, REQUEST_ITEMS, 8]
    assert [len(request.refs) for request in read(3, REQUEST_BYTES // 2)[1]] == [2, 1]
    assert [len(request.refs) for request in read(2, REQUEST_BYTES * 2)[1]] == [1, 1]


def test_small_reads_share_a_frame_and_settle_apart():
    told = []
    a, (one,), _ = read(2, on_items=lambda first, outcomes: told.extend(enumerate(outcomes, first)))
    b, (two,), places = read(3)
    _, (other,), _ = read(1, slot_bytes=16)
    queue = deque([one, two, other])
    batch = Batch.pop(queue, REQUEST_BYTES)
    assert list(queue) == [other]
    assert [ref.slot for ref in batch.refs] == [0, 1, 0, 1, 2]
    outcomes = [OK, OK, OK, LOST, OK]
    assert batch.destinations(outcomes)[-2:] == [places[0], places[2]]
    batch.settle(1, outcomes[1:3])
    assert told == [(1, OK)]
    assert b.outcomes == [OK, None, None]
    batch.finish(outcomes, None)
    assert told == [(1, OK), (0, OK)]
    assert b.outcomes == [OK, LOST, OK]
    assert a.drained
    assert b.wait_drained(0)


def test_what_has_been_reported_is_not_read_again():
    ticket, (request,), places = read(3)
    ticket.settle(0, OK)
    request.skip_settled()
    assert (request.first, [ref.slot for ref in request.refs], request.destinations) == (1, [1, 2], places[1:])


def test_waiting_for_a_ticket():
    ticket, (request,), _ = read(2)
    assert list(ticket.wait(0)) == [None, None]
    ticket.settle_all(OK, None)
    assert list(ticket.wait()) == [OK, OK]
    assert not ticket.wait_drained(0.01)
    waiting = [threading.Thread(target=ticket.wait_drained, args=(PATIENCE_S,)) for _ in range(3)]
    for thread in waiting:
        thread.start()
    request.let_go()
    for thread in waiting:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert ticket.wait_drained(0)
    assert ReadTicket(0, 0.0, None).wait_drained(0)


def test_the_watchdog_takes_the_earlier_deadline():
    dog, late = Watchdog("node"), threading.Event()
    far, near = ReadTicket(1, time.monotonic() + 60, None), ReadTicket(1, time.monotonic() + 0.05, None)
    near.abort = lambda outcome, error: late.set()
    try:
        dog.watch(far)
        dog.watch(near)
        assert late.wait(PATIENCE_S)
    finally:
        dog.close()


def test_a_mapping_tells_what_is_stale():
    mapping = Mapping(np.arange(32, dtype=np.uint8), np.array([1, 2, 3, 4], np.uint64), 4, 8, None)
    slots, generations = np.array([0, 1, 9, 3]), np.array([1, 7, 1, 4], np.uint64)
    assert mapping.stale(slots, generations).tolist() == [1, 2]
    assert mapping.stale(slots[:1], generations[:1]).tolist() == []
    into = np.zeros((3, 8), np.uint8)
    refs = [SlotRef(3, 4), SlotRef(1, 1), SlotRef(9, 1)]
    assert mapping.copy(refs, list(into)) == [OK, LOST, LOST]
    assert into[0].tolist() == list(range(24, 32))
    assert not into[1:].any()
