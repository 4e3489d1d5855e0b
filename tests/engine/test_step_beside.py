"""A chunk of a prompt rides along with a decode step, over a path of its own: the logits are those of each alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

import dualpath
from dualpath.engine.engine import Engine
from dualpath.engine.load import load_model
from dualpath.kv import KVLayout
from dualpath.path import DualPath, PathConfig, Scheme
from dualpath.testing.pool import LocalNodes

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs the torch extra")

SHAPE = "shape:layers=2,query_heads=4,kv_heads=2,head_dim=16,vocab=64"
PREFIXES = [[(7 * n + row) % 64 for n in range(70 + row)] for row in range(2)]
PROMPT = [(5 * n) % 64 for n in range(90)]


@dataclass
class Two:
    """A path that decodes, with an engine, and one that takes a prompt."""

    path: DualPath
    engine: Engine
    prefill: DualPath


@pytest.fixture(scope="module")
def loaded() -> Any:
    return load_model(SHAPE, dtype="float32")


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    with LocalNodes(2, capacity=64 << 20, threads=1) as running:
        yield running


@pytest.fixture(params=["sharded", "reduce"])
def two(request: pytest.FixtureRequest, nodes: LocalNodes, loaded: Any) -> Iterator[Two]:
    layout = KVLayout.from_config(loaded.config, dtype="float32", block_tokens=16, model="beside")
    with ExitStack() as closing:
        pool = closing.enter_context(dualpath.connect(nodes.spec, tenant=f"beside-{request.param}"))
        paths = [
            closing.enter_context(
                DualPath(layout, PathConfig(Scheme(request.param), blocks * layout.block_bytes, 1 << 20, 1), pool)
            )
            for blocks in (4, 8)
        ]
        engine = closing.enter_context(Engine(loaded, paths[0]))
        yield Two(paths[0], engine, paths[1])


def test_each_gets_what_it_would_get_alone(two: Two, loaded: Any) -> None:
    rows = [two.path.open() for _ in PREFIXES]
    for row, ids in zip(rows, PREFIXES, strict=True):
        two.engine.prefill(row, ids)
    alone = [two.path.fork(row) for row in rows]
    prompt, done, last = two.prefill.open(), 0, torch.empty(0)
    for token in range(20):
        wanted = two.engine.step([(row, [token]) for row in alone])
        batch = [(row, [token]) for row in rows]
        chunk = PROMPT[done : done + 5]
        if chunk:
            logits = two.engine.step_beside(batch, two.prefill, (prompt, chunk))
            assert logits.shape[0] == len(rows) + 1
            last, logits, done = logits[-1], logits[:-1], done + len(chunk)
        else:
            logits = two.engine.step(batch)
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-4)
    assert two.prefill.tokens(prompt) == PROMPT
    with Engine(loaded, two.prefill) as other:
        again = two.prefill.open()
        torch.testing.assert_close(last, other.prefill(again, PROMPT), rtol=0, atol=1e-4)


def test_after_an_error_the_batch_and_the_prompt_are_as_before(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    row, prompt = two.path.open(), two.prefill.open()
    two.engine.prefill(row, PREFIXES[0])
    wanted = two.engine.step([(two.path.fork(row), [1])])

    def fail(*_: object) -> None:
        raise RuntimeError("no")

    for broken in (two.path, two.prefill):
        with monkeypatch.context() as patch:
            patch.setattr(broken, "commit_step", fail)
            with pytest.raises(RuntimeError, match="no"):
                two.engine.step_beside([(row, [1])], two.prefill, (prompt, PROMPT[:20]))
        assert two.path.length(row) == len(PREFIXES[0])
        if broken is two.prefill:
            assert two.prefill.length(prompt) == 20  # of the first time: its part was done when the batch's failed
    logits = two.engine.step_beside([(row, [1])], two.prefill, (prompt, PROMPT[20:25]))
    torch.testing.assert_close(logits[:1], wanted, rtol=0, atol=1e-4)
