"""Partial reads at a node: attention over the blocks that a plain reference would choose, and over no others."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from dualpath.attention import BlockTable, State, attend, finish
from dualpath.attention.bounds import choose, key_bounds
from dualpath.attention.storage import shape_of
from dualpath.errors import ProtocolError, UsageError
from dualpath.kv import codecs
from dualpath.pool import views
from dualpath.pool.node import PendingRank
from dualpath.pool.service import PoolService
from dualpath.testing.node import DirectConnection, block_key
from dualpath.wire.failures import UnknownViewError
from dualpath.wire.frames import decode_message
from dualpath.wire.messages import (
    Attend,
    Drop,
    DropView,
    ExtendView,
    Geometry,
    Message,
    Outcome,
    Partials,
    Rank,
    Ranked,
    ViewBlock,
    ViewQuery,
)

OK, LOST = Outcome.OK, Outcome.LOST
GQA = Geometry(2, 16, 16, 8, "float32", False)
MLA = Geometry(1, 24, 16, 8, "float32", True)
LAYERS, HEADS, SCALE = 2, 4, 0.5


@pytest.fixture
def wire() -> DirectConnection:
    return DirectConnection(PoolService(1 << 24, threads=1))


class Kept:
    """A sequence whose blocks are at a node, with a copy here. `ids` number its blocks: equal ones are shared."""

    def __init__(
        self, wire: DirectConnection, view: int, geometry: Geometry, ids: Sequence[int], last: int = 8
    ) -> None:
        self.view, self.geometry = view, geometry
        self.lengths = [8] * (len(ids) - 1) + [last]
        self.position = [8 * i for i in range(len(ids))]
        self.end = self.position[-1] + last
        self.slots, self.blocks = [], []
        for i, number in enumerate(ids):
            rng = np.random.default_rng(number)
            shape = shape_of(geometry)
            layers = [codecs.encode(rng.standard_normal(shape).astype(np.float32), geometry.dtype) for _ in range(2)]
            self.slots.append(layers)
            key = block_key(number)
            if wire.call(ExtendView(999, 0, geometry, [ViewBlock(key, 0, 1)]))[0].outcomes == [LOST]:
                wire.put(key, [layer.tobytes() for layer in layers], tokens=self.lengths[i])
            wire.call(DropView(999))
            self.blocks.append(ViewBlock(key, self.position[i], self.lengths[i]))

    def extend(self, wire: DirectConnection, start: int = 0, stop: int | None = None) -> list[Outcome]:
        return wire.call(ExtendView(self.view, 0, self.geometry, self.blocks[start:stop]))[0].outcomes

    def chosen(self, q: np.ndarray, layer: int, fraction: float, blocks: int) -> list[int]:
        """What a node has to read of the first `blocks` blocks."""
        each = [
            key_bounds(self.slots[i][layer], self.geometry, self.lengths[i]) for i in range(blocks)
        ]  # by the same bounds, which have a test of their own
        tokens = np.array(self.lengths[:blocks], np.int32)
        first = np.arange(blocks) == 0
        return choose(q * np.float32(SCALE), np.stack(each, 1), tokens, fraction, keep=first).tolist()

    def attention(
        self, q: np.ndarray, layer: int, blocks: Sequence[int], window: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Attention of rows `q` over these blocks, here."""
        count, size = len(blocks), self.slots[0][0].size
        table = BlockTable(
            [np.concatenate([self.slots[i][layer] for i in blocks])],
            np.zeros(count, np.int32),
            np.arange(count, dtype=np.int64) * size,
            np.array([self.lengths[i] for i in blocks], np.int32),
            np.array([self.position[i] for i in blocks], np.int64),
            np.array([0, len(q)], np.int32),
            np.array([0, count], np.int32),
        )
        state = State.empty(len(q), HEADS, self.geometry.value_dim)
        at = np.arange(self.end, self.end + len(q), dtype=np.int64)
        attend(state, q, at, table, self.geometry, scale=SCALE, window=window)
        return finish(state)


