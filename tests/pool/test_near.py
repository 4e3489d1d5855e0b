"""Attention at a node: the same numbers as here, whatever the views look like."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

from dualpath.attention import BlockTable, State, attend, finish, reference
from dualpath.errors import UsageError
from dualpath.pool import near
from dualpath.pool.service import PoolService
from dualpath.testing.node import DirectConnection, block_key
from dualpath.wire.failures import UnknownViewError
from dualpath.wire.messages import (
    Attend,
    Drop,
    DropView,
    ExtendView,
    Geometry,
    Outcome,
    Prepare,
    PrepareItem,
    Rank,
    Stats,
    ViewBlock,
    ViewQuery,
)

OK, LOST = Outcome.OK, Outcome.LOST
GQA = Geometry(2, 16, 16, 8, "float32", False)
MLA = Geometry(1, 24, 16, 8, "float32", True)
LAYERS, HEADS = 2, 4


@pytest.fixture
def service() -> PoolService:
    return PoolService(1 << 24, threads=1)


@pytest.fixture
def wire(service: PoolService) -> DirectConnection:
    return DirectConnection(service)


class Sequence:
    """A sequence whose blocks are at the node, with a copy of everything here."""

    def __init__(self, wire: DirectConnection, view: int, geometry: Geometry, lengths: list[int], seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.geometry, self.wire, self.view = geometry, wire, view
        streams = 1 if geometry.latent else 2
        shape = (geometry.kv_heads * streams, geometry.block_tokens, geometry.head_dim)
        self.data = [[self.rng.standard_normal(shape, np.float32).tobytes() for _ in range(LAYERS)] for _ in lengths]
        self.lengths = lengths
        self.position = [0, *np.cumsum(lengths)[:-1].tolist()]
        self.blocks = []
        for i, slots in enumerate(self.data):
            key = block_key(1000 * view + i)
            wire.put(key, slots, tokens=lengths[i])
            self.blocks.append(ViewBlock(key, self.position[i], lengths[i]))

    def extend(self, start: int = 0, stop: int | None = None) -> list[Outcome]:
        message = ExtendView(self.view, 0, self.geometry, self.blocks[start:stop])
        return self.wire.call(message)[0].outcomes

    def table(self, layer: int, rows: int, blocks: int) -> BlockTable:
        size = len(self.data[0][0])
        joined = np.frombuffer(b"".join(slots[layer] for slots in self.data), np.uint8)
        return BlockTable(
            [joined],
            np.zeros(blocks, np.int32),
            np.arange(blocks, dtype=np.int64) * size,
            np.array(self.lengths[:blocks], np.int32),
            np.array(self.position[:blocks], np.int64),
            np.array([0, rows], np.int32),
            np.array([0, blocks], np.int32),
        )


def ask(wire, sequences, rows, layer=1, window=0, debug=False, blocks=None):
    """Attend with `rows[i]` rows of sequence i, right after its last token; return the reply and its arrays."""
    geometry = sequences[0].geometry
    q = np.random.default_rng(9).standard_normal((sum(rows), HEADS, geometry.head_dim), np.float32)
    ends = [s.position[-1] + s.lengths[-1] for s in sequences]
    queries = [
        ViewQuery(s.view, len(s.blocks) if blocks is None else blocks, n, end)
        for s, n, end in zip(sequences, rows, ends, strict=True)
    ]
    reply, payload = wire.call(Attend(layer, HEADS, 0.25, 0.0, window, debug, queries), q.tobytes())
    numbers = np.frombuffer(payload, np.float32)
    split = sum(rows) * HEADS * geometry.value_dim
    out = numbers[:split].reshape(sum(rows), HEADS, geometry.value_dim)
    return reply, out, numbers[split:].reshape(-1, sum(rows), HEADS), q, ends


@pytest.mark.parametrize("geometry", [GQA, MLA])
@pytest.mark.parametrize("window", [0, 11])
def test_a_view_gives_what_local_attention_gives(wire, geometry: Geometry, window: int) -> None:
    sequences = [Sequence(wire, 1, geometry, [8, 8, 8, 5], 1), Sequence(wire, 2, geometry, [8], 2)]
    assert [s.extend() for s in sequences] == [[OK] * 4, [OK]]
    rows = [1, 3]
    reply, out, (lse, high, total), q, ends = ask(wire, sequences, rows, window=window, debug=True)
    assert reply.outcomes == [OK, OK]
    start = 0
    for sequence, n, end in zip(sequences, rows, ends, strict=True):
        mine, position = slice(start, start + n), np.arange(end, end + n)
        table = sequence.table(1, n, len(sequence.blocks))
        state = State.empty(n, HEADS, geometry.value_dim)
        attend(state, q[mine], position, table, geometry, scale=0.25, window=window)
        local_out, local_lse = finish(state)
        exact = reference.attend(q[mine], position, table, geometry, scale=0.25, window=window)
        assert (out[mine] == local_out).all()
        assert (lse[mine] == local_lse).all()
        assert (high[mine] == state.max).all()
        assert (total[mine] == state.exp_sum).all()
        np.testing.assert_allclose(out[mine], exact.out, atol=1e-6)
        np.testing.assert_allclose(lse[mine], exact.lse, atol=1e-6)
        start += n


def test_computing_is_not_ahead_of_other_threads(wire: DirectConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real-time thread that computed as one would hold a core against whatever else the host does."""
    sequence, within, found = Sequence(wire, 1, GQA, [8] * 4, 1), [False], []
    sequence.extend()

    @contextlib.contextmanager
    def noted() -> Iterator[None]:
        within[0] = True
        yield
        within[0] = False

    monkeypatch.setattr(near, "ordinary", noted)
    for module, name in ((near.attention, "partial"), (near.attention, "attend"), (near, "_chosen")):
        compute = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, _c=compute, **k: (found.append(within[0]), _c(*a, **k))[1])
    ask(wire, [sequence], [1])
    ask(wire, [sequence], [1], debug=True)
    queries = [ViewQuery(1, 4, 1, 32)]
    q = np.zeros((1, HEADS, GQA.head_dim), np.float32)
    wire.call(Attend(1, HEADS, 0.25, 0.0, 0, False, queries, 0.5), q.tobytes())
    wire.call(Rank(1, HEADS, 0.25, 0.5, queries), q.tobytes())
    assert found == [True] * 5


