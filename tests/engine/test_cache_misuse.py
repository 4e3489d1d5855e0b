"""A `DualPathCache` used as it was not meant: refused in words, never wrong tokens, and the model is as before."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import dualpath
from dualpath.errors import CapacityError, UnreachableError, UsageError
from dualpath.path.arena import Budget
from dualpath.path.publisher import Publisher
from dualpath.pool.node import PoolNode
from dualpath.testing.pool import LocalNodes

from .models import make

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs the torch extra")

BLOCK = 32


@pytest.fixture(scope="module")
def model() -> Any:
    return make("llama")


@pytest.fixture(scope="module")
def ids() -> Any:
    return torch.randint(2, 512, (1, 150), generator=torch.Generator().manual_seed(7))


@pytest.fixture(scope="module")
def plain(model: Any, ids: Any) -> Any:
    return generate(model, ids)


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    with LocalNodes(1, capacity=1 << 26) as running:
        yield running


@pytest.fixture
def pool(nodes: LocalNodes) -> Iterator[Any]:
    with dualpath.connect(nodes.spec) as pool:
        yield pool


@pytest.fixture(autouse=True)
def letting_go_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what a node holds can be counted as soon as a cache is gone, also at a node that waits for a core."""
    monkeypatch.setattr("dualpath.pool.node.LET_GO_TIMEOUT_S", 60.0)


@pytest.fixture(autouse=True)
def as_before(model: Any, ids: Any, plain: Any) -> Iterator[None]:
    """Whatever a test did to the model, it generates without a cache as it always did."""
    yield
    assert model.config._attn_implementation == "sdpa"
    assert not model._forward_pre_hooks
    assert torch.equal(generate(model, ids), plain)


def generate(model: Any, ids: Any, cache: Any = None, new: int = 8, **options: Any) -> Any:
    given = {} if cache is None else {"cache": cache}
    mask = (ids != 0).long()
    return model.generate(ids, attention_mask=mask, max_new_tokens=new, **{"do_sample": False, **options}, **given)


