"""The contract of a directory.

* Nodes and sequence owners are known under a lease. A node whose lease lapses is gone, and so are the blocks it held;
  it may join again under a new instance, with none of them.
* Who claims a sequence becomes its owner and gets a fencing epoch, one higher than the last. Every later write carries
  it; with an older epoch it is refused (`StaleOwnerError`), so that an owner who was thought dead cannot spoil what
  its successor does. A sequence can be claimed while its owner's lease runs only by that owner.
* Length and pointer of a sequence are published when a block is sealed and at hand-over, not per token.
* Watchers hear of every change after it has happened, in order, each change once. They may see a change before the
  call that caused it has returned. A watcher must not call the directory.
* Each call takes effect as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dualpath.errors import UsageError
from dualpath.wire.messages import BlockKey


class StaleOwnerError(UsageError):
    """Somebody else owns the sequence by now, or its owner's lease still runs. Nothing was changed."""


@dataclass(frozen=True)
class NodeInfo:
    """A pool node: its id, where it answers, and `instance`, which differs each time its process starts."""

    node: str
    address: str
    instance: bytes


@dataclass(frozen=True)
class Location:
    """A block at a node."""

    tenant: str
    key: BlockKey
    node: str


@dataclass(frozen=True)
class SequenceInfo:
    """A sequence as published: `tokens` of it are in the pool, `pointer` is the id of its last sealed block."""

    sequence: str
    owner: str
    epoch: int
    tokens: int
    pointer: bytes


@dataclass(frozen=True)
class NodeJoined:
    """A node can be used."""

    info: NodeInfo


@dataclass(frozen=True)
class NodeGone:
    """A node left or its lease lapsed; the blocks it held are lost with it."""

    node: str


@dataclass(frozen=True)
class BlockAdded:
    """A block can be had at a node."""

    location: Location


@dataclass(frozen=True)
class BlockLost:
    """A block is no longer at a node."""

    location: Location


@dataclass(frozen=True)
class SequenceChanged:
    """A sequence was claimed, or more of it was published."""

    info: SequenceInfo


@dataclass(frozen=True)
class SequenceEnded:
    """A sequence is forgotten."""

    sequence: str


Change = NodeJoined | NodeGone | BlockAdded | BlockLost | SequenceChanged | SequenceEnded
Watch = Callable[[Change], None]


class Directory(Protocol):
    """What `path` asks of a directory; see the module's docstring for what holds."""

    def join(self, info: NodeInfo, ttl_s: float) -> None:
        """Announce a node, or prolong its lease. A new instance under a known id replaces it, without its blocks."""

    def leave(self, node: str) -> None:
        """A node ends. Unknown ids are ignored."""

    def nodes(self) -> list[NodeInfo]:
        """Return the nodes that are alive, by id."""

    def add_blocks(self, tenant: str, keys: Iterable[BlockKey], node: str) -> None:
        """Blocks are sealed at a node. Raises `UsageError` if the node is not alive."""

    def remove_blocks(self, tenant: str, keys: Iterable[BlockKey], node: str) -> None:
        """Blocks are gone from a node (dropped, evicted, found lost). What is not there is ignored."""

    def locate(self, tenant: str, keys: Sequence[BlockKey]) -> list[list[str]]:
        """Return per key the ids of the live nodes that hold it."""

    def claim(self, sequence: str, owner: str, ttl_s: float) -> SequenceInfo:
        """Become a sequence's owner, under a new epoch. Raises `StaleOwnerError` while another owner's lease runs."""

    def renew(self, sequence: str, epoch: int, ttl_s: float) -> None:
        """Prolong an owner's lease. Raises `StaleOwnerError`."""

    def publish(self, sequence: str, epoch: int, tokens: int, pointer: bytes) -> None:
        """Say how much of a sequence is in the pool. Raises `StaleOwnerError`."""

    def hand_over(self, sequence: str, epoch: int) -> None:
        """End the owner's lease, so that anybody can claim the sequence. Raises `StaleOwnerError`."""

    def end(self, sequence: str, epoch: int) -> None:
        """Forget a sequence. Raises `StaleOwnerError`."""

    def sequence(self, sequence: str) -> SequenceInfo | None:
        """Return a sequence as last published."""

    def watch(self, watcher: Watch) -> Callable[[], None]:
        """Call `watcher` with every later change; return what ends that."""
