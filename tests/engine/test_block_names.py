"""Blocks are named by tokens only where model, adapters and positions make KV of just these tokens."""

from __future__ import annotations

from typing import Any

import pytest

from dualpath.errors import UsageError

from .models import make

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs the torch extra")

BLOCK, PADDING = 16, 37


class Adapted(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # torch may come without types
    """A linear layer with adapters x and y, with what PEFT's tuner layers say of themselves."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base
        self.deltas = torch.nn.ParameterDict({name: torch.randn_like(base.weight) for name in "xy"})
        self.disable_adapters = False
        self.merged_adapters: list[str] = []
        self.scaling = {"x": 1.0, "y": 1.0}
        self._active = ["x"]

    @property
    def active_adapters(self) -> list[str]:
        return self._active

    def forward(self, hidden: Any) -> Any:
        out = self.base(hidden)
        for name in () if self.disable_adapters or self.merged_adapters else self._active:
            out = out + hidden @ self.deltas[name].T * self.scaling[name]
        return out


CHANGES: dict[str, Any] = {
    "activated": lambda layer: layer._active.__setitem__(0, "y"),
    "disabled": lambda layer: setattr(layer, "disable_adapters", True),
    "merged": lambda layer: layer.merged_adapters.append("x"),
    "scaled": lambda layer: layer.scaling.update(x=1.00001),
    "scaled by a tensor": lambda layer: layer.scaling.update(x=torch.tensor(1.00001)),
    "chosen by row": lambda layer: layer.register_forward_pre_hook(lambda *_: None),
}


@pytest.fixture
def adapted() -> tuple[Any, Any]:
    """A model, and its layer with adapters."""
    model = make("llama")
    attention = model.model.layers[0].self_attn
    attention.k_proj = Adapted(attention.k_proj)
    return model, attention.k_proj


@pytest.fixture(scope="module")
def model() -> Any:
    return make("llama")


@pytest.fixture(scope="module")
def ids() -> Any:
    return torch.randint(2, 512, (1, 100), generator=torch.Generator().manual_seed(7))


def cache_of(model: Any, **options: Any) -> Any:
    from dualpath.transformers import DualPathCache

    return DualPathCache(model, hot="4MiB", window="4MiB", block_tokens=BLOCK, **options)


def names(cache: Any) -> list[list[bytes]]:
    """Return the ids of each row's sealed blocks."""
    return [[block.id for block in cache.path._sequences[row].blocks if block.id is not None] for row in cache._rows]


def names_of(model: Any, ids: Any) -> list[bytes]:
    """Return the ids of the blocks of one row without padding."""
    with cache_of(model) as cache:
        forward(model, cache, ids)
        return names(cache)[0]


@torch.inference_mode()  # type: ignore[untyped-decorator, unused-ignore]  # as above
def forward(model: Any, cache: Any, ids: Any, **options: Any) -> None:
    model(ids, attention_mask=(ids != 0).long(), cache=cache, use_cache=True, **options)


def padded(ids: Any) -> Any:
    return torch.nn.functional.pad(ids, (PADDING, 0))


def counted(ids: Any) -> Any:
    """Return the positions that `generate()` passes: of tokens without padding."""
    return ((ids != 0).cumsum(-1) - 1).clamp(min=0)


# --- adapters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_adapters_are_part_of_the_name(adapted: tuple[Any, Any], ids: Any, change: Any) -> None:
    model, layer = adapted
    before = names_of(model, ids)
    assert names_of(model, ids) == before
    change(layer)
    assert not set(names_of(model, ids)) & set(before)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_cache_refuses_a_model_whose_adapters_have_changed(adapted: tuple[Any, Any], ids: Any, change: Any) -> None:
    model, layer = adapted
    with cache_of(model) as cache:
        forward(model, cache, ids[:, :20])
        change(layer)
        with pytest.raises(UsageError, match="adapters") as caught:
            forward(model, cache, ids[:, 20:21])
        assert "make a new cache" in caught.value.hint
        assert cache.columns == 20


def test_a_cache_refuses_a_model_that_was_given_adapters(ids: Any) -> None:
    model = make("llama")
    with cache_of(model) as cache:
        model.model.layers[0].mlp.up_proj = Adapted(model.model.layers[0].mlp.up_proj)
        with pytest.raises(UsageError, match="adapters"):
            forward(model, cache, ids)


def test_a_model_of_transformers_without_adapters_has_no_state(model: Any) -> None:
    from dualpath.engine.fingerprint import adapter_state

    assert callable(model.active_adapters)  # a method of this name is no adapter
    assert adapter_state(model) == []


# --- positions -------------------------------------------------------------------------------------------------------


def test_tokens_after_padding_that_counts_are_not_named_by_tokens(model: Any, ids: Any) -> None:
    """Without `position_ids` models rotate the first token as the 38th."""
    with cache_of(model) as cache:
        forward(model, cache, padded(ids))
        found = names(cache)[0]
    assert len(found) == ids.shape[1] // BLOCK
    assert not set(found) & set(names_of(model, ids))


def test_tokens_after_padding_that_does_not_count_are(model: Any, ids: Any) -> None:
    with cache_of(model) as cache:
        forward(model, cache, padded(ids), position_ids=counted(padded(ids)))
        assert names(cache) == [names_of(model, ids)]


def test_each_row_is_judged_by_itself(model: Any, ids: Any) -> None:
    """The second row starts with padding, the third ends with it, where it moves nothing."""
    batch = torch.cat([ids, ids, ids])
    batch[1, :PADDING] = 0
    batch[2, -PADDING:] = 0
    with cache_of(model) as cache:
        forward(model, cache, batch)
        first, second, third = names(cache)
    whole = names_of(model, ids)
    assert first == whole
    assert third == whole[: len(third)]
    assert not set(second) & set(names_of(model, ids[:, PADDING:]))


def test_tokens_moved_by_position_ids_are_not_named_by_tokens(model: Any, ids: Any) -> None:
    with cache_of(model) as cache:
        forward(model, cache, ids, position_ids=torch.arange(5, 105)[None])
        assert not set(names(cache)[0]) & set(names_of(model, ids))


def test_later_tokens_are_judged_too(model: Any, ids: Any) -> None:
    """The prompt's positions were passed, those of what follows were not: padding counts again."""
    more = torch.cat([padded(ids), ids], 1)
    with cache_of(model) as cache:
        forward(model, cache, padded(ids), position_ids=counted(padded(ids)))
        with torch.inference_mode():
            model(ids, attention_mask=(more != 0).long(), cache=cache, use_cache=True)
        found = names(cache)[0]
    whole = names_of(model, torch.cat([ids, ids], 1))
    assert [mine == other for mine, other in zip(found, whole, strict=True)] == [True] * 6 + [False] * 6


@pytest.mark.parametrize(
    "options",
    [{}, {"prefill_chunk_size": 30}, {"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True}],
    ids=["greedy", "chunked", "beams", "samples"],
)
def test_generation_names_all_blocks_by_tokens(model: Any, ids: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(3)
    batch = torch.cat([ids, ids])
    batch[1, :PADDING] = 0
    with cache_of(model) as cache:
        out = model.generate(
            batch, attention_mask=(batch != 0).long(), max_new_tokens=BLOCK + 8, cache=cache, **options
        )
        found = names(cache)
    rows = [row[PADDING * (row[0] == 0) : -1][None] for row in out]
    if options.get("num_beams"):  # its rows are beams, not all of which were returned
        rows, found = [ids, ids[:, PADDING:]], [found[0][:6], found[2][:3]]
    assert found == [names_of(model, row) for row in rows]


@pytest.mark.parametrize(
    ("turns", "options"), [(3, {}), (1, {"prompt_lookup_num_tokens": 5})], ids=["turns", "guessed"]
)
def test_a_padded_row_is_named_by_its_tokens_to_the_end(
    model: Any, ids: Any, turns: int, options: dict[str, Any]
) -> None:
    found = padded(ids[:, :40].repeat(1, 2))  # repeats: guesses are found
    with cache_of(model) as cache:
        for _ in range(turns):
            mask = (found != 0).long()
            found = model.generate(
                found, attention_mask=mask, max_new_tokens=18, do_sample=False, cache=cache, **options
            )
        assert names(cache) == [names_of(model, found[:, PADDING : cache.columns])]


# --- more than text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [lambda: torch.zeros(1, 3, 8, 8), lambda: [torch.zeros(3, 8, 8)]])
def test_tokens_do_not_name_kv_of_images(model: Any, ids: Any, more: Any) -> None:
    with cache_of(model) as cache:
        forward(model, cache, ids, pixel_values=more())
        (found,) = names(cache)
    assert len(found) == ids.shape[1] // BLOCK
    assert not set(found) & set(names_of(model, ids))
