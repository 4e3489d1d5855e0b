"""The hot region: which blocks have slots of their own here, and which give theirs up.

Open tails always have slots. Sealed blocks that are in the pool as well keep theirs until room is needed; the one that
was sealed longest ago goes first, which within a sequence is the one furthest from its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualpath.errors import CapacityError
from dualpath.path.arena import Budget
from dualpath.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dualpath.kv.layout import KVLayout
    from dualpath.path.arena import LocalArena
    from dualpath.path.growth import Fill
    from dualpath.path.sequences import Block


class HotRegion:
    """Slots of whole blocks, in all layers, out of the arena's hot budget."""

    def __init__(self, arena: LocalArena, layout: KVLayout) -> None:
        self._arena, self._layout = arena, layout
        self._evictable: dict[int, Block] = {}

    def allocate(self, block: Block) -> None:
        """Give a block slots, if need be those of others. Raises `CapacityError`."""
        need = self._layout.block_bytes
        self._evict(need)
        if self._arena.room(Budget.HOT) < need:
            raise CapacityError(
                f"the hot region ({format_bytes(self._arena.limit(Budget.HOT))}) cannot hold the open blocks of all "
                f"sequences ({format_bytes(need)} each)",
                hint="give it more with --hot, run fewer sequences at once, or end prompt chunks at a block's end "
                "(generate: a prefill_chunk_size that is a multiple of block_tokens)",
            )
        for part, group in zip(block.parts, self._layout.groups, strict=True):
            part.local = self._arena.slots(self._layout.layer_block_bytes(group)).allocate(
                Budget.HOT, len(group.layers)
            )

    def allocate_fresh(self, fresh: Sequence[Fill], full: set[int], *, scratch_allowed: bool) -> None:
        """Give a step's new blocks slots: open tails first, then the newest.

        `full` are the ids of fills whose block becomes full; where scratch is allowed (they go to a node in the same
        step), those that do not fit become scratch.
        """
        newest_first = fresh[::-1]
        for fill in sorted(newest_first, key=lambda fill: id(fill) in full):
            self._evict(self._layout.block_bytes)
            fits = self._arena.room(Budget.HOT) >= self._layout.block_bytes
            if id(fill) in full and scratch_allowed and not fits:
                fill.scratch = True
            else:
                self.allocate(fill.block)

    def may_evict(self, block: Block) -> None:
        """The block is in the pool by now: its slots may go when they are needed."""
        if block.parts[0].local is not None:
            self._evictable[block.serial] = block

    def free(self, block: Block) -> None:
        """Take a block's slots, in all layer groups."""
        self._evictable.pop(block.serial, None)
        for group in range(len(block.parts)):
            self.free_group(block, group)

    def free_group(self, block: Block, group: int) -> None:
        """Take a block's slots in one layer group."""
        part = block.parts[group]
        if part.local is not None:
            slots = self._arena.slots(self._layout.layer_block_bytes(self._layout.groups[group]))
            slots.free(Budget.HOT, part.local)
            part.local = None

    def _evict(self, wanted: int) -> None:
        """Give up blocks until `wanted` bytes are free, or none is left."""
        while self._evictable and self._arena.room(Budget.HOT) < wanted:
            self.free(next(iter(self._evictable.values())))
