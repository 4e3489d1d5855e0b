"""What the byte stream may do to a node or a client: wrong peers, cut, stalled and spoiled connections."""

import contextlib
import socket
import threading
import time
from contextlib import closing

import pytest

from dualpath.errors import (
    AuthError,
    DeadlineError,
    PeerError,
    ProtocolError,
    TruncatedError,
    UnreachableError,
    UsageError,
    VersionError,
)
from dualpath.testing.transport import FaultyLink, FaultyPeer, MemoryService
from dualpath.testing.transport_case import KEY, PATIENCE_S, buffers, eventually, finish, raised, refs
from dualpath.transport import dial as dial_module
from dualpath.transport import peer as peer_module
from dualpath.transport import server as server_module
from dualpath.transport.base import Lane, Outcome, Reply
from dualpath.transport.calls import CallConnection
from dualpath.transport.dial import Dialer, Tcp
from dualpath.transport.mapped import MappedPeer, MappedServer
from dualpath.transport.stream import Stream
from dualpath.transport.tcp import TcpPeer, TcpServer
from dualpath.wire.auth import ClientHandshake
from dualpath.wire.frames import HEADER, MAGIC, Limits, encode
from dualpath.wire.messages import Done, Failure, FailureCode, Mapped, Outcomes, Ping, Read, Welcome

SLOT = 100_000


@pytest.fixture
def service():
    service = MemoryService(64, SLOT)
    for slot in range(64):
        service.slot(slot)[:] = bytes([slot]) * SLOT
    yield service
    service.gate.set()
    service.close()


@pytest.fixture
def node(service):
    with TcpServer(service, node_id="node") as server:
        yield server


@pytest.fixture
def link(node):
    with FaultyLink(node.address) as link:
        yield link


def raw(node):
    sock = socket.create_connection(node.address)
    sock.settimeout(PATIENCE_S)
    return Stream(sock)


def shaken(node):
    """Return a raw stream past its handshake."""
    stream, shake = raw(node), ClientHandshake(None, Lane.REALTIME, "t")
    stream.send_frame(0, shake.hello)
    stream.send_frame(0, shake.answer(stream.recv_head().message))
    assert isinstance(stream.recv_head().message, Welcome)
    return stream


WRONG = {
    "version": (HEADER.pack(MAGIC, 9, 0, 0, 0, 0), FailureCode.VERSION, "version 9"),
    "magic": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 4000, FailureCode.PROTOCOL, "bad magic"),
    "oversized": (HEADER.pack(MAGIC, 1, 0, 0, 5000, 0), FailureCode.PROTOCOL, "oversized message"),
    "payload before the handshake": (HEADER.pack(MAGIC, 1, 0, 0, 5, 1), FailureCode.PROTOCOL, "oversized payload"),
    "no hello": (encode(0, Ping()), FailureCode.PROTOCOL, "expected Hello"),
}


@pytest.mark.parametrize("name", WRONG)
def test_malformed_start_gets_a_failure_and_the_end(node, name):
    data, code, words = WRONG[name]
    with closing(raw(node)) as stream:
        stream.sock.sendall(data)
        failure = stream.recv_head().message
        assert isinstance(failure, Failure)
        assert failure.code is code
        assert words in failure.message
        assert stream.recv_head() is None


@pytest.mark.parametrize("data", [b"garbage!", HEADER.pack(MAGIC, 1, 0, 1, 17 << 20, 0), encode(1, Ping(), 2 << 30)])
def test_malformed_frame_closes_only_its_connection(node, service, data):
    with closing(TcpPeer(*node.address)) as peer, closing(shaken(node)) as stream:
        peer.call(Ping())
        stream.sock.sendall(data)
        head = stream.recv_head()
        assert head.request_id == 0
        assert head.message.code is FailureCode.PROTOCOL
        assert stream.recv_head() is None
        assert peer.call(Ping())[0] == Done()
        assert peer.counters.requests == 2


