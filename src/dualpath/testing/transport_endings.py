"""Conformance of transports when something ends: deadlines, cancelling, death, closing, refused keys."""

# ruff: noqa: D102  the names of tests say what they test; seeded noise is wanted
from __future__ import annotations

import threading
from contextlib import closing
from typing import Any
from unittest import mock

from dualpath.errors import AuthError, DeadlineError, UnreachableError, UsageError
from dualpath.testing.transport_case import (
    KEY,
    PATIENCE_S,
    POISON,
    TransportCase,
    buffers,
    eventually,
    finish,
    raised,
    refs,
)
from dualpath.testing.transport_service import MemoryService
from dualpath.transport.base import Lane, Outcome
from dualpath.wire.messages import Done, Ping


class EndingTests(TransportCase):
    """Deadlines, cancelling, killed and stopped nodes, restarts, closing, keys."""

    # --- no threads ----------------------------------------------------------------------------------------------

    def test_a_lack_of_threads_costs_a_read_and_not_the_peer(self) -> None:
        start = threading.Thread.start
        for missing in (("read-", "mapped-"), ("read-watchdog",), ("read-prefetch", "mapped-")):

            def refused(thread: threading.Thread, missing: tuple[str, ...] = missing) -> None:
                if thread.name.startswith(missing):
                    raise RuntimeError("can't start new thread")
                start(thread)

            with self.pair(8, 4096) as (_, peer):
                with mock.patch.object(threading.Thread, "start", refused):
                    ticket = peer.read(refs(2), buffers(2, 4096), slot_bytes=4096, timeout_s=PATIENCE_S)
                    assert finish(ticket) == [Outcome.LOST] * 2
                    assert isinstance(ticket.error, UnreachableError)
                again = peer.read(refs(2), buffers(2, 4096), slot_bytes=4096, timeout_s=PATIENCE_S)
                assert finish(again) == [Outcome.OK] * 2

    # --- deadlines and cancelling --------------------------------------------------------------------------------

    def test_deadlines_when_the_node_does_not_answer(self) -> None:
        with self.pair(8, 4096) as (service, peer):
            peer.call(Ping())
            finish(peer.read(refs(1), buffers(1, 4096), slot_bytes=4096))
            service.gate.clear()
            error = raised(DeadlineError, lambda: peer.call(Ping(), timeout_s=0.05))
            assert error.node
            call = peer.start(Ping(), timeout_s=PATIENCE_S)
            raised(DeadlineError, lambda: call.result(0.01))
            assert list(peer.write(refs(1), [memoryview(bytes(4096))], slot_bytes=4096, timeout_s=0.05)) == [
                Outcome.TIMEOUT
            ]
            if not self.one_sided:
                ticket = peer.read(refs(8), buffers(8, 4096), slot_bytes=4096, timeout_s=0.05)
                assert finish(ticket) == [Outcome.TIMEOUT] * 8
                assert isinstance(ticket.error, DeadlineError)
            service.gate.set()
            assert call.result()[0] == Done()  # a result that was asked for too early is not lost
            assert bytes(peer.call(Ping(), [b"x"], timeout_s=PATIENCE_S)[1]) == b"x"
            into = buffers(8, 4096)
            assert finish(peer.read(refs(8), into, slot_bytes=4096)) == [Outcome.OK] * 8

    def test_nothing_is_written_after_drained(self) -> None:
        with self.pair(32, 300_000) as (_, peer):
            for _ in range(5):
                into = buffers(32, 300_000)
                ticket = peer.read(refs(32), into, slot_bytes=300_000)
                peer.cancel(ticket)
                outcomes = finish(ticket)
                assert set(outcomes) <= {Outcome.OK, Outcome.CANCELLED}
                for buffer in into:
                    buffer[:] = bytes([POISON]) * 300_000
                other = buffers(32, 300_000)
                assert finish(peer.read(refs(32), other, slot_bytes=300_000)) == [Outcome.OK] * 32
                assert all(set(bytes(buffer[::1000])) == {POISON} for buffer in into)

    def test_cancelling_one_read_leaves_the_others(self) -> None:
        with self.pair(32, 50_000) as (service, peer):
            finish(peer.read(refs(1), buffers(1, 50_000), slot_bytes=50_000))
            service.gate.clear()
            into = [buffers(32, 50_000) for _ in range(4)]
            tickets = [peer.read(refs(32), b, slot_bytes=50_000, timeout_s=PATIENCE_S) for b in into]
            peer.cancel(tickets[0])
            peer.cancel(tickets[2])
            peer.cancel(tickets[2])
            service.gate.set()
            for n in (1, 3):
                assert finish(tickets[n]) == [Outcome.OK] * 32
                assert all(into[n][i] == service.slot(i) for i in range(32))
            for n in (0, 2):
                assert set(finish(tickets[n])) <= {Outcome.OK, Outcome.CANCELLED}

    # --- death ---------------------------------------------------------------------------------------------------

    def test_nobody_there(self) -> None:
        service = MemoryService(1, 1)
        with self.serve(service) as server:
            address = server.address
        service.close()
        with closing(self.connect(address)) as peer:
            error = raised(UnreachableError, lambda: peer.call(Ping()))
            assert error.node
            ticket = peer.read(refs(1), buffers(1, 1), slot_bytes=1)
            assert finish(ticket) == [Outcome.LOST]
            assert isinstance(ticket.error, UnreachableError)
            assert list(peer.write(refs(1), [memoryview(b"x")], slot_bytes=1)) == [Outcome.LOST]

    def test_killed_node_loses_items_and_a_new_one_serves(self) -> None:
        with self.child(16, 1 << 20) as node, closing(self.connect(node.address)) as peer:
            into = buffers(16, 1 << 20)
            peer.call(Ping(), timeout_s=PATIENCE_S)
            assert finish(peer.read(refs(16), into, slot_bytes=1 << 20)) == [Outcome.OK] * 16
            assert into[9][5] == 9
            if not self.one_sided:
                node.stop()
            tickets = [peer.read(refs(16), into, slot_bytes=1 << 20, timeout_s=PATIENCE_S) for _ in range(8)]
            node.kill()
            for ticket in tickets:
                assert set(finish(ticket)) <= {Outcome.OK, Outcome.LOST}
            late = peer.read(refs(16), into, slot_bytes=1 << 20, timeout_s=PATIENCE_S)
            assert finish(late) == [Outcome.LOST] * 16
            assert isinstance(late.error, UnreachableError)
            assert late.error.node
            raised(UnreachableError, lambda: peer.call(Ping(), timeout_s=PATIENCE_S))
            node.start()
            assert peer.call(Ping(), timeout_s=PATIENCE_S)[0] == Done()
            assert finish(peer.read(refs(16), into, slot_bytes=1 << 20)) == [Outcome.OK] * 16

    def test_call_in_flight_fails_when_the_node_is_killed(self) -> None:
        with self.child(1, 1) as node, closing(self.connect(node.address)) as peer:
            peer.call(Ping(), timeout_s=PATIENCE_S)
            node.stop()
            call = peer.start(Ping(), timeout_s=PATIENCE_S)
            node.kill()
            error = raised(UnreachableError, call.result)
            assert error.node == "child"

    def test_stopped_node_meets_deadlines(self) -> None:
        with self.child(4, 1 << 20) as node, closing(self.connect(node.address)) as peer:
            into = buffers(4, 1 << 20)
            finish(peer.read(refs(4), into, slot_bytes=1 << 20))
            peer.call(Ping())
            node.stop()
            raised(DeadlineError, lambda: peer.call(Ping(), timeout_s=0.1))
            expected, timeout_s = (Outcome.OK, PATIENCE_S) if self.one_sided else (Outcome.TIMEOUT, 0.1)
            ticket = peer.read(refs(4), into, slot_bytes=1 << 20, timeout_s=timeout_s)
            assert finish(ticket) == [expected] * 4
            node.resume()
            assert bytes(peer.call(Ping(), [b"again"], timeout_s=PATIENCE_S)[1]) == b"again"
            assert finish(peer.read(refs(4), into, slot_bytes=1 << 20)) == [Outcome.OK] * 4

    def test_restarted_node_is_found_again(self) -> None:
        with self.pair() as (_, peer):
            peer.call(Ping())
        with self.child(2, 64) as node, closing(self.connect(node.address)) as peer:
            for _ in range(2):
                assert peer.call(Ping(), timeout_s=PATIENCE_S)[0] == Done()
                node.kill()
                node.start()

    # --- life ----------------------------------------------------------------------------------------------------

    def test_closing_the_peer_ends_everything(self) -> None:
        with self.pair(8, 4096) as (service, peer):
            peer.call(Ping())
            finish(peer.read(refs(1), buffers(1, 4096), slot_bytes=4096))
            service.gate.clear()
            call = peer.start(Ping(), timeout_s=PATIENCE_S)
            ticket = peer.read(refs(8), buffers(8, 4096), slot_bytes=4096, timeout_s=PATIENCE_S)
            peer.close()
            peer.close()
            raised(UnreachableError, call.result)
            assert set(finish(ticket)) <= {Outcome.LOST, Outcome.OK}
            raised(UnreachableError, lambda: peer.call(Ping()))
            assert finish(peer.read(refs(1), buffers(1, 4096), slot_bytes=4096)) == [Outcome.LOST]

    def test_service_hears_of_the_end(self) -> None:
        with self.pair() as (service, peer):
            peer.call(Ping(), [b"x"])
            peer.call(Ping(), lane=Lane.BULK)
            assert {session.lane for session in service.open_sessions} == {Lane.REALTIME, Lane.BULK}
            assert {session.tenant for session in service.open_sessions} == {"default"}
            assert eventually(lambda: service.released == 2)
            peer.close()
            assert eventually(lambda: not service.open_sessions)

    # --- keys ----------------------------------------------------------------------------------------------------

    def test_key_on_both_sides(self) -> None:
        with self.pair(4, 100, key=KEY) as (_, peer):
            assert bytes(peer.call(Ping(), [b"x"])[1]) == b"x"
            assert finish(peer.read(refs(4), buffers(4, 100), slot_bytes=100)) == [Outcome.OK] * 4

    def test_wrong_or_missing_keys(self) -> None:
        for node_key, client_key in ((KEY, b"another key, also long"), (KEY, None), (None, KEY)):
            service = MemoryService(1, 16)
            with self.serve(service, key=node_key) as server:
                self._check_refused(service, server.address, client_key)
            service.close()
        raised(UsageError, lambda: self.connect(server.address, key=b"short"))

    def _check_refused(self, service: MemoryService, address: Any, key: bytes | None) -> None:
        with closing(self.connect(address, key=key)) as peer:
            error = raised(AuthError, lambda: peer.call(Ping()))
            assert error.hint
            assert "key" in str(error)
            assert KEY.decode() not in f"{error} {error.hint}"
            ticket = peer.read(refs(1), buffers(1, 16), slot_bytes=16)
            assert finish(ticket) == [Outcome.LOST]
            assert isinstance(ticket.error, AuthError)
            assert service.handled == 0