def test_a_view_grows_and_is_read_in_part(wire: DirectConnection) -> None:
    sequence = Sequence(wire, 1, GQA, [8] * 150, 1)
    for start in range(0, 150, 30):
        assert set(sequence.extend(start, start + 30)) == {OK}
    for blocks in (0, 1, 77, 150):
        _, out, (lse,), q, ends = ask(wire, [sequence], [2], blocks=blocks)
        exact = reference.attend(q, np.arange(ends[0], ends[0] + 2), sequence.table(1, 2, blocks), GQA, scale=0.25)
        np.testing.assert_allclose(out, exact.out, atol=1e-6)
        np.testing.assert_allclose(lse, exact.lse, atol=1e-6)


def test_asking_again_gives_the_same_table_until_the_view_grows(wire: DirectConnection, service: PoolService) -> None:
    """The table of a view is kept from step to step: every change of what is asked must show."""
    sequence = Sequence(wire, 1, GQA, [8] * 5, 1)
    sequence.extend(0, 3)
    view = wire.session.state["pool"].views[1]
    first = view.table(1, 3, 0)
    assert view.table(1, 3, 0) is first
    buffer = service.arena("default", view.slot_bytes).array
    assert first.alone(1, buffer) is first.alone(1, buffer)
    asked = [(1, 3, 1, 0), (0, 3, 1, 0), (1, 2, 1, 0), (1, 3, 2, 0), (1, 3, 1, 27), (1, 3, 1, 0)]
    for grown in (False, True):
        if grown:
            sequence.extend(3, 5)
            asked += [(1, 5, 1, 0), (0, 5, 3, 11)]
        for layer, blocks, rows, window in asked:
            _, out, _, q, ends = ask(wire, [sequence], [rows], layer=layer, blocks=blocks, window=window)
            table, position = sequence.table(layer, rows, blocks), np.arange(ends[0], ends[0] + rows)
            exact = reference.attend(q, position, table, GQA, scale=0.25, window=window)
            np.testing.assert_allclose(out, exact.out, atol=1e-6)


