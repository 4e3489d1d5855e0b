"""Staging new tokens: they fill the tail, then new blocks, and nothing of it shows before the commit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualpath.kv.ids import BlockId
from dualpath.path.growth import grow
from dualpath.path.sequences import Block, Part, Sequence, SequenceId


def sequence(length: int, size: int) -> Sequence:
    blocks = [Block(at, min(size, length - at), [Part()]) for at in range(0, length, size)]
    for block in blocks:
        if block.length == size:
            block.id = BlockId(bytes(32))
    return Sequence(SequenceId(1), list(range(length)), blocks)


@given(st.integers(0, 40), st.integers(0, 50), st.integers(1, 9), st.integers(0, 5))
def test_rows_are_placed_once_in_order(length: int, count: int, size: int, row: int) -> None:
    before = sequence(length, size)
    tokens = list(range(1000, 1000 + count))
    growth = grow(before, count, tokens, row, size, groups=1)
    assert before.length == length
    position, at = length, row
    for fill in growth.fills:
        assert (fill.block.position + fill.offset, fill.row) == (position, at)
        assert 0 < fill.count <= size
        assert fill.tokens <= size
        position, at = position + fill.count, at + fill.count
    assert position == length + count
    assert [fill.fresh for fill in growth.fills] == [fill.block is not before.tail for fill in growth.fills]
    everything = [*before.tokens, *tokens]
    for fill in growth.full(size):
        lo = fill.block.position
        assert growth.block_tokens_ids(fill) == everything[lo : lo + size]
