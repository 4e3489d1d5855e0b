"""Open copies of blocks: of a tail that is shared, before it is written; of a sealed block that a crop cuts through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualpath.path.fill import decode_block, read_block
from dualpath.path.sequences import Block, Part

if TYPE_CHECKING:
    from dualpath.path.dualpath import DualPath
    from dualpath.path.residency import HotRegion


class Copies:
    """Makes them in slots of the hot region."""

    def __init__(self, path: DualPath, hot: HotRegion) -> None:
        self._path, self._hot = path, hot

    def copy(self, block: Block, length: int, *, giving_up: Block | None = None) -> Block:
        """Return an open copy of a block's first `length` tokens. Raises `CapacityError`, `BlockLostError`.

        `giving_up`: an open block that nobody needs once this has worked. Its slots are taken if there are no others;
        after an error it is as before.
        """
        copy = Block(block.position, length, [Part() for _ in block.parts])
        if giving_up is not None and not self._hot.has_room(self._path.layout.open.block_bytes):
            self._copy_over(copy, block, giving_up)
            return copy
        try:
            self._hot.allocate(copy)
            for index, into in enumerate(self._slots(copy)):
                self._read(block, index, into)
        except BaseException:
            self._hot.free(copy)
            raise
        return copy

    def _copy_over(self, copy: Block, block: Block, giving_up: Block) -> None:
        slots = self._slots(giving_up)
        beside = [[memoryview(bytearray(len(slot))) for slot in group] for group in slots]
        for index, into in enumerate(beside):
            self._read(block, index, into)
        for old, new in zip(giving_up.parts, copy.parts, strict=True):
            new.local, old.local = old.local, None
        for group, filled in zip(slots, beside, strict=True):
            for slot, data in zip(group, filled, strict=True):
                slot[:] = data

    def _slots(self, block: Block) -> list[list[memoryview]]:
        """Return the slots of an open block, by layer group and layer of it."""
        found: list[list[memoryview]] = []
        layout = self._path.layout.open
        for part, group in zip(block.parts, layout.groups, strict=True):
            slots = self._path.arena.slots(layout.layer_block_bytes(group))
            assert part.local is not None
            found.append([slots.bytes_of(slot) for slot in part.local.tolist()])
        return found

    def _read(self, block: Block, index: int, into: list[memoryview]) -> None:
        """Write one layer group of a block to `into` as an open block has it, one layer block each."""
        layout, part = self._path.layout, block.parts[index]
        if layout.kv_dtype and block.id is not None:
            decode_block(self._path, block, index, into)
        elif part.local is not None:
            slots = self._path.arena.slots(layout.open.layer_block_bytes(layout.groups[index]))
            for slot, view in zip(part.local.tolist(), into, strict=True):
                view[:] = slots.bytes_of(slot)
        elif part.refs is not None:
            read_block(self._path, block, index, into)