def test_a_hole_loses_only_the_queries_that_need_it(wire: DirectConnection) -> None:
    whole, broken = Sequence(wire, 1, GQA, [8, 8, 8], 1), Sequence(wire, 2, GQA, [8, 8, 8], 2)
    wire.call(Drop([broken.blocks[0].key]))
    assert whole.extend() == [OK] * 3
    assert broken.extend() == [LOST, OK, OK]
    reply, out, (lse, high, total), q, _ = ask(wire, [broken, whole], [2, 1], debug=True)
    assert reply.outcomes == [LOST, OK]
    assert (out[:2] == 0).all()
    assert np.isneginf(lse[:2]).all()
    assert np.isneginf(high[:2]).all()
    assert (total[:2] == 0).all()
    exact = reference.attend(q[2:], np.array([24]), whole.table(1, 1, 3), GQA, scale=0.25)
    np.testing.assert_allclose(out[2:], exact.out, atol=1e-6)
    reply, _, _, _, _ = ask(wire, [broken], [1], window=10)
    assert reply.outcomes == [OK], "the window does not reach the hole"


def test_a_view_of_holes_only(wire: DirectConnection) -> None:
    sequence = Sequence(wire, 1, GQA, [8, 8, 8], 1)
    wire.call(Drop([block.key for block in sequence.blocks]))
    assert sequence.extend(0, 2) == [LOST, LOST]
    assert ask(wire, [sequence], [1], blocks=2)[0].outcomes == [LOST]
    reply, out, (lse,), _, _ = ask(wire, [sequence], [1], blocks=0)
    assert (reply.outcomes, out.any(), np.isneginf(lse).all()) == ([OK], False, True)


def test_a_view_keeps_its_blocks_until_it_is_dropped(wire: DirectConnection, service: PoolService) -> None:
    sequence = Sequence(wire, 1, GQA, [8, 8], 1)
    sequence.extend()
    wire.call(Drop([block.key for block in sequence.blocks]))
    _, out, _, _, _ = ask(wire, [sequence], [1])
    assert out.any()
    assert wire.call(Stats())[0].values["views"] == 1
    wire.call(DropView(1))
    wire.call(DropView(1))
    values = wire.call(Stats())[0].values
    assert (values["views"], values["used_bytes"]) == (0, 0)
    with pytest.raises(UnknownViewError):
        ask(wire, [sequence], [1])


def test_a_view_that_lost_its_beginning_says_so(wire: DirectConnection) -> None:
    sequence = Sequence(wire, 1, GQA, [8, 8], 1)
    sequence.extend()
    request = Attend(0, HEADS, 1.0, 0.0, 0, False, [ViewQuery(1, 3, 1, 16)])
    with pytest.raises(UnknownViewError, match="a view of 2 blocks, not 3"):
        wire.call(request, bytes(HEADS * 16 * 4))


