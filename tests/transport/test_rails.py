"""Several rails to one node: which there are, that they share the work, and that the loss of one costs nothing."""

import ipaddress
import socket
import struct
import threading
import time
from collections import deque
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest

from dualpath.errors import DeadlineError, ProtocolError, UnreachableError, UsageError
from dualpath.host.addresses import LocalAddress, local_addresses, reaching
from dualpath.pool.client import connect
from dualpath.testing.transport import FaultyLink, MemoryService
from dualpath.testing.transport_case import KEY, PATIENCE_S, buffers, eventually, refs
from dualpath.transport.calls import PendingCall
from dualpath.transport.credit import FIRST_FRAME_BYTES, FRAME_S, Credit
from dualpath.transport.dial import Dialer, Tcp, is_same_host
from dualpath.transport.failover import TRIES
from dualpath.transport.peer import RAIL_CONNECT_TIMEOUT_S, RAILED_USER_TIMEOUT_MS
from dualpath.transport.rails import MAX_RAILS, rails_to
from dualpath.transport.reads import ReadLane
from dualpath.transport.receiver import WINDOW
from dualpath.transport.requests import REQUEST_BYTES, Batch, split
from dualpath.transport.stall import StallWatch
from dualpath.transport.stream import Stream
from dualpath.transport.tcp import MOST_TOLD, TcpPeer, TcpServer
from dualpath.transport.ticket import ReadTicket
from dualpath.wire.frames import HANDSHAKE_LIMITS, encode
from dualpath.wire.messages import Done, Lane, Outcome, Ping, Welcome

SLOT = 4096


def local(nic, text):
    return LocalAddress(nic, ipaddress.ip_interface(text))


def names(rails):
    return [(rail.nic, rail.address.source, rail.address.host) for rail in rails]


HERE = [local("eth2", "10.0.0.1/24"), local("eth3", "10.0.1.1/24"), local("lo", "127.0.0.1/8")]


def test_one_network_for_each_pair_of_nics():
    rails = rails_to(Tcp("10.0.0.2", 7700), ["10.0.1.2:7700", "10.0.0.2:7700"], HERE)
    assert names(rails) == [("eth2", "10.0.0.1", "10.0.0.2"), ("eth3", "10.0.1.1", "10.0.1.2")]
    assert str(rails[1]) == "eth3 → 10.0.1.2:7700"


def test_a_node_with_very_many_addresses_tells_some_of_each_nic(monkeypatch):
    services = [local("ipvs0", f"10.96.{n}.1/32") for n in range(250)]
    monkeypatch.setattr("dualpath.host.addresses.local_addresses", lambda: [*services, local("eth2", "10.0.0.1/24")])
    with ExitStack() as opened:
        service = MemoryService(1, SLOT)
        opened.callback(service.close)
        node = opened.enter_context(TcpServer(service, "0.0.0.0", node_id="n", key=KEY))
        assert [rail.rpartition(":")[0] for rail in node.rails[:3]] == ["10.96.0.1", "10.0.0.1", "10.96.1.1"]
        peer = opened.enter_context(TcpPeer("127.0.0.1", node.port, key=KEY, max_rails=1))
        assert peer.call(Ping())[0] == Done()
    longest = str(Tcp("ffff:" * 7 + "ffff", 65535))
    assert len(encode(0, Welcome("n" * 64, bytes(16), (longest,) * MOST_TOLD))) < HANDSHAKE_LIMITS.message_bytes


def test_two_nics_here_and_one_there_take_turns():
    here = [local("eth2", "10.0.0.1/24"), local("eth3", "10.0.0.3/24")]
    rails = rails_to(Tcp("10.0.0.2", 1), ["10.0.0.2:1"], here)
    assert names(rails) == [("eth2", "10.0.0.1", "10.0.0.2"), ("eth3", "10.0.0.3", "10.0.0.2")]


