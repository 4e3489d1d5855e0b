"""Requests of one owner that come in another order than they were made, by two connections of which one stalled."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dualpath.errors import UsageError
from dualpath.pool.node import PoolNode
from dualpath.pool.order import GivenUp
from dualpath.pool.service import PoolService
from dualpath.testing.node import DirectConnection as Wire
from dualpath.testing.node import block_key as key
from dualpath.transport.base import Peer
from dualpath.wire.messages import (
    Abort,
    BlockKey,
    Commit,
    Done,
    Drop,
    Message,
    Outcome,
    Outcomes,
    Prepare,
    Prepared,
    PrepareItem,
    Resolve,
    Write,
)

OK, LOST = Outcome.OK, Outcome.LOST
KIB = 1024


@pytest.fixture
def pair(service: PoolService) -> tuple[Wire, Wire]:
    """Two connections of one owner."""
    return Wire(service, owner=b"o"), Wire(service, owner=b"o")


def item(number: int) -> PrepareItem:
    return PrepareItem(key(number), 1, KIB, 4)


def put(wire: Wire, number: int, serial: int) -> None:
    """Prepare (`serial`), write and commit (`serial + 1`)."""
    (refs,) = wire.call(Prepare([item(number)], serial))[0].refs
    if refs:
        wire.call(Write(KIB, refs), bytes(KIB))
    assert wire.call(Commit([key(number)], serial + 1))[0].outcomes == [OK]


def is_there(wire: Wire, number: int) -> bool:
    return bool(wire.call(Resolve([key(number)], 0.0))[0].refs[0])


def test_a_late_drop_does_not_unpin_what_is_wanted_since(pair: tuple[Wire, Wire]) -> None:
    stalled, quick = pair
    put(quick, 1, serial=1)
    put(quick, 1, serial=4)  # it is there already: prepare pins it, commit does once more
    stalled.call(Drop([key(1)], 3))
    assert is_there(quick, 1)
    stalled.call(Drop([key(1)], 4))  # after the prepare, but before the commit
    assert is_there(quick, 1)
    quick.call(Drop([key(1)], 6))
    assert not is_there(quick, 1)


def test_a_late_commit_or_prepare_takes_nothing_that_was_given_up_since(pair: tuple[Wire, Wire]) -> None:
    stalled, quick = pair
    other = Wire(quick.service, owner=b"other")
    put(other, 1, serial=1)
    quick.call(Drop([key(1)], 9))
    assert stalled.call(Commit([key(1)], 8))[0].outcomes == [LOST]
    with pytest.raises(UsageError, match="gave the block up"):
        stalled.call(Prepare([item(2), item(1)], 8))
    assert stalled.call(Prepare([item(2)], 8))[0].refs[0], "nothing of the one before was done"
    other.call(Drop([key(1)], 3))
    assert not is_there(other, 1), "the late ones pinned nothing"
    put(quick, 1, serial=10)
    assert is_there(quick, 1)


def test_a_late_abort_leaves_what_is_prepared_since(pair: tuple[Wire, Wire]) -> None:
    stalled, quick = pair
    quick.call(Prepare([item(1)], 1))
    refs = quick.call(Prepare([item(1)], 3))[0].refs[0]  # asked for again
    stalled.call(Abort([key(1)], 2))
    assert quick.call(Write(KIB, refs), bytes(KIB))[0].outcomes == [OK]
    quick.call(Abort([key(1)], 4))
    with pytest.raises(UsageError):
        stalled.call(Prepare([item(1)], 3))
    assert quick.call(Commit([key(1)], 5))[0].outcomes == [LOST]


def test_a_request_that_is_sent_twice_does_the_same_twice(pair: tuple[Wire, Wire]) -> None:
    first, second = pair
    assert first.call(Prepare([item(1)], 1))[0].refs == second.call(Prepare([item(1)], 1))[0].refs
    put(first, 1, serial=1)
    assert second.call(Commit([key(1)], 2))[0].outcomes == [OK]
    for wire in pair:
        wire.call(Drop([key(1)], 3))
    assert not is_there(first, 1)


def test_requests_without_a_serial_count_whenever_they_come(pair: tuple[Wire, Wire]) -> None:
    first, second = pair
    put(first, 1, serial=7)
    second.call(Drop([key(1)]))
    assert not is_there(first, 1)
    first.call(Drop([key(1)], 9))
    refs = second.call(Prepare([item(1)]))[0].refs[0]
    second.call(Write(KIB, refs), bytes(KIB))
    assert second.call(Commit([key(1)]))[0].outcomes == [OK]


def test_owners_have_an_order_each(service: PoolService) -> None:
    one, other = Wire(service, owner=b"1"), Wire(service, owner=b"2")
    put(one, 1, serial=100)
    put(other, 1, serial=1)
    one.call(Drop([key(1)], 102))
    other.call(Drop([key(1)], 3))
    assert not is_there(one, 1)


def test_what_was_given_up_longest_ago_is_forgotten() -> None:
    given_up = GivenUp(most=2)
    for number, serial in ((1, 10), (2, 11), (1, 5), (3, 12)):
        given_up.note(key(number), serial)
    assert given_up.since(key(1), 9), "noted again, and by the newest request that did"
    assert not given_up.since(key(2), 1)
    assert given_up.since(key(3), 11)
    assert not given_up.since(key(3), 12)


def test_nothing_is_remembered_of_a_name_that_no_block_can_have(pair: tuple[Wire, Wire]) -> None:
    """It could be of any size."""
    wire, _ = pair
    long = BlockKey(bytes(1 << 16), 0)
    wire.call(Drop([long, key(1)], 5))
    wire.call(Abort([long], 6))
    owner = wire.session.state["pool"].connection.owner
    assert not owner.given_up.since(long, 4)
    assert owner.given_up.since(key(1), 4)


class Listener:
    """A peer that answers everything and notes what it was asked."""

    node, instance = "n", b"i"

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def call(self, message: Message, payload: Any = (), **_: Any) -> tuple[Message, memoryview]:
        self.asked.append(message)
        replies = {Prepare: Prepared([[]]), Commit: Outcomes([OK])}
        return replies.get(type(message), Done()), memoryview(b"")


def test_a_client_numbers_what_it_asks_for_and_gives_up() -> None:
    peer = Listener()
    node = PoolNode(cast("Peer", peer), "address")
    node.prepare([item(1)])
    node.commit([key(1)])
    node.abort([key(1)])
    node.drop([key(1)])
    assert [type(message).__name__ for message in peer.asked] == ["Prepare", "Commit", "Abort", "Drop"]
    assert [message.serial for message in peer.asked] == [1, 2, 3, 4]
