"""Reading one whole block, and filling a sequence with random KV so that I/O can be measured at any context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dualpath.errors import UsageError
from dualpath.kv.layout import DTYPE_BYTES
from dualpath.path.arena import Budget
from dualpath.path.plan import Entry
from dualpath.path.reader import lost, wait_drained
from dualpath.path.sequences import Block, Part, SequenceId, next_id
from dualpath.transport.base import Lane, Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dualpath.kv.ids import BlockId
    from dualpath.path.dualpath import DualPath
    from dualpath.wire.messages import SlotRef


def read_block(path: DualPath, block: Block, group: int, into: list[memoryview]) -> None:
    """Read one group's layer blocks of a block at a node into `into`, one per layer. Raises `BlockLostError`."""
    part = block.parts[group]
    if part.refs is None:
        raise UsageError("this block is not at a node")
    _read(path, Entry(block, part, block.length), group, part.refs, into)


def read_layer_block(path: DualPath, entry: Entry, group: int, layer: int) -> bytes:
    """Return one layer block as stored, local or not; `layer` is an index within the group. Raises `BlockLostError`."""
    part = entry.part
    slots = path.arena.slots(path.layout.layer_block_bytes(path.layout.groups[group]))
    if part.local is not None:
        return bytes(slots.bytes_of(int(part.local[layer])))
    if part.refs is None:
        raise UsageError("this block is neither local nor at a node")
    buffer = bytearray(slots.slot_bytes)
    _read(path, entry, group, [part.refs[layer]], [memoryview(buffer)])
    return bytes(buffer)


def _read(path: DualPath, entry: Entry, group: int, refs: list[SlotRef], into: list[memoryview]) -> None:
    if path.pool is None:
        raise UsageError("there is no pool")
    node, deadline_s = path.pool.nodes[entry.part.node], path.config.deadline_s
    size = path.layout.layer_block_bytes(path.layout.groups[group])
    ticket = node.read(refs, into, slot_bytes=size, lane=Lane.BULK, timeout_s=deadline_s)
    outcomes = ticket.wait(deadline_s + 1.0)
    wait_drained(ticket, node.name)
    for outcome in outcomes:
        if outcome is not Outcome.OK:
            raise lost(entry, node, outcome or Outcome.TIMEOUT, ticket.error)


def block_bytes(path: DualPath, sequence: SequenceId, index: int) -> dict[int, bytes]:
    """Return a sealed block's KV as stored, per layer of the model: local where it is hot, else from its node."""
    block = path.block(sequence, index)
    return {
        layer: read_layer_block(path, Entry(block, block.parts[number], block.length), number, i)
        for number, group in enumerate(path.layout.groups)
        for i, layer in enumerate(group.layers)
    }


def random_layer_block(path: DualPath, group: int, layer: int, block: int, seed: int) -> NDArray[np.uint8]:
    """Return the bytes of one random layer block: uniform in [-√3, √3), variance 1, by (seed, block, layer) alone."""
    layout = path.layout
    size = layout.layer_block_bytes(layout.groups[group])
    width = DTYPE_BYTES[layout.dtype]
    numbers = np.random.Generator(np.random.SFC64([seed, block, layer])).random(size // width, np.float32)
    numbers = (numbers - np.float32(0.5)) * np.float32(12**0.5)
    if layout.dtype == "float16":
        return numbers.astype(np.float16).view(np.uint8)
    if layout.dtype == "bfloat16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return numbers.view(np.uint8)


def fill_random(
    path: DualPath,
    sequence: SequenceId,
    tokens: int | Sequence[int],
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Give an empty sequence `tokens` tokens of seeded random KV (rounded down to whole blocks), without a model.

    The last blocks that fit are hot, the rest is only in the pool. Where the token ids are given instead of their
    number, blocks get the ids that these tokens have, so that `attach` finds them. Raises `CapacityError`,
    `PoolFullError`.
    """
    if path.length(sequence):
        raise UsageError("only an empty sequence can be filled")
    size = path.layout.block_tokens
    known = None if isinstance(tokens, int) else list(tokens)
    count = (tokens if isinstance(tokens, int) else len(tokens)) // size
    hot = count if path.writer is None else max(0, path.arena.room(Budget.HOT) // path.layout.block_bytes - 1)
    last: BlockId | None = None
    for index in range(count):
        own = None if known is None else known[index * size : (index + 1) * size]
        last = next_id(last, own, path.layout.fingerprint)
        block = Block(index * size, size, [Part() for _ in path.layout.groups], id=last)
        try:
            _fill_block(path, block, index, seed, keep=index >= count - hot)
        except BaseException:
            path.discard(block)
            raise
        path.adopt(sequence, block, own or [0] * size)
        if on_progress is not None:
            on_progress(index + 1, count)


def _fill_block(path: DualPath, block: Block, index: int, seed: int, *, keep: bool) -> None:
    assert block.id is not None
    sealings = path.writer.prepare([(block.id, block.length, index)]) if path.writer is not None else []
    try:
        for number, group in enumerate(path.layout.groups):
            slots = path.arena.slots(path.layout.layer_block_bytes(group))
            part = block.parts[number]
            if keep:
                part.local = slots.allocate(Budget.HOT, len(group.layers))
            for i, layer in enumerate(group.layers):
                data = random_layer_block(path, number, layer, index, seed)
                if part.local is not None:
                    np.copyto(np.frombuffer(slots.bytes_of(int(part.local[i])), np.uint8), data)
                if path.writer is not None:
                    path.writer.write(sealings, number, i, [memoryview(data)])
        if path.writer is not None:
            path.writer.commit(sealings)
            for part, refs in zip(block.parts, sealings[0].refs, strict=True):
                part.node, part.refs = sealings[0].node, list(refs)
    except BaseException:
        if path.writer is not None:
            path.writer.abort(sealings)
        raise
