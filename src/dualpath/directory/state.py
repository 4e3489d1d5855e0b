"""The directory's state machine. Pure: every method is an event; it takes the time and returns the changes it made.

    changes = state.tick(now) + state.join(now, …)     # whoever drives it lets time pass first

    node         join ──▶ alive ──▶ leave, or its lease lapses ──▶ gone, its blocks lost
    sequence     claim (epoch + 1) ──▶ owned ──▶ publish, renew … ──▶ handed over, or the lease lapses ──▶ claim …
                                        └── end ──▶ forgotten

An event that is refused raises and changes nothing. Epochs are counted over all sequences, so that a sequence which was
forgotten and begins anew has a higher one than before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from dualpath.directory.base import (
    BlockAdded,
    BlockLost,
    Change,
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
from dualpath.wire.messages import BlockKey


@dataclass
class _Node:
    info: NodeInfo
    lease_end: float
    blocks: dict[tuple[str, BlockKey], None] = field(default_factory=dict)


@dataclass
class _Sequence:
    info: SequenceInfo
    lease_end: float


class DirectoryState:
    """Nodes, locations and sequences."""

    def __init__(self) -> None:
        self._epoch = 0
        self._nodes: dict[str, _Node] = {}
        self._holders: dict[tuple[str, BlockKey], dict[str, None]] = {}
        self._sequences: dict[str, _Sequence] = {}

    def tick(self, now: float) -> list[Change]:
        """Let nodes go whose lease has lapsed by `now`."""
        lapsed = [name for name, node in self._nodes.items() if node.lease_end <= now]
        return [change for name in lapsed for change in self._remove_node(name)]

    # --- nodes -----------------------------------------------------------------------------------------------

    def join(self, now: float, info: NodeInfo, ttl_s: float) -> list[Change]:
        """See `Directory.join`."""
        end = _lease_end(now, ttl_s)
        node = self._nodes.get(info.node)
        if node is not None and node.info == info:
            node.lease_end = end
            return []
        changes = [] if node is None else self._remove_node(info.node)
        self._nodes[info.node] = _Node(info, end)
        return [*changes, NodeJoined(info)]

    def leave(self, node: str) -> list[Change]:
        """See `Directory.leave`."""
        return self._remove_node(node) if node in self._nodes else []

    def nodes(self) -> list[NodeInfo]:
        """Return the live nodes, by id."""
        return [self._nodes[name].info for name in sorted(self._nodes)]

    # --- blocks ----------------------------------------------------------------------------------------------

    def add_blocks(self, tenant: str, keys: Iterable[BlockKey], node: str) -> list[Change]:
        """See `Directory.add_blocks`."""
        holder = self._nodes.get(node)
        if holder is None:
            raise UsageError(f"node {node} is not alive", hint="let it join first")
        changes: list[Change] = []
        for key in keys:
            if (tenant, key) not in holder.blocks:
                holder.blocks[tenant, key] = None
                self._holders.setdefault((tenant, key), {})[node] = None
                changes.append(BlockAdded(Location(tenant, key, node)))
        return changes

    def remove_blocks(self, tenant: str, keys: Iterable[BlockKey], node: str) -> list[Change]:
        """See `Directory.remove_blocks`."""
        holder = self._nodes.get(node)
        if holder is None:
            return []
        here = [key for key in dict.fromkeys(keys) if (tenant, key) in holder.blocks]
        return [self._remove_block(holder, tenant, key) for key in here]

    def locate(self, tenant: str, keys: Sequence[BlockKey]) -> list[list[str]]:
        """Return per key the ids of its holders, in the order in which they got it."""
        return [list(self._holders.get((tenant, key), ())) for key in keys]

    # --- sequences -------------------------------------------------------------------------------------------

    def claim(self, now: float, sequence: str, owner: str, ttl_s: float) -> tuple[SequenceInfo, list[Change]]:
        """See `Directory.claim`."""
        end = _lease_end(now, ttl_s)
        found = self._sequences.get(sequence)
        if found is not None and found.info.owner != owner and found.lease_end > now:
            hint = "wait for its hand-over, or for the lease to lapse"
            raise StaleOwnerError(f"sequence {sequence} is owned by {found.info.owner}", hint=hint)
        self._epoch += 1
        tokens, pointer = (found.info.tokens, found.info.pointer) if found is not None else (0, b"")
        info = SequenceInfo(sequence, owner, self._epoch, tokens, pointer)
        self._sequences[sequence] = _Sequence(info, end)
        return info, [SequenceChanged(info)]

    def renew(self, now: float, sequence: str, epoch: int, ttl_s: float) -> list[Change]:
        """See `Directory.renew`."""
        end = _lease_end(now, ttl_s)
        self._owned(sequence, epoch).lease_end = end
        return []

    def publish(self, sequence: str, epoch: int, tokens: int, pointer: bytes) -> list[Change]:
        """See `Directory.publish`."""
        if tokens < 0:
            raise UsageError(f"a sequence has at least 0 tokens, not {tokens}")
        found = self._owned(sequence, epoch)
        found.info = replace(found.info, tokens=tokens, pointer=pointer)
        return [SequenceChanged(found.info)]

    def hand_over(self, now: float, sequence: str, epoch: int) -> list[Change]:
        """See `Directory.hand_over`."""
        self._owned(sequence, epoch).lease_end = now
        return []

    def end(self, sequence: str, epoch: int) -> list[Change]:
        """See `Directory.end`."""
        self._owned(sequence, epoch)
        del self._sequences[sequence]
        return [SequenceEnded(sequence)]

    def sequence(self, sequence: str) -> SequenceInfo | None:
        """Return a sequence as last published."""
        found = self._sequences.get(sequence)
        return None if found is None else found.info

    # --- inside ----------------------------------------------------------------------------------------------

    def _owned(self, sequence: str, epoch: int) -> _Sequence:
        found = self._sequences.get(sequence)
        if found is None or found.info.epoch != epoch:
            state = "is not known" if found is None else f"is at epoch {found.info.epoch}, owned by {found.info.owner}"
            raise StaleOwnerError(f"epoch {epoch} is stale: sequence {sequence} {state}", hint="stop writing to it")
        return found

    def _remove_node(self, name: str) -> list[Change]:
        node = self._nodes[name]
        changes: list[Change] = [self._remove_block(node, tenant, key) for tenant, key in list(node.blocks)]
        del self._nodes[name]
        return [*changes, NodeGone(name)]

    def _remove_block(self, node: _Node, tenant: str, key: BlockKey) -> BlockLost:
        del node.blocks[tenant, key]
        holders = self._holders[tenant, key]
        del holders[node.info.node]
        if not holders:
            del self._holders[tenant, key]
        return BlockLost(Location(tenant, key, node.info.node))


def _lease_end(now: float, ttl_s: float) -> float:
    if not 0.0 < ttl_s < math.inf:
        raise UsageError(f"a lease lasts more than 0 s, not {ttl_s}")
    return now + ttl_s
