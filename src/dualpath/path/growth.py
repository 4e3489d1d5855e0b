"""What a step does to one sequence's blocks, staged: nothing of it is visible before `Step.commit`.

New tokens fill the open tail first, then new blocks:

    before   [sealed] [sealed] [tail: 200 of 256]
    append 600 tokens          [56 more | 256 | 256 | 32]      3 blocks become full, 1 is the new tail
                                  hot?    hot?  hot?  hot
A full block that the hot region has no room for lives in *scratch*: window slots, for one layer at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dualpath.path.sequences import Block, Part, Sequence

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dualpath.path.writer import Sealing


@dataclass(slots=True)
class Fill:
    """Rows `[row, row + count)` of the step's packed tokens go to `block` from token `offset` on.

    `fresh`: made by this step. `scratch`: has no slots of its own. `sealing` is set for blocks that become full.
    `kept`: slots for a block that becomes full where sealed blocks are quantised, per layer group; empty if it will not
    be local.
    """

    block: Block
    offset: int
    row: int
    count: int
    fresh: bool
    scratch: bool = False
    sealing: Sealing | None = None
    kept: list[NDArray[np.int64]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Return the block's length once the step commits."""
        return self.offset + self.count


@dataclass(slots=True)
class Growth:
    """One sequence in a step: its new tokens (`None`: ids unknown), and where they go. `replaced` was a shared tail."""

    sequence: Sequence
    start: int
    row: int
    count: int
    tokens: list[int] | None
    fills: list[Fill] = field(default_factory=list)
    replaced: Block | None = None

    def full(self, block_tokens: int) -> list[Fill]:
        """Return the fills whose block becomes full."""
        return [fill for fill in self.fills if fill.tokens == block_tokens]

    def block_tokens_ids(self, fill: Fill) -> list[int] | None:
        """Return the token ids of a block that becomes full, or `None` if any is unknown."""
        if self.tokens is None or not self.sequence.known:
            return None
        lo = fill.block.position
        have = self.sequence.tokens[lo : self.start]
        return have + self.tokens[max(lo - self.start, 0) : fill.block.position + fill.tokens - self.start]


def grow(sequence: Sequence, count: int, tokens: list[int] | None, row: int, block_tokens: int, groups: int) -> Growth:
    """Stage `count` tokens (packed rows from `row` on) at the end of `sequence`. Pure: `sequence` is not changed."""
    growth = Growth(sequence, sequence.length, row, count, tokens)
    tail, placed = sequence.tail, 0
    if tail is not None and count:
        placed = min(count, block_tokens - tail.length)
        growth.fills.append(Fill(tail, tail.length, row, placed, fresh=False))
    while placed < count:
        size = min(count - placed, block_tokens)
        block = Block(growth.start + placed, 0, [Part() for _ in range(groups)])
        growth.fills.append(Fill(block, 0, row + placed, size, fresh=True))
        placed += size
    return growth
