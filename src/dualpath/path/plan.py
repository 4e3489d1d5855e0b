"""What a step reads of one layer group: a list of blocks in token order, the same for every layer of the group.

For each sequence the visible blocks are split at the last one that is not local:

    entries of a sequence   [r r r l r | l l t]       r remote, l local, t open: the tail, and what the step adds
                             far ......  near ....

*Far* entries are folded first, in runs, as a reader brings them; *near* ones in one call after them. So the fold is in
token order for every scheme. A block that several sequences share is brought once and serves them all.

Where nodes attend to their own blocks, those are taken out before: *reduced* entries, of each node its oldest ones.
Where a step reads a part of them only, which part is chosen layer by layer: they are *reduced* too, by choosing.

Where sealed blocks are quantised, open ones are not: then the near entries are two lists, folded one after the other.
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

    Places = tuple[NDArray[np.int32], NDArray[np.int64]]


def geometry_of(layout: KVLayout, group: LayerGroup) -> Geometry:
    """Return what a kernel must know of `group`'s sealed layer blocks (of `layout.open`: of its open ones)."""
    return Geometry(
        kv_heads=group.kv_heads,
        head_dim=group.head_dim,
        value_dim=group.value_dim,
        block_tokens=layout.block_tokens,
        dtype=layout.sealed_dtype,
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
    """Entries of all sequences of a step, as arrays. `starts[s]:starts[s+1]` are those of sequence `s`.

    `distinct` are the blocks to bring, each once, in the order of their positions; forks share blocks. `uses[d]` are
    the entries that block `d` serves; `None` where entries and distinct blocks are the same.
    """

    entries: list[Entry]
    starts: NDArray[np.int32]
    tokens: NDArray[np.int32]
    position: NDArray[np.int64]
    distinct: list[Entry]
    uses: list[list[int]] | None

    @staticmethod
    def of(per_sequence: Sequence[list[Entry]]) -> Table:
        """Return the table of these entries."""
        entries = [entry for each in per_sequence for entry in each]
        starts = np.zeros(len(per_sequence) + 1, np.int32)
        np.cumsum([len(each) for each in per_sequence], out=starts[1:])
        distinct, uses = entries, None
        if len(per_sequence) > 1:
            by_block: dict[int, list[int]] = {}
            for index, entry in enumerate(entries):
                by_block.setdefault(entry.block.serial, []).append(index)
            uses = sorted(by_block.values(), key=lambda use: entries[use[0]].block.position)
            distinct = [entries[use[0]] for use in uses]
        return Table(
            entries,
            starts,
            np.array([entry.tokens for entry in entries], np.int32),
            np.array([entry.block.position for entry in entries], np.int64),
            distinct,
            uses,
        )

    def run(
        self,
        lo: int,
        hi: int,
        buffers: Sequence[NDArray[np.uint8]],
        places: Places,
        row_start: NDArray[np.int32],
    ) -> BlockTable:
        """Return distinct blocks `[lo, hi)` as the page table of a kernel call; `places` are their buffers and offsets.

        Each sequence's blocks come in token order.
        """
        buffer, offset = places
        if self.uses is None:
            tokens, position = self.tokens[lo:hi], self.position[lo:hi]
            starts = np.clip(self.starts, lo, hi) - np.int32(lo)
        else:
            pairs = sorted((use, d) for d in range(hi - lo) for use in self.uses[lo + d])
            chosen = np.array([use for use, _ in pairs], np.int64)
            place = np.array([d for _, d in pairs], np.int64)
            tokens, position = self.tokens[chosen], self.position[chosen]
            buffer, offset = buffer[place], offset[place]
            starts = np.searchsorted(chosen, self.starts).astype(np.int32)
        return BlockTable(buffers, buffer, offset, tokens, position, row_start, starts)

    def whole(self, buffers: Sequence[NDArray[np.uint8]], places: Places, row_start: NDArray[np.int32]) -> BlockTable:
        """Return all entries as the page table of a kernel call; `places` has one place for each."""
        return BlockTable(buffers, *places, self.tokens, self.position, row_start, self.starts)


@dataclass(slots=True)
class Near:
    """Local blocks of one kind, in slots of one class. `place[i]` are the slots of entry `i`, by layer of the group;
    rows of scratch blocks are filled per layer."""

    table: Table
    geometry: Geometry
    slots: SlotClass
    place: NDArray[np.int64]

    @staticmethod
    def of(per_sequence: Sequence[list[Entry]], geometry: Geometry, slots: SlotClass, layers: int) -> Near:
        """Take the entries of each sequence of a step."""
        table = Table.of(per_sequence)
        place = np.zeros((len(table.entries), layers), np.int64)
        for row, entry in enumerate(table.entries):
            if entry.part.local is not None:
                place[row] = entry.part.local
        return Near(table, geometry, slots, place)


@dataclass(slots=True)
class GroupPlan:
    """A step's reading of one layer group. `first_rows[s]` is the position of sequence `s`'s first query row.

    `geometry` and `slots` are those of sealed blocks, `open_slots` those of open ones. The open entries come last in
    `near`: with the sealed ones, or by themselves if those are quantised.
    `reduced`: what nodes attend to, and is not read; or what they choose from, of which each layer reads a part.
    """

    index: int
    group: LayerGroup
    geometry: Geometry
    slots: SlotClass
    open_slots: SlotClass
    far: Table
    near: list[Near]
    first_rows: list[int]
    reduced: Table
    rows: int = 0
    """Query rows of the step."""

    @property
    def near_tokens(self) -> int:
        """Return the tokens of all near entries."""
        return sum(entry.tokens for near in self.near for entry in near.table.entries)


def take_remote(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Split one sequence's entries into those that are not local, and those that are."""
    return [e for e in entries if e.part.local is None], [e for e in entries if e.part.local is not None]


def split(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Split one sequence's entries after the last that is not local."""
    cut = 0
    for index, entry in enumerate(entries):
        if entry.part.local is None and entry.part.refs is not None:
            cut = index + 1
    return entries[:cut], entries[cut:]