def test_two_nics_at_either_end_of_one_network_make_two_rails():
    here = [local("eth2", "10.0.0.1/24"), local("eth3", "10.0.0.3/24")]
    rails = rails_to(Tcp("10.0.0.2", 1), ["10.0.0.2:1", "10.0.0.4:1"], here)
    assert names(rails) == [("eth2", "10.0.0.1", "10.0.0.2"), ("eth3", "10.0.0.3", "10.0.0.4")]


def test_another_network_is_left_to_the_kernel():
    rails = rails_to(Tcp("10.9.0.2", 1), ["10.9.0.2:1", "10.9.1.2:1"], HERE)
    assert names(rails) == [("", "", "10.9.0.2"), ("", "", "10.9.1.2")]


def test_nics_restrict_and_the_dialled_address_is_the_last_resort():
    advertised = ["10.0.0.2:1", "10.0.1.2:1"]
    assert names(rails_to(Tcp("10.0.0.2", 1), advertised, HERE, nics=["eth3"])) == [("eth3", "10.0.1.1", "10.0.1.2")]
    assert names(rails_to(Tcp("10.0.0.2", 1), advertised, HERE, nics=["eth9"])) == [("", "", "10.0.0.2")]


def test_a_name_that_was_dialled_is_kept_and_nonsense_is_skipped():
    rails = rails_to(Tcp("node-a", 1), ["10.0.1.2:1", "nonsense", ":", "x:99999"], HERE)
    assert names(rails) == [("", "", "node-a"), ("eth3", "10.0.1.1", "10.0.1.2")]
    assert len(rails_to(Tcp("n", 1), [f"10.0.1.{n}:1" for n in range(200)], HERE)) == MAX_RAILS


def test_what_means_something_else_here_is_no_rail():
    advertised = [
        "127.0.0.1:1", "10.0.1.1:1", "0.0.0.0:1", "[::]:1", "[fe80::1]:1", "224.0.0.1:1", "10.0.1.2:0", "b..c:1",
        "10.0.0.2:1", "10.0.1.2:1", "10.0.1.2:1",
    ]  # fmt: skip
    assert [rail.address.host for rail in rails_to(Tcp("10.0.0.2", 1), advertised, HERE)] == ["10.0.0.2", "10.0.1.2"]
    here = rails_to(Tcp("127.0.0.1", 1), ["127.0.0.1:1", "10.0.1.1:1"], HERE)  # a node on this host
    assert [rail.address.host for rail in here] == ["127.0.0.1", "10.0.1.1"]


def test_rails_of_the_sixth_version():
    here = [local("eth2", "fd00:0::1/64"), local("eth3", "fd00:1::1/64")]
    rails = rails_to(Tcp("fd00::2", 7), ["[fd00::2]:7", "[fd00:1:0::2]:7"], here)
    assert names(rails) == [("eth2", "fd00::1", "fd00::2"), ("eth3", "fd00:1::1", "fd00:1::2")]


def test_addresses_of_this_host():
    assert "127.0.0.1" in [one.host for one in local_addresses()]
    assert reaching("127.0.0.7", HERE) == [HERE[2]]
    assert reaching("node-a", HERE) == []


def test_frames_follow_the_rate():
    credit = Credit()
    assert credit.frame_bytes == FIRST_FRAME_BYTES
    for _ in range(50):
        credit.answered(1 << 20, (1 << 20) / 125e6)
    assert credit.frame_bytes == pytest.approx(125e6 * FRAME_S, rel=0.01)
    credit.answered(0, 1.0)  # a reply without bytes says nothing about the rate
    assert credit.frame_bytes == pytest.approx(125e6 * FRAME_S, rel=0.01)
    for _ in range(50):
        credit.answered(1 << 20, 0.0)
    assert credit.frame_bytes == REQUEST_BYTES


