"""The hot region: which blocks have slots of their own here, and which give theirs up.

Open tails always have slots; where sealed blocks are quantised, those of open ones are larger. Sealed blocks that are
in the pool as well keep theirs until room is needed; the one that was sealed longest ago goes first, which within a
sequence is the one furthest from its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualpath.errors import CapacityError
from dualpath.path.arena import Budget
from dualpath.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from dualpath.kv.layout import KVLayout, LayerGroup
    from dualpath.path.arena import LocalArena
    from dualpath.path.growth import Fill
    from dualpath.path.sequences import Block


class HotRegion:
    """Slots of whole blocks, in all layers, out of the arena's hot budget."""

    def __init__(self, arena: LocalArena, layout: KVLayout) -> None:
        self._arena, self._layout = arena, layout
        self._evictable: dict[int, Block] = {}

    def has_room(self, wanted: int) -> bool:
        """Whether `wanted` bytes are free, or would be if other blocks gave up their slots."""
        room = self._arena.room(Budget.HOT)
        for block in self._evictable.values():
            if room >= wanted:
                break
            room += sum(
                len(part.local) * self._layout.layer_block_bytes(group)
                for part, group in zip(block.parts, self._layout.groups, strict=True)
                if part.local is not None
            )
        return room >= wanted

    def allocate(self, block: Block) -> None:
        """Give an open block slots, if need be those of others. Raises `CapacityError`."""
        layout, need = self._layout.open, self._layout.open.block_bytes
        self._evict(need)
        if self._arena.room(Budget.HOT) < need:
            raise CapacityError(
                f"the hot region ({format_bytes(self._arena.limit(Budget.HOT))}) cannot hold the open blocks of all "
                f"sequences ({format_bytes(need)} each)",
                hint="give it more with --hot, run fewer sequences at once, or end prompt chunks at a block's end "
                "(generate: a prefill_chunk_size that is a multiple of block_tokens)",
            )
        for part, group in zip(block.parts, layout.groups, strict=True):
            part.local = self._slots(layout, group)

    def allocate_fresh(self, fresh: Sequence[Fill], full: set[int], *, scratch: int | None) -> None:
        """Give a step's new blocks slots: open tails first, then the newest.

        `full` are the ids of fills whose block becomes full; where scratch is allowed (they go to a node, or to smaller
        slots, in the same step, and `scratch` is how many layer blocks of it there are), those that do not fit become
        scratch. Where sealed blocks are quantised all of them do, as far as it goes: they need not drive out others.
        """
        newest_first, need, left = fresh[::-1], self._layout.open.block_bytes, scratch or 0
        for fill in sorted(newest_first, key=lambda fill: id(fill) in full):
            if id(fill) in full and scratch is not None:
                if not (self._layout.kv_dtype and left > 0):
                    self._evict(need)
                fill.scratch = bool(self._layout.kv_dtype and left > 0) or self._arena.room(Budget.HOT) < need
                left -= fill.scratch
            if not fill.scratch:
                self.allocate(fill.block)

    def allocate_kept(self, full: Sequence[Fill], *, required: bool) -> None:
        """Give quantised blocks-to-be slots, the newest first: all of them if `required`, or as many as fit."""
        need = self._layout.block_bytes
        for fill in reversed(full):
            self._evict(need)
            if not required and self._arena.room(Budget.HOT) < need:
                return
            for group in self._layout.groups:
                fill.kept.append(self._slots(self._layout, group))

    def keep(self, fill: Fill) -> None:
        """The fill's block is sealed from now on: slots of a quantised block take the place of its open ones."""
        if not self._layout.kv_dtype:
            return
        self.free(fill.block)
        for part, slots in zip(fill.block.parts, fill.kept, strict=False):
            part.local = slots
        fill.kept = []

    def discard_kept(self, fill: Fill) -> None:
        """The fill's block is not sealed after all."""
        for group, slots in zip(self._layout.groups, fill.kept, strict=False):
            self._arena.slots(self._layout.layer_block_bytes(group)).free(Budget.HOT, slots)
        fill.kept = []

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
            layout = self._layout.open if block.id is None else self._layout
            local, part.local = part.local, None  # before: no interrupt leaves it slots that others can have
            self._arena.slots(layout.layer_block_bytes(layout.groups[group])).free(Budget.HOT, local)

    def _slots(self, layout: KVLayout, group: LayerGroup) -> NDArray[np.int64]:
        return self._arena.slots(layout.layer_block_bytes(group)).allocate(Budget.HOT, len(group.layers))

    def _evict(self, wanted: int) -> None:
        """Give up blocks until `wanted` bytes are free, or none is left."""
        while self._evictable and self._arena.room(Budget.HOT) < wanted:
            self.free(next(iter(self._evictable.values())))
