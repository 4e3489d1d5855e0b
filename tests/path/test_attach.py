"""A prefix that is in the pool already: found by its tokens, used as if it had been computed here."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dualpath
from dualpath.errors import BlockLostError, DeadlineError, PeerError, PoolFullError, UnreachableError, UsageError
from dualpath.path import DualPath, PathConfig, Scheme
from dualpath.path.fill import block_bytes
from dualpath.path.publisher import Publisher
from dualpath.path.step import Step
from dualpath.pool.node import PoolNode
from dualpath.testing.pool import LocalNodes
from dualpath.wire.messages import Outcome

from .world import HYBRID, PATIENCE_S

TOKENS = list(range(100, 145))  # five whole blocks of 8, and 5 tokens more


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    with LocalNodes(2, capacity=16 << 20, threads=1) as two:
        yield two


def opened(nodes: LocalNodes, scheme: Scheme, tenant: str, *, hot: int = 2) -> Any:
    pool = dualpath.connect(nodes.spec, key=nodes.key, tenant=tenant, timeout_s=PATIENCE_S)
    config = PathConfig(scheme, hot * HYBRID.block_bytes, 6 << 13, threads=1, deadline_s=PATIENCE_S)
    return pool, DualPath(HYBRID, config, pool)


def one_step(path: DualPath, sequence: Any, tokens: int = 1) -> list[Any]:
    step = path.begin([(sequence, [1] * tokens)])
    outs = attended(step)
    step.commit()
    return outs


def attended(step: Step) -> list[Any]:
    """Pass all layers of a step, with the same q, k and v for the same number of rows."""
    noise, outs = np.random.default_rng(7), []
    for layer in range(3):
        q, k, v = (noise.standard_normal((step.rows, heads, 16), np.float32) for heads in (6, 2, 2))
        outs.append(step.attend(layer, q, k, v, scale=0.25))
    return outs


@pytest.mark.parametrize("scheme", [Scheme.SHARDED, Scheme.FETCH, Scheme.SINGLE, Scheme.REDUCE])
def test_what_is_attached_is_what_was_put_there(nodes: LocalNodes, scheme: Scheme) -> None:
    first_pool, first = opened(nodes, Scheme.SHARDED, f"t-{scheme}")
    second_pool, second = opened(nodes, scheme, f"t-{scheme}")
    with first_pool, first, second_pool, second:
        a = first.open()
        first.fill_random(a, TOKENS, seed=3)
        b = second.open()
        assert second.attach(b, TOKENS) == 40
        assert second.length(b) == 40
        assert second.tokens(b) == TOKENS[:40]
        for index in range(5):
            assert block_bytes(second, b, index) == block_bytes(first, a, index)
        for one, other in zip(one_step(first, a), one_step(second, b), strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5)
        first.close_sequence(a)  # the second pins them too
        one_step(second, b)
        second.close_sequence(b)
        c = second.open()
        assert second.attach(c, TOKENS) == 0  # nobody kept them
    assert second.arena.used_bytes == 0


def test_the_longest_prefix_counts(nodes: LocalNodes) -> None:
    first_pool, first = opened(nodes, Scheme.SHARDED, "prefix")
    second_pool, second = opened(nodes, Scheme.SHARDED, "prefix")
    with first_pool, first, second_pool, second:
        first.fill_random(first.open(), TOKENS, seed=3)
        assert second.attach(second.open(), TOKENS[:17] + [9] * 20) == 16
        assert second.attach(second.open(), [9, *TOKENS]) == 0
        assert second.attach(second.open(), TOKENS[:7]) == 0
        other = second.open()
        second.attach(other, TOKENS)
        with pytest.raises(UsageError, match="empty"):
            second.attach(other, TOKENS)


def test_other_tenants_blocks_are_not_found(nodes: LocalNodes) -> None:
    first_pool, first = opened(nodes, Scheme.SHARDED, "mine")
    second_pool, second = opened(nodes, Scheme.SHARDED, "yours")
    with first_pool, first, second_pool, second:
        first.fill_random(first.open(), TOKENS, seed=3)
        assert second.attach(second.open(), TOKENS) == 0


def test_without_a_pool_nothing_is_found() -> None:
    with DualPath(HYBRID, PathConfig(Scheme.LOCAL), None) as path:
        assert path.attach(path.open(), TOKENS) == 0


def test_a_node_that_dies_leaves_the_sequence_empty() -> None:
    with LocalNodes(2, capacity=16 << 20, threads=1) as two:
        first_pool, first = opened(two, Scheme.SHARDED, "dead")
        second_pool, second = opened(two, Scheme.SHARDED, "dead", hot=4)
        with first_pool, first, second_pool, second:
            first.fill_random(first.open(), TOKENS, seed=3)
            b = second.open()
            two.nodes[1].kill()
            with pytest.raises(PeerError):
                second.attach(b, TOKENS)
            assert second.length(b) == 0
            assert second.arena.used_bytes == 0


def test_a_failed_attach_takes_nothing_from_those_before_it(nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    first_pool, first = opened(nodes, Scheme.SHARDED, "twice")
    second_pool, second = opened(nodes, Scheme.SHARDED, "twice")
    with first_pool, first, second_pool, second:
        a = first.open()
        first.fill_random(a, TOKENS, seed=3)
        b, c = second.open(), second.open()
        assert second.attach(b, TOKENS[:24]) == 24
        with monkeypatch.context() as patch:
            patch.setattr(second_pool.nodes[1], "commit", lambda keys: [Outcome.LOST] * len(keys))
            with pytest.raises(BlockLostError, match="gave up"):
                second.attach(c, TOKENS)
        first.close_sequence(a)
        one_step(second, b)
        d = second.open()
        assert second.attach(d, TOKENS) == 24  # the failed one kept nothing of its own
        with pytest.raises(UsageError):
            [second.close_sequence(d) for _ in range(2)]
        one_step(second, b)


@pytest.mark.parametrize(("owner", "name", "calls"), [(PoolNode, "renew", 0), (Publisher, "grown", 2)])
def test_an_attach_that_is_interrupted_gives_up_what_it_kept_and_no_more(
    nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, calls: int
) -> None:
    """While leases are ended, and when the sequence owns two of five blocks and the third is just becoming its own."""
    monkeypatch.setattr("dualpath.path.attach._LEASE_S", 0.0)  # or blocks would outlive this test
    pool, path = opened(nodes, Scheme.SHARDED, f"interrupted-{name}")
    with pool, path:
        a, b = path.open(), path.open()
        path.fill_random(a, TOKENS, seed=3)
        kept, made = dict(pool.kept), []
        call: Any = getattr(owner, name)

        def interrupted(*args: Any) -> Any:
            if len(made) == calls:
                raise KeyboardInterrupt
            made.append(call(*args))

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                path.attach(b, TOKENS)
        assert path.length(b) == 0
        assert dict(pool.kept) == kept
        one_step(path, a)
        path.close_sequence(a)
        assert not pool.kept


def test_a_lease_that_cannot_be_ended_is_no_failure(nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[Any] = []

    def silent(*end: Any) -> None:
        ends.append(end)
        raise UnreachableError("gone")

    first_pool, first = opened(nodes, Scheme.SHARDED, "lease")
    second_pool, second = opened(nodes, Scheme.SHARDED, "lease")
    with first_pool, first, second_pool, second:
        first.fill_random(first.open(), TOKENS, seed=3)
        renew = second_pool.nodes[0].renew
        monkeypatch.setattr(second_pool.nodes[0], "renew", silent)
        assert second.attach(second.open(), TOKENS) == 40
        (end,) = ends
        renew(*end)  # or blocks would outlive this test, and be gone in the middle of one that counts them


def test_a_step_that_one_node_does_not_seal_leaves_nothing_at_the_other(
    nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, path = opened(nodes, Scheme.SHARDED, "half", hot=4)
    with pool, path:
        before = pool.nodes[0].stats()["blocks_sealed"]
        monkeypatch.setattr(pool.nodes[1], "commit", lambda keys: [Outcome.LOST] * len(keys))
        with pytest.raises(BlockLostError, match="before it was sealed"):
            one_step(path, path.open(), 16)
        now = pool.nodes[0].stats()
        assert (now["blocks_sealed"], now["blocks_prepared"]) == (before, 0)


def test_room_that_may_have_been_reserved_is_given_back(nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, path = opened(nodes, Scheme.SHARDED, "late", hot=4)
    with pool, path:
        node = pool.nodes[0]
        prepare = node.prepare

        def late(items: Any) -> Any:
            prepare(items)
            raise DeadlineError("no reply within the deadline")

        monkeypatch.setattr(node, "prepare", late)
        with pytest.raises(DeadlineError):
            path.begin([(path.open(), [1] * 16)])
        assert node.stats()["blocks_prepared"] == 0


def test_what_was_reserved_block_by_block_is_given_back(nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, path = opened(nodes, Scheme.FETCH, "by-block", hot=4)
    with pool, path:
        node = pool.nodes[0]
        prepare = node.prepare
        problems = iter([PoolFullError("no room for all"), None, DeadlineError("no reply within the deadline")])

        def failing(items: Any) -> Any:
            problem = next(problems)
            if problem is not None:
                raise problem
            return prepare(items)

        monkeypatch.setattr(node, "prepare", failing)
        with pytest.raises(DeadlineError):
            path.begin([(path.open(), [1] * 24)])
        assert node.stats()["blocks_prepared"] == 0


@pytest.mark.parametrize("scheme", [Scheme.SHARDED, Scheme.REDUCE])
def test_paths_over_one_pool_take_nothing_from_each_other(nodes: LocalNodes, scheme: Scheme) -> None:
    """To a node they are one owner, over the same connections."""
    pool, first = opened(nodes, Scheme.SHARDED, f"one-{scheme}")
    with pool, first:
        before = [node.stats()["blocks_sealed"] for node in pool.nodes]
        config = PathConfig(scheme, 2 * HYBRID.block_bytes, 6 << 13, threads=1, deadline_s=PATIENCE_S)
        with DualPath(HYBRID, config, pool) as second, DualPath(HYBRID, config, pool) as third:
            a, b, c = first.open(), second.open(), third.open()
            first.fill_random(a, TOKENS, seed=3)
            second.begin([(b, TOKENS[:8])]).abort()  # a block that the first has sealed
            assert second.attach(b, TOKENS) == third.attach(c, TOKENS) == 40
            outs = one_step(first, a)
            first.close_sequence(a)
            for path, sequence in ((second, b), (third, c)):  # far blocks, and views of them
                for one, other in zip(outs, one_step(path, sequence), strict=True):
                    np.testing.assert_allclose(one, other, atol=2e-5)
            second.close_sequence(b)
            one_step(third, c)
            third.close_sequence(c)
        assert [node.stats()["blocks_sealed"] for node in pool.nodes] == before


def test_a_step_that_is_undone_keeps_nothing_that_was_there_already(nodes: LocalNodes) -> None:
    first_pool, first = opened(nodes, Scheme.SHARDED, "undone")
    second_pool, second = opened(nodes, Scheme.SHARDED, "undone", hot=4)
    with first_pool, first, second_pool, second:
        a, b = first.open(), second.open()
        first.fill_random(a, TOKENS, seed=3)
        assert second.attach(b, TOKENS[:8]) == 8
        step = second.begin([(b, TOKENS[8:24])])  # two blocks that the first has sealed
        step.abort()
        first.close_sequence(a)
        c = first.open()
        assert first.attach(c, TOKENS) == 8  # the second's own, which it has kept
        first.close_sequence(c)
        one_step(second, b)


@pytest.fixture
def pair(nodes: LocalNodes) -> Iterator[tuple[DualPath, DualPath]]:
    """Two paths over one pool; in the end neither has left anything at a node."""
    pool, first = opened(nodes, Scheme.SHARDED, "pair", hot=4)
    with pool:
        before = held(pool)
        with first, DualPath(HYBRID, first.config, pool) as second:
            yield first, second
        assert not pool.kept
        assert not pool.wanted
        assert held(pool) == before


def held(pool: Any) -> list[tuple[float, ...]]:
    names = ("blocks_sealed", "blocks_prepared", "used_bytes", "evictable_bytes")
    return [tuple(node.stats()[name] for name in names) for node in pool.nodes]


def test_two_steps_that_want_the_same_new_blocks_both_get_them(pair: tuple[DualPath, DualPath]) -> None:
    first, second = pair
    a, b = first.open(), second.open()
    one, two = first.begin([(a, TOKENS[:19])]), second.begin([(b, TOKENS[:19])])
    outs = attended(one)
    one.commit()
    np.testing.assert_array_equal(outs, attended(two))  # blocks that are sealed by now
    two.commit()
    first.close_sequence(a)
    c = first.open()
    assert first.attach(c, TOKENS) == 16  # the second has kept them
    assert block_bytes(first, c, 1) == block_bytes(second, b, 1)


def test_a_step_that_is_undone_leaves_another_its_new_blocks(pair: tuple[DualPath, DualPath]) -> None:
    first, second = pair
    b = second.open()
    one, two = first.begin([(first.open(), TOKENS[:19])]), second.begin([(b, TOKENS[:19])])
    attended(one)
    one.abort()
    attended(two)
    two.commit()
    assert first.attach(first.open(), TOKENS) == 16


@pytest.mark.parametrize("ends", ["commit", "abort"])
@pytest.mark.parametrize("there", [False, True])
def test_what_one_path_gives_up_stays_for_a_step_that_wants_it(
    pair: tuple[DualPath, DualPath], ends: str, there: bool
) -> None:
    first, second = pair
    a, b = first.open(), second.open()
    one = first.begin([(a, TOKENS[:19])])
    if there:  # what the second prepares is sealed already
        attended(one)
        one.commit()
    two = second.begin([(b, TOKENS[:19])])
    if not there:
        attended(one)
        one.commit()
    first.close_sequence(a)
    attended(two)
    getattr(two, ends)()
    assert first.attach(first.open(), TOKENS) == (16 if ends == "commit" else 0)


def test_room_that_cannot_be_had_takes_none_from_another_step(
    pair: tuple[DualPath, DualPath], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    assert first.pool is not None
    one = first.begin([(first.open(), TOKENS[:19])])
    node, prepare = first.pool.nodes[0], first.pool.nodes[0].prepare

    def late(items: Any) -> Any:
        prepare(items)
        raise DeadlineError("no reply within the deadline")

    with monkeypatch.context() as patch:
        patch.setattr(node, "prepare", late)
        with pytest.raises(DeadlineError):
            second.begin([(second.open(), TOKENS[:19])])
    attended(one)
    one.commit()


@pytest.mark.parametrize("scheme", [Scheme.SHARDED, Scheme.FETCH, Scheme.BASELINE, Scheme.REDUCE])
def test_two_clients_that_compute_the_same_prompt_at_once(nodes: LocalNodes, scheme: Scheme) -> None:
    """The node keeps the blocks of whoever commits first; the other one reads these, and not its own slots."""
    first_pool, first = opened(nodes, scheme, f"at-once-{scheme}")
    second_pool, second = opened(nodes, scheme, f"at-once-{scheme}")
    with first_pool, first, second_pool, second:
        paths = [(first, first.open()), (second, second.open())]
        steps = [path.begin([(sequence, TOKENS[:24])]) for path, sequence in paths]
        for step in steps:
            attended(step)
        for step in steps:
            step.commit()
        for _ in range(20):  # the blocks of the prompt leave both hot regions
            ours, theirs = (one_step(path, sequence) for path, sequence in paths)
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
        chunks = [one_step(path, sequence, 9) for path, sequence in paths]  # a chunk reads blocks in every scheme
        assert all(np.array_equal(a, b) for a, b in zip(*chunks, strict=True))


def test_a_step_may_take_longer_than_the_leases_of_nodes(nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    from dualpath.directory import MemoryDirectory
    from dualpath.path import publisher
    from dualpath.testing.node import FakeClock

    clock = FakeClock()
    monkeypatch.setattr(publisher, "time", SimpleNamespace(monotonic=clock))
    with dualpath.connect(nodes.spec, key=nodes.key, tenant="long step", timeout_s=PATIENCE_S) as pool:
        config = PathConfig(Scheme.SHARDED, 8 * HYBRID.block_bytes, 6 << 13, threads=1, deadline_s=PATIENCE_S)
        with DualPath(HYBRID, config, pool, MemoryDirectory(clock)) as path:
            sequence = path.open()
            step = path.begin([(sequence, TOKENS[:16])])
            attended(step)
            clock.now += 601
            step.commit()
            assert path.length(sequence) == 16


def test_what_the_directory_refuses_stays_at_no_node(nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, path = opened(nodes, Scheme.SHARDED, "refused")
    with pool, path:

        def refuse(*_: object) -> None:
            raise UsageError("no")

        sequence = path.open()
        step = path.begin([(sequence, TOKENS[:16])])
        attended(step)
        with monkeypatch.context() as patched:
            patched.setattr(path.publisher, "sealed", refuse)
            with pytest.raises(UsageError, match="no"):
                step.commit()
        step.abort()
        assert not pool.kept
        assert sum(node.stats()["blocks_sealed"] + node.stats()["blocks_prepared"] for node in pool.nodes) == 0