def ask(wire, kept, rows, fraction, *, layer=1, blocks=None, debug=False, seed=9):
    """Ask about the first `blocks` blocks of each; return the reply, and q, out and lse by sequence."""
    geometry = kept[0].geometry
    q = np.random.default_rng(seed).standard_normal((sum(rows), HEADS, geometry.head_dim), np.float32) * 2
    queries = [
        ViewQuery(one.view, len(one.blocks) if blocks is None else blocks, n, one.end)
        for one, n in zip(kept, rows, strict=True)
    ]
    reply, payload = wire.call(Attend(layer, HEADS, SCALE, 0.0, 0, debug, queries, fraction), q.tobytes())
    numbers = np.frombuffer(payload, np.float32)
    split = sum(rows) * HEADS * geometry.value_dim
    out = numbers[:split].reshape(sum(rows), HEADS, geometry.value_dim)
    lse = numbers[split : split + sum(rows) * HEADS].reshape(sum(rows), HEADS)
    cuts = np.cumsum(rows)[:-1]
    return reply, np.split(q, cuts), np.split(out, cuts), np.split(lse, cuts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "float8_e4m3"])
@pytest.mark.parametrize("geometry", [GQA, MLA], ids=["gqa", "mla"])
def test_a_node_reads_the_blocks_that_matter_most(wire: DirectConnection, geometry: Geometry, dtype: str) -> None:
    geometry = msgspec.structs.replace(geometry, dtype=dtype)
    kept = [Kept(wire, 1, geometry, range(9), last=5), Kept(wire, 2, geometry, range(20, 23))]
    for one in kept:
        one.extend(wire)
    for layer in range(LAYERS):
        reply, q, out, lse = ask(wire, kept, [1, 1], 0.3, layer=layer)
        assert (reply.outcomes, reply.blocks_read) == ([OK, OK], 3 + 1)
        for one, rows, some, sums in zip(kept, q, out, lse, strict=True):
            blocks = one.chosen(rows[0], layer, 0.3, len(one.blocks))
            mine, mine_lse = one.attention(rows, layer, blocks)
            assert (some == mine).all()
            assert (sums == mine_lse).all()


def test_the_first_block_is_always_read(wire: DirectConnection) -> None:
    one = Kept(wire, 1, GQA, range(12))
    one.extend(wire)
    for seed in range(20):
        _, q, out, _ = ask(wire, [one], [1], 0.05, seed=seed)
        assert (out[0] == one.attention(q[0], 1, [0])[0]).all()
    picked = {tuple(one.chosen(ask(wire, [one], [1], 0.2, seed=s)[1][0][0], 1, 0.2, 12)) for s in range(20)}
    assert len(picked) > 5  # the others are chosen by the query


def test_where_the_sequence_began_elsewhere_nothing_is_kept(wire: DirectConnection) -> None:
    """Of a sequence spread over nodes, only one of them has the first block."""
    whole = Kept(wire, 1, GQA, range(12))
    wire.call(ExtendView(1, 0, GQA, whole.blocks[1::2]))
    odd = list(range(1, 12, 2))
    reply, q, out, _ = ask(wire, [whole], [1], 0.34, blocks=6)
    assert reply.blocks_read == 3
    bounds = np.stack([key_bounds(whole.slots[i][1], GQA, 8) for i in odd], 1)
    picked = choose(q[0][0] * np.float32(SCALE), bounds, np.full(6, 8, np.int32), 0.34, keep=np.zeros(6, bool))
    assert (out[0] == whole.attention(q[0], 1, [odd[i] for i in picked])[0]).all()