def test_a_large_request_is_cut_and_drains_once():
    ticket = ReadTicket(8, time.monotonic() + 10, None)
    requests = split(ticket, refs(8), buffers(8, 8), 8)
    ticket.hold(len(requests))
    queue, sizes = deque(requests), []
    while queue:
        batch = Batch.pop(queue, 3 * 8)
        sizes.append(len(batch.refs))
        assert not ticket.drained
        batch.finish([Outcome.OK] * len(batch.refs), None)
    assert sizes == [3, 3, 2]
    assert ticket.drained
    assert list(ticket.outcomes) == [Outcome.OK] * 8


def test_reads_are_lost_when_every_connection_was_tried():
    lane = ReadLane(Dialer(Tcp("10.0.0.2", 1), None, "t", 1.0), Lane.PREFETCH, 2, lambda *_: None)
    lane.closed = True  # nobody waits for another try
    ticket = ReadTicket(1, time.monotonic() + 10, None)
    ticket.hold(1)
    (request,) = split(ticket, refs(1), buffers(1, 8), 8)
    request.number = 1
    lane.queue.append(request)
    error = UnreachableError("refused")
    lane.lost_connection(lane.readers[0], error, 1)
    assert list(ticket.outcomes) == [None]
    lane.lost_connection(lane.readers[1], error, 1)
    assert (list(ticket.outcomes), ticket.drained, ticket.error) == ([Outcome.LOST], True, error)


def test_connections_that_end_together_do_not_lose_a_read():
    lane = ReadLane(Dialer(Tcp("10.0.0.2", 1), None, "t", 1.0), Lane.PREFETCH, 2, lambda *_: None)
    lane._started = lane._all_run = True  # its threads are played by this one
    ticket = ReadTicket(1, time.monotonic() + 10, None)
    ticket.hold(1)
    gone, (one, two) = UnreachableError("reset"), lane.readers
    with ExitStack() as opened:

        def connect(reader):
            here, there = socket.socketpair()
            opened.enter_context(there)
            reader._attach(Stream(here))

        connect(one)
        connect(two)
        lane.submit(split(ticket, refs(1), buffers(1, 8), 8))
        assert (len(one.in_flight), len(two.in_flight)) == (1, 0)
        one._disconnect(gone, True)
        assert len(two.in_flight) == 1  # which has ended too, and does not know yet
        two._disconnect(gone, True)
        assert (len(lane.queue), list(ticket.outcomes)) == (1, [None])
        connect(one)
        assert one.pull()
        one._disconnect(gone, True)
        assert (list(ticket.outcomes), ticket.drained) == ([Outcome.LOST], True)
        assert str(ticket.error) == "reset (3 connections ended with this read under way)"


@pytest.fixture
def played():
    """A lane over three rails whose threads are played by the test, and how each of them connects."""
    rails = [Dialer(Tcp(f"10.0.{n}.2", 1), None, "t", 1.0, rail=f"r{n}") for n in range(3)]
    lane = ReadLane(rails[0], Lane.PREFETCH, 1, lambda *_: None)
    lane.spread(rails)
    lane._started = lane._all_run = True
    with ExitStack() as opened:

        def connect(reader):
            here, there = socket.socketpair()
            opened.enter_context(there)
            reader._attach(opened.enter_context(closing(Stream(here))))
            reader.pull()

        yield lane, connect


@pytest.mark.parametrize("dropped", [True, False])
def test_a_read_that_ends_every_connection_is_given_up_while_others_live(played, dropped):
    lane, connect = played
    ticket = ReadTicket(1, time.monotonic() + 10, None)
    ticket.hold(1)
    for reader in lane.readers:
        connect(reader)
    lane.submit(split(ticket, refs(1), buffers(1, 8), 8))
    ends = 0
    while not ticket.settled and ends < 20:
        (reader,) = (reader for reader in lane.readers if reader.in_flight)
        reader._disconnect(ProtocolError("nonsense", node="n"), dropped)
        ends += 1
        connect(reader)
    assert (ends, ticket.drained, list(ticket.outcomes)) == (4, True, [Outcome.LOST])
    assert isinstance(ticket.error, ProtocolError)
    assert str(ticket.error) == "nonsense (4 connections ended with this read under way)"