def test_truncated_frame_ends_the_session(node, service):
    with closing(shaken(node)) as stream:
        stream.send_frame(1, Ping())
        assert stream.recv_head().message == Done()
        stream.sock.sendall(encode(2, Ping(), 100) + b"x" * 50)
        stream.sock.shutdown(socket.SHUT_WR)
        head = stream.recv_head()
        assert head is None or isinstance(head.message, Failure)
    assert eventually(lambda: not service.open_sessions)
    assert service.handled == 1


def test_service_bugs_become_failures(node, service, caplog):
    service.handle = lambda *_: 1 / 0
    with closing(TcpPeer(*node.address)) as peer:
        for _ in range(2):
            with pytest.raises(PeerError, match="inside the node: ZeroDivisionError"):
                peer.call(Ping(), [b"x" * 1000])
        service.sink = service.handle
        with pytest.raises(PeerError, match="inside the node"):
            peer.call(Ping(), [b"x" * 1000])
        del service.handle, service.sink
        assert bytes(peer.call(Ping(), [b"x"])[1]) == b"x"


def test_open_port_needs_a_key(service):
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(UsageError, match="without a shared key") as caught:
            TcpServer(service, host, node_id="n")
        assert caught.value.hint
    with (
        TcpServer(service, "0.0.0.0", node_id="n", key=KEY) as server,
        closing(TcpPeer("127.0.0.1", server.port, key=KEY)) as peer,
    ):
        assert peer.call(Ping())[0] == Done()


def test_port_in_use(node, service):
    with pytest.raises(UsageError, match="cannot listen"):
        TcpServer(service, *node.address, node_id="n").start()
    with pytest.raises(UsageError, match="started already"):
        node.start()


def test_connections_are_limited(service):
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(TcpServer(service, node_id="n", max_connections=1))
        first, second = (opened.enter_context(TcpPeer(*server.address)) for _ in range(2))
        first.call(Ping())
        with pytest.raises(PeerError):
            second.call(Ping())
        assert first.call(Ping())[0] == Done()


def test_who_has_proved_nothing_keeps_nobody_out(service):
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(TcpServer(service, node_id="n", key=KEY, max_connections=2))
        first = opened.enter_context(TcpPeer(*server.address, key=KEY))
        first.call(Ping())
        silent = []
        for _ in range(3):
            silent.append(opened.enter_context(closing(raw(server))))
            assert eventually(lambda: len(server._open) == 2 and len(server._greeting) == 1)
        assert [stream.recv_head() for stream in silent[:2]] == [None, None]  # they have made way
        second = opened.enter_context(TcpPeer(*server.address, key=KEY))
        assert second.call(Ping())[0] == Done()
        assert first.call(Ping())[0] == Done()
        assert first.counters.requests == 2


def test_a_lack_of_threads_costs_one_connection_not_the_node(service, monkeypatch):
    start, refused = threading.Thread.start, []

    def start_next_time(thread):
        if thread.name == "n-127.0.0.1" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_next_time)
    with TcpServer(service, node_id="n") as server, closing(TcpPeer(*server.address)) as peer:
        with pytest.raises(PeerError):
            peer.call(Ping(), timeout_s=PATIENCE_S)
        assert len(refused) == 1
        assert peer.call(Ping(), timeout_s=PATIENCE_S)[0] == Done()


def test_silent_client_is_dropped_at_the_handshake(service, monkeypatch):
    monkeypatch.setattr(server_module, "HANDSHAKE_TIMEOUT_S", 0.05)
    with TcpServer(service, node_id="n") as server, closing(raw(server)) as stream:
        assert stream.recv_head() is None


def test_a_handshake_may_take_longer_than_connecting(node, monkeypatch):
    """A host that is there answers at once; its node may have to wait for a core."""
    until = []
    monkeypatch.setattr(Dialer, "_shake_hands", lambda *asked: until.append(asked[-1]) or Welcome("n", b""))
    dialer, began = Dialer(Tcp(*node.address), None, "t", connect_timeout_s=2.0), time.monotonic()
    for options in ({}, {"deadline": began + 2.0}):
        dialer.dial(Lane.REALTIME, user_timeout_ms=1000, **options)[0].close()
    assert until[0] >= began + dial_module.HANDSHAKE_TIMEOUT_S
    assert until[1] == began + 2.0


