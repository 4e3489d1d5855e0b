"""The directory's state machine against dicts, and a mirror that only hears of changes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dualpath.directory.base import (
    BlockAdded,
    BlockLost,
    Change,
    NodeGone,
    NodeInfo,
    NodeJoined,
    SequenceChanged,
    SequenceEnded,
    SequenceInfo,
    StaleOwnerError,
)
from dualpath.directory.state import DirectoryState
from dualpath.errors import UsageError
from dualpath.testing.node import block_key

names = st.sampled_from(["a", "b", "c"])
numbers = st.integers(0, 3)
TTL_S = 5.0


class DirectoryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = DirectoryState()
        self.now = 0.0
        self.lease: dict[str, float] = {}  # the model: nodes and until when, blocks, sequences and until when
        self.instance: dict[str, int] = {}
        self.blocks: set[tuple[str, int]] = set()
        self.sequences: dict[str, SequenceInfo] = {}
        self.owned_until: dict[str, float] = {}
        self.epochs: dict[str, list[int]] = {}
        self.heard_nodes: dict[str, NodeInfo] = {}  # the mirror
        self.heard_blocks: set[tuple[str, int]] = set()
        self.heard_sequences: dict[str, SequenceInfo] = {}

    def hear(self, changes: list[Change]) -> None:
        for change in changes:
            match change:
                case NodeJoined(info):
                    assert info.node not in self.heard_nodes
                    self.heard_nodes[info.node] = info
                case NodeGone(node):
                    assert not any(holder == node for holder, _ in self.heard_blocks)
                    del self.heard_nodes[node]
                case BlockAdded(location):
                    place = (location.node, int.from_bytes(location.key.id, "big"))
                    assert place not in self.heard_blocks
                    self.heard_blocks.add(place)
                case BlockLost(location):
                    self.heard_blocks.remove((location.node, int.from_bytes(location.key.id, "big")))
                case SequenceChanged(info):
                    self.heard_sequences[info.sequence] = info
                case SequenceEnded(sequence):
                    del self.heard_sequences[sequence]

    def forget(self, node: str) -> None:
        self.lease.pop(node, None)
        self.blocks = {place for place in self.blocks if place[0] != node}

    @rule(seconds=st.sampled_from([1.0, 3.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.hear(self.state.tick(self.now))
        for node in [node for node, end in self.lease.items() if end <= self.now]:
            self.forget(node)

    @rule(node=names, restarted=st.booleans())
    def join(self, node: str, restarted: bool) -> None:
        instance = self.instance.get(node, 0) + restarted
        if restarted:
            self.forget(node)
        self.instance[node] = instance
        self.lease[node] = self.now + TTL_S
        self.hear(self.state.join(self.now, NodeInfo(node, f"tcp://{node}", bytes([instance % 256])), TTL_S))

    @rule(node=names)
    def leave(self, node: str) -> None:
        self.forget(node)
        self.hear(self.state.leave(node))

    @rule(node=names, wanted=st.lists(numbers))
    def add(self, node: str, wanted: list[int]) -> None:
        try:
            self.hear(self.state.add_blocks("t", [block_key(n) for n in wanted], node))
        except UsageError:
            assert node not in self.lease
        else:
            assert node in self.lease
            self.blocks |= {(node, n) for n in wanted}

    @rule(node=names, wanted=st.lists(numbers))
    def remove(self, node: str, wanted: list[int]) -> None:
        self.hear(self.state.remove_blocks("t", [block_key(n) for n in wanted], node))
        self.blocks -= {(node, n) for n in wanted}

    @rule(sequence=names, owner=names)
    def claim(self, sequence: str, owner: str) -> None:
        known = self.sequences.get(sequence)
        free = known is None or known.owner == owner or self.owned_until[sequence] <= self.now
        try:
            info, changes = self.state.claim(self.now, sequence, owner, TTL_S)
        except StaleOwnerError:
            assert not free
            return
        assert free
        assert info.epoch > max((epoch for epochs in self.epochs.values() for epoch in epochs), default=0)
        tokens, pointer = (known.tokens, known.pointer) if known else (0, b"")
        assert info == SequenceInfo(sequence, owner, info.epoch, tokens, pointer)
        self.hear(changes)
        self.sequences[sequence] = info
        self.owned_until[sequence] = self.now + TTL_S
        self.epochs.setdefault(sequence, []).append(info.epoch)

    @rule(sequence=names, back=st.integers(0, 2), what=st.sampled_from(["publish", "renew", "hand_over", "end"]))
    def write(self, sequence: str, back: int, what: str) -> None:
        epochs = self.epochs.get(sequence, [])
        epoch = epochs[-1 - back] if back < len(epochs) else 0
        known = self.sequences.get(sequence)
        try:
            if what == "publish":
                self.hear(self.state.publish(sequence, epoch, epoch * 7, b"p"))
            elif what == "renew":
                self.hear(self.state.renew(self.now, sequence, epoch, TTL_S))
            elif what == "hand_over":
                self.hear(self.state.hand_over(self.now, sequence, epoch))
            else:
                self.hear(self.state.end(sequence, epoch))
        except StaleOwnerError:
            assert known is None or known.epoch != epoch
            return
        assert known is not None
        assert known.epoch == epoch
        if what == "publish":
            self.sequences[sequence] = SequenceInfo(sequence, known.owner, epoch, epoch * 7, b"p")
        elif what == "end":
            del self.sequences[sequence]
        else:
            self.owned_until[sequence] = self.now + (TTL_S if what == "renew" else 0.0)

    @invariant()
    def it_says_what_the_model_says(self) -> None:
        assert [info.node for info in self.state.nodes()] == sorted(self.lease)
        found = self.state.locate("t", [block_key(n) for n in range(4)])
        assert {(node, n) for n, nodes in enumerate(found) for node in nodes} == self.blocks
        for name in ("a", "b", "c"):
            assert self.state.sequence(name) == self.sequences.get(name)

    @invariant()
    def whoever_only_listens_knows_the_same(self) -> None:
        assert sorted(self.heard_nodes) == sorted(self.lease)
        assert self.heard_blocks == self.blocks
        assert self.heard_sequences == self.sequences


TestDirectoryState = DirectoryMachine.TestCase
TestDirectoryState.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
