"""One connection for calls, used by several threads: who receives, while others send, and who is told."""

import contextlib
import errno
import os
import random
import socket
import threading
import time

import psutil
import pytest

from dualpath.errors import DeadlineError, UnreachableError, UsageError
from dualpath.testing.transport_case import PATIENCE_S
from dualpath.transport.calls import CallConnection
from dualpath.transport.stream import Stream
from dualpath.wire.frames import encode
from dualpath.wire.messages import BlockKey, Done, Drop, Mapped, Ping


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


def hung_up(*_args, **_kwargs):
    raise OSError(errno.ETIMEDOUT, "Connection timed out")  # which Python makes a `TimeoutError`


def interrupt(*_args, **_kwargs):
    raise KeyboardInterrupt


def test_a_host_that_is_gone_is_not_a_deadline_that_has_passed(ends, monkeypatch):
    """The kernel gives a dead connection up with `ETIMEDOUT`: another rail is to try, also within a reply."""
    here, there = ends
    calls = CallConnection(Stream(here), "node")
    call = calls.start(Ping(), (), time.monotonic() + PATIENCE_S)
    there.sendall(encode(call.request_id, Done(), 8))
    monkeypatch.setattr(calls.stream, "recv_payload", hung_up)
    with pytest.raises(UnreachableError, match="timed out"):
        call.result()


def test_a_request_to_a_host_that_is_gone_does_not_end_as_a_deadline(ends, monkeypatch):
    calls = CallConnection(Stream(ends[0]), "node")
    monkeypatch.setattr(calls.stream, "send_frame", hung_up)
    with pytest.raises(UnreachableError, match="timed out"):
        calls.start(Ping(), (), time.monotonic() + PATIENCE_S).result()


def fill(here):
    """Take all the room that there is to send."""
    with contextlib.suppress(BlockingIOError):
        while True:
            here.send(bytes(1 << 16), socket.MSG_DONTWAIT)


LARGE = Drop([BlockKey(bytes(16), 0)] * 50_000)


@pytest.mark.parametrize(("message", "payload"), [(Ping(), ()), (Ping(), [bytes(64 << 20)]), (LARGE, ())])
def test_a_request_of_which_nothing_was_sent_ends_alone(ends, message, payload):
    here, there = ends
    calls = CallConnection(Stream(here), "node")
    other = calls.start(Ping(), (), time.monotonic() + PATIENCE_S)
    fill(here)
    with pytest.raises(DeadlineError, match="takes no data"):
        calls.start(message, payload, time.monotonic()).result()
    there.sendall(encode(other.request_id, Done(), 0))
    assert other.result()[0] == Done()
    assert calls.usable()


def test_a_request_cut_short_within_its_payload_costs_the_connection(ends):
    """Its memory is the caller's again: the rest cannot follow."""
    calls = CallConnection(Stream(ends[0]), "node")
    other = calls.start(Ping(), (), time.monotonic() + PATIENCE_S)
    with pytest.raises(DeadlineError, match="takes no data"):
        calls.start(Ping(), [bytes(64 << 20)], time.monotonic()).result()
    with pytest.raises(UnreachableError, match="cut short at its deadline"):
        other.result()
    assert not calls.usable()


def test_the_rest_of_a_request_without_payload_goes_out_before_the_next_one(ends):
    here, there = ends
    calls = CallConnection(Stream(here), "node")
    other = calls.start(Ping(), (), time.monotonic() + PATIENCE_S)
    late = [
        calls.start(LARGE, (), time.monotonic()) for _ in range(3)
    ]  # of the first a part is sent, of others nothing
    for call in late:
        with pytest.raises(DeadlineError, match="takes no data"):
            call.result()
    heads = []

    def answer():
        node = Stream(there)
        while len(heads) < 3:
            heads.append(node.recv_head())
            node.send_frame(heads[-1].request_id, Done())

    thread = threading.Thread(target=answer)
    thread.start()
    assert calls.start(LARGE, (), time.monotonic() + PATIENCE_S).result()[0] == Done()
    assert other.result()[0] == Done()
    thread.join(PATIENCE_S)
    assert [head.message for head in heads] == [Ping(), LARGE, LARGE]
    assert [head.request_id for head in heads] == [1, 2, 5]
    assert calls.usable()


def test_asking_for_a_short_while_costs_no_connection_within_a_reply(ends):
    here, there = ends
    calls = CallConnection(Stream(here), "node")
    call = calls.start(Ping(), (), time.monotonic() + PATIENCE_S)
    reply = encode(call.request_id, Done(), 0)
    there.sendall(reply[:5])
    with pytest.raises(DeadlineError):
        call.result(0.01)
    assert calls.error is None
    there.sendall(reply[5:])
    assert call.result()[0] == Done()


def test_a_payload_that_has_begun_has_until_the_deadline_of_the_call(ends, monkeypatch):
    here, there = ends
    calls = CallConnection(Stream(here), "node")
    call = calls.start(Ping(), (), time.monotonic() + 3 * PATIENCE_S)
    receive, deadlines = calls.stream.recv_payload, []

    def noted(count, deadline):
        deadlines.append(deadline)
        return receive(count, deadline)

    monkeypatch.setattr(calls.stream, "recv_payload", noted)
    there.sendall(encode(call.request_id, Done(), 4) + b"1234")
    assert bytes(call.result(PATIENCE_S)[1]) == b"1234"
    assert deadlines == [call.deadline]