def test_a_rail_leaves_a_read_with_which_it_ended_to_one_that_works(played):
    lane, connect = played
    ticket, other = (ReadTicket(items, time.monotonic() + 10, None) for items in (1, 2))
    ticket.hold(1)
    other.hold(2)
    bad, good, _ = lane.readers
    connect(bad)
    lane.submit(split(ticket, refs(1), buffers(1, 8), 8))
    connect(good)
    good.in_flight = {n: Batch(split(other, refs(1), buffers(1, 8), 8)) for n in range(WINDOW)}  # no room there
    bad._disconnect(UnreachableError("reset"), True)
    connect(bad)
    assert (len(lane.queue), bad.in_flight) == (1, {})
    other.settle_all(Outcome.CANCELLED, None)
    good._disconnect(UnreachableError("reset"), True)
    assert (len(lane.queue), len(bad.in_flight)) == (0, 1)  # no other is left


def test_connections_that_are_shut_down_here_use_up_no_tries():
    lane = ReadLane(Dialer(Tcp("10.0.0.2", 1), None, "t", 1.0), Lane.PREFETCH, 1, lambda *_: None)
    lane._started = lane._all_run = True  # its threads are played by this one
    ticket = ReadTicket(1, time.monotonic() + 10, None)
    ticket.hold(1)
    gone, (reader,) = UnreachableError("reset"), lane.readers
    lane.submit(split(ticket, refs(1), buffers(1, 8), 8))
    with ExitStack() as opened:
        for _ in range(2 * TRIES):
            here, there = socket.socketpair()
            opened.enter_context(there)
            reader._attach(Stream(here))
            assert reader.pull()
            with lane.lock:
                reader.give_up().shutdown()
            reader._disconnect(gone, True)
    (request,) = lane.queue
    assert request.ended_on == ()
    assert list(ticket.outcomes) == [None]


def test_a_read_that_has_ended_is_not_queued_again():
    lane = ReadLane(Dialer(Tcp("10.0.0.2", 1), None, "t", 1.0), Lane.PREFETCH, 2, lambda *_: None)
    ticket = ReadTicket(1, time.monotonic() + 10, None)
    ticket.hold(1)
    lane.abort(ticket, Outcome.CANCELLED, None)  # between a connection's end and its requests' return to the queue
    lane.requeue(split(ticket, refs(1), buffers(1, 8), 8))
    assert not lane.queue
    assert ticket.drained


def test_a_read_whose_deadline_passes_before_it_is_queued_drains():
    lane = ReadLane(Dialer(Tcp("10.0.0.2", 1), None, "t", 1.0), Lane.PREFETCH, 2, lambda *_: None)
    lane._started = lane._all_run = True  # its threads are played by this one
    ticket = ReadTicket(1, time.monotonic() + 10, None)
    ticket.hold(1)
    lane.abort(ticket, Outcome.TIMEOUT, None)
    lane.submit(split(ticket, refs(1), buffers(1, 8), 8))
    assert not lane.queue
    assert ticket.drained
    assert list(ticket.outcomes) == [Outcome.TIMEOUT]


class Interleaved:
    """A lock; another thread does `then` as soon as it is released for the first time."""

    def __init__(self, lock, then):
        self.lock, self.then = lock, [then]

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()
        if self.then:
            self.then.pop()()


