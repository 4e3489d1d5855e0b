"""One connection for calls, used by several threads: who receives, while others send, and who is told."""

import contextlib
import socket
import threading
import time

import pytest

from dualpath.transport.calls import CallConnection
from dualpath.transport.stream import Stream
from dualpath.wire.frames import encode
from dualpath.wire.messages import Done, Ping

PATIENCE_S = 20.0  # only a hang exceeds it


@pytest.fixture
def ends():
    here, there = socket.socketpair()
    with contextlib.closing(here), contextlib.closing(there):
        there.settimeout(PATIENCE_S)
        yield here, there


def send_more_than_fits(here, while_full, timeout_s):
    stream = Stream(here)
    sent = bytes(4 << 20)
    stream.send_frame(1, Ping(), [sent], deadline=time.monotonic() + timeout_s, while_full=while_full)
    return stream.sent


def drain(there):
    taken = 0
    while part := there.recv(1 << 20):
        taken += len(part)
    return taken


def test_a_reply_that_another_thread_has_just_received_is_not_waited_for(ends):
    """A full sender sees input, and finds none once it may receive: it must go back to sending at once."""
    here, there = ends
    calls = CallConnection(Stream(here), "node")
    deadline = time.monotonic() + PATIENCE_S
    assert not calls._receive_meanwhile(deadline)
    assert time.monotonic() < deadline
    assert calls.error is None
    call = calls.start(Ping(), (), deadline)
    there.sendall(encode(call.request_id, Done(), 0))
    assert calls._receive_meanwhile(deadline)
    assert call.result()[0] == Done()


def test_a_sender_waits_while_another_thread_receives_for_long(ends):
    """There is input, which somebody else takes slowly, and no room to send: that alone is no failure."""
    here, there = ends
    there.sendall(b"input that stays")
    turns = []
    thread = None

    def busy(_deadline):
        nonlocal thread
        turns.append(1)
        if len(turns) == 5:  # many times what a sender waits before it looks again
            thread = threading.Thread(target=drain, args=(there,))
            thread.start()
        return False

    try:
        assert send_more_than_fits(here, busy, PATIENCE_S) > 4 << 20
    finally:
        here.shutdown(socket.SHUT_RDWR)
        if thread is not None:
            thread.join(PATIENCE_S)
    assert len(turns) >= 5


@pytest.mark.parametrize("taken", [True, False])
def test_a_sender_gives_up_at_its_deadline_whatever_comes_in(ends, taken):
    here, there = ends
    there.sendall(b"input that stays")
    with pytest.raises(TimeoutError):
        send_more_than_fits(here, lambda _deadline: taken, 0.1)


def test_who_waits_is_told_when_a_sender_has_stopped_receiving(ends):
    """A follower that came while a sender received becomes the leader, not a sleeper until its deadline."""
    here, there = ends
    calls = CallConnection(Stream(here), "node")
    deadline = time.monotonic() + PATIENCE_S
    call = calls.start(Ping(), (), deadline)
    replies = []
    with calls._receiving:  # a sender that looks for a reply
        waiter = threading.Thread(target=lambda: replies.append(call.result()[0]))
        waiter.start()
        while not calls._followers:
            time.sleep(0.001)
    assert not calls._receive_meanwhile(deadline)  # and finds none
    there.sendall(encode(call.request_id, Done(), 0))
    waiter.join(PATIENCE_S / 2)
    calls.fail(ConnectionError("the test is over"))
    waiter.join(PATIENCE_S)
    assert replies == [Done()]