def test_a_reply_that_is_being_handed_over_at_the_deadline_counts(ends):
    calls = CallConnection(Stream(ends[0]), "node")
    call = calls.start(Ping(), (), time.monotonic() + PATIENCE_S)

    class HandedOver(threading.Condition):
        def wait_for(self, predicate, timeout=None):
            call.finish(Done(), memoryview(b""))  # by the thread that has received it
            return super().wait_for(predicate, timeout)

    calls._changed = HandedOver()
    assert calls._pending.pop(call.request_id) is call
    call.deadline = 0.0
    assert call.result()[0] == Done()


def test_descriptors_go_to_the_reply_that_they_came_with(ends):
    """One receive brings the bytes of the reply before it, too."""
    here, there = ends
    calls = CallConnection(Stream(here), "node")
    calls.stream.takes_descriptors = True
    deadline = time.monotonic() + PATIENCE_S
    first, second, third = (calls.start(Ping(), (), deadline) for _ in range(3))
    there.sendall(encode(first.request_id, Done(), 0))
    reader, writer = os.pipe()
    with open(reader, "rb"), open(writer, "wb"):
        socket.send_fds(there, [encode(second.request_id, Mapped(1, 4096), 0)], [writer])
        there.sendall(encode(third.request_id, Done(), 0))
        assert third.result()[0] == Done()
        taken = [call.take_descriptors() for call in (first, second, third)]
    for descriptors in taken:
        for descriptor in descriptors:
            os.close(descriptor)
    assert [len(descriptors) for descriptors in taken] == [0, 1, 0]


def test_descriptors_that_come_too_late_are_closed(ends):
    here, there = ends
    calls = CallConnection(Stream(here), "node")
    calls.stream.takes_descriptors = True
    deadline = time.monotonic() + PATIENCE_S
    late, call = calls.start(Ping(), (), deadline), calls.start(Ping(), (), deadline)
    late.deadline = 0.0
    with pytest.raises(DeadlineError):
        late.result()
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    try:
        socket.send_fds(there, [encode(late.request_id, Mapped(1, 4096), 0)], [writer])
    finally:
        os.close(writer)
    there.sendall(encode(call.request_id, Done(), 0))
    assert call.result()[0] == Done()
    with open(reader, "rb") as pipe:
        assert pipe.read() == b""  # nobody holds the other end any more


@pytest.mark.parametrize(("where", "message"), [("send_frame", "request"), ("recv_head", "reply")])
def test_an_interrupt_within_a_frame_ends_the_connection(ends, monkeypatch, where, message):
    """What would follow on it would be taken for the rest of that frame."""
    calls = CallConnection(Stream(ends[0]), "node")
    deadline = time.monotonic() + PATIENCE_S
    other = calls.start(Ping(), (), deadline)
    monkeypatch.setattr(calls.stream, where, interrupt)
    with pytest.raises(KeyboardInterrupt):
        calls.start(Ping(), (), deadline).result()
    with pytest.raises(UnreachableError, match=f"interrupted within a {message}"):
        other.result()
    assert not calls.usable()


@pytest.mark.parametrize("size", [(256 << 10) - 1, 256 << 10, (256 << 10) + 1, (640 << 10) + 17])
@pytest.mark.parametrize("timeout_s", [None, PATIENCE_S])
def test_a_large_payload_that_dribbles_in_is_received_to_its_last_byte(size, timeout_s):
    """Around the size from which the kernel is left to wait."""
    sent = random.Random(size).randbytes(size)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as there:
        here, _ = listener.accept()
        stream, into = Stream(here), [memoryview(bytearray(size // 3)), memoryview(bytearray(size - size // 3))]

        def dribble():
            there.sendall(encode(1, Ping(), size))
            for at in range(0, size, 5000):
                there.sendall(sent[at : at + 5000])

        thread = threading.Thread(target=dribble)
        thread.start()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with contextlib.closing(stream):
            stream.recv_head(deadline)
            stream.recv_into(into, deadline)
        thread.join(PATIENCE_S)
    assert b"".join(into) == sent


def test_memory_that_cannot_be_used_costs_its_call_alone(ends):
    calls, now = CallConnection(Stream(ends[0]), "n"), time.monotonic()
    other = calls.start(Ping(), (), now + PATIENCE_S)
    with pytest.raises(TypeError, match="C-contiguous"):
        calls.start(Ping(), [memoryview(bytes(8))[::2]], now + PATIENCE_S)
    for into in (memoryview(bytes(8)), [memoryview(bytearray(8)), memoryview(bytes(8))]):
        with pytest.raises(UsageError, match="read-only"):
            calls.start(Ping(), (), now + PATIENCE_S, into)
    ends[1].sendall(encode(other.request_id, Done()))
    assert other.result()[0] == Done()
    assert calls.usable()


def test_a_payload_that_has_not_come_takes_no_memory(ends, monkeypatch):
    stream, process = Stream(ends[0]), psutil.Process()
    before, grown = process.memory_info().rss, []
    monkeypatch.setattr(stream, "recv_into", lambda *_: grown.append(process.memory_info().rss - before))
    assert stream.recv_payload(1 << 28).nbytes == 1 << 28
    assert grown[0] < 1 << 26