def cache_of(model: Any, pool: Any, *, blocks: int = 2, **options: Any) -> Any:
    from dualpath.kv import KVLayout
    from dualpath.transformers import DualPathCache

    one = KVLayout.from_config(model.config, dtype="float32", block_tokens=BLOCK).block_bytes
    return DualPathCache(model, pool, **{"hot": one * blocks, "window": one * 8, "block_tokens": BLOCK, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"scheme": "nonsense"},
        {"hot": "64M"},
        {"hot": "1KiB"},
        {"window": "1B"},
        {"block_tokens": -1},
        {"deadline_s": float("inf")},
        {"deadline_s": float("nan")},
        {"threads": -1},
    ],
)
def test_settings_that_cannot_work(model: Any, pool: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        cache_of(model, pool, **options)


def test_a_remote_scheme_without_a_pool(model: Any) -> None:
    with pytest.raises(UsageError, match="needs a pool"):
        cache_of(model, None, scheme="reduce")


def test_dtypes_and_devices_that_are_not_supported(model: Any, pool: Any) -> None:
    with pytest.raises(UsageError, match="float64"):
        cache_of(make("llama", "float64"), pool)
    with torch.device("meta"):
        elsewhere = type(model)(model.config)
    with pytest.raises(UsageError, match="device meta"):
        cache_of(elsewhere, pool)


@pytest.mark.parametrize(("made", "moved"), [("float32", "bfloat16"), ("bfloat16", "float16"), ("float16", "float32")])
def test_a_model_that_is_moved_to_another_dtype(ids: Any, pool: Any, made: str, moved: str) -> None:
    """bfloat16 and float16 are as many bits each: one must not be read as the other."""
    other = make("llama", made)
    with cache_of(other, pool, blocks=4) as cache:
        other.to(getattr(torch, moved))
        with pytest.raises(UsageError, match=f"in {moved} now, but its cache was made for {made}"):
            generate(other, ids, cache)
        other.to(getattr(torch, made))
        assert cache.columns == 0
        assert generate(other, ids, cache, new=2).shape == (1, 152)


def test_a_compiled_model(ids: Any, pool: Any) -> None:
    """What is dualpath's runs as it is, between the compiled parts."""
    other = make("llama")
    wanted = generate(other, ids, new=3)
    other.forward = torch.compile(other.forward, backend="eager")
    with cache_of(other, pool) as cache:
        assert torch.equal(generate(other, ids, cache, new=3), wanted)
    torch.compiler.reset()


@pytest.mark.parametrize("where", ["options", "config"])
def test_use_cache_false(model: Any, ids: Any, pool: Any, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """As training leaves it in a config. `generate()` passes every token anew then, and would go wrong silently."""
    if where == "config":
        monkeypatch.setattr(model.generation_config, "use_cache", False)
    options = {"use_cache": False} if where == "options" else {}
    with cache_of(model, pool) as cache:
        with pytest.raises(UsageError, match="use_cache=False"):
            generate(model, ids, cache, **options)
        assert cache.columns == 0


@pytest.mark.parametrize(
    "give",
    [
        lambda model, ids, cache: model(ids, past_key_values=cache),
        lambda model, ids, cache: model(ids, None, None, cache),
    ],
    ids=["old name", "place"],
)
def test_a_cache_that_is_passed_by_its_old_name_or_by_place(model: Any, ids: Any, pool: Any, give: Any) -> None:
    """Its tokens are known all the same: they name its blocks, and bring back one that is lost."""
    with cache_of(model, pool) as cache, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        give(model, ids, cache)
        assert list(cache.path.tokens(cache._rows[0])) == ids[0].tolist()


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
def test_no_copy(model: Any, pool: Any, take: Any) -> None:
    """As is done with a prefix's cache elsewhere."""
    with cache_of(model, pool) as cache, pytest.raises(UsageError, match="cannot be copied"):
        take(cache)


@pytest.mark.parametrize("name", ["llama", "deepseek_v3"])
def test_gradients_are_refused_rather_than_incomplete(ids: Any, pool: Any, name: str) -> None:
    other = make(name)
    with cache_of(other, pool, blocks=6) as cache:
        loss = other(ids, labels=ids, cache=cache).loss
        with pytest.raises(UsageError, match="no gradients"):
            loss.backward()
        cache.reset()
        with torch.no_grad():
            assert not other(ids, cache=cache).logits.requires_grad


def test_use_after_close(model: Any, ids: Any, pool: Any) -> None:
    cache = cache_of(model, pool)
    cache.close()
    cache.close()
    with pytest.raises(UsageError, match="closed"):
        generate(model, ids, cache)


def test_a_pool_that_was_closed_first(model: Any, ids: Any, nodes: LocalNodes) -> None:
    with dualpath.connect(nodes.spec) as pool, cache_of(model, pool) as cache:
        pool.close()
        with pytest.raises(UnreachableError, match="closed"):
            generate(model, ids, cache)


def test_another_batch_size(model: Any, ids: Any, pool: Any) -> None:
    with cache_of(model, pool) as cache:
        generate(model, ids, cache, new=2)
        with pytest.raises(UsageError, match="the batch has 2"):
            generate(model, ids.repeat(2, 1), cache)


def test_a_model_that_it_was_not_made_for(model: Any, ids: Any, pool: Any) -> None:
    other = make("llama")
    with cache_of(model, pool) as cache:
        with pytest.raises(UsageError, match="does not compute dualpath attention"):
            generate(other, ids, cache)
        with cache_of(other, pool), pytest.raises(UsageError, match="made for another model"):
            generate(other, ids, cache)


def test_models_that_differ_in_one_weight_share_no_block(ids: Any, pool: Any) -> None:
    one, two = make("llama"), make("llama")
    with torch.no_grad():
        two.model.layers[2].mlp.down_proj.weight[5, 5] += 1
    with cache_of(one, pool) as first, cache_of(two, pool) as second, cache_of(one, pool) as third:
        assert first.layout.fingerprint != second.layout.fingerprint
        assert first.layout.fingerprint == third.layout.fingerprint


@pytest.mark.parametrize("resume", [False, True])
def test_an_interrupted_generation(model: Any, ids: Any, plain: Any, pool: Any, resume: bool) -> None:
    passes = 0

    def interrupt(*_: Any) -> None:
        nonlocal passes
        passes += 1
        if passes == 4:
            raise KeyboardInterrupt

    with cache_of(model, pool) as cache:
        hook = model.model.layers[1].register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            generate(model, ids, cache)
        hook.remove()
        if resume:
            have = plain[:, : cache.columns + 1]
            assert torch.equal(generate(model, have, cache, new=plain.shape[1] - have.shape[1]), plain)
        else:
            cache.reset()
            assert torch.equal(generate(model, ids, cache), plain)


@pytest.mark.parametrize(
    "change", [lambda cache: cache.batch_repeat_interleave(2), lambda cache: cache.crop(1), lambda cache: cache.reset()]
)
def test_a_cache_is_changed_after_an_interrupt_between_layers(model: Any, ids: Any, pool: Any, change: Any) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with cache_of(model, pool) as cache:
        generate(model, ids, cache, new=2)
        columns = cache.columns
        hook = model.model.layers[1].register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            generate(model, torch.cat([ids, ids[:, :3]], 1), cache, new=1)
        hook.remove()
        change(cache)
        assert cache.columns in (0, columns - 1, columns)


def once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, at: int = 1) -> None:
    """Interrupt call number `at` of a method instead of making it."""
    method, calls = getattr(owner, name), 0

    def interrupted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt
        return method(*args, **options)

    monkeypatch.setattr(owner, name, interrupted)


def test_a_generation_that_is_interrupted_once_a_token_counts(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the node is told what has left the sliding window: the columns are those of the sequence, as ever."""
    sliding = make("mistral")
    ids = torch.randint(2, 512, (2, 150), generator=torch.Generator().manual_seed(3))
    plain = generate(sliding, ids, new=80)
    with cache_of(sliding, pool, blocks=4) as cache:
        generate(sliding, ids, cache, new=2)
        once(monkeypatch, PoolNode, "drop")
        with pytest.raises(KeyboardInterrupt):
            generate(sliding, plain[:, :152], cache, new=78)
        have = plain[:, : cache.columns + 1]
        assert 152 < have.shape[1] < 230
        assert torch.equal(generate(sliding, have, cache, new=230 - have.shape[1]), plain)


@pytest.mark.parametrize(
    ("change", "owner", "name", "at"),
    [
        (lambda cache: cache.reset(), PoolNode, "drop", 1),
        (lambda cache: cache.reorder_cache(torch.tensor([0, 0])), PoolNode, "drop", 1),
        (lambda cache: cache.batch_select_indices(torch.tensor([1])), PoolNode, "drop", 1),
        (lambda cache: cache.batch_repeat_interleave(3), Publisher, "opened", 4),
    ],
    ids=["reset", "reorder", "select", "repeat"],
)
def test_an_interrupt_while_rows_come_and_go(
    model: Any, pool: Any, monkeypatch: pytest.MonkeyPatch, change: Any, owner: type, name: str, at: int
) -> None:
    ids = torch.randint(2, 512, (2, 150), generator=torch.Generator().manual_seed(5))
    plain = generate(model, ids)
    with cache_of(model, pool, blocks=6) as cache:
        generate(model, ids, cache, new=2)
        once(monkeypatch, owner, name, at=at)
        with pytest.raises(KeyboardInterrupt):
            change(cache)
        cache.reset()
        arena = cache.path.arena
        assert (cache.columns, dict(pool.kept), arena.room(Budget.HOT)) == (0, {}, arena.limit(Budget.HOT))
        assert torch.equal(generate(model, ids, cache), plain)
    assert pool[0].stats()["blocks_sealed"] == 0


def test_a_close_that_is_interrupted_can_be_made_again(
    model: Any, ids: Any, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_of(model, pool)
    generate(model, ids, cache, new=2)
    once(monkeypatch, PoolNode, "drop")
    with pytest.raises(KeyboardInterrupt):
        cache.close()
    cache.close()
    assert pool[0].stats()["blocks_sealed"] == 0


def test_a_cache_that_is_collected_without_close(model: Any, ids: Any, pool: Any) -> None:
    cache = cache_of(model, pool)
    generate(model, ids, cache, new=2)
    del cache
    gc.collect()
    assert pool[0].stats()["blocks_sealed"] == 0


@pytest.mark.parametrize("first", [0, 1])
def test_two_caches_on_one_model_end_in_any_order(model: Any, ids: Any, plain: Any, pool: Any, first: int) -> None:
    caches = [cache_of(model, pool), cache_of(model, pool)]
    half = generate(model, ids, caches[0], new=4)
    generate(model, ids, caches[1], new=2)
    assert torch.equal(generate(model, half, caches[0], new=4), plain)
    caches[first].close()
    left = caches[1 - first]
    left.reset()
    assert torch.equal(generate(model, ids, left), plain)
    left.close()


def test_no_cache_while_the_model_has_one(model: Any, ids: Any, pool: Any) -> None:
    with cache_of(model, pool), pytest.raises(UsageError, match="no dualpath cache was passed"):
        generate(model, ids)


def test_several_turns(model: Any, ids: Any, plain: Any, pool: Any) -> None:
    with cache_of(model, pool) as cache:
        found = ids
        for _ in range(4):
            found = generate(model, found, cache, new=2)
    assert torch.equal(found, plain)


def test_samples_of_one_prompt(model: Any, ids: Any, pool: Any) -> None:
    options = {"do_sample": True, "num_return_sequences": 3, "temperature": 0.8}
    torch.manual_seed(3)
    wanted = generate(model, ids, **options)
    with cache_of(model, pool, blocks=6) as cache:
        torch.manual_seed(3)
        assert torch.equal(generate(model, ids, cache, **options), wanted)


@pytest.mark.parametrize("scheme", ["local", "fetch", "reduce"])
def test_guessed_tokens_are_taken_back(model: Any, ids: Any, pool: Any, scheme: str) -> None:
    repeating = ids[:, :50].repeat(1, 3)
    wanted = generate(model, repeating, new=20)
    with cache_of(model, pool, blocks=4, scheme=scheme) as cache:
        assert torch.equal(generate(model, repeating, cache, new=20, prompt_lookup_num_tokens=5), wanted)


@pytest.mark.parametrize("chunk", [7, 31, 33, 100])
def test_chunks_that_are_no_multiple_of_a_block(model: Any, ids: Any, plain: Any, pool: Any, chunk: int) -> None:
    """A chunk that ends one block and begins another needs room for both; one block's room is refused in words."""
    with cache_of(model, pool, blocks=2) as cache:
        assert torch.equal(generate(model, ids, cache, prefill_chunk_size=chunk), plain)
    with cache_of(model, pool, blocks=1) as cache, pytest.raises(CapacityError) as caught:
        generate(model, ids, cache, prefill_chunk_size=chunk)
    assert "prefill_chunk_size" in caught.value.hint


def test_room_for_one_block_and_one_layer_block(model: Any, ids: Any, plain: Any, pool: Any) -> None:
    from dualpath.kv import KVLayout

    layout = KVLayout.from_config(model.config, dtype="float32", block_tokens=BLOCK)
    with cache_of(model, pool, blocks=1, window=layout.layer_block_bytes(layout.groups[0])) as cache:
        assert torch.equal(generate(model, ids, cache, prefill_chunk_size=BLOCK), plain)


def test_a_hot_region_too_small_for_a_block_of_256_tokens_takes_smaller_ones(
    model: Any, ids: Any, plain: Any, pool: Any
) -> None:
    from dualpath.transformers import DualPathCache

    with DualPathCache(model, pool, hot="60KiB", window="64KiB") as cache:
        assert cache.layout.block_tokens == 64
        size = cache.layout.block_tokens
        assert torch.equal(generate(model, ids, cache, prefill_chunk_size=size), plain)
        assert cache.path.metrics.peak_local_bytes <= (60 + 64) * 1024
    with pytest.raises(CapacityError, match="hot region"):
        DualPathCache(model, pool, hot="10KiB")
