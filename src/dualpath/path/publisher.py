"""What a path tells the directory: its nodes, where sealed blocks are, how far each sequence has got.

Told at seal and at the end, not per token. A path that is fenced off (`StaleOwnerError`: somebody else owns the
sequence by now) must not go on with it: the error reaches the caller before anything of the step counts.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dualpath.directory import Directory, NodeInfo, StaleOwnerError
from dualpath.wire.messages import BlockKey

if TYPE_CHECKING:
    from dualpath.kv.ids import BlockId
    from dualpath.path.sequences import SequenceId
    from dualpath.pool.client import Pool

LEASE_S = 600.0


class Publisher:
    """Keeps a directory in step with one path. `groups` is the number of layer groups of a block."""

    def __init__(self, directory: Directory, pool: Pool, groups: int) -> None:
        self._directory, self._pool, self._groups = directory, pool, groups
        self._owner = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._epochs: dict[SequenceId, int] = {}
        self._prolonged = -LEASE_S
        self.prolong()

    def name(self, sequence: SequenceId) -> str:
        """Return a sequence's name in the directory."""
        return f"{self._owner}/{sequence}"

    def prolong(self) -> None:
        """Renew all leases when half of their time has gone."""
        now = time.monotonic()
        if now - self._prolonged < LEASE_S / 2:
            return
        self._prolonged = now
        for node in self._pool.nodes:
            self._directory.join(NodeInfo(node.name, node.address, node.instance), LEASE_S)
        for sequence, epoch in self._epochs.items():
            with contextlib.suppress(StaleOwnerError):  # its own next step hears of it; the others go on
                self._directory.renew(self.name(sequence), epoch, LEASE_S)

    def opened(self, sequence: SequenceId) -> None:
        """Own a new sequence."""
        self._epochs[sequence] = self._directory.claim(self.name(sequence), self._owner, LEASE_S).epoch

    def sealed(self, blocks: Iterable[tuple[int, BlockId]]) -> None:
        """Blocks are at their nodes, all groups of them."""
        self.prolong()  # the step that made them may have taken longer than a lease
        for node, keys in self._by_node(blocks).items():
            self._directory.add_blocks(self._pool.tenant, keys, self._pool.nodes[node].name)

    def grown(self, sequence: SequenceId, tokens: int, pointer: BlockId) -> None:
        """The first `tokens` tokens of a sequence are in the pool, up to block `pointer`. Raises `StaleOwnerError`."""
        self._directory.publish(self.name(sequence), self._epochs[sequence], tokens, pointer)

    def dropped(self, blocks: Iterable[tuple[int, BlockId]], groups: Iterable[int] | None = None) -> None:
        """Blocks, or some groups of them, are no longer at their nodes, or were found lost."""
        for node, keys in self._by_node(blocks, groups).items():
            self._directory.remove_blocks(self._pool.tenant, keys, self._pool.nodes[node].name)

    def ended(self, sequence: SequenceId) -> None:
        """A sequence is over, unless it is somebody else's by now."""
        with contextlib.suppress(StaleOwnerError):
            self._directory.end(self.name(sequence), self._epochs.pop(sequence))

    def _by_node(
        self, blocks: Iterable[tuple[int, BlockId]], groups: Iterable[int] | None = None
    ) -> dict[int, list[BlockKey]]:
        wanted = range(self._groups) if groups is None else list(groups)
        keys: dict[int, list[BlockKey]] = {}
        for node, block in blocks:
            keys.setdefault(node, []).extend(BlockKey(block, group) for group in wanted)
        return keys
