"""Views: a sequence's block table at this node, kept as arrays so that an `Attend` costs no Python work per block.

    offsets[layer, i]   where in the arena the slot of that layer of block i starts
    tokens[i], position[i]

A client extends a view when blocks are sealed, and then names the view only: the bytes of a request do not grow with
the context. A block that is not at this node leaves a hole; an `Attend` that would need it is answered `LOST`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dualpath.attention import BlockTable
from dualpath.attention.bounds import key_bounds
from dualpath.errors import UsageError
from dualpath.kv import DTYPE_BYTES, Parts
from dualpath.pool.blocks import Block
from dualpath.wire.failures import UnknownViewError
from dualpath.wire.messages import Geometry, Outcome, ViewBlock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FIRST_ROOM = 64
_FIRST_OFFSETS = 8192  # of a view's first room, over all layers: a view of very many layers begins with less
LARGEST = 1 << 31
LAST_POSITION = 1 << 62
"""Counts and positions in a request are below these, so that what is computed from them fits int32 and int64."""


def slot_bytes(geometry: Geometry) -> int:
    """Return the bytes of one layer block of this geometry. Raises `UsageError` for a geometry that cannot be."""
    sizes = (geometry.kv_heads, geometry.head_dim, geometry.value_dim, geometry.block_tokens)
    if geometry.dtype not in DTYPE_BYTES or not all(1 <= size < LARGEST for size in sizes):
        raise UsageError(f"no such layer block: {geometry}")
    if geometry.latent:
        if geometry.kv_heads != 1 or geometry.value_dim > geometry.head_dim:
            raise UsageError(f"a latent layer has one kv head and values inside its rows: {geometry}")
    elif geometry.value_dim != geometry.head_dim:
        raise UsageError(f"keys and values must be equally wide: {geometry}")
    streams = 1 if geometry.latent else 2
    return Parts.of(geometry.kv_heads * streams, geometry.block_tokens, geometry.head_dim, geometry.dtype).bytes


@dataclass(slots=True, eq=False)
class Slice:
    """Some blocks of a view for one layer, in token order: byte offsets int64, tokens int32, positions int64."""

    offset: NDArray[np.int64]
    tokens: NDArray[np.int32]
    position: NDArray[np.int64]
    start: int = 0
    """Which block of the view is the first of these."""
    _alone: BlockTable | None = None

    def only(self, chosen: NDArray[np.int64]) -> Slice:
        """Return some of these blocks: their indices in here, ascending."""
        return Slice(self.offset[chosen], self.tokens[chosen], self.position[chosen])

    def alone(self, rows: int, buffer: NDArray[np.uint8]) -> BlockTable:
        """Return these blocks of `buffer` as the page table of `rows` query rows, and of nobody else's.

        The same one as last time if that was asked with the same: decoding asks again step after step.
        """
        last = self._alone
        if last is not None and last.row_start[1] == rows and last.buffers[0] is buffer:
            return last
        import numpy as np

        count = len(self.offset)
        ends = np.array([[0, rows], [0, count]], np.int32)
        which = np.zeros(count, np.int32)
        self._alone = BlockTable([buffer], which, self.offset, self.tokens, self.position, ends[0], ends[1])
        return self._alone


class Bounds:
    """The bounds of a view's blocks in one layer, side by side as a product wants them."""

    def __init__(self, geometry: Geometry) -> None:
        import numpy as np

        self.count = 0
        self.array: NDArray[np.float32] = np.zeros((geometry.kv_heads, 0, 2 * geometry.head_dim), np.float32)

    def append(self, one: NDArray[np.float32] | None) -> None:
        """Add the bounds of the next block, `[kv_heads, 2 * head_dim]`; those of a hole are never looked at."""
        if self.count == self.array.shape[1]:
            import numpy as np

            room = np.zeros((len(self.array), max(_FIRST_ROOM, 2 * self.count), self.array.shape[2]), np.float32)
            room[:, : self.count] = self.array
            self.array = room
        if one is not None:
            self.array[:, self.count] = one
        self.count += 1


