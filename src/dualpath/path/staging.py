"""What a step changes, staged until it commits: room here and at the nodes first, then blocks sealed, or nothing.

prepare        own the open tails, take slots for what is new, reserve room at nodes for what will be full
commit         seal full blocks at their nodes, tell the directory, then make the growths real, without I/O
drop_unseen    after a commit: give up what has left a sliding window
abort          give everything back
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dualpath.errors import CapacityError
from dualpath.kv.layout import LayerKind
from dualpath.path.arena import Budget
from dualpath.path.growth import Fill, Growth
from dualpath.path.sequences import Block, next_id

if TYPE_CHECKING:
    from dualpath.kv.layout import KVLayout
    from dualpath.path import sequences
    from dualpath.path.arena import LocalArena
    from dualpath.path.holdings import At
    from dualpath.path.publisher import Publisher
    from dualpath.path.residency import HotRegion
    from dualpath.path.writer import Writer


class Staging:
    """Prepares, commits and aborts the growths of a step. `copy` makes an open copy of a block's first tokens."""

    def __init__(
        self,
        layout: KVLayout,
        arena: LocalArena,
        hot: HotRegion,
        writer: Writer | None,
        publisher: Publisher | None,
        copy: Callable[[Block, int], Block],
    ) -> None:
        self.layout, self.arena = layout, arena
        self._hot, self.writer, self.publisher, self._copy = hot, writer, publisher, copy
        self._largest = max(layout.layer_block_bytes(group) for group in layout.groups)
        self._scratch = scratch_bytes(layout)

    def prepare(self, growths: list[Growth], *, store: bool) -> None:
        """Take and reserve what the growths need.

        Raises `CapacityError`, `PoolFullError`, `PeerError`; then `abort` is due.
        """
        copied: Counter[int] = Counter()
        for growth in growths:
            self._own_tail(growth, copied)
        fresh = [
            fill for growth in growths for fill in growth.fills if fill.fresh and fill.block.parts[0].local is None
        ]
        full = [fill for growth in growths for fill in growth.full(self.layout.block_tokens)]
        spare = self._largest if any(growth.sequence.blocks for growth in growths) else 0
        window = (self.arena.limit(Budget.WINDOW) - spare) // self._scratch
        scratch_allowed = self.writer is not None or bool(self.layout.kv_dtype)
        self._hot.allocate_fresh(fresh, {id(fill) for fill in full}, scratch=window if scratch_allowed else None)
        if self.layout.kv_dtype:
            self._hot.allocate_kept(full, required=self.writer is None)
        scratch = sum(fill.scratch or bool(self.layout.kv_dtype and not fill.kept) for fill in full)
        if scratch > window:
            raise CapacityError(
                f"{sum(growth.count for growth in growths)} tokens at once need {scratch} layer blocks of scratch, "
                f"and the window holds {window}",
                hint="use smaller prompt chunks (generate: prefill_chunk_size), or a larger window or hot region",
            )
        if store:
            self._reserve_at_nodes(growths)

    def _own_tail(self, growth: Growth, copied: Counter[int]) -> None:
        """A tail that is shared with a fork is copied before it is written; the last of its owners may keep it."""
        if not growth.fills or growth.fills[0].fresh:
            return
        fill = growth.fills[0]
        if fill.block.owners - copied[fill.block.serial] == 1:
            return
        copied[fill.block.serial] += 1
        copy = self._copy(fill.block, fill.block.length)
        growth.replaced = fill.block
        growth.fills[0] = Fill(copy, fill.offset, fill.row, fill.count, fresh=True)

    def _reserve_at_nodes(self, growths: list[Growth]) -> None:
        if self.writer is None:
            return
        wanted, fills = [], []
        for growth in growths:
            parent = growth.sequence.last_id
            for fill in growth.full(self.layout.block_tokens):
                parent = next_id(parent, growth.block_tokens_ids(fill), self.layout.fingerprint)
                wanted.append((parent, fill.tokens, fill.block.position // self.layout.block_tokens))
                fills.append(fill)
        if not wanted:
            return
        for fill, sealing in zip(fills, self.writer.prepare(wanted), strict=True):
            fill.sealing = sealing

    def commit(self, growths: list[Growth]) -> None:
        """Make growths real, all of them: once the first is, nothing is sent. After an error `abort` is due."""
        if self.writer is not None:
            sealings = [fill.sealing for growth in growths for fill in growth.fills if fill.sealing is not None]
            self.writer.commit(sealings)
            try:
                self._publish(growths)
            except BaseException:  # another owns the sequence by now
                self.writer.drop([(sealing.node, sealing.id) for sealing in sealings])
                raise
        for growth in growths:
            self._grow(growth)

    def _publish(self, growths: list[Growth]) -> None:
        """Tell the directory how far sequences have got. Raises `StaleOwnerError`."""
        if self.publisher is None:
            return
        for growth in growths:
            for fill in growth.full(self.layout.block_tokens)[-1:]:
                if fill.sealing is not None:
                    end = fill.block.position + fill.tokens
                    self.publisher.grown(growth.sequence.id, end, fill.sealing.id)

    def abort(self, growths: list[Growth]) -> None:
        """Undo growths."""
        fills = [fill for growth in growths for fill in growth.fills]
        try:
            if self.writer is not None:
                self.writer.abort([fill.sealing for fill in fills if fill.sealing is not None])
        finally:  # an interrupt, which the writer raises once it is done
            for fill in fills:
                self._hot.discard_kept(fill)
                if fill.fresh:
                    self._hot.free(fill.block)

    def _grow(self, growth: Growth) -> None:
        sequence = growth.sequence
        if growth.replaced is not None:
            sequence.blocks[-1] = growth.fills[0].block
            growth.replaced.owners -= 1  # others own it still: the last one would have kept it
        for fill in growth.fills:
            if fill.fresh and fill.block is not (sequence.blocks[-1] if sequence.blocks else None):
                sequence.blocks.append(fill.block)
            fill.block.length = fill.tokens
        if growth.tokens is None:
            sequence.known = False
        else:
            sequence.tokens += growth.tokens
        for fill in growth.full(self.layout.block_tokens):
            self._seal(growth, fill)

    def _seal(self, growth: Growth, fill: Fill) -> None:
        block = fill.block
        self._hot.keep(fill)
        if fill.sealing is None:
            previous = growth.sequence.blocks[growth.sequence.blocks.index(block) - 1] if block.position else None
            block.id = next_id(
                None if previous is None else previous.id, growth.block_tokens_ids(fill), self.layout.fingerprint
            )
            return
        block.id = fill.sealing.id
        for part, refs in zip(block.parts, fill.sealing.refs, strict=True):
            part.node, part.refs = fill.sealing.node, list(refs)
        self._hot.may_evict(block)

    def drop_unseen(self, growths: list[Growth]) -> None:
        """Give up what has left every sliding window for good (with a block to spare, for a short crop)."""
        for index, group in enumerate(self.layout.groups):
            if group.kind is LayerKind.SLIDING:
                there = [at for growth in growths for at in self._unseen(growth.sequence, index, group.window)]
                if self.writer is not None and there:
                    self.writer.drop(there, [index])

    def _unseen(self, sequence: sequences.Sequence, index: int, window: int) -> list[At]:
        """Free what no query will see of group `index`; return the blocks that nodes have it of."""
        there: list[At] = []
        for block in sequence.blocks:
            if block.end + self.layout.block_tokens > sequence.length - window:
                break
            part = block.parts[index]
            if part.dropped or block.owners > 1 or block.id is None:
                continue
            self._hot.free_group(block, index)
            if part.refs is not None:
                there.append((part.node, block.id))
            part.refs, part.dropped = None, True
        return there

    def release(self, blocks: Sequence[Block]) -> None:
        """One owner fewer for these blocks; what nobody owns any more is freed, here and at its node."""
        gone = []
        for block in blocks:
            block.owners -= 1
            if block.owners == 0:
                gone.append(block)
                self._hot.free(block)
        if self.writer is not None:
            self.writer.drop([(block.parts[0].node, block.id) for block in gone if block.id is not None])


def scratch_bytes(layout: KVLayout) -> int:
    """Return the window bytes of one layer of a block in scratch: as an open block, and quantised beside it."""
    largest = max(layout.open.layer_block_bytes(group) for group in layout.groups)
    return largest + (max(layout.layer_block_bytes(group) for group in layout.groups) if layout.kv_dtype else 0)
