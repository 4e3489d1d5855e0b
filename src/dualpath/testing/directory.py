"""What every directory backend must do: a suite to inherit, with a `directory` fixture and a clock that tests can move.

    class TestMine(DirectoryConformance):
        @pytest.fixture
        def clock(self): return FakeClock()

        @pytest.fixture
        def directory(self, clock): return MyDirectory(clock)

A backend whose clock is real overrides `wait(clock, seconds)`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dualpath.directory.base import (
    BlockAdded,
    BlockLost,
    Change,
    Directory,
    Location,
    NodeGone,
    NodeInfo,
    NodeJoined,
    SequenceChanged,
    SequenceEnded,
    SequenceInfo,
    StaleOwnerError,
)
from dualpath.errors import UsageError
from dualpath.testing.node import FakeClock, block_key

A, B = NodeInfo("a", "tcp://a:1", b"1"), NodeInfo("b", "tcp://b:1", b"2")
KEYS = [block_key(number) for number in range(4)]


class DirectoryConformance:
    """The contract of `dualpath.directory.base`, one test per sentence."""

    def wait(self, clock: FakeClock, seconds: float) -> None:
        """Let time pass."""
        clock.now += seconds

    def test_nodes_join_and_leave(self, directory: Directory) -> None:
        """Live nodes are listed by id."""
        directory.join(B, 5.0)
        directory.join(A, 5.0)
        assert directory.nodes() == [A, B]
        directory.leave("b")
        directory.leave("nobody")
        assert directory.nodes() == [A]

    def test_a_node_lapses_with_its_blocks(self, directory: Directory, clock: FakeClock) -> None:
        """A lease that nobody prolongs ends the node."""
        directory.join(A, 5.0)
        directory.join(B, 5.0)
        directory.add_blocks("t", KEYS[:2], "a")
        directory.add_blocks("t", KEYS[:1], "b")
        self.wait(clock, 4.0)
        directory.join(B, 5.0)
        assert directory.locate("t", KEYS[:2]) == [["a", "b"], ["a"]]
        self.wait(clock, 1.0)
        assert directory.nodes() == [B]
        assert directory.locate("t", KEYS[:2]) == [["b"], []]

    def test_a_new_instance_has_no_blocks(self, directory: Directory) -> None:
        """A node that was restarted has nothing."""
        directory.join(A, 5.0)
        directory.add_blocks("t", KEYS, "a")
        directory.join(A, 5.0)
        assert directory.locate("t", KEYS[:1]) == [["a"]]
        directory.join(NodeInfo("a", "tcp://a:2", b"3"), 5.0)
        assert directory.locate("t", KEYS[:1]) == [[]]

    def test_blocks_belong_to_tenants_and_groups(self, directory: Directory) -> None:
        """A key of another tenant or group is another block."""
        directory.join(A, 5.0)
        directory.add_blocks("t", [block_key(1, 0)], "a")
        assert directory.locate("other", [block_key(1, 0)]) == [[]]
        assert directory.locate("t", [block_key(1, 1), block_key(1, 0)]) == [[], ["a"]]

    def test_blocks_can_be_removed(self, directory: Directory) -> None:
        """Removing is idempotent; adding to a node that is not alive is refused."""
        directory.join(A, 5.0)
        directory.add_blocks("t", KEYS, "a")
        directory.remove_blocks("t", [KEYS[0], KEYS[0]], "a")
        directory.remove_blocks("t", [KEYS[1]], "nobody")
        assert directory.locate("t", KEYS[:2]) == [[], ["a"]]
        with pytest.raises(UsageError):
            directory.add_blocks("t", KEYS, "nobody")

    def test_a_sequence_is_published_by_its_owner(self, directory: Directory) -> None:
        """Length and pointer are what the owner said last."""
        assert directory.sequence("s") is None
        info = directory.claim("s", "me", 5.0)
        assert (info.owner, info.tokens, info.pointer) == ("me", 0, b"")
        directory.publish("s", info.epoch, 512, b"x")
        assert directory.sequence("s") == SequenceInfo("s", "me", info.epoch, 512, b"x")
        directory.end("s", info.epoch)
        assert directory.sequence("s") is None
        with pytest.raises(UsageError):
            directory.publish("s", directory.claim("s", "me", 5.0).epoch, -1, b"")

    def test_an_owner_is_fenced_by_its_successor(self, directory: Directory, clock: FakeClock) -> None:
        """After another has claimed the sequence, the first owner's writes are refused and change nothing."""
        first = directory.claim("s", "first", 5.0)
        directory.publish("s", first.epoch, 256, b"p")
        with pytest.raises(StaleOwnerError, match="owned by first"):
            directory.claim("s", "second", 5.0)
        self.wait(clock, 5.0)
        second = directory.claim("s", "second", 5.0)
        assert second.epoch > first.epoch
        assert (second.tokens, second.pointer) == (256, b"p")
        writes: list[Callable[[], None]] = [
            lambda: directory.publish("s", first.epoch, 1, b""),
            lambda: directory.renew("s", first.epoch, 5.0),
            lambda: directory.hand_over("s", first.epoch),
            lambda: directory.end("s", first.epoch),
        ]
        for stale in writes:
            with pytest.raises(StaleOwnerError, match="stale"):
                stale()
        assert directory.sequence("s") == second

    def test_an_owner_may_write_after_its_lease_until_somebody_claims(
        self, directory: Directory, clock: FakeClock
    ) -> None:
        """The lease says when others may claim, not when the owner must stop: the epoch does that."""
        info = directory.claim("s", "me", 5.0)
        self.wait(clock, 9.0)
        directory.publish("s", info.epoch, 256, b"p")
        directory.renew("s", info.epoch, 5.0)
        with pytest.raises(StaleOwnerError):
            directory.claim("s", "you", 5.0)

    def test_hand_over_lets_anybody_claim(self, directory: Directory) -> None:
        """Hand-over ends the lease, not the sequence."""
        first = directory.claim("s", "first", 5.0)
        directory.publish("s", first.epoch, 100, b"tail")
        directory.hand_over("s", first.epoch)
        second = directory.claim("s", "second", 5.0)
        assert (second.owner, second.tokens) == ("second", 100)

    def test_a_forgotten_sequence_begins_at_a_higher_epoch(self, directory: Directory) -> None:
        """Epochs never come back."""
        first = directory.claim("s", "me", 5.0)
        again = directory.claim("s", "me", 5.0)
        assert again.epoch > first.epoch
        directory.end("s", again.epoch)
        assert directory.claim("s", "you", 5.0).epoch > again.epoch

    def test_watchers_hear_everything_once_in_order(self, directory: Directory, clock: FakeClock) -> None:
        """A watch begins with later changes and ends when told."""
        directory.join(B, 5.0)
        heard: list[Change] = []
        stop = directory.watch(heard.append)
        directory.join(A, 10.0)
        directory.add_blocks("t", KEYS[:1], "b")
        directory.add_blocks("t", KEYS[:1], "b")
        info = directory.claim("s", "me", 5.0)
        self.wait(clock, 5.0)
        directory.nodes()
        directory.end("s", info.epoch)
        stop()
        stop()
        directory.leave("a")
        place = Location("t", KEYS[0], "b")
        assert heard == [
            NodeJoined(A),
            BlockAdded(place),
            SequenceChanged(info),
            BlockLost(place),
            NodeGone("b"),
            SequenceEnded("s"),
        ]

    @pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan"), float("inf")])
    def test_a_lease_must_end(self, directory: Directory, ttl_s: float) -> None:
        """No lease is for ever, and none is over before it began."""
        with pytest.raises(UsageError):
            directory.join(A, ttl_s)
        with pytest.raises(UsageError):
            directory.claim("s", "me", ttl_s)
        assert directory.nodes() == []
        assert directory.sequence("s") is None
