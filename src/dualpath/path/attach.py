"""Starting from a prefix whose KV is in the pool already: nothing is computed, and only what is kept hot is read.

Blocks are named by what they hold, so the ids of a prompt's blocks follow from its tokens. Every node is asked for all
of them, since where they were put is not this path's doing; the longest prefix that is there, in all layer groups,
counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dualpath.errors import PeerError, UsageError
from dualpath.path.arena import Budget
from dualpath.path.fill import read_block
from dualpath.path.sequences import Block, Part, SequenceId, next_id
from dualpath.wire.messages import BlockKey

if TYPE_CHECKING:
    from dualpath.kv.ids import BlockId
    from dualpath.path.dualpath import DualPath
    from dualpath.pool.client import Pool
    from dualpath.wire.messages import SlotRef

_LEASE_S = 10.0  # until the blocks are pinned

Found = dict[BlockKey, tuple[int, list["SlotRef"]]]


def attach(path: DualPath, sequence: SequenceId, tokens: Sequence[int], *, hot_bytes: int | None = None) -> int:
    """Give an empty sequence the KV of the longest prefix of `tokens` that the pool has, in whole blocks.

    Returns the number of tokens attached. The last blocks that fit are read into the hot region, at most `hot_bytes` of
    them. The blocks are pinned for this path until the sequence is closed, and are then forgotten by their nodes unless
    others pin them too. Raises `UsageError` for a sequence that is not empty and while a step is open, `PeerError` and
    `BlockLostError`; then the sequence is empty.
    """
    path.require_no_step()
    if path.length(sequence):
        raise UsageError("only an empty sequence can be given a prefix")
    pool, writer = path.pool, path.writer
    if pool is None or writer is None:
        return 0
    layout = path.layout
    ids = _ids(path, tokens)
    found, leases = _find(path, ids)
    there = 0
    while there < len(ids) and all(BlockKey(ids[there], g) in found for g in range(len(layout.groups))):
        there += 1
    blocks = [(found[BlockKey(id, 0)][0], id) for id in ids[:there]]
    try:
        writer.keep(blocks)
    except BaseException:
        _end(pool, leases)
        raise
    room = path.arena.room(Budget.HOT) - layout.open.block_bytes  # one block is left for the tail
    hot = max(0, room if hot_bytes is None else min(room, hot_bytes)) // layout.block_bytes
    size = layout.block_tokens
    try:
        _end(pool, leases)  # they are pinned
        for index, id in enumerate(ids[:there]):
            parts = [
                Part(node=number, refs=refs)
                for number, refs in (found[BlockKey(id, g)] for g in range(len(layout.groups)))
            ]
            block = Block(index * size, size, parts, id=id)
            if index >= there - hot:
                _make_hot(path, block)
            path.adopt(sequence, block, list(tokens[index * size : (index + 1) * size]))
    except BaseException:
        adopted = path.length(sequence) // size  # the sequence owns these, and gives them up itself
        try:
            path.crop(sequence, 0)
        finally:
            writer.drop(blocks[adopted:])
        raise
    return there * size


def _end(pool: Pool, leases: Sequence[int]) -> None:
    """End the lease of each node; one that cannot be told of ends by itself."""
    for node, lease in zip(pool.nodes, leases, strict=False):
        with contextlib.suppress(PeerError):
            node.renew([lease], 0)


def _ids(path: DualPath, tokens: Sequence[int]) -> list[BlockId]:
    """Return the ids of the whole blocks of `tokens`."""
    size = path.layout.block_tokens
    ids: list[BlockId] = []
    for start in range(0, len(tokens) - size + 1, size):
        parent = ids[-1] if ids else None
        ids.append(next_id(parent, list(tokens[start : start + size]), path.layout.fingerprint))
    return ids


def _find(path: DualPath, ids: Sequence[BlockId]) -> tuple[Found, list[int]]:
    """Ask every node which of these blocks it has: where they are, and the lease of each node.

    A block's groups are all taken from one node.
    """
    assert path.pool is not None
    groups = range(len(path.layout.groups))
    keys = [BlockKey(id, group) for id in ids for group in groups]
    found: Found = {}
    leases: list[int] = []
    for number, node in enumerate(path.pool.nodes if keys else ()):
        resolved = node.resolve(keys, _LEASE_S)
        leases.append(resolved.lease)
        answer = dict(zip(keys, resolved.refs, strict=True))
        for id in ids:
            if BlockKey(id, 0) not in found and all(answer[BlockKey(id, group)] for group in groups):
                found.update((BlockKey(id, group), (number, answer[BlockKey(id, group)])) for group in groups)
    return found, leases


def _make_hot(path: DualPath, block: Block) -> None:
    """Read a block into slots of the hot region; after an error it has none."""
    try:
        for number, group in enumerate(path.layout.groups):
            slots = path.arena.slots(path.layout.layer_block_bytes(group))
            block.parts[number].local = taken = slots.allocate(Budget.HOT, len(group.layers))
            read_block(path, block, number, [slots.bytes_of(slot) for slot in taken.tolist()])
    except BaseException:
        path.discard(block)
        raise