def test_prompts_read_everything(wire: DirectConnection) -> None:
    kept = [Kept(wire, 1, GQA, range(9)), Kept(wire, 2, GQA, range(20, 28))]
    for one in kept:
        one.extend(wire)
    reply, q, out, _ = ask(wire, kept, [3, 1], 0.25)
    assert reply.blocks_read == 9 + 2
    assert (out[0] == kept[0].attention(q[0], 1, range(9))[0]).all()
    assert (out[1] == kept[1].attention(q[1], 1, kept[1].chosen(q[1][0], 1, 0.25, 8))[0]).all()


def test_a_fraction_of_one_changes_nothing(wire: DirectConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Kept(wire, 1, GQA, range(9))
    one.extend(wire)
    monkeypatch.setattr(views, "key_bounds", None)  # nothing is computed for it either
    queries = [ViewQuery(1, 9, 1, one.end)]
    q = np.random.default_rng(1).standard_normal((1, HEADS, 16), np.float32).tobytes()
    (whole, exact), (same, again) = (
        wire.call(Attend(1, HEADS, SCALE, 0.0, 0, False, queries, *fraction), q) for fraction in ((), (1.0,))
    )
    assert exact == again
    assert whole.blocks_read is None
    assert same.blocks_read is None


def test_max_and_exp_sum_are_those_of_what_was_read(wire: DirectConnection) -> None:
    one = Kept(wire, 1, GQA, range(9))
    one.extend(wire)
    plain, _, out, lse = ask(wire, [one], [1], 0.25)
    debug, _, same, sums = ask(wire, [one], [1], 0.25, debug=True)
    assert plain.blocks_read == debug.blocks_read == 3
    assert (out[0] == same[0]).all()
    assert (lse[0] == sums[0]).all()


def test_a_view_that_grows(wire: DirectConnection) -> None:
    one = Kept(wire, 1, GQA, range(150))
    there = 0
    for stop in (20, 21, 64, 65, 66, 150):
        one.extend(wire, there, stop)
        there = stop
        for blocks in (stop, stop - 7):
            _, q, out, _ = ask(wire, [one], [1], 0.1, blocks=blocks)
            assert (out[0] == one.attention(q[0], 1, one.chosen(q[0][0], 1, 0.1, blocks))[0]).all()


def test_a_window_leaves_blocks_out_before_the_choice(wire: DirectConnection) -> None:
    one = Kept(wire, 1, GQA, range(9))
    one.extend(wire)
    q = np.random.default_rng(3).standard_normal((1, HEADS, 16), np.float32)
    request = Attend(1, HEADS, SCALE, 0.0, 33, False, [ViewQuery(1, 9, 1, one.end)], 0.5)
    reply, payload = wire.call(request, q.tobytes())
    assert reply.blocks_read == 2  # of the four that the window reaches, the first of which it cuts
    bounds = np.stack([key_bounds(one.slots[i][1], GQA, 8) for i in range(5, 9)], 1)
    picked = choose(q[0] * np.float32(SCALE), bounds, np.full(4, 8, np.int32), 0.5, keep=np.zeros(4, bool))
    blocks = [5 + i for i in picked]
    exact = one.attention(q, 1, blocks, window=33)[0]
    assert payload[: exact.nbytes] == exact.tobytes()


def test_a_block_that_is_not_there_is_lost_and_the_others_are_read(wire: DirectConnection) -> None:
    kept = [Kept(wire, 1, GQA, range(8)), Kept(wire, 2, GQA, range(20, 28))]
    wire.call(Drop([kept[0].blocks[3].key]))
    assert kept[0].extend(wire).count(LOST) == 1
    kept[1].extend(wire)
    reply, q, out, lse = ask(wire, kept, [1, 1], 0.25)
    assert (reply.outcomes, reply.blocks_read) == ([LOST, OK], 2)
    assert np.isneginf(lse[0]).all()
    assert (out[1] == kept[1].attention(q[1], 1, kept[1].chosen(q[1][0], 1, 0.25, 8))[0]).all()
    reply, q, out, _ = ask(wire, kept[:1], [1], 0.25, blocks=3)  # before the hole
    assert reply.outcomes == [OK]
    assert (out[0] == kept[0].attention(q[0], 1, kept[0].chosen(q[0][0], 1, 0.25, 3))[0]).all()


def test_bounds_are_computed_once_and_go_with_the_block(
    wire: DirectConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []

    def counting(raw: np.ndarray, geometry: Geometry, tokens: int) -> np.ndarray:
        computed.append(tokens)
        return key_bounds(raw, geometry, tokens)

    monkeypatch.setattr(views, "key_bounds", counting)
    a, b = Kept(wire, 1, GQA, range(8)), Kept(wire, 2, GQA, [*range(6), 30, 31])  # b shares six blocks
    a.extend(wire)
    b.extend(wire)
    assert computed == []
    for _ in range(3):
        ask(wire, [a], [1], 0.5)
    assert len(computed) == 8
    ask(wire, [a, b], [1, 1], 0.5)
    assert len(computed) == 10
    ask(wire, [a], [1], 0.5, layer=0)
    assert len(computed) == 18
    views_here = wire.session.state["pool"].views
    block = weakref.ref(views_here[1].held[7])
    assert {layer: geometry for layer, (geometry, _) in block().bounds.items()} == {1: GQA, 0: GQA}
    wire.call(DropView(1))
    wire.call(Drop([one.key for one in a.blocks]))
    gc.collect()
    assert block() is None


def test_bounds_of_many_geometries_are_not_kept_beside_each_other(wire: DirectConnection) -> None:
    slot = bytes(views.slot_bytes(Geometry(1, 64, 1, 4, "float32", True)))
    blocks = [ViewBlock(block_key(number), 4 * number, 4) for number in range(2)]
    for one in blocks:
        wire.put(one.key, [slot])
    for value_dim in range(1, 33):
        geometry = Geometry(1, 64, value_dim, 4, "float32", True)
        wire.call(ExtendView(value_dim, 0, geometry, blocks))
        assert wire.call(Rank(0, 1, 1.0, 0.5, [ViewQuery(value_dim, 2, 1, 8)]), bytes(256))[0].outcomes == [OK]
    held = wire.session.state["pool"].views[1].held
    assert [len(block.bounds) for block in held] == [1, 1]


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5, float("nan"), float("inf")])
def test_a_fraction_that_is_none_is_refused(wire: DirectConnection, fraction: float) -> None:
    one = Kept(wire, 1, GQA, range(3))
    one.extend(wire)
    with pytest.raises(UsageError, match="fraction"):
        ask(wire, [one], [1], fraction)
    assert ask(wire, [one], [1], 0.5)[0].outcomes == [OK]


