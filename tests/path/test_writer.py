"""Blocks are written while compute goes on; a commit or an abort leaves none under way."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import dualpath
from dualpath.errors import UnreachableError
from dualpath.kv.ids import BlockId
from dualpath.path import DualPath, PathConfig, Scheme
from dualpath.path import writer as writing
from dualpath.path.metrics import PathMetrics
from dualpath.path.writer import Sealing, Writer
from dualpath.pool.node import PoolNode
from dualpath.testing.pool import LocalNodes
from dualpath.transport.base import Outcome

from .world import HYBRID, World

WAIT_S = 60.0  # only a hang exceeds it


class GatedNode:
    """Takes a write once its gate is open, and answers it with `outcome`."""

    name = label = "n"

    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        self.taken: list[bytes] = []
        self.outcome = Outcome.OK
        self.given_back = 0

    def write(self, refs: Sequence[int], sources: Sequence[memoryview], **_: object) -> list[Outcome]:
        self.begun.set()
        assert self.gate.wait(WAIT_S)
        self.taken += [bytes(source) for source in sources]
        return [self.outcome] * len(refs)

    def commit(self, keys: Sequence[object]) -> list[Outcome]:
        return [Outcome.OK] * len(keys)

    def resolve(self, keys: Sequence[object], ttl_s: float) -> SimpleNamespace:
        return SimpleNamespace(refs=[[0]] * len(keys))

    def abort(self, keys: Sequence[object]) -> None:
        self.given_back += len(keys)

    def drop(self, keys: Sequence[object]) -> None:
        """Nothing is kept."""


@pytest.fixture
def node() -> GatedNode:
    return GatedNode()


@pytest.fixture
def writer(node: GatedNode) -> Iterator[Writer]:
    pool: Any = SimpleNamespace(nodes=[node], kept=Counter(), wanted=Counter(), owed={})
    publisher: Any = SimpleNamespace(sealed=list)
    found = Writer(pool, HYBRID, PathMetrics(), publisher, spread=False, deadline_s=1.0)
    yield found
    node.gate.set()
    found.close()


def start(writer: Writer, *texts: bytes) -> list[Sealing]:
    """Start a write for each text, of one block each."""
    refs: Any = [[0], [0]]
    sealings = [Sealing(BlockId(text), 8, 0, refs, frozenset()) for text in texts]
    for sealing, text in zip(sealings, texts, strict=True):
        writer.start_write([sealing], 0, 0, [memoryview(text)])
    return sealings


def test_a_commit_waits_for_what_is_under_way_and_order_is_kept(writer: Writer, node: GatedNode) -> None:
    sealings = start(writer, b"one", b"two", b"three")
    assert node.taken == []  # nothing could be taken yet, and nobody has waited for it
    node.gate.set()
    writer.commit(sealings)
    assert node.taken == [b"one", b"two", b"three"]


def test_a_write_that_fails_is_told_by_the_commit_and_the_rest_is_not_made(writer: Writer, node: GatedNode) -> None:
    node.outcome = Outcome.TIMEOUT
    sealings = start(writer, b"one", b"two", b"three")
    node.gate.set()
    with pytest.raises(UnreachableError, match=r"did not take block \w+: timeout"):
        writer.commit(sealings)
    assert node.taken == [b"one"]
    writer.abort(sealings)
    node.outcome = Outcome.OK
    writer.commit(start(writer, b"four"))  # the next step is another matter
    assert node.taken == [b"one", b"four"]


def test_an_abort_gives_up_what_has_not_begun_and_waits_for_the_rest(writer: Writer, node: GatedNode) -> None:
    sealings = start(writer, b"one", b"two", b"three")
    assert node.begun.wait(WAIT_S)
    last = writer._under_way[-1]
    last.add_done_callback(lambda _: node.gate.set())  # until it is given up, the source of the first is being read
    writer.abort(sealings)
    assert last.cancelled()
    assert node.taken == [b"one"]


@contextlib.contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, gate: threading.Event, times: int) -> Iterator[None]:
    """Interrupt the writer `times` times while it waits for its thread; only then the gate opens."""
    left, waiting = [KeyboardInterrupt] * times, writing.wait

    def impatient(futures: Any) -> Any:
        if left:
            raise left.pop()
        gate.set()
        return waiting(futures)

    with monkeypatch.context() as patch:
        patch.setattr(writing, "wait", impatient)
        yield
    assert not left


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_does_not_keep_an_abort_from_its_end(
    writer: Writer, node: GatedNode, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    sealings = start(writer, b"one", b"two", b"three")
    assert node.begun.wait(WAIT_S)
    with interrupted(monkeypatch, node.gate, times), pytest.raises(KeyboardInterrupt):
        writer.abort(sealings)
    assert node.given_back == 6  # in both groups
    assert node.taken in ([b"one"], [b"one", b"two"])
    writer.commit(start(writer, b"four"))
    assert node.taken[-1] == b"four"


def test_a_step_that_is_interrupted_twice_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, write = threading.Event(), PoolNode.write

    def gated(self: PoolNode, *args: Any, **options: Any) -> Any:
        assert gate.wait(WAIT_S)
        return write(self, *args, **options)

    with LocalNodes(1, capacity=16 << 20, threads=1) as nodes, dualpath.connect(nodes.spec) as pool:
        config = PathConfig(Scheme.SHARDED, 4 * HYBRID.block_bytes, 1 << 16, threads=1)
        with DualPath(HYBRID, config, pool) as path:
            world = World(path)
            sequence = world.open()
            gate.set()
            world.append(sequence, 2 * HYBRID.block_tokens + 3)
            before, local = pool[0].stats(), path.arena.used_bytes
            gate.clear()
            monkeypatch.setattr(PoolNode, "write", gated)
            # the first one while the commit waits for what is being written, the others while that is undone
            with interrupted(monkeypatch, gate, 3), pytest.raises(KeyboardInterrupt):
                world.step([(sequence, 2 * HYBRID.block_tokens)])
            after = pool[0].stats()
            for name in ("used_bytes", "blocks_prepared", "blocks_sealed"):
                assert after[name] == before[name], name
            assert path.arena.used_bytes == local
            assert path.length(sequence) == 2 * HYBRID.block_tokens + 3
            assert not pool.wanted
            world.step([(sequence, 2 * HYBRID.block_tokens)])


def test_compute_does_not_wait_for_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, write, waited = threading.Event(), PoolNode.write, []

    def gated(self: PoolNode, *args: Any, **options: Any) -> Any:
        waited.append(gate.wait(WAIT_S))
        return write(self, *args, **options)

    monkeypatch.setattr(PoolNode, "write", gated)
    with LocalNodes(1, capacity=16 << 20, threads=1) as nodes, dualpath.connect(nodes.spec) as pool:
        config = PathConfig(Scheme.SHARDED, 4 * HYBRID.block_bytes, 1 << 16, threads=1)
        with DualPath(HYBRID, config, pool) as path:
            world = World(path)
            sequence = world.open()
            commit = path.commit_step

            def opening(growths: Any) -> None:
                gate.set()  # all layers have been computed by now
                commit(growths)

            monkeypatch.setattr(path, "commit_step", opening)
            world.step([(sequence, 2 * HYBRID.block_tokens + 3)])
            assert waited == [True] * len(waited) != []
            for _ in range(40):
                world.step([(sequence, 1)])  # what was written comes back right, once it is far
            assert path.metrics.fetched_bytes > 0
