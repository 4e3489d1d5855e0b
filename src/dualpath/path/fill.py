"""Reading one whole block, and filling a sequence with random KV so that I/O can be measured at any context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dualpath.attention import encode_block
from dualpath.errors import UsageError
from dualpath.kv import codecs
from dualpath.kv.layout import FLOAT_BYTES
from dualpath.path.arena import Budget
from dualpath.path.plan import Entry, geometry_of
from dualpath.path.reader import lost, wait_drained
from dualpath.path.sequences import Block, Part, SequenceId, next_id
from dualpath.transport.base import Lane, Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dualpath.kv.ids import BlockId
    from dualpath.kv.layout import KVLayout
    from dualpath.path.dualpath import DualPath
    from dualpath.wire.messages import SlotRef


def read_block(path: DualPath, block: Block, group: int, into: list[memoryview]) -> None:
    """Read one group's layer blocks of a block at a node into `into`, one per layer. Raises `BlockLostError`.

    They are received beside `into`: a read whose start is interrupted may be under way without anybody who could tell
    when it has ended, and `into` is often memory that goes to others after an error.
    """
    part = block.parts[group]
    if part.refs is None:
        raise UsageError("this block is not at a node")
    received = [np.empty(len(view), np.uint8) for view in into]
    _read(path, Entry(block, part, block.length), group, part.refs, [memoryview(one) for one in received])
    for view, one in zip(into, received, strict=True):
        view[:] = memoryview(one)


def decode_block(path: DualPath, block: Block, group: int, into: list[memoryview]) -> None:
    """Write one group's layer blocks of a quantised block to `into` as an open block has them, one per layer."""
    layout, one = path.layout, path.layout.groups[group]
    shape = tuple(layout.block_tokens if size == -1 else size for size in one.layer_block_shape)
    for layer, view in enumerate(into):
        raw = read_layer_block(path, Entry(block, block.parts[group], block.length), group, layer)
        values = codecs.decode(np.frombuffer(raw, np.uint8), layout.sealed_dtype, shape)
        np.copyto(np.frombuffer(view, np.uint8), codecs.encode(values, layout.dtype))


def read_layer_block(path: DualPath, entry: Entry, group: int, layer: int) -> bytes:
    """Return one layer block as stored, local or not; `layer` is an index within the group. Raises `BlockLostError`."""
    part = entry.part
    layout = path.layout.open if entry.block.id is None else path.layout
    slots = path.arena.slots(layout.layer_block_bytes(layout.groups[group]))
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
    try:
        outcomes = ticket.wait(deadline_s + 1.0)
    finally:  # an interrupt too leaves nothing behind that writes to `into`
        node.cancel(ticket)
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
    layout, wide = path.layout, path.layout.open
    size = wide.layer_block_bytes(wide.groups[group])
    width = FLOAT_BYTES[layout.dtype]
    numbers = np.random.Generator(np.random.SFC64([seed, block, layer])).random(size // width, np.float32)
    numbers = (numbers - np.float32(0.5)) * np.float32(12**0.5)
    if layout.kv_dtype:
        return _quantised(layout, group, codecs.encode(numbers, layout.dtype))
    if layout.dtype == "float16":
        return numbers.astype(np.float16).view(np.uint8)
    if layout.dtype == "bfloat16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return numbers.view(np.uint8)


def _quantised(layout: KVLayout, group: int, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    geometry = geometry_of(layout, layout.groups[group])
    into = np.empty(layout.layer_block_bytes(layout.groups[group]), np.uint8)
    encode_block(raw, layout.dtype, into, geometry, layout.block_tokens)
    return into


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
    `PoolFullError`, and `UsageError` for a sequence that is not empty and while a step is open.
    """
    path.require_no_step()
    if path.length(sequence):
        raise UsageError("only an empty sequence can be filled")
    size = path.layout.block_tokens
    known = None if isinstance(tokens, int) else list(tokens)
    count = (tokens if isinstance(tokens, int) else len(tokens)) // size
    spare = path.arena.room(Budget.HOT) - path.layout.open.block_bytes
    hot = count if path.writer is None else max(0, spare // path.layout.block_bytes)
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