def test_fields_that_an_older_peer_does_not_send() -> None:
    """Both ends may be of a release before partial reads: everything is read then."""
    attend = decode_message(msgspec.msgpack.encode(["Attend", 0, 4, 1.0, 0.0, 0, False, [[1, 2, 1, 16]]]))
    assert isinstance(attend, Attend)
    assert attend.read_fraction == 1.0
    partials = decode_message(msgspec.msgpack.encode(["Partials", [0], 0.5]))
    assert isinstance(partials, Partials)
    assert partials.blocks_read is None
    newer = decode_message(msgspec.msgpack.encode(["Partials", [0], 0.5, None, "what a later release may add"]))
    assert newer == partials
    for message in (attend, partials, msgspec.structs.replace(attend, read_fraction=0.25)):
        assert decode_message(msgspec.msgpack.encode(message)) == message


# --- for whoever reads blocks over the network ---------------------------------------------------------------------


def rank(wire, kept, fraction, *, blocks=None, layer=1, rows=1):
    """Ask which of the first `blocks` blocks of each to read; return the reply and q by sequence."""
    q = np.random.default_rng(4).standard_normal((rows * len(kept), HEADS, kept[0].geometry.head_dim), np.float32) * 2
    queries = [ViewQuery(one.view, len(one.blocks) if blocks is None else blocks, rows, one.end) for one in kept]
    return wire.call(Rank(layer, HEADS, SCALE, fraction, queries), q.tobytes())[0], q


