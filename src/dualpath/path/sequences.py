"""Sequences and their blocks: what exists, who shares it, and where each part of it is resident.

    sequence   tokens [t0 t1 ... tn)          source tokens, always kept where they are known
               blocks [B0][B1]...[Bk][tail)   sealed blocks, then at most one open block
    block      parts[g]                       per layer group: local slots, and/or slots at a node, or dropped

Forks share blocks by count (`owners`). An open tail with more than one owner is copied before it is written.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NewType

from dualpath.kv.ids import ROOT, BlockId, chain_id, random_id

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    import numpy as np
    from numpy.typing import NDArray

    from dualpath.kv.layout import LayerGroup
    from dualpath.wire.messages import SlotRef

SequenceId = NewType("SequenceId", int)
_serials = itertools.count(1)


@dataclass(slots=True)
class Part:
    """One layer group's share of a block. `local` and `refs` hold a slot per layer of the group, in layer order.

    `dropped`: no query will ever see it again (it left a sliding window), so that it is kept nowhere.
    """

    local: NDArray[np.int64] | None = None
    node: int = -1
    refs: list[SlotRef] | None = None
    dropped: bool = False


@dataclass(slots=True)
class Block:
    """`length` consecutive tokens from `position` on. `id` is set when the block is sealed."""

    position: int
    length: int
    parts: list[Part]
    id: BlockId | None = None
    owners: int = 1
    serial: int = field(default_factory=lambda: next(_serials))

    @property
    def end(self) -> int:
        """Return the position after the last token."""
        return self.position + self.length


@dataclass(slots=True)
class Sequence:
    """One sequence. `tokens` is complete unless `known` is false."""

    id: SequenceId
    tokens: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    known: bool = True

    @property
    def length(self) -> int:
        """Return the number of tokens whose KV is committed."""
        return self.blocks[-1].end if self.blocks else 0

    @property
    def last_id(self) -> BlockId | None:
        """Return the id of the last sealed block; only the very last block may be open."""
        return next((block.id for block in self.blocks[:-3:-1] if block.id is not None), None)

    @property
    def tail(self) -> Block | None:
        """Return the open block, if there is one."""
        return self.blocks[-1] if self.blocks and self.blocks[-1].id is None else None


def next_id(parent: BlockId | None, tokens: Seq[int] | None, fingerprint: bytes) -> BlockId:
    """Return the id that a block of these tokens gets after `parent` (`None`: it is the first); random where tokens are
    not known."""
    if tokens is None:
        return random_id()
    return chain_id(parent or ROOT, tokens, fingerprint)


def visible(block: Block, group: LayerGroup, first_row: int) -> bool:
    """Return whether a query at `first_row` or later can see any token of `block` in `group`."""
    return group.window == 0 or block.end - 1 > first_row - group.window
