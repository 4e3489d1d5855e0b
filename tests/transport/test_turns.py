"""Lanes send in their order, and nobody starves."""

import threading

from dualpath.testing.transport_case import PATIENCE_S
from dualpath.transport import turns as module
from dualpath.transport.stream import IOV_MAX, PIECE_BYTES, _piece
from dualpath.transport.turns import Turns
from dualpath.wire.messages import Lane


def waiter(turns, lane):
    passed = threading.Event()

    def run():
        turns.wait(lane)
        passed.set()

    thread = threading.Thread(target=run)
    thread.start()
    return thread, passed


def test_a_lower_lane_waits_for_every_reply_above_it(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 60.0)
    turns = Turns()
    turns.enter(Lane.REALTIME)
    turns.enter(Lane.PREFETCH)
    turns.enter(Lane.PREFETCH)
    thread, passed = waiter(turns, Lane.BULK)
    turns.leave(Lane.PREFETCH)
    turns.leave(Lane.REALTIME)
    turns.wait(Lane.PREFETCH)  # nothing is above it any more: returns at once, while bulk still waits
    assert not passed.is_set()
    turns.leave(Lane.PREFETCH)
    thread.join(PATIENCE_S)
    assert passed.is_set()


def test_realtime_waits_for_nobody(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 60.0)
    turns = Turns()
    turns.enter(Lane.BULK)
    turns.enter(Lane.REALTIME)
    turns.wait(Lane.REALTIME)


def test_nobody_starves(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.001)
    turns = Turns()
    turns.enter(Lane.REALTIME)
    turns.wait(Lane.BULK)  # the reply above is never taken


def test_pieces():
    views = [memoryview(bytes(PIECE_BYTES // 4))] * 10
    assert len(_piece(views, 0)) == 4
    assert len(_piece(views, 9)) == 1
    large = [memoryview(bytes(10 * PIECE_BYTES))] * 2
    assert [len(view) for view in _piece(large, 0)] == [PIECE_BYTES]
    assert [len(view) for view in _piece([memoryview(b"head"), *large], 0)] == [4, PIECE_BYTES]
    assert len(_piece([memoryview(b"x")] * (2 * IOV_MAX), 3)) == IOV_MAX