@pytest.mark.parametrize("kind", ["read", "call"])
@pytest.mark.parametrize("stage", ["connecting", "shaking hands"])
def test_closing_does_not_wait_for_a_connection_that_is_being_made(monkeypatch, kind, stage):
    began, go_on, connect = threading.Event(), threading.Event(), Tcp.connect
    monkeypatch.setattr(dial_module, "HANDSHAKE_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(peer_module, "CLOSE_S", 0.05)

    def slow(self, *arguments):
        began.set()
        assert stage == "shaking hands" or go_on.wait(PATIENCE_S)
        return connect(self, *arguments)

    monkeypatch.setattr(Tcp, "connect", slow)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # its kernel accepts
        peer, failed = TcpPeer(*silent.getsockname(), connect_timeout_s=PATIENCE_S), []
        ticket = peer.read(refs(1), buffers(1, SLOT), slot_bytes=SLOT, timeout_s=PATIENCE_S) if kind == "read" else None
        calling = threading.Thread(
            target=lambda: failed.append(raised(UnreachableError, lambda: peer.call(Ping(), timeout_s=PATIENCE_S)))
        )
        if ticket is None:
            calling.start()
        assert began.wait(PATIENCE_S)
        closing = threading.Thread(target=peer.close)
        closing.start()
        closing.join(PATIENCE_S / 2)
        assert not closing.is_alive()
        go_on.set()  # now it connects after all, and finds that nobody wants it any more
        if ticket is None:
            calling.join(PATIENCE_S / 2)
            assert len(failed) == 1
        else:
            assert finish(ticket) == [Outcome.LOST]
        for reader in peer._lanes[Lane.PREFETCH].readers:
            if reader.thread.ident:
                reader.thread.join(PATIENCE_S / 2)
        assert peer.counters.rx_bytes == 0


def test_client_that_takes_nothing_is_dropped(service):
    with TcpServer(service, node_id="n", stall_timeout_s=0.1) as server, closing(shaken(server)) as stream:
        stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.sock.sendall(b"".join(encode(number, Read(SLOT, refs(64)), 0) for number in range(1, 6)))
        assert eventually(lambda: service.open_sessions == [] and service.handled > 0)
        assert service.handled == service.released  # every slot is let go of


def test_client_that_stops_within_a_frame_is_dropped(service, monkeypatch):
    receive, idle = Stream.recv_head, []

    def noted(stream, deadline=None):
        try:
            return receive(stream, deadline)
        except BlockingIOError:
            idle.append(stream)
            raise

    monkeypatch.setattr(Stream, "recv_head", noted)
    with TcpServer(service, node_id="n", stall_timeout_s=0.05) as server, closing(shaken(server)) as stream:
        assert eventually(lambda: len(idle) >= 2)  # which is fine
        stream.send_frame(1, Ping())
        assert stream.recv_head().message == Done()
        stream.sock.sendall(MAGIC)
        assert stream.recv_head() is None


# --- a client and a node that misbehaves ---------------------------------------------------------------------------


@pytest.fixture
def liar():
    """Yield a function that starts a node whose reply to everything is what it is given."""
    opened = []

    def said(stream):
        head = stream.recv_head()
        if head is None:  # the client has closed, and makes no more connections
            raise ConnectionAbortedError
        return head.message

    def start(reply):
        listener = socket.create_server(("127.0.0.1", 0))

        def serve():
            from dualpath.wire.auth import NodeHandshake

            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                with closing(Stream(sock)) as stream, contextlib.suppress(OSError):
                    shake = NodeHandshake(None)
                    stream.send_frame(0, shake.challenge(said(stream)))
                    shake.accept(said(stream))
                    stream.send_frame(0, Welcome("liar", b""))
                    head = stream.recv_head()
                    if head is not None:
                        stream.sock.sendall(reply(head.request_id))
                        stream.recv_head()

        thread = threading.Thread(target=serve)
        thread.start()
        opened.append((listener, thread))
        return listener.getsockname()

    yield start
    for listener, thread in opened:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


LIES = {
    "garbage": lambda n: b"nonsense" * 10,
    "another request's reply": lambda n: encode(n + 5, Outcomes([Outcome.OK]), SLOT) + bytes(SLOT),
    "another type": lambda n: encode(n, Done()),
    "too many outcomes": lambda n: encode(n, Outcomes([Outcome.OK] * 2), 2 * SLOT) + bytes(2 * SLOT),
    "too few bytes": lambda n: encode(n, Outcomes([Outcome.OK]), 5) + bytes(5),
    "too large": lambda n: encode(n, Outcomes([Outcome.OK]), 2 << 30),
    "version": lambda n: HEADER.pack(MAGIC, 2, 0, n, 0, 0),
}


@pytest.mark.parametrize("name", LIES)
def test_lying_node_loses_items_and_is_named(liar, name):
    with closing(TcpPeer(*liar(LIES[name]))) as peer:
        ticket = peer.read(refs(1), buffers(1, SLOT), slot_bytes=SLOT)
        assert finish(ticket) == [Outcome.LOST]
        assert isinstance(ticket.error, VersionError if name == "version" else ProtocolError)
        assert ticket.error.node


def test_lying_node_fails_calls(liar):
    with closing(TcpPeer(*liar(lambda n: b"nonsense" * 10))) as peer, pytest.raises(ProtocolError, match="bad magic"):
        peer.call(Ping())
    failure = encode(0, Failure(FailureCode.AUTH, "no longer welcome"))
    with closing(TcpPeer(*liar(lambda n: failure))) as peer, pytest.raises(AuthError, match="no longer welcome"):
        peer.call(Ping())


# --- a link that misbehaves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 50, 130, 300, SLOT, 10 * SLOT])
def test_cut_link_loses_items_and_the_next_read_connects_anew(link, service, after):
    with closing(TcpPeer(*link.address)) as peer:
        link.cut_after = after
        into = buffers(64, SLOT)
        ticket = peer.read(refs(64), into, slot_bytes=SLOT)
        outcomes = finish(ticket)
        assert set(outcomes) <= ({Outcome.LOST} if after <= SLOT else {Outcome.OK, Outcome.LOST})
        assert isinstance(ticket.error, PeerError) == (Outcome.LOST in outcomes)
        assert all(into[i] == service.slot(i) for i, outcome in enumerate(outcomes) if outcome is Outcome.OK)
        link.cut_after = None
        assert finish(peer.read(refs(64), into, slot_bytes=SLOT)) == [Outcome.OK] * 64


def test_stalled_link_meets_deadlines_and_drains(link, service, monkeypatch):
    with closing(TcpPeer(*link.address, connections={Lane.PREFETCH: 1})) as peer:
        into = buffers(64, SLOT)
        finish(peer.read(refs(64), into, slot_bytes=SLOT))
        peer.call(Ping())
        link.stall()
        with pytest.raises(DeadlineError):
            peer.call(Ping(), timeout_s=0.05)
        with pytest.raises(PeerError):
            peer.call(Ping(), [bytes(32 << 20)], timeout_s=0.05)  # more than the buffers on the way hold
        ticket = peer.read(refs(64), into, slot_bytes=SLOT, timeout_s=0.05)
        assert set(finish(ticket)) == {Outcome.TIMEOUT}
        with monkeypatch.context() as patched:
            patched.setattr(dial_module, "HANDSHAKE_TIMEOUT_S", 0.05)
            late = peer.read(refs(64), into, slot_bytes=SLOT, timeout_s=PATIENCE_S)  # no handshake: lost long before
            assert set(finish(late)) == {Outcome.LOST}
        assert isinstance(late.error, DeadlineError)
        link.flow()
        assert peer.call(Ping(), timeout_s=PATIENCE_S)[0] == Done()
        assert finish(peer.read(refs(64), into, slot_bytes=SLOT)) == [Outcome.OK] * 64


def test_reads_under_way_survive_a_reset_and_are_not_tried_for_ever(link, service):
    with closing(TcpPeer(*link.address)) as peer:
        into = buffers(64, SLOT)
        finish(peer.read(refs(1), into[:1], slot_bytes=SLOT))  # so that the next read is sent, not queued
        service.gate.clear()
        ticket = peer.read(refs(64), into, slot_bytes=SLOT)
        link.reset()
        service.gate.set()
        assert finish(ticket) == [Outcome.OK] * 64
        assert all(into[i] == service.slot(i) for i in range(64))
        link.cut_after = 0
        ticket = peer.read(refs(64), into, slot_bytes=SLOT)
        assert Outcome.LOST in finish(ticket)
        assert isinstance(ticket.error, UnreachableError | TruncatedError)


def test_reset_link_fails_calls(link, service):
    with closing(TcpPeer(*link.address)) as peer:
        peer.call(Ping())
        service.gate.clear()
        call = peer.start(Ping())
        link.reset()
        with pytest.raises(UnreachableError):
            call.result()
        service.gate.set()
        assert peer.call(Ping())[0] == Done()


def test_spoiled_handshake(link):
    link.flip_at = 1
    with closing(TcpPeer(*link.address)) as peer, pytest.raises(ProtocolError, match="bad magic"):
        peer.call(Ping())


# --- the mapped transport ------------------------------------------------------------------------------------------


def test_socket_is_private_and_goes_with_the_node(service, tmp_path):
    path = tmp_path / "node.sock"
    with MappedServer(service, path, node_id="n"):
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(UsageError, match="another node listens"):
            MappedServer(service, path, node_id="m").start()
    assert not path.exists()
    with pytest.raises(UsageError, match="no such folder"):
        MappedServer(service, tmp_path / "run" / "node.sock", node_id="n").start()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="longer than"):
        MappedServer(service, tmp_path / ("x" * 200), node_id="n").start()


