"""`DualPath`: sequences over a hot region and a pool.

The hot region keeps open tails, and as many of the most recently sealed blocks as fit; sealed blocks are in the pool
as well (write-through), so that giving one up locally costs nothing but a later read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from types import TracebackType
from typing import IO, TYPE_CHECKING

from dualpath.directory import Directory, MemoryDirectory
from dualpath.errors import CapacityError, UsageError
from dualpath.path.arena import Budget, LocalArena
from dualpath.path.attach import attach
from dualpath.path.auto import Auto
from dualpath.path.config import PathConfig, Scheme
from dualpath.path.copies import Copies
from dualpath.path.fill import fill_random
from dualpath.path.growth import Growth, grow
from dualpath.path.metrics import PathMetrics
from dualpath.path.plan import take_remote
from dualpath.path.publisher import Publisher
from dualpath.path.ranker import Ranker
from dualpath.path.reader import NoReader, Reader
from dualpath.path.readers import make_reader
from dualpath.path.reduce import Reducer
from dualpath.path.residency import HotRegion
from dualpath.path.sequences import Block, Sequence, SequenceId
from dualpath.path.staging import Staging, scratch_bytes
from dualpath.path.step import Step
from dualpath.path.views import NodeViews
from dualpath.path.writer import Writer
from dualpath.units import format_bytes

if TYPE_CHECKING:
    from dualpath.kv.layout import KVLayout
    from dualpath.pool.client import Pool


class DualPath:
    """KV of any number of sequences of one model. A context manager; not thread-safe.

    `pool` is needed by every scheme but `local`; it stays the caller's to close. `directory` is told where blocks are
    and how far sequences have got; by default it is one of this process's own. Raises `CapacityError` when the hot
    region cannot hold one block of all layers, or the window one layer block.

    `read_fraction` begins as the config's and may be set between steps, to what the config could say.
    """

    def __init__(
        self, layout: KVLayout, config: PathConfig, pool: Pool | None = None, directory: Directory | None = None
    ) -> None:
        self.layout, self.config, self.pool = layout, config, pool
        self._read_fraction = config.read_fraction
        local = config.scheme is Scheme.LOCAL
        if not local and pool is None:
            raise UsageError(f"scheme {config.scheme.value} needs a pool", hint="pass one from dualpath.connect(…)")
        self._largest = max(layout.layer_block_bytes(group) for group in layout.groups)
        self._scratch = scratch_bytes(layout)
        if not local:
            _require_room(layout, config, self._largest)
        self.metrics = PathMetrics()
        self.arena = LocalArena(
            None if local else config.hot_bytes, max(config.window_bytes, self._largest, self._scratch)
        )
        self._trace: IO[str] | None = None
        self.reader: Reader = NoReader()
        self._views: NodeViews | None = None
        self.reducer: Reducer | None = None
        self.ranker: Ranker | None = None
        self.auto: Auto | None = None
        self.divide = take_remote
        self.writer: Writer | None = None
        self.publisher: Publisher | None = None
        if pool is not None and config.scheme is Scheme.AUTO:
            self.auto = Auto([node.name for node in pool.nodes], self.metrics, config.threads)
            self.divide = self.auto.divide
        if pool is not None and not local:
            if config.trace:
                self._trace = open(config.trace, "a", encoding="utf-8")  # noqa: SIM115 - `close` closes it
            self.reader = make_reader(pool, layout, config, self.arena, self.metrics, auto=self.auto, trace=self._trace)
            self.publisher = Publisher(directory or MemoryDirectory(), pool, len(layout.groups))
            self.writer = Writer(
                pool,
                layout,
                self.metrics,
                self.publisher,
                spread=config.scheme.spreads,
                deadline_s=config.deadline_s,
            )
            if config.scheme.reduces:
                self._views = NodeViews(pool)
                self.reducer = Reducer(pool, self._views, self.metrics, config.deadline_s)
            elif config.scheme.reads_partly:
                self._views = NodeViews(pool)
                self.ranker = Ranker(pool, self._views, self.metrics, config.deadline_s)
        self._sequences: dict[SequenceId, Sequence] = {}
        self._ids = itertools.count(1)
        self._hot = HotRegion(self.arena, layout)
        self._copies = Copies(self, self._hot)
        self._staging = Staging(layout, self.arena, self._hot, self.writer, self.publisher, self._copies.copy)
        self._step: Step | None = None

    def __enter__(self) -> DualPath:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def read_fraction(self) -> float:
        """The share of far blocks that a step of one token reads. What `PathConfig` refuses raises `UsageError`."""
        return self._read_fraction

    @read_fraction.setter
    def read_fraction(self, fraction: float) -> None:
        self._read_fraction = replace(self.config, read_fraction=fraction).read_fraction

    # --- sequences ---------------------------------------------------------------------------------------------

    def open(self) -> SequenceId:
        """Return a new, empty sequence."""
        sequence = Sequence(SequenceId(next(self._ids)))
        self._add(sequence)
        return sequence.id

    def length(self, sequence: SequenceId) -> int:
        """Return the committed tokens of a sequence."""
        return self._get(sequence).length

    def tokens(self, sequence: SequenceId) -> list[int]:
        """Return a copy of the source tokens. Raises `UsageError` if some were never told."""
        found = self._get(sequence)
        if not found.known:
            raise UsageError("the token ids of this sequence are not known")
        return list(found.tokens)

    def fork(self, sequence: SequenceId, blocks: int | None = None) -> SequenceId:
        """Return a new sequence that shares this one's blocks (the first `blocks` of them). No KV is copied.

        Raises `UsageError` while a step is open, and if a sliding window would need KV that was given up, as `crop`
        does.
        """
        parent = self._get(sequence)
        self.require_no_step()
        child = Sequence(SequenceId(next(self._ids)), known=parent.known)
        child.blocks = list(parent.blocks if blocks is None else parent.blocks[:blocks])
        self._require_windows(child.blocks, child.length)
        child.tokens = parent.tokens[: child.length]
        self._add(child)
        for block in child.blocks:
            block.owners += 1
        if self._views is not None:
            self._views.fork(sequence, child.id)
        return child.id

    def close_sequence(self, sequence: SequenceId) -> None:
        """Forget a sequence; blocks that nobody shares are freed, locally and at their nodes.

        Raises `UsageError` while a step is open, whose blocks they may be; nothing has changed then.
        """
        found = self._get(sequence)
        self.require_no_step()
        del self._sequences[sequence]
        try:  # an interrupt while others are told leaves nothing behind here; `close` tells the rest
            self._staging.release(found.blocks)
        finally:
            self._forget(sequence)

    def crop(self, sequence: SequenceId, length: int) -> None:
        """Cut a sequence to its first `length` tokens; a sealed block that is cut through is reopened by one copy.

        Raises `CapacityError` if the hot region has no room for that copy, `BlockLostError` if its source cannot
        be read, `UsageError` while a step is open, and if a sliding window would need KV that was given up when it left
        the window: a crop by up to a block is always possible. Nothing has changed then.
        """
        found = self._get(sequence)
        self.require_no_step()
        if not 0 <= length <= found.length:
            raise UsageError(f"cannot crop to {length} tokens: the sequence has {found.length}")
        keep = [block for block in found.blocks if block.position < length]
        self._require_windows(keep, length)
        gone = found.blocks[len(keep) :]
        last = keep[-1] if keep and keep[-1].end > length else None
        if last is not None and (last.id is not None or last.owners > 1):
            tail = gone[-1] if gone and gone[-1].id is None and gone[-1].owners == 1 else None
            keep[-1] = self._copies.copy(last, length - last.position, giving_up=tail)
            gone.insert(0, last)
        elif last is not None:  # an open tail of its own needs no room for another: later tokens overwrite what is cut
            last.length = length - last.position
        found.blocks, found.tokens = keep, found.tokens[:length]
        self._staging.release(gone)
        if gone and self._views is not None:
            self._views.forget(sequence)  # they hold what was cut; the next step makes new ones

    def fill_random(
        self,
        sequence: SequenceId,
        tokens: int | Seq[int],
        seed: int,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Give an empty sequence seeded random KV instead of a prompt's; see `fill.fill_random`."""
        fill_random(self, sequence, tokens, seed, on_progress)

    def attach(self, sequence: SequenceId, tokens: Seq[int], *, hot_bytes: int | None = None) -> int:
        """Give an empty sequence the KV of these tokens as far as the pool has it; see `attach.attach`."""
        return attach(self, sequence, tokens, hot_bytes=hot_bytes)

    def block(self, sequence: SequenceId, index: int) -> Block:
        """Return the sealed block number `index` of a sequence."""
        sealed = [block for block in self._get(sequence).blocks if block.id is not None]
        if not 0 <= index < len(sealed):
            raise UsageError(f"no sealed block {index}: the sequence has {len(sealed)}")
        return sealed[index]

    def adopt(self, sequence: SequenceId, block: Block, tokens: list[int]) -> None:
        """Append a sealed block that was made elsewhere."""
        found = self._get(sequence)
        found.blocks.append(block)
        found.tokens += tokens
        if self.publisher is not None and block.id is not None:
            self.publisher.grown(sequence, block.end, block.id)
        if self.writer is not None:
            self._hot.may_evict(block)
        self.metrics.peak_local_bytes = self.arena.peak_bytes

    def discard(self, block: Block) -> None:
        """Free what a block that no sequence has holds locally."""
        self._hot.free(block)

    def require_no_step(self) -> None:
        """Raise `UsageError` while a step is open: what its sequences own, and which slots are whose, must stay."""
        if self._step is not None:
            raise UsageError("a step is open", hint="commit or abort it first")

    def room(self, sequence: SequenceId, wanted: int) -> int:
        """Return how many tokens (at most `wanted`) the next step of this sequence should take, ending at a block's end
        where it can: what neither hot region nor window would hold is left for later steps."""
        if wanted <= 1 or (self.config.scheme is Scheme.LOCAL and not self.layout.kv_dtype):
            return wanted  # but where chunks decide which KV is quantised already, all schemes have the same ones
        size = self.layout.block_tokens
        to_end = size - self._get(sequence).length % size
        blocks = max(0, self.arena.limit(Budget.WINDOW) - self._largest) // self._scratch
        # the first block, too, may need scratch: where it is new, or its sealed form does not fit beside it
        if self.layout.kv_dtype or (to_end == size and not self._hot.has_room(self.layout.block_bytes)):
            blocks = max(0, blocks - 1)
        most = to_end + min(blocks, max(0, wanted - to_end) // size) * size
        return min(wanted, most)

    # --- steps -------------------------------------------------------------------------------------------------

    def begin(self, batch: Seq[tuple[SequenceId, Seq[int] | int]], *, store: bool = True) -> Step:
        """Open a step that appends tokens to each sequence: their ids, or just their number where ids are unknown.

        Rows of the step's arrays are the tokens of all sequences one after another. `store=False`: nothing goes to a
        node, and the step can only be aborted. Raises `CapacityError`, `PoolFullError`, `PeerError`, `UsageError`; then
        nothing has changed.
        """
        self.require_no_step()
        if len({sequence for sequence, _ in batch}) != len(batch):
            raise UsageError("a sequence occurs twice in the batch")
        if self.publisher is not None:
            self.publisher.prolong()
        if self.auto is not None:
            self.auto.begin()
        growths: list[Growth] = []
        row = 0
        for sequence, new in batch:
            tokens = None if isinstance(new, int) else list(new)
            count = new if isinstance(new, int) else len(new)
            found = self._get(sequence)
            growths.append(grow(found, count, tokens, row, self.layout.block_tokens, len(self.layout.groups)))
            row += count
        try:
            self._staging.prepare(growths, store=store)
            step = Step(self, growths)
            step.start()
        except BaseException:
            self.abort_step(growths)
            raise
        self._step = step
        return step

    def commit_step(self, growths: list[Growth]) -> None:
        """Make growths real. `Step.commit` calls this, and then `committed`."""
        self._staging.commit(growths)
        self._finish()

    def committed(self, growths: list[Growth]) -> None:
        """The step is over: let go of what it made useless, and learn from it."""
        self._staging.drop_unseen(growths)
        if self.auto is not None and self.reducer is not None:
            self.auto.committed(self.reducer.answers)

    def abort_step(self, growths: list[Growth]) -> None:
        """Undo growths. `Step.abort` calls this."""
        try:
            self._staging.abort(growths)
        finally:  # also after an interrupt: a path whose step is neither open nor over could not be closed
            self._finish()

    def close(self) -> None:
        """Abort an open step, forget all sequences, wait for reads in flight. Idempotent."""
        if self._step is not None:
            self._step.abort()
        self.reader.end()
        for sequence in list(self._sequences):
            self.close_sequence(sequence)
        if self._views is not None:
            self._views.tell()
        if self.writer is not None:
            self.writer.close()
        if self._trace is not None:
            self._trace.close()

    def _finish(self) -> None:
        self._step = None
        self.metrics.steps += 1
        self.metrics.peak_local_bytes = self.arena.peak_bytes

    # --- small things ------------------------------------------------------------------------------------------

    def _require_windows(self, blocks: Seq[Block], length: int) -> None:
        """Raise `UsageError` unless the token after `length` finds all that its sliding windows reach."""
        for index, group in enumerate(self.layout.groups):
            first = length + 1 - group.window  # the first position that it sees
            if any(block.parts[index].dropped and block.end > first for block in blocks):
                raise UsageError(
                    f"cannot cut to {length} tokens: KV within the sliding window of {group.window} tokens before that "
                    "was given up",
                    hint="cut less, or start a sequence anew",
                )

    def _forget(self, sequence: SequenceId) -> None:
        try:
            if self._views is not None:
                self._views.forget(sequence)
        finally:
            if self.publisher is not None:
                self.publisher.ended(sequence)

    def _add(self, sequence: Sequence) -> None:
        if self.publisher is not None:
            self.publisher.opened(sequence.id)
        self._sequences[sequence.id] = sequence

    def _get(self, sequence: SequenceId) -> Sequence:
        found = self._sequences.get(sequence)
        if found is None:
            raise UsageError(f"no such sequence: {sequence}")
        return found


def _require_room(layout: KVLayout, config: PathConfig, largest: int) -> None:
    need = layout.open.block_bytes
    if config.hot_bytes < need:
        raise CapacityError(
            f"the hot region ({format_bytes(config.hot_bytes)}) cannot hold one block of {layout.block_tokens} tokens "
            f"in all layers ({format_bytes(need)})",
            hint="give it more with --hot, or use a smaller block_tokens",
        )
    what = "one layer block"
    if layout.kv_dtype:
        what, largest = "one layer block beside one that is quantised", largest + scratch_bytes(layout)
    if config.window_bytes < largest:
        raise CapacityError(
            f"the window ({format_bytes(config.window_bytes)}) cannot hold {what} ({format_bytes(largest)})",
            hint="give it more with --window, or use a smaller block_tokens",
        )