@pytest.mark.parametrize("who", ["cancel", "watch"])
def test_who_gives_up_a_connection_leaves_the_one_after_it_alone(who, monkeypatch):
    lane = ReadLane(Dialer(Tcp("10.0.0.2", 1), None, "t", 1.0), Lane.PREFETCH, 2, lambda *_: None)
    lane._started = lane._all_run = True  # its threads are played by this one
    ticket = ReadTicket(1, time.monotonic() + 10, None)
    ticket.hold(1)
    one, two = lane.readers
    two.dialer = Dialer(Tcp("10.0.1.2", 1), None, "t", 1.0)
    with ExitStack() as opened:

        def connect(reader):
            here, there = socket.socketpair()
            opened.enter_context(there)
            stream = Stream(opened.enter_context(here))
            reader._attach(stream)
            return stream

        connect(one)
        connect(two)
        lane.submit(split(ticket, refs(1), buffers(1, 8), 8))
        assert (len(one.in_flight), len(two.in_flight)) == (1, 0)
        fresh = []

        def connect_anew():
            one._disconnect(UnreachableError("reset"), True)
            fresh.append(connect(one))

        monkeypatch.setattr(lane, "lock", Interleaved(lane.lock, connect_anew))
        if who == "cancel":
            one.abandon(ticket)
        else:
            monkeypatch.setattr(one, "stalled", lambda _limit_s: True)
            StallWatch._look(SimpleNamespace(_node="n"), lane)
        assert fresh[0].alive()
        assert one.connected


def test_rails_that_are_learnt_by_a_read_under_way_are_watched_at_once():
    looked = threading.Event()

    class Quiet:
        lock, readers = threading.Lock(), ()

        @property
        def queue(self):
            looked.set()
            return ()

    watch = StallWatch("n", [Quiet()])
    try:
        assert looked.wait(PATIENCE_S)
    finally:
        watch.close()


def test_a_connection_that_was_reset_has_no_other_end():
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        other, _ = listener.accept()
        assert is_same_host(one)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        with pytest.raises(ConnectionResetError):
            one.recv(1)
        assert not is_same_host(one)


# --- over sockets --------------------------------------------------------------------------------------------------


class Behind(TcpServer):
    """A server that tells clients of links in front of it."""

    links: tuple[str, ...] = ()

    @property
    def rails(self):
        return self.links


@pytest.fixture
def service():
    service = MemoryService(256, SLOT)
    for slot in range(256):
        service.slot(slot)[:] = bytes([slot]) * SLOT
    yield service
    service.gate.set()
    service.close()


@pytest.fixture
def railed(service):
    """A node, two links to it, and a peer that knows of both."""
    with ExitStack() as opened:
        server = opened.enter_context(Behind(service, node_id="n"))
        links = [opened.enter_context(FaultyLink(server.address)) for _ in range(2)]
        server.links = tuple(f"127.0.0.1:{link.address[1]}" for link in links)
        peer = opened.enter_context(closing(TcpPeer(*links[0].address)))
        assert peer.call(Ping())[0] == Done()
        yield peer, links


def read_all(peer, service, count=256):
    into, wanted = buffers(count, SLOT), refs(count)
    tickets = [
        peer.read(wanted[n : n + 16], into[n : n + 16], slot_bytes=SLOT, timeout_s=PATIENCE_S)
        for n in range(0, count, 16)
    ]
    outcomes = [outcome for ticket in tickets for outcome in ticket.wait()]
    assert all(ticket.wait_drained(PATIENCE_S) for ticket in tickets)
    good = all(bytes(place) == service.slot(n) for n, place in enumerate(into))
    return outcomes, good


def test_a_server_with_several_addresses_tells_them(service):
    with (
        TcpServer(service, node_id="n", rails=[("127.0.0.2", 0)]) as server,
        closing(TcpPeer(*server.address)) as peer,
    ):
        assert server.rails == (f"127.0.0.1:{server.port}", f"127.0.0.2:{server.port}")
        assert peer.rails == ()
        peer.call(Ping())
        assert [rail.name for rail in peer.rails] == [f"lo → {address}" for address in server.rails]
        assert read_all(peer, service) == ([Outcome.OK] * 256, True)
        assert sum(rail.bytes_received for rail in peer.rails) == 256 * SLOT