def test_stale_socket_is_replaced(service, tmp_path):
    path = tmp_path / "node.sock"
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(path))
    with MappedServer(service, path, node_id="n") as server, closing(MappedPeer(server.address)) as peer:
        assert peer.call(Ping())[0] == Done()


def test_a_node_that_ends_leaves_its_successors_socket_alone(service, tmp_path, monkeypatch):
    path = tmp_path / "node.sock"
    with contextlib.ExitStack() as opened:
        first, second = (MappedServer(service, path, node_id=name) for name in ("first", "second"))
        opened.callback(first.close)
        first.start()
        with closing(MappedPeer(path)) as peer:
            peer.call(Ping())
            ended = service.closed

            def succeed(session):  # while the first one ends, and listens no more
                ended(session)
                opened.enter_context(second)

            monkeypatch.setattr(service, "closed", succeed)
            first.close()
            monkeypatch.setattr(service, "closed", ended)
        peer = opened.enter_context(closing(MappedPeer(path)))
        assert peer.call(Ping())[0] == Done()
        assert peer.node == "second"


def test_view_is_the_nodes_memory(service, tmp_path):
    with MappedServer(service, tmp_path / "s", node_id="n") as server, closing(MappedPeer(server.address)) as peer:
        ref = refs(8)[7]
        arena, offset = peer.view(ref, SLOT)
        assert not arena.flags.writeable
        assert arena.shape == (64 * SLOT,)
        assert offset == 7 * SLOT
        service.slot(7)[0] = 200
        assert arena[offset] == 200
        assert peer.current(ref, SLOT)
        assert peer.view(ref, SLOT)[0] is arena
        service.generations[7] += 1
        assert not peer.current(ref, SLOT)
        assert peer.view(ref, SLOT) is None
        assert not peer.current(ref, SLOT + 1)
        with pytest.raises(PeerError):
            peer.view(ref, SLOT + 1)


