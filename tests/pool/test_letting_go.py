"""What is let go of behind a busy connection, or at a node that is away, is let go of once that is over."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest

from dualpath.errors import DeadlineError, PoolFullError, UnreachableError
from dualpath.pool import letting_go
from dualpath.pool.node import LET_GO_TIMEOUT_S, PoolNode
from dualpath.testing.node import block_key as key
from dualpath.wire.messages import Abort, Done, Drop, Lane, Message, Ping

TIMEOUT_S = 60.0  # only a hang exceeds it


class BusyPeer:
    """A peer whose BULK connection is busy until it is `free`, and then has a `problem` or none."""

    node = "n"

    def __init__(self) -> None:
        self.free = threading.Event()
        self.problem: Exception | None = None
        self.callers: set[threading.Thread] = set()
        self.tried: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.answered: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def call(self, message: Message, payload: Any = (), *, lane: Lane, timeout_s: float) -> tuple[Message, memoryview]:
        if lane is Lane.BULK:
            self.callers.add(threading.current_thread())
            self.tried.put(timeout_s)
            if timeout_s < TIMEOUT_S and not self.free.is_set():
                raise DeadlineError("busy sending earlier requests")
            self.free.wait(TIMEOUT_S)
            if self.problem is not None:
                raise self.problem
            self.answered.put(message)
        return Done(), memoryview(b"")

    def close(self) -> None:
        self.problem = UnreachableError("closed")
        self.free.set()


@pytest.fixture
def peer() -> BusyPeer:
    return BusyPeer()


@pytest.fixture
def node(peer: BusyPeer) -> Iterator[PoolNode]:
    node = PoolNode(peer, "tcp://n:1", timeout_s=TIMEOUT_S)  # type: ignore[arg-type]  # what these tests need of one
    yield node
    node.close()


def next_of(what: queue.SimpleQueue[Any], count: int) -> list[Any]:
    return [what.get(timeout=TIMEOUT_S) for _ in range(count)]


def test_behind_a_busy_connection_it_is_sent_when_that_is_free(
    peer: BusyPeer, node: PoolNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualpath.pool.node.SILENT_TIMEOUT_S", 0.0)
    node.drop([key(1)])
    node.abort([key(2)])
    node.drop([key(3)])
    peer.free.set()
    assert next_of(peer.answered, 3) == [Drop([key(1)], 1), Abort([key(2)], 2), Drop([key(3)], 3)]
    assert next_of(peer.tried, 4) == [LET_GO_TIMEOUT_S, *[TIMEOUT_S] * 3], "who comes behind it does not try by itself"


def test_what_a_node_that_is_away_was_not_told_it_is_told_when_it_is_heard_of(
    peer: BusyPeer, node: PoolNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualpath.pool.node.SILENT_TIMEOUT_S", TIMEOUT_S)  # wait until it was tried again
    peer.free.set()
    peer.problem = UnreachableError("connection refused")
    node.drop([key(1)])
    node.drop([key(2)])
    assert peer.answered.empty()
    peer.problem = None
    node.ping()
    assert next_of(peer.answered, 2) == [Drop([key(1)], 1), Drop([key(2)], 2)]


def test_a_refusal_is_an_answer(peer: BusyPeer, node: PoolNode) -> None:
    peer.free.set()
    peer.problem = PoolFullError("no")
    node.drop([key(1)])
    peer.problem = None
    node.ping(lane=Lane.BULK)
    assert next_of(peer.answered, 1) == [Ping()]
    assert next_of(peer.tried, 2) == [LET_GO_TIMEOUT_S, TIMEOUT_S]


def test_what_is_owed_is_bounded(peer: BusyPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letting_go, "MOST_OWED", 2)
    monkeypatch.setattr("dualpath.pool.node.SILENT_TIMEOUT_S", 0.0)
    node = PoolNode(peer, "tcp://n:1", timeout_s=TIMEOUT_S)  # type: ignore[arg-type]  # as above
    node.drop([key(1)])
    next_of(peer.tried, 2)  # the second time it is under way
    for number in range(2, 6):
        node.drop([key(number)])
    peer.free.set()
    assert next_of(peer.answered, 3) == [Drop([key(number)], number) for number in (1, 4, 5)]
    node.close()


def test_closing_ends_it(peer: BusyPeer, node: PoolNode) -> None:
    node.drop([key(1)])
    next_of(peer.tried, 2)
    node.close()
    for thread in peer.callers - {threading.current_thread()}:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    node.drop([key(2)])  # raises nothing, starts nothing
    assert peer.answered.empty()


def test_an_interrupt_as_its_lock_is_taken_leaves_that_free(
    peer: BusyPeer,
    node: PoolNode,
    interrupted_conditions: AbstractContextManager[None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer, "call", lambda *_, **__: (Done(), memoryview(b"")))
    with interrupted_conditions, suppress(KeyboardInterrupt):
        node.drop([key(1)])
    other = threading.Thread(target=node.drop, args=([key(2)],), daemon=True)
    other.start()
    other.join(5.0)
    assert not other.is_alive()