class View:
    """One sequence's block table. Its blocks are held by whoever made it (`held` lists them)."""

    def __init__(self, group: int, geometry: Geometry) -> None:
        self.group = group
        self.geometry = geometry
        self.slot_bytes = slot_bytes(geometry)
        self.held: list[Block] = []
        self._blocks: list[Block | None] = []
        self._bounds: dict[int, Bounds] = {}  # by layer
        self.count = 0
        self.layers = 0
        self._first_hole: int | None = None
        self._end = 0  # the position after the last block
        self._offsets: Any = None
        self._tokens: Any = None
        self._position: Any = None
        self._span = (0, 0)
        self._slices: dict[int, Slice] = {}  # by layer, of blocks `_span`

    def check(self, group: int, geometry: Geometry, blocks: Sequence[ViewBlock]) -> None:
        """Raise `UsageError` unless `blocks` may follow."""
        if (group, geometry) != (self.group, self.geometry):
            raise UsageError("a view keeps its group and geometry", hint="use another view")
        end = self._end
        for block in blocks:
            if not 1 <= block.tokens <= geometry.block_tokens or not end <= block.position < LAST_POSITION:
                raise UsageError(
                    f"a block of {block.tokens} tokens at position {block.position} cannot follow position {end}",
                    hint="blocks come in token order and do not overlap",
                )
            if block.key.group != group:
                raise UsageError(f"a block of group {block.key.group} in a view of group {group}")
            end = block.position + block.tokens

    def append(self, wanted: Sequence[ViewBlock], found: Sequence[Block | None]) -> list[Outcome]:
        """Append blocks that have passed `check`; those found become part of `held`, the others are holes."""
        layers = self.layers or next((len(block.slots) for block in found if block is not None), 0)
        for item, block in zip(wanted, found, strict=True):
            if block is not None and (
                block.slab.slot_bytes != self.slot_bytes or len(block.slots) != layers or block.tokens < item.tokens
            ):
                raise UsageError(
                    f"block {item.key.id.hex()[:12]} has {len(block.slots)} layers of {block.slab.slot_bytes} bytes "
                    f"and {block.tokens} tokens; the view wants {layers} of {self.slot_bytes} and {item.tokens}"
                )
        self._grow(layers, len(wanted))
        self._slices = {}
        outcomes = []
        for item, block in zip(wanted, found, strict=True):
            self._blocks.append(block)
            if block is not None:
                self._offsets[:, self.count] = [slot * self.slot_bytes for slot in block.slots]
                self.held.append(block)
            elif self._first_hole is None:
                self._first_hole = self.count
            self._tokens[self.count] = item.tokens
            self._position[self.count] = item.position
            self._end = item.position + item.tokens
            self.count += 1
            outcomes.append(Outcome.LOST if block is None else Outcome.OK)
        return outcomes

    def table(self, layer: int, blocks: int, oldest: int) -> Slice | None:
        """Return the first `blocks` blocks without those wholly before position `oldest`; `None` if one has a hole.

        The same object as last time if that was asked with the same and the view has not grown. Raises `UsageError` for
        a layer that the view does not have, `UnknownViewError` for blocks that it does not: what they followed was
        forgotten with the connection that it came over.
        """
        if blocks > self.count:
            raise UnknownViewError(
                f"a view of {self.count} blocks, not {blocks}", hint="drop it, and extend it again from its first block"
            )
        if blocks < 0 or (self.layers and not 0 <= layer < self.layers):
            raise UsageError(
                f"layer {layer} of {blocks} blocks in a view of {self.layers} layers and {self.count} blocks"
            )
        start = 0
        if oldest > 0 and blocks:
            ends = self._position[:blocks] + self._tokens[:blocks]
            start = int(ends.searchsorted(oldest, side="right"))
        if (start, blocks) != self._span:
            self._span, self._slices = (start, blocks), {}
        found = self._slices.get(layer)
        if found is None and not self._hole_in(start, blocks):
            found = self._slices[layer] = self._slice(layer, start, blocks)
        return found

    def bounds(self, layer: int, part: Slice, buffer: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the bounds of the keys of `part`, a `table` of this layer: float32 `[kv_heads, blocks, 2 * head_dim]`.

        `buffer` is the arena of the slots. What was never asked for before is computed now, which reads those keys.
        """
        found = self._bounds.get(layer)
        if found is None:
            found = self._bounds[layer] = Bounds(self.geometry)
        stop = part.start + len(part.offset)
        for index in range(found.count, stop):
            found.append(self._block_bounds(layer, index, buffer))
        return found.array[:, part.start : stop]

    def _block_bounds(self, layer: int, index: int, buffer: NDArray[np.uint8]) -> NDArray[np.float32] | None:
        block = self._blocks[index]
        if block is None:
            return None
        known = block.bounds.get(layer)
        if known is not None and known[0] == self.geometry:
            return known[1]
        offset = int(self._offsets[layer, index])
        # of all its tokens, since another view may mean more of them than this one
        tokens = min(block.tokens, self.geometry.block_tokens)
        found = key_bounds(buffer[offset : offset + self.slot_bytes], self.geometry, tokens)
        block.bounds[layer] = (self.geometry, found)
        return found

    def _slice(self, layer: int, start: int, stop: int) -> Slice:
        if self.layers:
            return Slice(self._offsets[layer, start:stop], self._tokens[start:stop], self._position[start:stop], start)
        import numpy as np  # nothing but holes so far, and none of them is asked for

        return Slice(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64))

    def _hole_in(self, start: int, stop: int) -> bool:
        if self._first_hole is None:
            return False
        return bool(start < stop) and (not self.layers or bool((self._offsets[0, start:stop] < 0).any()))

    def _grow(self, layers: int, more: int) -> None:
        import numpy as np

        old, self.layers = self._offsets, layers
        room = 0 if self._tokens is None else len(self._tokens)
        if self.count + more > room or (old is not None and old.shape[0] != layers):
            room = max(min(_FIRST_ROOM, _FIRST_OFFSETS // max(1, layers)), 2 * (self.count + more))
            offsets = np.full((layers, room), -1, np.int64)
            tokens, position = np.zeros(room, np.int32), np.zeros(room, np.int64)
            if self.count:
                if old.shape[0] == layers:
                    offsets[:, : self.count] = old[:, : self.count]
                tokens[: self.count] = self._tokens[: self.count]
                position[: self.count] = self._position[: self.count]
            self._offsets, self._tokens, self._position = offsets, tokens, position
