"""An unmodified `model.generate()` over a `DualPathCache` gives the tokens of plain transformers."""

from __future__ import annotations

from typing import Any

import pytest

import dualpath
from dualpath.testing.pool import LocalNodes

from .models import NAMES, make

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs the torch extra")

PROMPT, NEW = 400, 16
SCHEMES = ("local", "baseline", "single", "fetch", "sharded", "reduce", "mapped", "auto")


@pytest.fixture(scope="module")
def nodes() -> Any:
    with LocalNodes(2, capacity=1 << 28) as running:
        yield running


def connect(nodes: LocalNodes, scheme: str, tenant: str) -> Any:
    if scheme == "local":
        return None
    return dualpath.connect(nodes.mapped_spec if scheme == "mapped" else nodes.spec, tenant=tenant)


def generate(model: Any, ids: Any, cache: Any = None, **options: Any) -> tuple[Any, Any]:
    given = {} if cache is None else {"cache": cache}
    out = model.generate(
        ids,
        attention_mask=(ids != 0).long(),
        max_new_tokens=NEW,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        **given,
        **options,
    )
    logits = torch.stack(out.logits, 1) if out.logits is not None else None
    return out.sequences[:, ids.shape[1] :], logits


def dual(nodes: LocalNodes, model: Any, ids: Any, scheme: str, hot_blocks: int = 2, **options: Any) -> tuple[Any, Any]:
    """Generate with a hot region of `hot_blocks` blocks per row of the batch and a window of a few layer blocks."""
    from dualpath.kv import KVLayout
    from dualpath.transformers import DualPathCache

    layout = KVLayout.from_config(model.config, dtype="float32", block_tokens=32)
    rows = ids.shape[0] * options.get("num_beams", 1)
    hot, window = layout.block_bytes * hot_blocks * rows, layout.block_bytes * 8 * rows
    pool = connect(nodes, scheme, tenant=f"{model.config.model_type}-{scheme}")
    try:
        with DualPathCache(model, pool, hot=hot, window=window, scheme=scheme, block_tokens=32) as cache:
            return generate(model, ids, cache, **options)
    finally:
        if pool is not None:
            pool.close()


def prompt(rows: int = 1) -> Any:
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(2, 512, (rows, PROMPT), generator=generator)
    for row in range(1, rows):
        ids[row, : 130 * row] = 0
    return ids


@pytest.mark.parametrize("name", NAMES)
def test_tokens_equal_for_every_scheme_one_shot_and_chunked(nodes: LocalNodes, name: str) -> None:
    model, ids = make(name), prompt()
    tokens, logits = generate(model, ids)
    for scheme in SCHEMES:
        for options in ({}, {"prefill_chunk_size": 70}):
            got, scores = dual(nodes, model, ids, scheme, **options)
            assert torch.equal(got, tokens), (name, scheme, options)
            assert (scores - logits).abs().max() < 1e-3, (name, scheme, options)


@pytest.mark.parametrize("name", NAMES)
def test_left_padded_batch_and_beams(nodes: LocalNodes, name: str) -> None:
    model = make(name)
    for ids, options in ((prompt(2), {}), (prompt(1), {"num_beams": 3}), (prompt(2), {"num_beams": 2})):
        tokens, _ = generate(model, ids, **options)
        for scheme in ("sharded", "reduce", "auto"):
            got, _ = dual(nodes, model, ids, scheme, **options)
            assert torch.equal(got, tokens), (name, scheme, tuple(ids.shape), options)
