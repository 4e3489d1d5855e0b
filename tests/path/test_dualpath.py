"""The dual path against float64, over real nodes: every scheme, forks, crops, aborts, tiny budgets, failures."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dualpath
from dualpath.directory import MemoryDirectory, NodeInfo, StaleOwnerError
from dualpath.errors import BlockLostError, CapacityError, DeadlineError, PoolFullError, UsageError
from dualpath.kv import KVLayout
from dualpath.path import DualPath, PathConfig, Scheme
from dualpath.path.fill import read_block
from dualpath.path.prefetch_reader import PrefetchReader
from dualpath.path.publisher import LEASE_S
from dualpath.path.sequences import Block, Part
from dualpath.path.window import Window
from dualpath.testing.node import FakeClock
from dualpath.testing.pool import LocalNodes
from dualpath.wire.messages import BlockKey

from .world import HYBRID, MLA, PATIENCE_S, World

REMOTE = [scheme for scheme in Scheme if scheme is not Scheme.LOCAL]


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    with LocalNodes(2, capacity=64 << 20, threads=1) as running:
        yield running


def connect(nodes: LocalNodes, scheme: Scheme, tenant: str) -> Any:
    if scheme is Scheme.LOCAL:
        return None
    spec = nodes.mapped_spec if scheme is Scheme.MAPPED else nodes.spec
    return dualpath.connect(spec, tenant=tenant, timeout_s=PATIENCE_S)


class Opened:
    """A path over its own pool connection, closed together."""

    def __init__(self, nodes: LocalNodes, layout: KVLayout, scheme: Scheme, hot: int = 2, window: int = 6) -> None:
        largest = max(layout.layer_block_bytes(group) for group in layout.groups)
        self.pool = connect(nodes, scheme, f"{layout.model}-{scheme.value}")
        config = PathConfig(scheme, hot * layout.block_bytes, window * largest, threads=2, deadline_s=PATIENCE_S)
        self.path = DualPath(layout, config, self.pool)
        self.world = World(self.path)

    def __enter__(self) -> World:
        return self.world

    def __exit__(self, *exc: object) -> None:
        self.path.close()
        if self.pool is not None:
            self.pool.close()


def steps(world: World, sequence: Any, count: int) -> None:
    for _ in range(count):
        world.step([(sequence, 1)])


def test_a_window_that_narrows_gives_up_nothing_that_has_been_fetched(
    nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PathConfig(Scheme.SHARDED, HYBRID.block_bytes, 12 << 13, threads=1)
    with connect(nodes, Scheme.SHARDED, "narrow") as pool, DualPath(HYBRID, config, pool) as path:
        world = World(path)
        a = world.open()
        world.append(a, 58)
        steps(world, a, 1)  # now the window is full of what the next step reads
        before = path.metrics.wasted_bytes
        monkeypatch.setattr(Window, "bytes", lambda self, budget, block_bytes: block_bytes)
        steps(world, a, 4)
        assert path.metrics.wasted_bytes == before


@pytest.mark.parametrize(("ahead", "one_lane"), [(False, False), (True, True), (False, True)])
def test_without_prefetch_or_lanes_the_outputs_are_the_same(nodes: LocalNodes, ahead: bool, one_lane: bool) -> None:
    config = PathConfig(Scheme.SHARDED, HYBRID.block_bytes, 6 << 13, threads=1, ahead=ahead, one_lane=one_lane)
    with connect(nodes, Scheme.SHARDED, f"off{ahead}{one_lane}") as pool, DualPath(HYBRID, config, pool) as path:
        world = World(path)  # holds every output against float64
        a = world.open()
        world.append(a, 70)
        steps(world, a, 6)
        assert path.metrics.fetched_bytes > 0
        if not ahead:
            world.close(a)
            assert path.metrics.wasted_bytes == 0


@pytest.mark.parametrize("layout", [HYBRID, MLA], ids=lambda layout: layout.model)
@pytest.mark.parametrize("scheme", list(Scheme), ids=lambda scheme: scheme.value)
def test_every_scheme_agrees_with_float64(nodes: LocalNodes, scheme: Scheme, layout: KVLayout) -> None:
    with Opened(nodes, layout, scheme, hot=3) as world:
        a = world.open()
        world.append(a, 29)
        for _ in range(20):
            world.step([(a, 1)])
        b = world.fork(a)
        world.step([(a, 3), (b, 2)])
        for _ in range(12):
            world.step([(b, 1), (a, 1)])
        world.crop(b, 43)
        world.crop(a, 60)
        world.step([(a, 5), (b, 4)])
        world.close(a)
        c = world.open()
        world.step([(c, 11), (b, 1)])
        assert world.path.metrics.peak_local_bytes <= world.path.arena.total_bytes
    assert world.path.arena.used_bytes == 0


def test_local_fetch_and_sharded_are_bitwise_equal(nodes: LocalNodes) -> None:
    outs = []
    for scheme, window in (
        (Scheme.LOCAL, 6),
        (Scheme.FETCH, 6),
        (Scheme.SHARDED, 3),
        (Scheme.BASELINE, 4),
        (Scheme.SINGLE, 2),
    ):
        with Opened(nodes, HYBRID, scheme, hot=1, window=window) as world:
            a = world.open()
            for count in (8, 16, 5, 1, 1, 1, 9, 1):
                world.step([(a, count)])
            outs.append(world.outs)
    for other in outs[1:]:
        assert all(np.array_equal(x, y) for x, y in zip(outs[0], other, strict=True))


@pytest.mark.parametrize("scheme", REMOTE, ids=lambda scheme: scheme.value)
def test_one_hot_block_and_a_window_of_one(nodes: LocalNodes, scheme: Scheme) -> None:
    with Opened(nodes, HYBRID, scheme, hot=1, window=1) as world:
        a = world.open()
        world.append(a, 50)
        for _ in range(10):
            world.step([(a, 1)])
        assert world.path.metrics.peak_local_bytes <= HYBRID.block_bytes + HYBRID.layer_block_bytes(HYBRID.groups[0])


@pytest.mark.parametrize("scheme", list(Scheme), ids=lambda scheme: scheme.value)
def test_an_aborted_step_leaves_nothing_behind(nodes: LocalNodes, scheme: Scheme) -> None:
    with Opened(nodes, HYBRID, scheme) as world:
        a = world.open()
        world.append(a, 37)
        stored = [node.stats() for node in world.path.pool.nodes] if world.path.pool else []
        local = world.path.arena.used_bytes
        world.step([(a, 30)], commit=False)
        assert world.path.length(a) == 37
        assert world.path.arena.used_bytes <= local + world.path.config.window_bytes
        if world.path.pool:
            now = [node.stats() for node in world.path.pool.nodes]
            assert [one["blocks_sealed"] for one in now] == [one["blocks_sealed"] for one in stored]
        world.step([(a, 30)])
        world.step([(a, 1)])


def test_closing_gives_all_blocks_back(nodes: LocalNodes) -> None:
    with Opened(nodes, HYBRID, Scheme.REDUCE) as world:
        assert world.path.pool is not None
        before = [node.stats()["blocks_sealed"] for node in world.path.pool.nodes]
        a = world.open()
        world.append(a, 60)
        b = world.fork(a)
        world.step([(b, 1)])
        assert [node.stats()["blocks_sealed"] for node in world.path.pool.nodes] != before
        world.close(a)
        world.step([(b, 1)])
        world.close(b)
        assert [node.stats()["blocks_sealed"] for node in world.path.pool.nodes] == before


def test_equal_prompts_in_one_batch_are_stored_once(nodes: LocalNodes) -> None:
    with Opened(nodes, MLA, Scheme.SHARDED) as world:
        ids = list(range(32))
        a, b = world.path.open(), world.path.open()
        step = world.path.begin([(a, ids), (b, ids)])
        q = np.ones((64, 4, 24), np.float32)
        k = np.tile(np.arange(32, dtype=np.float32)[:, None, None] / 9, (2, 1, 24))
        for layer in range(3):
            step.attend(layer, q, k, None, scale=0.1)
        step.commit()
        assert world.path.metrics.written_bytes == 4 * MLA.block_bytes
        world.path.close_sequence(a)
        assert world.path.block(b, 0).parts[0].refs is not None
        step = world.path.begin([(b, [5])])
        assert np.isfinite(step.attend(0, q[:1], k[:1], None, scale=0.1)).all()
        step.abort()


def test_wire_bytes_of_reduction_do_not_grow_with_the_context(nodes: LocalNodes) -> None:
    with Opened(nodes, HYBRID, Scheme.REDUCE, hot=3) as world:
        a = world.open()
        per_token = []
        for target in (63, 255):
            world.append(a, target - world.path.length(a))
            world.step([(a, 2)])
            assert world.path.pool is not None
            before = world.path.pool.counters
            world.step([(a, 1)])
            after = world.path.pool.counters
            per_token.append(after.tx_bytes + after.rx_bytes - before.tx_bytes - before.rx_bytes)
        assert abs(per_token[1] - per_token[0]) <= 8  # msgpack's integers take a byte or two more


def test_a_full_pool_refuses_and_changes_nothing() -> None:
    with LocalNodes(2, capacity=6 * MLA.block_bytes, threads=1) as small, Opened(small, MLA, Scheme.SHARDED) as world:
        a = world.open()
        world.append(a, 90)
        with pytest.raises(PoolFullError, match="full"):
            world.append(a, 64)
        length = world.path.length(a)
        assert 90 <= length < 96
        world.step([(a, 1)])


@pytest.mark.parametrize(
    "scheme", [Scheme.BASELINE, Scheme.SINGLE, Scheme.SHARDED, Scheme.REDUCE], ids=lambda s: s.value
)
def test_a_killed_node_is_one_clear_error_and_the_rest_stays_sound(scheme: Scheme) -> None:
    with LocalNodes(2, capacity=16 << 20, threads=1) as two, Opened(two, HYBRID, scheme, hot=1) as world:
        a = world.open()
        world.append(a, 60)
        two.nodes[0].kill()
        with pytest.raises(BlockLostError) as caught:
            steps(world, a, 3)  # what was prefetched is still good
        assert caught.value.node == two.nodes[0].name
        assert str(caught.value).count("node0") == 1
        assert f"at node node0 ({two.nodes[0].tcp}): " in str(caught.value)  # as it was named to `connect`
        assert caught.value.block
        if scheme not in (Scheme.BASELINE, Scheme.SINGLE):
            assert world.path.pool is not None
            assert world.path.pool.nodes[1].stats()["blocks_sealed"] > 0
        assert world.path.length(a) >= 60


def test_a_stopped_node_is_a_timeout_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        LocalNodes(1, capacity=16 << 20, threads=1) as one,
        Opened(one, HYBRID, Scheme.FETCH, hot=1, window=1) as world,
    ):
        a = world.open()
        world.append(a, 60)
        world.path.reader.end()  # nothing is in flight with the long deadline
        reader = world.path.reader
        assert isinstance(reader, PrefetchReader)
        monkeypatch.setattr(reader.flights, "deadline_s", 0.2)
        one.nodes[0].pause()
        try:
            with pytest.raises(BlockLostError, match=r"tokens .* within the deadline"):  # why, not only that
                steps(world, a, 3)
        finally:
            one.nodes[0].resume()


def test_bad_input_is_refused_and_nothing_changes(nodes: LocalNodes) -> None:
    with Opened(nodes, HYBRID, Scheme.SHARDED) as world:
        path, a = world.path, world.open()
        world.step([(a, 9)])
        with pytest.raises(UsageError, match="no such sequence"):
            path.length(99)  # type: ignore[arg-type]  # an id is a number
        with pytest.raises(UsageError, match="twice"):
            path.begin([(a, [1]), (a, [2])])
        step = path.begin([(a, [1])])
        q, k = np.zeros((1, 6, 16), np.float32), np.zeros((1, 2, 16), np.float32)
        with pytest.raises(UsageError, match="a step is open"):
            path.begin([(a, [1])])
        with pytest.raises(UsageError, match="expected float32 \\[1, 6, 16\\]"):
            step.attend(0, q[:, :5], k, k, scale=1.0)
        with pytest.raises(UsageError, match="v is missing"):
            step.attend(0, q, k, None, scale=1.0)
        with pytest.raises(UsageError, match="layer 7"):
            step.attend(7, q, k, k, scale=1.0)
        step.abort()
        step.abort()
        with pytest.raises(UsageError, match="ended"):
            step.attend(0, q, k, k, scale=1.0)
        with pytest.raises(UsageError, match="cannot crop"):
            path.crop(a, 10)
        with pytest.raises(CapacityError, match="scratch"):
            world.step([(a, 200)])
        assert path.length(a) == 9


@pytest.mark.parametrize("scheme", [Scheme.LOCAL, Scheme.SHARDED])
def test_sequences_stay_as_they_are_while_a_step_is_open(
    nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch, scheme: Scheme
) -> None:
    with Opened(nodes, HYBRID, scheme) as world:
        path, a, b = world.path, world.open(), world.open()
        world.append(a, 21)
        compare = world._compare

        def meddling(*args: Any) -> None:
            for change in (
                lambda: path.close_sequence(a),
                lambda: path.close_sequence(b),
                lambda: path.fork(a),
                lambda: path.crop(a, 3),
                lambda: path.attach(b, [1] * 8),
                lambda: path.fill_random(b, 8, seed=1),
            ):
                with pytest.raises(UsageError, match="a step is open"):
                    change()
            compare(*args)

        with monkeypatch.context() as patch:
            patch.setattr(world, "_compare", meddling)
            world.step([(a, 5)])
            world.step([(a, 5)], commit=False)
        assert (path.length(a), path.length(b)) == (26, 0)
        c = world.fork(a)
        world.close(a)
        steps(world, c, 8)


def test_regions_too_small_for_one_block_are_refused(nodes: LocalNodes) -> None:
    with dualpath.connect(nodes.spec) as pool:
        with pytest.raises(CapacityError, match="hot region"):
            DualPath(HYBRID, PathConfig(Scheme.FETCH, HYBRID.block_bytes - 1, 1 << 20), pool)
        with pytest.raises(CapacityError, match="window"):
            DualPath(HYBRID, PathConfig(Scheme.FETCH, 1 << 20, 100), pool)
    with pytest.raises(UsageError, match="needs a pool"):
        DualPath(HYBRID, PathConfig(Scheme.FETCH), None)


@pytest.mark.parametrize("scheme", [Scheme.LOCAL, Scheme.SHARDED])
@pytest.mark.parametrize("length", [0, 15, 16, 56, 64, 76, 80, 88, 90, 96])
def test_a_crop_is_right_or_refused(nodes: LocalNodes, scheme: Scheme, length: int) -> None:
    """Blocks of 8 tokens, of which a window of 21 has left behind all that ends before 69."""
    with Opened(nodes, HYBRID, scheme) as world:
        a = world.open()
        world.append(a, 97)
        for cut in (world.crop, lambda a, length: world.path.fork(a, blocks=length // 8)):
            if 0 < length < 88:
                with pytest.raises(UsageError, match=r"sliding window of 21 .* given up"):
                    cut(a, length)
                assert world.path.length(a) == 97
        if not 0 < length < 88:
            world.crop(a, length)
        world.step([(a, 1)])  # held against float64


@pytest.mark.parametrize("layout", [HYBRID, MLA], ids=["hybrid", "mla"])
def test_a_step_that_others_leave_no_hot_block_takes_what_the_window_holds(nodes: LocalNodes, layout: KVLayout) -> None:
    with Opened(nodes, layout, Scheme.SHARDED, hot=2, window=3) as world:
        a, *others = [world.open() for _ in range(3)]
        world.append(a, 16)
        assert world.path.room(a, 100) == 24
        for other in others:
            world.append(other, 3)
        assert world.path.room(a, 100) == 16
        world.append(a, 40)


@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.SHARDED, Scheme.REDUCE])
@pytest.mark.parametrize("layout", [HYBRID, MLA], ids=["hybrid", "mla"])
def test_an_open_tail_is_cut_where_the_hot_region_has_room_for_nothing_else(
    nodes: LocalNodes, scheme: Scheme, layout: KVLayout
) -> None:
    with Opened(nodes, layout, scheme, hot=1) as world:
        a = world.open()
        world.append(a, 22)
        world.crop(a, 19)
        world.step([(a, 1)])
        b = world.fork(a)
        with pytest.raises(CapacityError):
            world.crop(a, 19)  # the fork has it too
        world.step([(a, 0), (b, 0)])
        world.close(b)
        world.append(a, 10)


@pytest.mark.parametrize("layout", [HYBRID, MLA], ids=["hybrid", "mla"])
def test_a_crop_into_a_sealed_block_takes_the_place_of_the_tail_that_it_gives_up(
    nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch, layout: KVLayout
) -> None:
    with Opened(nodes, layout, Scheme.SHARDED, hot=1) as world:
        a = world.open()
        world.append(a, 19)
        world.crop(a, 13)
        world.step([(a, 1)])
        world.append(a, 7)
        with monkeypatch.context() as patch:

            def lose(*_: object, **__: object) -> None:
                raise BlockLostError("gone")

            patch.setattr("dualpath.path.copies.read_block", lose)
            with pytest.raises(BlockLostError):
                world.path.crop(a, 14)
        assert world.path.length(a) == 21
        world.step([(a, 1)])
        world.crop(a, 14)
        world.append(a, 30)
    assert world.path.arena.used_bytes == 0


def test_random_fill_is_the_same_for_every_scheme(nodes: LocalNodes) -> None:
    outs = []
    for scheme in (Scheme.LOCAL, Scheme.SHARDED, Scheme.REDUCE, Scheme.MAPPED):
        with Opened(nodes, MLA, scheme) as world:
            a = world.path.open()
            world.path.fill_random(a, 83, seed=4)
            assert world.path.length(a) == 80
            step = world.path.begin([(a, [1])])
            random = np.random.default_rng(0)
            q = random.standard_normal((1, 4, 24)).astype(np.float32)
            outs.append(step.attend(1, q, np.ones((1, 1, 24), np.float32), None, scale=0.3))
            step.abort()
    for other in outs[1:]:
        np.testing.assert_allclose(other, outs[0], atol=1e-5)


def test_a_lost_connection_is_made_anew_and_views_are_told_again(nodes: LocalNodes) -> None:
    with Opened(nodes, HYBRID, Scheme.REDUCE) as world:
        a = world.open()
        world.append(a, 60)
        world.step([(a, 1)])
        assert world.path.pool is not None
        for node in world.path.pool.nodes:
            for stream in node.peer._streams:  # type: ignore[attr-defined]  # a stream peer's
                stream.shutdown()
        world.step([(a, 1)])


def test_a_view_that_grows_after_its_connection_was_lost_is_told_from_its_beginning(nodes: LocalNodes) -> None:
    with Opened(nodes, HYBRID, Scheme.REDUCE) as world:
        a = world.open()
        world.append(a, 60)
        b = world.fork(a)
        for _ in range(HYBRID.block_tokens + 1):  # within so many steps a block is sealed, and the view extended
            for node in world.path.pool.nodes:  # type: ignore[union-attr]  # it has a pool
                for stream in node.peer._streams:  # type: ignore[attr-defined]  # a stream peer's
                    stream.shutdown()
            world.step([(a, 1)])
        world.step([(a, 1), (b, 1)])


def test_a_view_of_which_an_answer_is_missing_is_told_from_its_beginning(
    nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node was slow, and may have extended it."""
    with Opened(nodes, HYBRID, Scheme.REDUCE) as world:
        a = world.open()
        world.append(a, 60)
        assert world.path.pool is not None
        node = world.path.pool.nodes[0]
        extend = node.extend_view

        def late(*args: Any) -> None:
            extend(*args)
            raise DeadlineError("no reply within the deadline")

        with monkeypatch.context() as patch:
            patch.setattr(node, "extend_view", late)
            with pytest.raises(BlockLostError, match="within the deadline"):
                steps(world, a, 2 * HYBRID.block_tokens + 1)  # within so many a block of this node becomes far
        steps(world, a, 2 * HYBRID.block_tokens + 1)