def test_names_are_told_as_addresses_and_each_once(service):
    with (
        TcpServer(service, "localhost", node_id="n", rails=[("127.0.0.2", 0)]) as server,
        closing(TcpPeer("localhost", server.port)) as peer,
    ):
        peer.call(Ping())
        assert [rail.name for rail in peer.rails] == [f"lo → 127.0.0.{n}:{server.port}" for n in (1, 2)]


def test_what_a_node_cannot_listen_at_is_said(service):
    with pytest.raises(UsageError, match="named twice"):
        TcpServer(service, node_id="n", rails=[("127.0.0.1", 0)])
    server = TcpServer(service, node_id="n", key=KEY, rails=[("203.0.113.7", 0)])
    with pytest.raises(UsageError) as error:
        server.start()
    assert "of this host" in error.value.hint


def test_a_nic_that_was_named_is_the_one_that_is_used(service):
    with Behind(service, node_id="n") as server, closing(TcpPeer(*server.address, nics=["lo"])) as peer:
        peer.call(Ping())
        assert [rail.name for rail in peer.rails] == [f"lo → 127.0.0.1:{server.port}"]
        assert read_all(peer, service, 32) == ([Outcome.OK] * 32, True)
    with pytest.raises(UsageError, match="no NIC called nosuch0"):
        connect(f"127.0.0.1:{server.port}", nics=["nosuch0"])


def test_a_rail_that_leads_to_another_node_is_not_used(service):
    other = MemoryService(256, SLOT)
    with (
        closing(other),
        TcpServer(other, "127.0.0.2", node_id="other") as elsewhere,
        Behind(service, node_id="n") as server,
        closing(TcpPeer(*server.address)) as peer,
    ):
        server.links = (f"127.0.0.1:{server.port}", f"127.0.0.2:{elsewhere.port}")
        peer.call(Ping())
        assert len(peer.rails) == 2
        assert read_all(peer, service) == ([Outcome.OK] * 256, True)
        assert (peer.node, other.handled) == ("n", 0)


def test_one_rail_may_be_asked_for(service):
    with (
        TcpServer(service, node_id="n", rails=[("127.0.0.2", 0)]) as server,
        closing(TcpPeer(*server.address, max_rails=1)) as peer,
    ):
        peer.call(Ping())
        assert peer.rails == ()
        assert read_all(peer, service, 32) == ([Outcome.OK] * 32, True)


def test_both_rails_carry_reads(railed, service):
    peer, _ = railed

    def both_carried():  # one may have read everything before the other is connected
        assert read_all(peer, service) == ([Outcome.OK] * 256, True)
        return all(rail.connected and rail.bytes_received for rail in peer.rails)

    assert eventually(both_carried)


def test_a_call_soon_leaves_a_rail_that_is_dead_also_when_it_told_of_the_others(railed):
    peer, _ = railed
    sock = peer._callers[Lane.REALTIME].stream.sock
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == RAILED_USER_TIMEOUT_MS


def test_a_stalled_rail_hands_its_reads_over_and_rejoins(railed, service):
    peer, links = railed
    read_all(peer, service)
    links[1].stall()
    outcomes, good = read_all(peer, service)
    assert (outcomes, good) == ([Outcome.OK] * 256, True)
    links[1].flow()
    before = peer.rails[1].bytes_received

    def carried():  # it connects anew when there is work
        read_all(peer, service)
        return peer.rails[1].bytes_received > before

    assert eventually(carried)


