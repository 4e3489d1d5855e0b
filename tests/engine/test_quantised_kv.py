"""Sealed KV in one byte an element, through real models: bitwise the same in every scheme, and how far off it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dualpath.errors import UsageError
from dualpath.testing.pool import LocalNodes

torch = pytest.importorskip("torch", reason="needs the torch extra")
pytestmark = pytest.mark.torch

from .models import make  # noqa: E402 - only where torch is
from .test_generate import connect, generate, prompt  # noqa: E402 - only where torch is

BLOCK = 32


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    with LocalNodes(2, capacity=256 << 20) as running:
        yield running


def scores(nodes: LocalNodes, model: Any, scheme: str, kv_dtype: str) -> Any:
    """Return the logits of a chunked prompt and what follows it, with few blocks local."""
    from dualpath.kv import KVLayout
    from dualpath.transformers import DualPathCache

    one = KVLayout.from_config(model.config, dtype="float32", block_tokens=BLOCK)
    pool = connect(nodes, scheme, tenant=f"{model.config.model_type}-{scheme}-{kv_dtype}")
    try:
        with DualPathCache(
            model, pool, hot=3 * one.block_bytes, window=16 * one.block_bytes, scheme=scheme, block_tokens=BLOCK,
            kv_dtype=kv_dtype,
        ) as cache:  # fmt: skip
            return generate(model, prompt(), cache, prefill_chunk_size=2 * BLOCK)[1]
    finally:
        if pool is not None:
            pool.close()


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss", "deepseek_v3"])
def test_schemes_are_bitwise_equal(nodes: LocalNodes, name: str, kv_dtype: str) -> None:
    model = make(name)
    exact, local = scores(nodes, model, "local", "same"), scores(nodes, model, "local", kv_dtype)
    assert not torch.equal(local, exact)
    for scheme in ("baseline", "fetch", "sharded", "mapped"):
        assert torch.equal(scores(nodes, model, scheme, kv_dtype), local), scheme


def test_an_unknown_name_is_refused() -> None:
    from dualpath.transformers import DualPathCache

    with pytest.raises(UsageError, match="int4"):
        DualPathCache(make("llama"), kv_dtype="int4")


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_error_on_the_demo_model_is_small(nodes: LocalNodes) -> None:
    """Teacher-forced, so that every step counts: logits (of a range of about 40) are off by tenths, fp8's by more."""
    from dualpath.bench.prompt import document_prompt
    from dualpath.engine.engine import Engine
    from dualpath.engine.load import kv_layout, load_model
    from dualpath.path import DualPath, PathConfig, Scheme

    loaded = load_model("smollm2-135m")
    ids = document_prompt(loaded.tokenizer, None, 516).ids
    found = {}
    for kv_dtype in ("", "int8", "float8_e4m3"):
        layout = kv_layout(loaded, hot_bytes=1 << 30, block_tokens=128, kv_dtype=kv_dtype)
        with DualPath(layout, PathConfig(Scheme.LOCAL)) as path, Engine(loaded, path) as engine:
            sequence = path.open()
            engine.prefill(sequence, ids[:512], chunk_tokens=256)
            found[kv_dtype] = torch.stack([engine.decode(sequence, token) for token in ids[512:]])
    off = {kv_dtype: float((logits - found[""]).abs().max()) for kv_dtype, logits in found.items()}
    assert 0 < off["int8"] < 0.6
    assert off["int8"] < off["float8_e4m3"] < 3.0
    assert torch.equal(found["int8"].argmax(-1), found[""].argmax(-1))