def test_memory_that_could_shrink_is_refused(service, tmp_path):
    import os

    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, 64 * SLOT)
    sealed, service.descriptors = service.descriptors, (fd, fd)
    with MappedServer(service, tmp_path / "s", node_id="n") as server, closing(MappedPeer(server.address)) as peer:
        with pytest.raises(ProtocolError, match="not sealed"):
            peer.view(refs(1)[0], SLOT)
        service.descriptors = sealed[:1]
        ticket = peer.read(refs(1), buffers(1, SLOT), slot_bytes=SLOT)
        assert finish(ticket) == [Outcome.LOST]
        assert isinstance(ticket.error, ProtocolError)
    service.descriptors = (*sealed, fd)


@pytest.mark.parametrize("slots", [0, -1, -(1 << 63), (1 << 64) - 1])
def test_memory_of_an_impossible_size_is_refused(service, tmp_path, monkeypatch, slots):
    monkeypatch.setattr(service, "handle", lambda *_: Reply(Mapped(slots, SLOT), descriptors=service.descriptors))
    with MappedServer(service, tmp_path / "s", node_id="n") as server, closing(MappedPeer(server.address)) as peer:
        ticket = peer.read(refs(1), buffers(1, SLOT), slot_bytes=SLOT, timeout_s=3.0)
        assert finish(ticket) == [Outcome.LOST]
        assert isinstance(ticket.error, ProtocolError)