def test_a_closed_connection_drops_its_views(service: PoolService) -> None:
    first, second = DirectConnection(service, owner=b"a"), DirectConnection(service, owner=b"a")
    sequence = Sequence(first, 1, GQA, [8, 8], 1)
    sequence.wire = second
    sequence.extend()
    first.call(Drop([block.key for block in sequence.blocks]))
    assert first.call(Stats())[0].values["used_bytes"] > 0
    second.close()
    assert first.call(Stats())[0].values["used_bytes"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"queries": []},
        {"layer": 2},
        {"layer": -1},
        {"query_heads": 3},
        {"query_heads": 0},
        {"scale": float("nan")},
        {"softcap": -1.0},
        {"window": -1},
        {"queries": [ViewQuery(1, -1, 1, 16)]},
        {"queries": [ViewQuery(1, 2, 0, 16)]},
        {"queries": [ViewQuery(1, 2, 2, 16)]},
        {"queries": [ViewQuery(1, 2, 1, -5)]},
        {"queries": [ViewQuery(1, 2, 2**40, 16)]},
    ],
)
def test_a_malformed_attend_is_refused(wire: DirectConnection, change: dict[str, object]) -> None:
    sequence = Sequence(wire, 1, GQA, [8, 8], 1)
    sequence.extend()
    fields = {"layer": 0, "query_heads": HEADS, "scale": 1.0, "softcap": 0.0, "window": 0, "debug": False}
    request = Attend(**{**fields, "queries": [ViewQuery(1, 2, 1, 16)], **change})
    with pytest.raises(UsageError):
        wire.call(request, bytes(HEADS * 16 * 4))
    assert ask(wire, [sequence], [1])[0].outcomes == [OK]


@pytest.mark.parametrize(
    ("geometry", "block"),
    [
        (Geometry(0, 16, 16, 8, "float32", False), None),
        (Geometry(2, 16, 8, 8, "float32", False), None),
        (Geometry(2, 16, 16, 8, "float31", False), None),
        (Geometry(2, 16, 16, 8, "float32", True), None),
        (Geometry(2, 16, 16, 9, "float32", False), None),
        (GQA, ViewBlock(block_key(1000), 0, 0)),
        (GQA, ViewBlock(block_key(1000), 0, 9)),
        (GQA, ViewBlock(block_key(1000), -1, 4)),
        (GQA, ViewBlock(block_key(1000), 2**63, 4)),
        (GQA, ViewBlock(block_key(1000, group=1), 0, 4)),
    ],
)
def test_a_malformed_view_is_refused_and_holds_nothing(wire: DirectConnection, geometry, block) -> None:
    sequence = Sequence(wire, 1, GQA, [8], 1)
    with pytest.raises(UsageError):
        wire.call(ExtendView(1, 0, geometry, [block or sequence.blocks[0]]))
    wire.call(Drop([sequence.blocks[0].key]))
    values = wire.call(Stats())[0].values
    assert (values["views"], values["used_bytes"]) == (0, 0)


def test_blocks_of_a_view_come_in_order(wire: DirectConnection) -> None:
    sequence = Sequence(wire, 1, GQA, [8, 8, 8], 1)
    sequence.extend(0, 2)
    with pytest.raises(UsageError, match="cannot follow"):
        sequence.extend(1, 2)
    with pytest.raises(UsageError, match="keeps its group"):
        wire.call(ExtendView(1, 1, GQA, []))
    assert sequence.extend(2, 3) == [OK]


def test_a_view_is_extended_only_from_where_both_sides_take_it_to_end(wire: DirectConnection) -> None:
    """Else a view whose connection was lost would begin anew with what is told of its end."""
    sequence = Sequence(wire, 1, GQA, [8, 8, 8], 1)
    for known in (1, 2):
        with pytest.raises(UnknownViewError):
            wire.call(ExtendView(1, 0, GQA, sequence.blocks[known:], known))
    assert wire.call(Stats())[0].values["views"] == 0
    assert wire.call(ExtendView(1, 0, GQA, sequence.blocks[:2], 0))[0].outcomes == [OK, OK]
    with pytest.raises(UnknownViewError):
        wire.call(ExtendView(1, 0, GQA, sequence.blocks[2:], 1))
    assert wire.call(ExtendView(1, 0, GQA, sequence.blocks[2:], 2))[0].outcomes == [OK]


def test_an_unsealed_block_is_a_hole(wire: DirectConnection) -> None:
    wire.call(Prepare([PrepareItem(block_key(1), 2, 2 * 2 * 8 * 16 * 4, 8)]))
    assert wire.call(ExtendView(1, 0, GQA, [ViewBlock(block_key(1), 0, 8)]))[0].outcomes == [LOST]
