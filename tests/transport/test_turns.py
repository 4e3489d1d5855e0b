"""Lanes send in their order, and nobody starves."""

import threading
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from dualpath.testing.transport_case import PATIENCE_S, eventually
from dualpath.transport import turns as module
from dualpath.transport.stream import IOV_MAX, PIECE_BYTES, _advance, _piece
from dualpath.transport.turns import Sending, Turns
from dualpath.wire.messages import Lane


def waiter(turns, reply):
    passed = threading.Event()

    def run():
        turns.wait(reply)
        passed.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, passed


def test_a_lower_lane_waits_for_every_reply_above_it(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 2 * PATIENCE_S)
    turns = Turns()
    first, second, third = turns.enter(Lane.REALTIME), turns.enter(Lane.PREFETCH), turns.enter(Lane.PREFETCH)
    thread, passed = waiter(turns, turns.enter(Lane.BULK))
    turns.leave(second)
    turns.leave(first)
    turns.wait(third)  # nothing is above it any more: returns at once, while bulk still waits
    assert not passed.is_set()
    turns.leave(third)
    thread.join(PATIENCE_S)
    assert passed.is_set()


def test_realtime_waits_for_nobody(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 2 * PATIENCE_S)
    turns = Turns()
    turns.enter(Lane.BULK)
    turns.enter(Lane.REALTIME)
    turns.wait(turns.enter(Lane.REALTIME))


def test_a_reply_that_is_held_up_holds_nobody_up_twice(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.001)
    turns = Turns()
    held_up, bulk = turns.enter(Lane.REALTIME), turns.enter(Lane.BULK)
    turns.wait(held_up)
    turns.wait(bulk)  # the reply above is never taken
    monkeypatch.setattr(module, "PATIENCE_S", 2 * PATIENCE_S)
    prefetch = turns.enter(Lane.PREFETCH)
    assert waiter(turns, prefetch)[1].wait(PATIENCE_S)
    turns.leave(prefetch)
    assert waiter(turns, bulk)[1].wait(PATIENCE_S)
    other = turns.enter(Lane.REALTIME)  # one that has just begun is waited for all the same
    _, passed = waiter(turns, bulk)
    assert eventually(lambda: turns._waiting)
    turns.leave(other)
    assert passed.wait(PATIENCE_S)
    turns.wait(held_up)  # its piece was taken: from now on it is waited for again
    thread, passed = waiter(turns, bulk)
    assert eventually(lambda: turns._waiting)
    assert not passed.is_set()
    turns.leave(held_up)
    thread.join(PATIENCE_S)
    assert passed.is_set()


def test_who_gives_a_reply_up_gives_it_up_for_all():
    """And only those that were there all the while: not one that came meanwhile."""
    turns = Turns()
    held_up = turns.enter(Lane.REALTIME)
    came = []

    class Impatient(threading.Condition):
        def wait_for(self, predicate, timeout=None):
            came.append(Sending(Lane.REALTIME))
            turns._awaited[Lane.REALTIME].add(came[0])
            return predicate()

    turns._changed = Impatient(turns._lock)
    turns.wait(turns.enter(Lane.BULK))
    assert turns._awaited[Lane.REALTIME] == set(came)
    turns.leave(held_up)  # which it no longer is among


@given(st.lists(st.integers(0, 9), max_size=12), st.data())
def test_what_is_handed_over_in_pieces_is_the_whole(sizes, data):
    whole = bytes(range(sum(sizes)))
    views = [memoryview(whole)[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]
    sent, start = b"", 0
    while len(sent) < len(whole):
        piece = b"".join(_piece(views, start))
        count = data.draw(st.integers(1, len(piece)), "bytes that the kernel takes") if piece else 0
        sent += piece[:count]
        start = _advance(views, start, count)
    assert sent == whole


def test_pieces():
    views = [memoryview(bytes(PIECE_BYTES // 4))] * 10
    assert len(_piece(views, 0)) == 4
    assert len(_piece(views, 9)) == 1
    large = [memoryview(bytes(10 * PIECE_BYTES))] * 2
    assert [len(view) for view in _piece(large, 0)] == [PIECE_BYTES]
    assert [len(view) for view in _piece([memoryview(b"head"), *large], 0)] == [4, PIECE_BYTES]
    assert len(_piece([memoryview(b"x")] * (2 * IOV_MAX), 3)) == IOV_MAX