def test_a_node_that_is_slow_to_greet_is_waited_for_when_its_other_rail_is_dead():
    found = (object(), Welcome("n", b""))
    peer = TcpPeer("10.0.0.2", 1)
    deadline = time.monotonic() + 60

    def busy(lane, *, deadline, **_):
        if deadline - time.monotonic() <= RAIL_CONNECT_TIMEOUT_S:
            raise DeadlineError("no handshake in time")
        return found

    def dead(lane, **_):
        raise UnreachableError("refused")

    peer._rails = tuple(
        SimpleNamespace(address=Tcp(host, 1), dial=dial) for host, dial in (("10.0.0.2", busy), ("10.0.1.2", dead))
    )
    with closing(peer):
        for turn in range(2):  # whichever is asked first
            peer._turn[Lane.REALTIME] = turn
            assert peer._dial_caller(Lane.REALTIME, deadline) is found


def test_a_rail_that_breaks_hands_its_reads_over(railed, service):
    peer, links = railed
    read_all(peer, service)
    links[1].cut_after = 0
    links[1].reset()
    assert read_all(peer, service) == ([Outcome.OK] * 256, True)


def test_a_read_that_breaks_every_rail_is_given_up_long_before_its_deadline(railed, service):
    peer, links = railed
    read_all(peer, service, 32)
    for link in links:
        link.cut_after = 2 * SLOT  # handshakes pass
        link.reset()
    ticket = peer.read(refs(64), buffers(64, SLOT), slot_bytes=SLOT, timeout_s=60.0)
    assert Outcome.LOST in ticket.wait(30.0)
    assert "with this read under way" in str(ticket.error)


def test_a_call_that_is_cut_off_is_made_again_over_the_other_rail(railed, service):
    peer, links = railed
    service.gate.clear()
    call = peer.start(Ping())
    links[0].close()
    service.gate.set()
    assert call.result()[0] == Done()
    assert peer.call(Ping())[0] == Done()


def test_a_node_that_is_gone_is_gone_over_every_rail(railed, service):
    peer, links = railed
    read_all(peer, service)
    for link in links:
        link.close()
    with pytest.raises(UnreachableError):
        peer.call(Ping())
    outcomes, _ = read_all(peer, service, 32)
    assert set(outcomes) == {Outcome.LOST}


# --- a node that is started anew -----------------------------------------------------------------------------------


def restarted(opened, server, service, *links):
    """Stop the node; start it anew at the same address, telling of other links."""
    server.close()
    again = Behind(service, port=server.port, node_id="n")
    again.links = tuple(f"127.0.0.1:{link.address[1]}" for link in links)
    return opened.enter_context(again)


def readers(lane):
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"read-{lane.name.lower()}")]


def answers(peer):
    try:
        return peer.call(Ping())[0] == Done()
    except UnreachableError:
        return False


def test_a_node_that_comes_back_elsewhere_is_read_over_its_new_rails(service):
    with ExitStack() as opened:
        server = opened.enter_context(Behind(service, node_id="n"))
        first, second, third = (opened.enter_context(FaultyLink(server.address)) for _ in range(3))
        server.links = tuple(f"127.0.0.1:{link.address[1]}" for link in (first, second))
        peer = opened.enter_context(closing(TcpPeer(*first.address)))
        assert read_all(peer, service) == ([Outcome.OK] * 256, True)
        threads = len(readers(Lane.PREFETCH))
        restarted(opened, server, service, first, third)
        second.close()
        assert eventually(lambda: answers(peer))
        assert [rail.name.rpartition(":")[2] for rail in peer.rails] == [str(one.address[1]) for one in (first, third)]
        assert read_all(peer, service) == ([Outcome.OK] * 256, True)
        assert eventually(lambda: len(readers(Lane.PREFETCH)) == threads), (
            "those of the rail that is no more have ended"
        )

        def carried():
            read_all(peer, service)
            return peer.rails[1].bytes_received > 0

        assert eventually(carried)