def test_a_crop_that_cannot_read_its_block_leaves_everything_as_it_was(
    nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise BlockLostError("gone")

    with Opened(nodes, MLA, Scheme.SHARDED) as world:
        a = world.open()
        world.append(a, 60)
        with monkeypatch.context() as patch:
            patch.setattr("dualpath.path.copies.read_block", lost)
            for _ in range(4):  # more often than the hot region has blocks
                with pytest.raises(BlockLostError):
                    world.path.crop(a, 12)
        assert world.path.length(a) == 60
        world.step([(a, 1)])
        world.crop(a, 12)
        world.step([(a, 1)])


def test_an_interrupted_read_is_over_before_its_memory_is_used_again() -> None:
    done: list[str] = []

    def interrupted(timeout_s: float) -> None:
        raise KeyboardInterrupt

    def drained(timeout_s: float) -> bool:
        done.append("drained")
        return True

    ticket = SimpleNamespace(wait=interrupted, wait_drained=drained)
    node = SimpleNamespace(name="n", read=lambda *_, **options: ticket, cancel=lambda one: done.append("cancelled"))
    path: Any = SimpleNamespace(
        pool=SimpleNamespace(nodes=[node]), config=SimpleNamespace(deadline_s=1.0), layout=HYBRID
    )
    with pytest.raises(KeyboardInterrupt):
        read_block(path, Block(0, 8, [Part(node=0, refs=[])]), 0, [])
    assert done == ["cancelled", "drained"]


def test_what_a_read_brings_whose_start_was_interrupted_lands_nowhere() -> None:
    """Ctrl-C comes when the transport has begun already, and has not said by which ticket to stop it."""
    destinations: list[memoryview] = []

    def interrupted(refs: Any, into: list[memoryview], **_: Any) -> Any:
        destinations.extend(into)
        raise KeyboardInterrupt

    node = SimpleNamespace(name="n", read=interrupted)
    path: Any = SimpleNamespace(
        pool=SimpleNamespace(nodes=[node]), config=SimpleNamespace(deadline_s=1.0), layout=HYBRID
    )
    slots = [memoryview(bytearray(16)) for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        read_block(path, Block(0, 8, [Part(node=0, refs=[])]), 0, slots)
    for destination in destinations:
        destination[:] = bytes([7]) * len(destination)
    assert len(destinations) == 2
    assert not any(map(any, slots))


def test_the_directory_knows_where_blocks_are_and_how_far_sequences_got(nodes: LocalNodes) -> None:
    directory = MemoryDirectory()
    with dualpath.connect(nodes.spec, tenant="told") as pool:
        config = PathConfig(Scheme.SHARDED, 3 * HYBRID.block_bytes, 1 << 16)
        with DualPath(HYBRID, config, pool, directory) as path:
            assert [info.node for info in directory.nodes()] == [node.name for node in pool.nodes]
            world = World(path)
            a = world.open()
            world.append(a, 44)
            assert path.publisher is not None
            info = directory.sequence(path.publisher.name(a))
            assert info is not None
            assert (info.tokens, info.pointer) == (40, path.block(a, 4).id)
            keys = [BlockKey(path.block(a, i).id or b"", 0) for i in range(5)]
            assert directory.locate("told", keys) == [[pool.nodes[i % 2].name] for i in range(5)]
            assert directory.locate("told", [BlockKey(keys[0].id, 1)]) == [[]]  # it has left the sliding window
            b = world.fork(a)
            world.close(a)
            assert directory.sequence(path.publisher.name(a)) is None
            assert directory.locate("told", keys[-1:]) != [[]]
            world.close(b)
            assert directory.locate("told", keys) == [[]] * 5


def test_an_owner_that_was_fenced_off_cannot_commit(nodes: LocalNodes) -> None:
    clock = FakeClock()
    directory = MemoryDirectory(clock)
    with dualpath.connect(nodes.spec, tenant="fenced") as pool:
        config = PathConfig(Scheme.SHARDED, 3 * MLA.block_bytes, 1 << 16)
        with DualPath(MLA, config, pool, directory) as path:
            world = World(path)
            a = world.open()
            world.step([(a, 8)])
            assert path.publisher is not None
            clock.now += 10_000.0
            for node in pool.nodes:
                directory.join(NodeInfo(node.name, node.address, node.instance), 1e6)
            directory.claim(path.publisher.name(a), "successor", 1e6)
            with pytest.raises(StaleOwnerError):
                world.step([(a, 8)])
            assert path.length(a) == 8
            assert sum(pool.kept.values()) == 1  # the block of before, and not the one of the step that was undone


def test_a_sequence_that_another_owns_does_not_keep_the_others_from_being_renewed(
    nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("dualpath.path.publisher.time", SimpleNamespace(monotonic=clock))
    directory = MemoryDirectory(clock)
    with dualpath.connect(nodes.spec, tenant="renewed") as pool:
        config = PathConfig(Scheme.SHARDED, 3 * MLA.block_bytes, 1 << 16)
        with DualPath(MLA, config, pool, directory) as path:
            world = World(path)
            a, b = world.open(), world.open()
            assert path.publisher is not None
            clock.now += LEASE_S + 1
            directory.claim(path.publisher.name(a), "successor", 1e6)
            for _ in range(3):
                world.step([(b, 8)])  # it is told of a lease that has half run out
                clock.now += LEASE_S / 2 + 1
            with pytest.raises(StaleOwnerError, match="owned by"):
                directory.claim(path.publisher.name(b), "successor", 1e6)
            with pytest.raises(StaleOwnerError, match="stale"):
                world.step([(a, 8)])


def test_an_interrupt_while_room_is_reserved_leaves_none_reserved(
    nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a prompt whose first block is at the node already, and is pinned by that request too."""
    from dualpath.pool.client import PoolNode

    prepare = PoolNode.prepare

    def interrupted(*args: Any) -> None:
        prepare(*args)
        raise KeyboardInterrupt

    with Opened(nodes, MLA, Scheme.FETCH) as one, Opened(nodes, MLA, Scheme.FETCH) as two:
        one.step([(one.open(), MLA.block_tokens)])
        sequence = two.open()
        ids = list(one.path.tokens(next(iter(one.kept))))
        node = two.path.pool.nodes[0]  # type: ignore[union-attr]  # it has a pool
        before = node.stats()
        with monkeypatch.context() as patch:
            patch.setattr(PoolNode, "prepare", interrupted)
            with pytest.raises(KeyboardInterrupt):
                two.path.begin([(sequence, ids + ids)])
        after = node.stats()
        assert (after["used_bytes"], after["blocks_prepared"]) == (before["used_bytes"], before["blocks_prepared"])
        two.path.begin([(sequence, ids + ids)]).abort()


@pytest.mark.parametrize("scheme", [Scheme.SHARDED, Scheme.REDUCE, Scheme.AUTO])
def test_sequences_of_a_step_may_have_no_new_token(nodes: LocalNodes, scheme: Scheme) -> None:
    with Opened(nodes, MLA, scheme) as world:
        a, b = world.open(), world.open()
        for sequence in (a, b):
            world.append(sequence, 60)
        world.step([(a, 1), (b, 0)])
        world.step([(a, 0), (b, 1)])
        world.step([(a, 0), (b, 0)])
        world.step([])
        world.step([(a, 1), (b, 1)])


def test_what_is_cut_off_leaves_the_nodes_although_they_reduced_over_it(nodes: LocalNodes) -> None:
    with Opened(nodes, MLA, Scheme.REDUCE) as world:
        sequence = world.open()
        world.append(sequence, 100)
        world.step([(sequence, 1)])
        world.crop(sequence, MLA.block_tokens)
        assert sum(node.stats()["blocks_sealed"] for node in world.path.pool.nodes) == 1
        world.append(sequence, 60)