# --- the fault wrapper ---------------------------------------------------------------------------------------------


def test_faulty_peer(node, service):
    with closing(FaultyPeer(TcpPeer(*node.address))) as peer:
        into, told = buffers(4, SLOT), []
        peer.faults.drop, peer.faults.corrupt, peer.faults.truncate_from = {3}, {0}, 2
        ticket = peer.read(
            refs(3),
            into[:3],
            slot_bytes=SLOT,
            timeout_s=PATIENCE_S,
            on_items=lambda first, outcomes: told.extend(enumerate(outcomes, first)),
        )
        expected = [Outcome.OK, Outcome.OK, Outcome.LOST]
        assert finish(ticket) == expected
        assert sorted(told) == list(enumerate(expected))
        assert into[0][0] == 0xFF
        assert into[1] == service.slot(1)
        peer.faults.truncate_from = None
        assert finish(peer.read(refs(1), into[:1], slot_bytes=SLOT, timeout_s=0.05)) == [Outcome.TIMEOUT]
        peer.faults.delay_s = 0.01
        assert peer.call(Ping())[0] == Done()
        assert finish(peer.read(refs(4), into, slot_bytes=SLOT)) == [Outcome.OK] * 4
        peer.faults.drop = {8}
        ticket = peer.read(refs(1), into[:1], slot_bytes=SLOT)
        peer.cancel(ticket)
        assert finish(ticket) == [Outcome.CANCELLED]
        peer.faults.killed = True
        assert finish(peer.read(refs(4), into, slot_bytes=SLOT)) == [Outcome.LOST] * 4
        assert list(peer.write(refs(1), into[:1], slot_bytes=SLOT)) == [Outcome.LOST]
        with pytest.raises(UnreachableError):
            peer.call(Ping())


def test_limits_of_a_node_can_be_lowered(service):
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(TcpServer(service, node_id="n", limits=Limits(payload_bytes=1000)))
        peer = opened.enter_context(TcpPeer(*server.address))
        with pytest.raises(PeerError):
            peer.call(Ping(), [bytes(1001)])


def test_nothing_lands_for_a_call_that_was_given_up_while_another_thread_received_its_reply():
    here, there = socket.socketpair()
    with here, there:
        calls, into, now = CallConnection(Stream(here), "n"), bytearray(8), time.monotonic()
        first = calls.start(Ping(), (), now + PATIENCE_S)
        second = calls.start(Ping(), (), now + 0.05, into=[memoryview(into)])
        errors = []
        leader = threading.Thread(target=lambda: errors.append(raised(PeerError, first.result)))
        leader.start()
        there.sendall(encode(second.request_id, Done(), 8) + b"1234")
        assert eventually(lambda: calls._landing is second)
        with pytest.raises(DeadlineError):
            second.result()
        assert calls._landing is None
        with contextlib.suppress(OSError):
            there.sendall(b"5678")
        leader.join(PATIENCE_S)
        assert len(errors) == 1
        assert into[4:] == bytes(4)
