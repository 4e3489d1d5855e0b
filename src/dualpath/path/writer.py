"""Write-through: blocks that a step fills go to a node before the step commits.

    prepare (ids known at begin)  →  write, layer by layer, as the step passes  →  commit, or abort

Writes go out in order on a thread of their own, so that compute never waits for a link: a layer's blocks are under way
while the next layers are computed. `commit` and `abort` wait for them.

Readers never see an unsealed block. A block that the node already has (an equal prefix) is not written again. One that
another path over the same pool is about to seal as well is written by both, into the same slots; whoever commits first
seals it, and what the other still writes is refused, which is no failure (`holdings` counts who needs what).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dualpath.errors import BlockLostError, PeerError, PoolFullError, UnreachableError
from dualpath.kv.ids import BlockId
from dualpath.path.holdings import At, Holdings
from dualpath.transport.base import Lane, Outcome
from dualpath.wire.messages import BlockKey, PrepareItem

if TYPE_CHECKING:
    from dualpath.kv.layout import KVLayout
    from dualpath.path.metrics import PathMetrics
    from dualpath.path.publisher import Publisher
    from dualpath.pool.client import Pool
    from dualpath.wire.messages import SlotRef

_RESTARTED = "was the node restarted? the step was undone, the sequence is as before it"
_NO_LEASE_S = 0.0  # what is there already was pinned by `prepare`


@dataclass(slots=True)
class Sealing:
    """One block on its way into the pool. `refs[g]` are the slots to write for group `g`, none for groups that are
    there already (`present`), and once it is sealed, where it is.

    `wanted`: it is counted in `Pool.wanted`.
    """

    id: BlockId
    tokens: int
    node: int
    refs: list[list[SlotRef]]
    present: frozenset[int]
    wanted: bool = False


class Writer:
    """Puts sealed blocks into the pool, and takes them out again when nobody needs them."""

    def __init__(
        self,
        pool: Pool,
        layout: KVLayout,
        metrics: PathMetrics,
        publisher: Publisher,
        *,
        spread: bool,
        deadline_s: float,
    ) -> None:
        self._pool, self._layout, self._metrics, self._publisher = pool, layout, metrics, publisher
        self._spread, self._deadline_s = spread, deadline_s
        self._holdings = Holdings(pool, len(layout.groups))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dualpath-write")  # started by the first write
        self._under_way: list[Future[None]] = []
        self._broken = False  # a write has failed since the last commit or abort

    def prepare(self, blocks: Sequence[tuple[BlockId, int, int]]) -> list[Sealing]:
        """Reserve room for `(id, tokens, index in its sequence)` blocks. All or none. Raises `PoolFullError`.

        Returns one sealing per block; equal ids share one.
        """
        done: list[Sealing] = []
        try:
            for number, group in self._by_node(list(dict.fromkeys(blocks))).items():
                done += self._prepare_at(number, group)
        except BaseException:
            self.abort(done)
            raise
        by_id = {sealing.id: sealing for sealing in done}
        return [by_id[id] for id, _, _ in blocks]

    def write(self, sealings: Sequence[Sealing], group: int, layer: int, sources: Sequence[memoryview]) -> None:
        """Write one layer of blocks: `sources[i]` is the layer block of `sealings[i]`. Raises `PeerError`.

        Sources may be reused on return.
        """
        self.start_write(sealings, group, layer, sources)
        self._settle()

    def start_write(self, sealings: Sequence[Sealing], group: int, layer: int, sources: Sequence[memoryview]) -> None:
        """As `write`, without waiting: sources belong to the writer until `commit` or `abort`, and the first of these
        raises what went wrong."""
        by_node: dict[int, list[int]] = {}
        first = {id(sealing): i for i, sealing in reversed(list(enumerate(sealings)))}
        for i, sealing in enumerate(sealings):
            if group not in sealing.present and first[id(sealing)] == i:
                by_node.setdefault(sealing.node, []).append(i)
        size = self._layout.layer_block_bytes(self._layout.groups[group])
        for number, indices in by_node.items():
            self._metrics.written_bytes += size * len(indices)
            self._under_way.append(
                self._thread.submit(
                    self._write,
                    number,
                    group,
                    [sealings[i].id for i in indices],
                    [sealings[i].refs[group][layer] for i in indices],
                    [sources[i] for i in indices],
                    size,
                )
            )

    def _write(
        self,
        number: int,
        group: int,
        ids: Sequence[BlockId],
        refs: Sequence[SlotRef],
        sources: Sequence[memoryview],
        size: int,
    ) -> None:
        if self._broken:
            return  # an earlier write has failed: no deadline is waited for twice
        node = self._pool.nodes[number]
        outcomes = node.write(refs, sources, slot_bytes=size, lane=Lane.BULK, timeout_s=self._deadline_s)
        for block, outcome in zip(ids, outcomes, strict=True):
            if outcome is not Outcome.OK and not (outcome is Outcome.LOST and self._sealed_there(number, block, group)):
                self._broken = True
                raise UnreachableError(
                    f"node {node.label} did not take block {block.hex()[:16]}: {outcome.name.lower()}",
                    node=node.name,
                    hint="is the node still running? the step was undone, the sequence is as before it",
                )

    def _sealed_there(self, number: int, block: BlockId, group: int) -> bool:
        """Whether another path over this pool has sealed meanwhile what is being written here."""
        try:
            return bool(self._pool.nodes[number].resolve([BlockKey(block, group)], _NO_LEASE_S).refs[0])
        except PeerError:
            return False

    def _settle(self) -> None:
        """Wait for all writes. Raises what the first one that failed did; none is under way then."""
        try:
            wait(self._under_way)  # once one has failed, those after it are not made
            for one in self._under_way:
                one.result()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Give up all writes: those not begun are not made, and what is being sent is waited for."""
        for one in self._under_way:
            one.cancel()
        wait(self._under_way)
        self._under_way, self._broken = [], False

    def close(self) -> None:
        """End the thread, and tell nodes what an interrupt left untold. Idempotent; nothing is written afterwards."""
        self._let_go()
        self._thread.shutdown()
        self._holdings.tell()

    def commit(self, sealings: Sequence[Sealing]) -> None:
        """Seal what was written. Raises `PeerError`; then nothing may be assumed and `abort` is due."""
        self._settle()
        blocks = [(sealing.node, sealing.id) for sealing in sealings]
        self._no_longer_wanted(sealings)
        self._holdings.own(blocks, "lost a block before it was sealed", _RESTARTED)
        try:
            self._locate(sealings)
            self._publisher.sealed(blocks)
        except BaseException:
            self.drop(blocks)
            raise

    def _locate(self, sealings: Sequence[Sealing]) -> None:
        """Note where the sealed blocks are: if another client sealed one first, in its slots and not in ours.

        Raises `BlockLostError`, `PeerError`.
        """
        by_node: dict[int, list[Sealing]] = {}
        for sealing in sealings:
            by_node.setdefault(sealing.node, []).append(sealing)
        count = len(self._layout.groups)
        for number, here in by_node.items():
            node = self._pool.nodes[number]
            found = node.resolve([BlockKey(one.id, g) for one in here for g in range(count)], _NO_LEASE_S).refs
            if not all(found):
                problem = f"node {node.label} lost a block as it was sealed"
                raise BlockLostError(problem, node=node.name, hint=_RESTARTED)
            for i, one in enumerate(here):
                one.refs = list(found[i * count : (i + 1) * count])

    def keep(self, blocks: Sequence[At]) -> None:
        """Own `(node, id)` blocks that are sealed already: pin them. Raises `BlockLostError`, `PeerError`; then none
        is owned."""
        hint = "attach again: what is left of it is found then"
        self._holdings.own(blocks, "gave up a block of the prefix meanwhile", hint)

    def abort(self, sealings: Sequence[Sealing]) -> None:
        """Give prepared room back, and pins of what was there already; a node out of reach does both by itself.

        Nothing reads the sources of earlier writes any more then. An interrupt stops none of it and is raised
        afterwards: at the latest when the write that is being made, and the requests to let go, meet their deadlines.
        """
        for one in self._under_way:
            one.cancel()
        # on the writer's thread: after what it writes, and where no signal is raised that would cut a request in two
        undoing = self._thread.submit(self._undo, sealings)
        try:
            _to_the_end(undoing)
        finally:
            self._under_way, self._broken = [], False
        undoing.result()

    def _undo(self, sealings: Sequence[Sealing]) -> None:
        self._no_longer_wanted(sealings)
        self._holdings.give_back((sealing.node, sealing.id) for sealing in sealings)

    def _no_longer_wanted(self, sealings: Sequence[Sealing]) -> None:
        for sealing in sealings:
            if sealing.wanted:
                sealing.wanted = False
                self._holdings.unwant([(sealing.node, sealing.id)])

    def drop(self, blocks: Sequence[At], groups: Sequence[int] | None = None) -> None:
        """One owner fewer for these `(node, id)` blocks; the last one takes them out. Unreachable nodes are passed by.

        With `groups`, only those groups' parts are taken out, and the ownership of the rest stays.
        """
        gone = self._holdings.disown(blocks, groups)
        try:
            self._holdings.tell()
        finally:
            self._publisher.dropped(gone, groups)

    # --- placement ---------------------------------------------------------------------------------------------

    def _by_node(self, blocks: Sequence[tuple[BlockId, int, int]]) -> dict[int, list[tuple[BlockId, int, int]]]:
        count = len(self._pool.nodes)
        out: dict[int, list[tuple[BlockId, int, int]]] = {}
        for block in blocks:
            out.setdefault(block[2] % count if self._spread else 0, []).append(block)
        return out

    def _prepare_at(self, first: int, blocks: list[tuple[BlockId, int, int]]) -> list[Sealing]:
        """Prepare at node `first`; when it is full, block by block at the next node that has room."""
        try:
            return self._request(first, blocks)
        except PoolFullError as full:
            done: list[Sealing] = []
            try:
                for block in blocks:
                    done += self._prepare_anywhere(first, block, full)
            except BaseException:
                self.abort(done)
                raise
            return done

    def _prepare_anywhere(self, first: int, block: tuple[BlockId, int, int], full: PoolFullError) -> list[Sealing]:
        """Prepare a block at the first node from `first` on that has room."""
        count = len(self._pool.nodes)
        for step in range(count):
            try:
                return self._request((first + step) % count, [block])
            except PoolFullError:
                continue
        raise PoolFullError(
            f"the pool is full: no node has room for another block ({full})",
            node=full.node,
            hint="start nodes with more --capacity, add a node, or close sequences",
        ) from full

    def _request(self, number: int, blocks: list[tuple[BlockId, int, int]]) -> list[Sealing]:
        node = self._pool.nodes[number]
        groups = self._layout.groups
        items = [
            PrepareItem(BlockKey(id, g), len(group.layers), self._layout.layer_block_bytes(group), tokens)
            for id, tokens, _ in blocks
            for g, group in enumerate(groups)
        ]
        try:
            answer = node.prepare(items)
        except PoolFullError:
            raise  # then nothing was reserved; whatever else happened, something may be
        except BaseException:
            self._holdings.give_back((number, id) for id, _, _ in blocks)
            raise
        out: list[Sealing] = []
        for i, (id, tokens, _) in enumerate(blocks):
            own = answer[i * len(groups) : (i + 1) * len(groups)]
            present = frozenset(g for g, refs in enumerate(own) if not refs)
            out.append(Sealing(id, tokens, number, own, present, wanted=True))
        self._holdings.want((number, id) for id, _, _ in blocks)
        return out


def _to_the_end(work: Future[None]) -> None:
    """Wait for `work`, whatever a signal raises meanwhile; raise the last of that afterwards."""
    interrupt: BaseException | None = None
    while not work.done():
        try:
            wait([work])
        except BaseException as error:  # noqa: BLE001 it is raised below
            interrupt = error
    if interrupt is not None:
        raise interrupt