def test_a_node_that_comes_back_with_one_address_has_no_rails_and_may_get_them_again(service):
    with ExitStack() as opened:
        server = opened.enter_context(Behind(service, node_id="n"))
        first, second = (opened.enter_context(FaultyLink(server.address)) for _ in range(2))
        server.links = tuple(f"127.0.0.1:{link.address[1]}" for link in (first, second))
        peer = opened.enter_context(closing(TcpPeer(*first.address)))
        for links in ((), (first, second), ()):
            server = restarted(opened, server, service, *links)
            assert eventually(lambda: answers(peer))
            assert len(peer.rails) == len(links)
            assert read_all(peer, service) == ([Outcome.OK] * 256, True)


def test_a_node_that_is_found_again_over_its_second_rail_keeps_it(service):
    with ExitStack() as opened:
        server = opened.enter_context(Behind(service, node_id="n"))
        first, second, third = (opened.enter_context(FaultyLink(server.address)) for _ in range(3))
        server.links = tuple(f"127.0.0.1:{link.address[1]}" for link in (first, second))
        peer = opened.enter_context(closing(TcpPeer(*first.address)))
        assert answers(peer)
        first.close()
        restarted(opened, server, service, second, third)
        assert eventually(lambda: answers(peer))
        assert [rail.name.rpartition(":")[2] for rail in peer.rails] == [str(one.address[1]) for one in (second, third)]
        assert read_all(peer, service) == ([Outcome.OK] * 256, True)


def test_a_name_may_mean_another_address_later(service, monkeypatch):
    places = {"node-a": "127.0.0.1"}
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **more: resolve(places.get(host, host), *rest, **more)
    )
    rails = [("127.0.0.2", 0)]
    with TcpServer(service, node_id="n", rails=rails) as server, closing(TcpPeer("node-a", server.port)) as peer:
        assert answers(peer)
        assert [rail.name for rail in peer.rails] == [f"lo → 127.0.0.{n}:{server.port}" for n in (1, 2)]
        port = server.port
        server.close()
        places["node-a"] = "127.0.0.3"
        with TcpServer(service, "127.0.0.3", port, node_id="n", rails=[("127.0.0.4", 0)]):
            assert eventually(lambda: answers(peer))
            assert [rail.name for rail in peer.rails] == [f"lo → 127.0.0.{n}:{port}" for n in (3, 4)]
            assert read_all(peer, service) == ([Outcome.OK] * 256, True)


def test_a_node_that_is_started_anew_as_it_was_changes_nothing(service):
    with ExitStack() as opened:
        server = opened.enter_context(Behind(service, node_id="n"))
        links = [opened.enter_context(FaultyLink(server.address)) for _ in range(2)]
        server.links = tuple(f"127.0.0.1:{link.address[1]}" for link in links)
        peer = opened.enter_context(closing(TcpPeer(*links[0].address)))
        assert read_all(peer, service) == ([Outcome.OK] * 256, True)
        before = readers(Lane.PREFETCH)
        restarted(opened, server, service, *links)
        assert eventually(lambda: answers(peer))
        assert read_all(peer, service) == ([Outcome.OK] * 256, True)
        assert readers(Lane.PREFETCH) == before


@pytest.mark.parametrize("cut_off", [0, TRIES - 1, TRIES])
def test_a_call_outlives_every_connection_once_and_one_more(cut_off):
    peer = TcpPeer("10.0.0.2", 1)
    peer._rails = [Dialer(Tcp(f"10.0.{n}.2", 1), None, "t", 1.0, rail=f"r{n}") for n in range(2)]
    made = []

    def start(*_):
        call = PendingCall(None, "n", time.monotonic() + 10)
        made.append(call)
        if len(made) <= cut_off:
            call.fail(UnreachableError("reset"))
        else:
            call.finish(Done(), memoryview(b""))
        return call

    peer._start = start
    with peer:
        call = peer.start(Ping())
        if cut_off < TRIES:
            assert call.result()[0] == Done()
        else:
            with pytest.raises(UnreachableError, match="reset"):
                call.result()
    assert len(made) == min(cut_off + 1, TRIES)
