"""One step of a batch: new tokens of some sequences pass through all layers, then all of it counts, or none.

    step = path.begin([(sequence, ids), …])
    for each layer:  out = step.attend(layer, q, k, v, scale=…)
    step.commit()      or      step.abort()

`attend` on one layer: (1) queries go to the nodes that reduce blocks of theirs; (2) k and v go to their slots; (3) far
blocks are folded as a reader brings them (all, or those that nodes say the query needs most), then the near ones, and
what the nodes answer is merged; (4) blocks that became full are written to their node, quantised if sealed blocks are.
After an error the step must be aborted; the
sequences are then as before it, whatever happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dualpath import attention
from dualpath.attention.base import Geometry, State
from dualpath.attention.storage import layer_block_bytes
from dualpath.errors import UsageError
from dualpath.kv.layout import LayerKind
from dualpath.path.arena import Budget
from dualpath.path.encoder import Encoder
from dualpath.path.plan import Entry, GroupPlan, Near, Table, geometry_of, split
from dualpath.path.prefetch_reader import PrefetchReader
from dualpath.path.sequences import visible

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dualpath.attention.base import Partial
    from dualpath.kv.layout import LayerGroup
    from dualpath.path.dualpath import DualPath
    from dualpath.path.growth import Fill, Growth
    from dualpath.path.reduce import Shipment

    Float32 = NDArray[np.float32]
    Array = NDArray[np.generic]


@dataclass(slots=True)
class Observation:
    """What one layer of a step did, for `explain`: its partials as `(where, state, tokens)`, and the merged `out`."""

    layer: int
    plan: GroupPlan
    index: int
    q: Float32
    scale: float
    softcap: float
    sinks: Float32 | None
    partials: list[tuple[str, State, int]]
    out: Float32


Observer = Callable[[Observation], None]

_ALONE_BYTES = 2 << 20

STORED: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.uint16),
    "float16": np.dtype(np.uint16),
}


class Step:
    """Made by `DualPath.begin`. Not thread-safe; one step of a path at a time."""

    def __init__(self, path: DualPath, growths: list[Growth]) -> None:
        self._path, self._growths = path, growths
        layout = path.layout
        self.rows = sum(growth.count for growth in growths)
        self.reducing = path.reducer is not None and self.rows <= path.config.reduce_rows
        self.choosing = path.ranker is not None and path.read_fraction < 1.0
        self._row_start = np.zeros(len(growths) + 1, np.int32)
        np.cumsum([growth.count for growth in growths], out=self._row_start[1:])
        self._row_position = np.concatenate(
            [np.arange(g.start, g.start + g.count, dtype=np.int64) for g in growths] or [np.empty(0, np.int64)]
        )
        self._fills = [fill for growth in growths for fill in growth.fills]
        self._scratch = [fill for fill in self._fills if fill.scratch]
        self._sealed = [fill for fill in self._fills if fill.sealing is not None]
        self._encoder = Encoder(growths, layout)
        self._plans = [self._plan(index) for index in range(len(layout.groups))]
        self._where = {layer: (plan, i) for plan in self._plans for i, layer in enumerate(plan.group.layers)}
        self._dtype = STORED[layout.dtype]
        self._open = True
        self._shapes = [
            tuple(layout.block_tokens if n == -1 else n for n in g.layer_block_shape) for g in layout.groups
        ]
        self.observer: Observer | None = None
        self.capture: Callable[[int, Fill, memoryview], None] | None = None

    @property
    def open(self) -> bool:
        """Whether the step has neither been committed nor aborted."""
        return self._open

    def start(self) -> None:
        """Tell readers and nodes what is to come. Part of `DualPath.begin`."""
        path = self._path
        reserve = max(self._scratch_bytes(plan) for plan in self._plans)
        reduced = [plan for plan in self._plans if self._reduces(plan.group)]
        asked = path.reducer or path.ranker
        if asked is not None:
            sequences = [growth.sequence.id for growth in self._growths]
            asked.begin(reduced, sequences, self._row_start, path.read_fraction)
        wrap = path.reducer is None and path.read_fraction == 1.0
        if path.auto is not None:
            path.auto.started(reduced, self.rows, max((growth.count for growth in self._growths), default=0))
            wrap = self.reducing and path.auto.wraps
        path.reader.begin(self._plans, reserve=reserve, wrap=wrap)

    def attend(
        self,
        layer: int,
        q: Float32,
        k: Array,
        v: Array | None,
        *,
        scale: float,
        softcap: float = 0.0,
        sinks: Float32 | None = None,
    ) -> Float32:
        """Append `k`, `v` of one layer and return the attention of `q` over everything visible.

        q: float32 `[T, query_heads, head_dim]`; k, v: `[T, kv_heads, head_dim]` in the stored dtype (float32, or uint16
        bits of bf16/fp16), any strides; latent layers: k `[T, 1, latent + rope]`, v `None`. sinks: float32
        `[query_heads]`. Returns float32 `[T, query_heads, value_dim]`. Raises `BlockLostError`, `PeerError`,
        `UsageError`.
        """
        started = time.perf_counter()
        plan, index = self._check(layer, q, k, v)
        scratch = plan.open_slots.allocate(Budget.WINDOW, len(self._scratch))
        try:
            shipment = self._ship(plan, index, q, scale, softcap)
            self._store(plan, index, k, v, scratch)
            state = State.empty(self.rows, plan.group.query_heads, plan.group.value_dim)
            self._fold_chosen(state, q, plan, index, scale, softcap)
            for run in self._path.reader.runs(plan, index):
                table = plan.far.run(run.lo, run.hi, self._path.arena.buffers, run.places, self._row_start)
                self._fold(state, q, plan, table, scale, softcap)
            self._fold_near(state, q, plan, index, scratch, scale, softcap)
            parts = [*self._collect(shipment), state]
            out = attention.join(parts, sinks)[0] if len(parts) > 1 else attention.finish(state, sinks)[0]
            if self.observer is not None:
                seen = self._partials(plan, state)
                self.observer(Observation(layer, plan, index, q, scale, softcap, sinks, seen, out))
            self._write(plan, index, scratch)
        finally:
            plan.open_slots.free(Budget.WINDOW, scratch)
        self._path.metrics.attend_s += time.perf_counter() - started
        return out

    def commit(self) -> None:
        """Make the step count, for all sequences. Raises `PeerError`; the step is then still open and must be aborted.

        An interrupt may also come once it counts, while nodes are told what it made useless: `open` is false then.
        """
        self._require_open()
        self._path.commit_step(self._growths)
        self._open = False
        self._path.committed(self._growths)

    def abort(self) -> None:
        """Undo the step: nothing of it is left, locally or at a node. Idempotent; does nothing after `commit`."""
        if self._open:
            self._open = False
            self._path.abort_step(self._growths)

    # --- planning ----------------------------------------------------------------------------------------------

    def _plan(self, index: int) -> GroupPlan:
        layout, path = self._path.layout, self._path
        group = layout.groups[index]
        reduced: list[list[Entry]] = []
        far: list[list[Entry]] = []
        near: list[list[Entry]] = []
        fresh: list[list[Entry]] = []
        for growth in self._growths:
            entries = [
                Entry(block, block.parts[index], block.length)
                for block in growth.sequence.blocks
                if block.id is not None and visible(block, group, growth.start)
            ]
            looked_at = self._reduces(group) and (growth.count == 1 or not self.choosing)
            taken, rest = path.divide(entries) if looked_at else ([], entries)
            a, b = split(rest)
            reduced.append(taken)
            far.append(a)
            near.append(b)
            fresh.append([Entry(fill.block, fill.block.parts[index], fill.tokens) for fill in growth.fills])
        slots = path.arena.slots(layout.layer_block_bytes(group))
        open_slots = path.arena.slots(layout.open.layer_block_bytes(group))
        geometry, layers = geometry_of(layout, group), len(group.layers)
        if layout.kv_dtype:
            both = [
                Near.of(near, geometry, slots, layers),
                Near.of(fresh, geometry_of(layout.open, group), open_slots, layers),
            ]
        else:
            both = [Near.of([a + b for a, b in zip(near, fresh, strict=True)], geometry, slots, layers)]
        starts = [growth.start for growth in self._growths]
        tables = Table.of(far), both, starts, Table.of(reduced)
        return GroupPlan(index, group, geometry, slots, open_slots, *tables, self.rows)

    def _scratch_bytes(self, plan: GroupPlan) -> int:
        """Return the bytes of the window that one layer of this step needs for itself."""
        return len(self._scratch) * plan.open_slots.slot_bytes + self._encoder.homeless * plan.slots.slot_bytes

    def _reduces(self, group: LayerGroup) -> bool:
        # a sliding window is short: its far blocks, if any, are cheaper to fetch than to keep as views
        return (self.reducing or self.choosing) and group.kind is not LayerKind.SLIDING

    def _check(self, layer: int, q: Float32, k: Array, v: Array | None) -> tuple[GroupPlan, int]:
        self._require_open()
        found = self._where.get(layer)
        if found is None:
            raise UsageError(f"layer {layer} keeps no KV in this layout")
        group = found[0].group
        latent = group.kind is LayerKind.LATENT
        wanted_q = (self.rows, group.query_heads, group.head_dim)
        wanted_k = (self.rows, group.kv_heads, group.head_dim)
        if q.shape != wanted_q or q.dtype != np.float32:
            raise UsageError(f"layer {layer}: q is {q.dtype} {list(q.shape)}, expected float32 {list(wanted_q)}")
        for name, array in (("k", k),) if latent else (("k", k), ("v", v)):
            if array is None or array.shape != wanted_k or array.dtype != self._dtype:
                got = "missing" if array is None else f"{array.dtype} {list(array.shape)}"
                raise UsageError(f"layer {layer}: {name} is {got}, expected {self._dtype} {list(wanted_k)}")
        return found

    def _require_open(self) -> None:
        if not self._open:
            raise UsageError("this step has ended", hint="begin another one")

    # --- one layer ---------------------------------------------------------------------------------------------

    def _store(self, plan: GroupPlan, index: int, k: Array, v: Array | None, scratch: NDArray[np.int64]) -> None:
        group, shape, used = plan.group, self._shapes[plan.index], 0
        for fill in self._fills:
            if fill.scratch:
                slot, used = int(scratch[used]), used + 1
            else:
                local = fill.block.parts[plan.index].local
                assert local is not None
                slot = int(local[index])
            where = plan.open_slots.array(slot, self._dtype, shape)
            span, rows = slice(fill.offset, fill.tokens), slice(fill.row, fill.row + fill.count)
            if v is None or group.kind is LayerKind.LATENT:
                where[:, span] = k[rows].swapaxes(0, 1)
            else:
                where[:, 0, span] = k[rows].swapaxes(0, 1)
                where[:, 1, span] = v[rows].swapaxes(0, 1)

    def _fold(
        self,
        state: State,
        q: Float32,
        plan: GroupPlan,
        table: attention.BlockTable,
        scale: float,
        softcap: float,
        geometry: Geometry | None = None,
    ) -> None:
        geometry = geometry or plan.geometry
        started = time.perf_counter()
        attention.attend(
            state,
            q,
            self._row_position,
            table,
            geometry,
            scale=scale,
            softcap=softcap,
            window=plan.group.window,
            threads=1 if self._alone(table, plan) else self._path.config.threads,
        )
        metrics = self._path.metrics
        metrics.local_s += time.perf_counter() - started
        metrics.local_bytes += int(table.tokens.sum()) * (layer_block_bytes(geometry) // geometry.block_tokens)

    def _alone(self, table: attention.BlockTable, plan: GroupPlan) -> bool:
        """Whether one thread does this fold: while nodes compute, waking a second one for little gains nothing."""
        return self.reducing and len(table.offset) * plan.slots.slot_bytes <= _ALONE_BYTES

    def _fold_near(
        self,
        state: State,
        q: Float32,
        plan: GroupPlan,
        index: int,
        scratch: NDArray[np.int64],
        scale: float,
        softcap: float,
    ) -> None:
        rows = {id(fill.block): slot for fill, slot in zip(self._scratch, scratch, strict=True)}
        for near in plan.near:
            slots = near.place[:, index]
            if rows and near is plan.near[-1]:
                slots = slots.copy()
                for row, entry in enumerate(near.table.entries):
                    if id(entry.block) in rows:
                        slots[row] = rows[id(entry.block)]
            if not len(slots):
                continue
            table = near.table.whole(self._path.arena.buffers, near.slots.locate(slots), self._row_start)
            self._fold(state, q, plan, table, scale, softcap, near.geometry)

    def _fold_chosen(self, state: State, q: Float32, plan: GroupPlan, index: int, scale: float, softcap: float) -> None:
        """Fold those of the reduced blocks that the nodes choose for this layer, as they are read."""
        if not self.choosing or not plan.reduced.entries:
            return
        ranker, reader = self._path.ranker, self._path.reader
        assert ranker is not None
        assert isinstance(reader, PrefetchReader)
        chosen = Table.of(ranker.choose(plan, index, q, scale=scale))
        for run in reader.chosen(plan, index, chosen.distinct):
            table = chosen.run(run.lo, run.hi, self._path.arena.buffers, run.places, self._row_start)
            self._fold(state, q, plan, table, scale, softcap)

    def _ship(self, plan: GroupPlan, index: int, q: Float32, scale: float, softcap: float) -> Shipment | None:
        """Send `q` to the nodes that attend to blocks of theirs. First of all: what is done here is done meanwhile."""
        reducer = self._path.reducer
        if reducer is None or not plan.reduced.entries:
            return None
        return reducer.start(plan, index, q, scale=scale, softcap=softcap, debug=self.observer is not None)

    def _collect(self, shipment: Shipment | None) -> list[State | Partial]:
        """Return the partials of all nodes that were asked, in node order."""
        reducer = self._path.reducer
        if reducer is None or shipment is None:
            return []
        return list(reducer.collect(shipment, self.rows))

    def _partials(self, plan: GroupPlan, state: State) -> list[tuple[str, State, int]]:
        """Return what an observer sees of a layer: the nodes' partials, and what was folded here."""
        reducer = self._path.reducer
        remote = reducer.observed if reducer is not None and plan.reduced.entries else []
        tokens = sum(entry.tokens for entry in plan.far.entries) + plan.near_tokens
        return [*remote, ("here", state, tokens)]

    def _write(self, plan: GroupPlan, index: int, scratch: NDArray[np.int64]) -> None:
        full = self._encoder.fills or (self._sealed if self.capture is None else self._fills)
        if not full:
            return
        slots = {id(fill): int(slot) for fill, slot in zip(self._scratch, scratch, strict=True)}
        for fill in full:
            local = fill.block.parts[plan.index].local
            if local is not None:
                slots[id(fill)] = int(local[index])
        sources = [plan.open_slots.bytes_of(slots[id(fill)]) for fill in full]
        with self._encoder.encoded(plan, index, sources) as stored:
            for fill, data in zip(full, stored, strict=True):
                if self.capture is not None:
                    self.capture(plan.group.layers[index], fill, data)
            there = [(fill.sealing, data) for fill, data in zip(full, stored, strict=True) if fill.sealing is not None]
            if self._path.writer is not None and there:
                lasts = not (self._scratch or self._encoder.homeless)  # what is written stays in place until the commit
                write = self._path.writer.start_write if lasts else self._path.writer.write
                write([sealing for sealing, _ in there], plan.index, index, [data for _, data in there])
