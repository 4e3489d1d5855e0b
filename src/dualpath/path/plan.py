"""What a step reads of one layer group: a list of blocks in token order, the same for every layer of the group.

For each sequence the visible blocks are split at the last one that is not local:

    entries of a sequence   [r r r l r | l l t]       r remote, l local, t open tail
                             far ......  near ....

*Far* entries are folded first, in runs, as a reader brings them; *near* ones in one call after them. So the fold is in
token order for every scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dualpath.attention.base import BlockTable, Geometry
from dualpath.kv.layout import LayerGroup, LayerKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dualpath.kv.layout import KVLayout
    from dualpath.path.arena import SlotClass
    from dualpath.path.sequences import Block, Part


def geometry_of(layout: KVLayout, group: LayerGroup) -> Geometry:
    """Return what a kernel must know of `group`'s layer blocks."""
    return Geometry(
        kv_heads=group.kv_heads,
        head_dim=group.head_dim,
        value_dim=group.value_dim,
        block_tokens=layout.block_tokens,
        dtype=layout.dtype,
        latent=group.kind is LayerKind.LATENT,
    )


@dataclass(slots=True)
class Entry:
    """One block that a step reads: its length counts the tokens that the step itself appends."""

    block: Block
    part: Part
    tokens: int


@dataclass(slots=True)
class Table:
    """Entries of all sequences of a step, as arrays. `starts[s]:starts[s+1]` are those of sequence `s`."""

    entries: list[Entry]
    starts: NDArray[np.int32]
    tokens: NDArray[np.int32]
    position: NDArray[np.int64]

    @staticmethod
    def of(per_sequence: Sequence[list[Entry]]) -> Table:
        """Return the table of these entries."""
        entries = [entry for each in per_sequence for entry in each]
        starts = np.zeros(len(per_sequence) + 1, np.int32)
        np.cumsum([len(each) for each in per_sequence], out=starts[1:])
        return Table(
            entries,
            starts,
            np.array([entry.tokens for entry in entries], np.int32),
            np.array([entry.block.position for entry in entries], np.int64),
        )

    def run(
        self,
        lo: int,
        hi: int,
        buffers: Sequence[NDArray[np.uint8]],
        places: tuple[NDArray[np.int32], NDArray[np.int64]],
        row_start: NDArray[np.int32],
    ) -> BlockTable:
        """Return entries `[lo, hi)` as the page table of a kernel call; `places` are their buffers and offsets."""
        buffer, offset = places
        return BlockTable(
            buffers=buffers,
            buffer=buffer,
            offset=offset,
            tokens=self.tokens[lo:hi],
            position=self.position[lo:hi],
            row_start=row_start,
            block_start=np.clip(self.starts, lo, hi) - np.int32(lo),
        )


@dataclass(slots=True)
class GroupPlan:
    """A step's reading of one layer group. `first_rows[s]` is the position of sequence `s`'s first query row."""

    index: int
    group: LayerGroup
    geometry: Geometry
    slots: SlotClass
    far: Table
    near: Table
    first_rows: list[int]


def split(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Split one sequence's entries after the last that is not local."""
    cut = 0
    for index, entry in enumerate(entries):
        if entry.part.local is None and entry.part.refs is not None:
            cut = index + 1
    return entries[:cut], entries[cut:]
