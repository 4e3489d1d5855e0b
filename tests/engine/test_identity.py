"""The main claim: on a real model, every scheme gives the tokens of plain transformers; and this test can fail.

Eight passages of a real document, 64 tokens each, greedy, float32. Two mutants of the code must not pass: a merge that
forgets the rescale, and a reader that drops everything remote. One prompt alone would let the second pass now and then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import dualpath
from dualpath.testing.pool import LocalNodes
from dualpath.testing.speeds import fetch_half, force

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]
torch = pytest.importorskip("torch", reason="needs the torch extra")

PROMPTS, CONTEXT, NEW, BLOCK = 8, 320, 64, 64
REMOTE = ("baseline", "single", "fetch", "sharded", "reduce", "mapped", "auto")


@dataclass
class Reference:
    """The model, the prompts, and what plain transformers says: tokens [prompts, new], logits [prompts, new, vocab]."""

    loaded: Any
    prompts: list[list[int]]
    tokens: Any
    logits: Any


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    with LocalNodes(2, capacity=2 << 30) as running:
        yield running


@pytest.fixture(scope="module")
def reference() -> Reference:
    from dualpath.bench.prompt import document_prompt
    from dualpath.engine.load import load_model

    loaded = load_model("smollm2-135m", dtype="float32")
    ids = document_prompt(loaded.tokenizer, None, PROMPTS * 2000).ids
    prompts = [list(ids[at : at + CONTEXT]) for at in range(0, PROMPTS * 2000, 2000)]
    loaded.model.set_attn_implementation("sdpa")
    out = loaded.model.generate(
        torch.tensor(prompts),
        attention_mask=torch.ones(PROMPTS, CONTEXT, dtype=torch.long),
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return Reference(loaded, prompts, out.sequences[:, CONTEXT:], torch.stack(out.logits, 1).float())


def decode(
    reference: Reference, nodes: LocalNodes, scheme: str, *, chunked: bool, new: int = NEW, prompts: int = PROMPTS
) -> tuple[Any, Any]:
    """Return tokens and logits of the first `prompts` as one batch, with room for two blocks of each locally."""
    from dualpath.engine.engine import Engine
    from dualpath.kv import KVLayout
    from dualpath.path import DualPath, PathConfig, Scheme

    loaded = reference.loaded
    layout = KVLayout.from_config(
        loaded.config, dtype="float32", block_tokens=BLOCK, model=f"{loaded.fingerprint}-{scheme}-{chunked}"
    )
    config = PathConfig(Scheme(scheme), hot_bytes=prompts * 2 * layout.block_bytes, window_bytes=64 << 20)
    spec = nodes.mapped_spec if scheme == "mapped" else nodes.spec
    pool = None if scheme == "local" else dualpath.connect(spec)
    stop = loaded.model.generation_config.eos_token_id
    try:
        with DualPath(layout, config, pool) as path, Engine(loaded, path) as engine:
            if path.auto is not None:
                force(path, fetch_half(2))
            asked = [(path.open(), ids) for ids in reference.prompts[:prompts]]
            rows = [row for row, _ in asked]
            if chunked:
                logits = torch.stack([engine.prefill(row, ids, chunk_tokens=192) for row, ids in asked])
            else:
                logits = engine.step(asked)
            tokens, scores = [], []
            for _ in range(new):
                scores.append(logits)
                allowed = logits.clone()
                allowed[:, stop] = -torch.inf  # as min_new_tokens does
                tokens.append(allowed.argmax(-1))
                logits = engine.step([(row, [int(t)]) for row, t in zip(rows, tokens[-1], strict=True)])
            if scheme != "local":
                assert path.pool is not None
                assert sum(node.stats()["blocks_sealed"] for node in path.pool.nodes) > 0
            return torch.stack(tokens, 1), torch.stack(scores, 1)
    finally:
        if pool is not None:
            pool.close()


def steps(chunked: bool) -> int:
    """Return how many tokens to decode: what is wrong with how the prompt went in shows at once, or never."""
    return NEW if chunked else 8


@pytest.fixture(scope="module")
def local(reference: Reference, nodes: LocalNodes) -> dict[bool, tuple[Any, Any]]:
    return {
        chunked: decode(reference, nodes, "local", chunked=chunked, new=steps(chunked)) for chunked in (False, True)
    }


def identical(reference: Reference, tokens: Any, logits: Any, tolerance: float = 1e-3) -> bool:
    """The bar: all tokens equal, and no logit further off than `tolerance`."""
    rows, new = tokens.shape
    return bool(torch.equal(tokens, reference.tokens[:rows, :new])) and bool(
        (logits - reference.logits[:rows, :new]).abs().max() <= tolerance
    )


@pytest.mark.parametrize("chunked", [False, True], ids=["one-shot", "chunked"])
def test_local_equals_transformers(reference: Reference, local: dict[bool, tuple[Any, Any]], chunked: bool) -> None:
    assert identical(reference, *local[chunked])


@pytest.mark.parametrize("chunked", [False, True], ids=["one-shot", "chunked"])
@pytest.mark.parametrize("scheme", REMOTE)
def test_every_scheme_equals_transformers(
    reference: Reference, nodes: LocalNodes, local: dict[bool, tuple[Any, Any]], scheme: str, chunked: bool
) -> None:
    tokens, logits = decode(reference, nodes, scheme, chunked=chunked, new=steps(chunked))
    assert identical(reference, tokens, logits)
    if scheme not in ("reduce", "auto"):  # bitwise: blocks are folded in token order, however they came
        assert torch.equal(logits, local[chunked][1])


def test_mutant_that_forgets_the_rescale_fails(
    reference: Reference, nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dualpath import attention

    def unscaled(parts: Any, sinks: Any = None) -> Any:
        states = [
            p if isinstance(p, attention.State) else attention.State(p[1], torch.ones(p[1].shape).numpy(), p[0])
            for p in parts
        ]
        acc, exp_sum = states[0].acc.copy(), states[0].exp_sum.copy()
        for state in states[1:]:  # every part counts by its own max: no e^(max - common max)
            acc += state.acc
            exp_sum += state.exp_sum
        return attention.finish(attention.State(torch.zeros(states[0].max.shape).numpy(), exp_sum, acc), sinks)

    monkeypatch.setattr(attention, "join", unscaled)
    assert not identical(reference, *decode(reference, nodes, "reduce", chunked=True, new=8, prompts=4))


@pytest.mark.parametrize("scheme", ["sharded", "reduce", "auto"])
def test_mutant_that_drops_everything_remote_fails(
    reference: Reference, nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    from dualpath.path.prefetch_reader import PrefetchReader
    from dualpath.path.reduce import Reducer

    monkeypatch.setattr(PrefetchReader, "runs", lambda self, plan, layer: iter(()))
    monkeypatch.setattr(Reducer, "collect", lambda self, shipment, rows: [])
    assert not identical(reference, *decode(reference, nodes, scheme, chunked=True, new=8, prompts=4))


def test_mutant_that_drops_what_nodes_reduce_fails(
    reference: Reference, nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dualpath.path.reduce import Reducer

    monkeypatch.setattr(Reducer, "collect", lambda self, shipment, rows: [])
    assert not identical(reference, *decode(reference, nodes, "auto", chunked=True, new=8, prompts=4))


def test_a_sealed_block_can_be_computed_anew_from_its_tokens(reference: Reference, nodes: LocalNodes) -> None:
    from dualpath.engine.engine import Engine
    from dualpath.engine.recompute import recompute_block
    from dualpath.kv import KVLayout
    from dualpath.path import DualPath, PathConfig, Scheme
    from dualpath.path.fill import block_bytes

    loaded = reference.loaded
    layout = KVLayout.from_config(loaded.config, dtype="float32", block_tokens=BLOCK, model="recompute")
    config = PathConfig(Scheme.SHARDED, hot_bytes=2 * layout.block_bytes, window_bytes=16 << 20)
    with (
        dualpath.connect(nodes.spec, tenant="recompute") as pool,
        DualPath(layout, config, pool) as path,
        Engine(loaded, path) as engine,
    ):
        row = path.open()
        engine.prefill(row, reference.prompts[0][:300], chunk_tokens=BLOCK)
        for index in (0, 2, 3):
            stored = block_bytes(path, row, index)
            assert recompute_block(engine, row, index) == stored  # bitwise: it was computed in a chunk of its own
        assert path.length(row) == 300
        engine.decode(row, 5)


def test_bf16_is_no_further_off_than_two_ways_of_transformers_are_from_each_other(
    reference: Reference, nodes: LocalNodes
) -> None:
    """In bf16 two correct merges may pick other tokens, so that the bar is the logits, over given tokens."""
    from dualpath.engine.load import load_model

    loaded = load_model("smollm2-135m", dtype="bfloat16")
    prompts, forced = reference.prompts[:4], reference.tokens[:4, :6]

    def plain(attention: str) -> Any:
        """Same prompts, same steps, so that the matrix products have the same shapes as ours."""
        loaded.model.set_attn_implementation(attention)
        with torch.inference_mode():
            out = loaded.model(input_ids=torch.tensor(prompts), use_cache=True, logits_to_keep=1)
            scores = [out.logits[:, -1].float()]
            for column in forced.T:
                out = loaded.model(input_ids=column[:, None], cache=out.cache, use_cache=True)
                scores.append(out.logits[:, -1].float())
        return torch.stack(scores, 1)

    sdpa, eager = plain("sdpa"), plain("eager")
    bar = (sdpa - eager).abs().max()
    for scheme in ("sharded", "reduce"):
        ours = forced_logits(loaded, nodes, scheme, prompts, forced)
        assert (ours - sdpa).abs().max() <= bar, scheme


def forced_logits(loaded: Any, nodes: LocalNodes, scheme: str, prompts: list[list[int]], forced: Any) -> Any:
    """Return the logits [prompts, 1 + forced, vocab] of a decode that is told each token."""
    from dualpath.engine.engine import Engine
    from dualpath.kv import KVLayout
    from dualpath.path import DualPath, PathConfig, Scheme

    layout = KVLayout.from_config(loaded.config, dtype="bfloat16", block_tokens=BLOCK, model=loaded.fingerprint)
    config = PathConfig(Scheme(scheme), hot_bytes=len(prompts) * 2 * layout.block_bytes, window_bytes=64 << 20)
    with (
        dualpath.connect(nodes.spec, tenant=f"bf16-{scheme}") as pool,
        DualPath(layout, config, pool) as path,
        Engine(loaded, path) as engine,
    ):
        rows = [path.open() for _ in prompts]
        scores = [engine.step(list(zip(rows, prompts, strict=True)))]
        for column in forced.T.tolist():
            scores.append(engine.step([(row, [token]) for row, token in zip(rows, column, strict=True)]))
        return torch.stack(scores, 1)