@pytest.mark.parametrize("geometry", [GQA, MLA], ids=["gqa", "mla"])
def test_ranking_names_what_attention_would_read(wire: DirectConnection, geometry: Geometry) -> None:
    kept = [Kept(wire, 1, geometry, range(9), last=5), Kept(wire, 2, geometry, range(20, 23))]
    for one in kept:
        one.extend(wire)
    for layer in range(LAYERS):
        for blocks in (None, 2):
            reply, q = rank(wire, kept, 0.3, layer=layer, blocks=blocks)
            assert reply.outcomes == [OK, OK]
            assert reply.chosen == [
                one.chosen(row, layer, 0.3, blocks or len(one.blocks)) for one, row in zip(kept, q, strict=True)
            ]
    assert rank(wire, kept, 1.0)[0].chosen == [list(range(9)), list(range(3))]


def test_of_a_view_with_a_hole_nothing_is_chosen(wire: DirectConnection) -> None:
    kept = [Kept(wire, 1, GQA, range(8)), Kept(wire, 2, GQA, range(20, 28))]
    wire.call(Drop([kept[0].blocks[3].key]))
    for one in kept:
        one.extend(wire)
    reply, q = rank(wire, kept, 0.25)
    assert reply.outcomes == [LOST, OK]
    assert reply.chosen == [[], kept[1].chosen(q[1], 1, 0.25, 8)]


def test_of_no_blocks_none_is_chosen(wire: DirectConnection) -> None:
    one = Kept(wire, 1, GQA, range(3))
    one.extend(wire)
    assert rank(wire, [one], 0.25, blocks=0)[0] == Ranked([OK], [[]])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fraction": 0.0}, "fraction"),
        ({"fraction": float("nan")}, "fraction"),
        ({"fraction": 0.5, "layer": 2}, "layer 2"),
        ({"fraction": 0.5, "rows": 2}, "one row"),
    ],
)
def test_a_malformed_ranking_is_refused(wire: DirectConnection, options: dict[str, Any], says: str) -> None:
    one = Kept(wire, 1, GQA, range(3))
    one.extend(wire)
    with pytest.raises(UsageError, match=says):
        rank(wire, [one], **options)
    with pytest.raises(UsageError, match="without queries"):
        wire.call(Rank(0, HEADS, SCALE, 0.5, []))
    with pytest.raises(UsageError, match="bytes"):
        wire.call(Rank(0, HEADS, SCALE, 0.5, [ViewQuery(1, 3, 1, 24)]), bytes(8))
    with pytest.raises(UnknownViewError):
        wire.call(Rank(0, HEADS, SCALE, 0.5, [ViewQuery(1, 4, 1, 24)]), bytes(4 * HEADS * 16))


class Answering:
    """A call that is answered at once."""

    def __init__(self, reply: Message) -> None:
        self._reply = reply

    def result(self, timeout_s: float | None = None) -> tuple[Message, memoryview]:
        return self._reply, memoryview(b"")


@pytest.mark.parametrize(
    "reply",
    [
        Ranked([OK], []),
        Ranked([], [[0]]),
        Ranked([OK], [[3]]),
        Ranked([OK], [[-1]]),
        Ranked([OK], [[1, 1]]),
        Ranked([OK], [[2, 0]]),
        Partials([OK]),
    ],
)
def test_a_node_that_ranks_nonsense_is_found_out(reply: Message) -> None:
    request = Rank(0, HEADS, SCALE, 0.5, [ViewQuery(1, 3, 1, 24)])
    with pytest.raises(ProtocolError):
        PendingRank("node", request, Answering(reply)).result()  # type: ignore[arg-type]  # a stand-in
    good = Ranked([OK], [[0, 2]])
    assert PendingRank("node", request, Answering(good)).result() is good  # type: ignore[arg-type]  # a stand-in
