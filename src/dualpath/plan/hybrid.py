"""Caches that the engine does not run but a plan can reckon with: recurrent hybrids, chunked and indexed attention.

Which layers of a known hybrid attend, and which keep a state, follows the modelling code named in each formula.
An architecture that is not in the table is not guessed at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dualpath.errors import UnknownModelError, UsageError
from dualpath.kv.layout import LayerGroup, LayerKind
from dualpath.plan import recurrent
from dualpath.plan.fields import Config, count, number
from dualpath.plan.recurrent import Recurrence

FULL, SLIDING, STATE, BOTH, NEITHER = "full", "sliding", "state", "both", "neither"
_KINDS = {
    "attention": FULL,
    "full_attention": FULL,
    "chunked_attention": SLIDING,
    "linear_attention": STATE,
    "mamba": STATE,
    "conv": STATE,
    "hybrid": BOTH,
}
_NEMOTRON = {"M": STATE, "*": FULL, "-": NEITHER, "E": NEITHER}
_NEMOTRON_NAMES = {"mlp": NEITHER, "moe": NEITHER, **_KINDS}
# Bytes of one token's key in DeepSeek's indexer beside its `index_head_dim` fp8 elements: one fp32 scale per 128 of
# them. Source: inference/model.py of DeepSeek-V3.2-Exp, `Indexer.k_cache` and `k_scale_cache`.
_INDEX_SCALE_BYTES, _INDEX_SCALE_ELEMENTS = 4, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """What a model keeps per token and per sequence. `kinds` says it layer by layer; `recurrence` is one layer's."""

    kinds: tuple[str, ...]
    groups: tuple[LayerGroup, ...]
    recurrence: Recurrence | None = None
    index_layers: int = 0
    index_bytes_per_token: int = 0
    index_top_k: int = 0

    @property
    def recurrent_layers(self) -> int:
        """Return how many layers keep a state."""
        return sum(kind in (STATE, BOTH) for kind in self.kinds)

    def state_bytes(self, dtype: str) -> int:
        """Return the bytes of one sequence's state over all layers, in a model of `dtype`."""
        return 0 if self.recurrence is None else self.recurrent_layers * self.recurrence.state_bytes(dtype)


def _given(config: Config) -> list[str] | None:
    types = config.get("layer_types") or config.get("layers_block_type")
    return None if types is None else [_kind(config, str(name), _KINDS) for name in types]


def _kind(config: Config, name: str, kinds: dict[str, str]) -> str:
    if name not in kinds:
        raise UnknownModelError(f"model type {config['model_type']!r} has layers of kind {name!r}, which is not known")
    return kinds[name]


def _every_nth_full(config: Config, layers: int) -> list[str]:
    interval = number(config, "full_attention_interval", default=4)
    return [STATE if (layer + 1) % interval else FULL for layer in range(layers)]


def _jamba(config: Config, layers: int) -> list[str]:
    period, offset = number(config, "attn_layer_period", default=8), count(config, "attn_layer_offset", default=4)
    return [FULL if layer % period == offset else STATE for layer in range(layers)]


def _bamba(config: Config, layers: int) -> list[str]:
    return [FULL if layer in (config.get("attn_layer_indices") or ()) else STATE for layer in range(layers)]


def _minimax(config: Config, layers: int) -> list[str]:
    listed = config.get("attn_type_list")  # the original checkpoint's: 1 is softmax attention, 0 is lightning
    if listed is not None:
        return [FULL if kind else STATE for kind in listed]
    return [STATE if layer % 2 else FULL for layer in range(layers)]


def _kimi_linear(config: Config, layers: int) -> list[str]:
    linear = config.get("linear_attn_config") or {}
    if "full_attn_layers" in linear:
        return [FULL if layer + 1 in linear["full_attn_layers"] else STATE for layer in range(layers)]
    return [FULL if layer and layer % 4 == 0 else STATE for layer in range(layers)]


def _nemotron_h(config: Config, layers: int) -> list[str]:
    pattern = config.get("hybrid_override_pattern")
    if pattern is not None:
        return [_kind(config, letter, _NEMOTRON) for letter in str(pattern)]
    raise UsageError("the config says neither hybrid_override_pattern nor layers_block_type", hint="use the whole file")


def _llama4(config: Config, layers: int) -> list[str]:
    interval = number(config, "no_rope_layer_interval", default=4)
    rope = config.get("no_rope_layers") or [(layer + 1) % interval for layer in range(layers)]
    return [SLIDING if rotated and config.get("attention_chunk_size", 8192) else FULL for rotated in rope]


def _lfm2(config: Config, layers: int) -> list[str]:
    indices = config.get("full_attn_idxs")
    return [FULL if indices is None or layer in indices else STATE for layer in range(layers)]


def _all(kind: str) -> Callable[[Config, int], list[str]]:
    return lambda config, layers: [kind] * layers


@dataclass(frozen=True)
class _Hybrid:
    """One architecture: which layers attend where the config does not list them, and the layer that keeps a state."""

    kinds: Callable[[Config, int], list[str]]
    recurrence: Callable[[Config], Recurrence] | None = None
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    latent: bool = False
    indexed: bool = False


_HYBRIDS: dict[str, _Hybrid] = {
    "bamba": _Hybrid(_bamba, recurrent.mamba2),
    "deepseek_v32": _Hybrid(_all(FULL), latent=True, indexed=True),
    "falcon_h1": _Hybrid(_all(BOTH), recurrent.mamba2),
    "glm_moe_dsa": _Hybrid(_all(FULL), latent=True, indexed=True),
    "granitemoehybrid": _Hybrid(_all(STATE), recurrent.mamba2),
    "jamba": _Hybrid(_jamba, recurrent.mamba1),
    "kimi_linear": _Hybrid(_kimi_linear, recurrent.kimi_delta, latent=True),
    "lfm2": _Hybrid(_lfm2, recurrent.short_convolution),
    "llama4_text": _Hybrid(_llama4, head_dim=128),
    "minimax": _Hybrid(_minimax, recurrent.lightning),
    "nemotron_h": _Hybrid(_nemotron_h, recurrent.mamba2, head_dim=128),
    "qwen3_5_moe_text": _Hybrid(_every_nth_full, recurrent.gated_delta, head_dim=256),
    "qwen3_5_text": _Hybrid(_every_nth_full, recurrent.gated_delta, head_dim=256),
    "qwen3_next": _Hybrid(_every_nth_full, recurrent.gated_delta, head_dim=256),
}
# Fields that would change the cache in ways that the table does not express.
_REFUSED = ("use_bidirectional_attention", "num_kv_shared_layers")


def hybrid_model_types() -> tuple[str, ...]:
    """Return the `model_type`s whose cache is known here, beside those of `kv.configs`."""
    return tuple(sorted(_HYBRIDS))


def hybrid_cache(config: Config) -> Cache | None:
    """Return the cache of a hybrid, or None if the config's `model_type` is not one.

    Raises `UnknownModelError` for layers of a kind that is not known, `UsageError` for numbers that make no sense.
    """
    name = str(config.get("model_type"))
    hybrid = _HYBRIDS.get(name)
    if hybrid is None:
        return None
    for field in _REFUSED:
        if config.get(field):
            raise UnknownModelError(f"model type {name!r} with {field} is not known", hint="plan from a bare shape")
    kinds = _layer_kinds(hybrid, config)
    index_layers = _index_layers(config, len(kinds)) if hybrid.indexed else 0
    return Cache(
        kinds=tuple(kinds),
        groups=_groups(hybrid, config, kinds),
        recurrence=hybrid.recurrence(config) if hybrid.recurrence else None,
        index_layers=index_layers,
        index_bytes_per_token=index_layers * _index_bytes(config),
        index_top_k=number(config, "index_topk", default=2048) if hybrid.indexed else 0,
    )


def _layer_kinds(hybrid: _Hybrid, config: Config) -> list[str]:
    if config["model_type"] == "nemotron_h":
        names = config.get("layers_block_type") or config.get("layer_types")
        kinds = None if names is None else [_kind(config, str(name), _NEMOTRON_NAMES) for name in names]
    else:
        kinds = None if hybrid.indexed else _given(config)
    if kinds is None:
        kinds = hybrid.kinds(config, number(config, "num_hidden_layers"))
    layers = number(config, "num_hidden_layers", default=len(kinds))
    if not {FULL, SLIDING, BOTH} & set(kinds):
        raise UsageError(
            "no layer of this model attends: it keeps no KV", hint="its state does not grow; no plan is needed"
        )
    if len(kinds) != layers:
        raise UsageError(f"the config lists {len(kinds)} layers, but says that the model has {layers}")
    return kinds


def _index_layers(config: Config, layers: int) -> int:
    """Return how many layers have an indexer; the others use the selection of the last one that has.

    Source: transformers `glm_moe_dsa`, GlmMoeDsaConfig; in DeepSeek V3.2 every layer has its own.
    """
    if config["model_type"] != "glm_moe_dsa":
        return layers
    types = config.get("indexer_types") or config.get("index_topk_pattern")
    if types:
        return sum(kind in ("full", "F") for kind in types)
    frequency = number(config, "index_topk_freq", default=1)
    offset = count(config, "index_skip_topk_offset", default=2)
    return sum(max(layer - offset + 1, 0) % frequency == 0 for layer in range(layers))


def _index_bytes(config: Config) -> int:
    """Return the bytes of one token's indexer key in one layer."""
    width = number(config, "index_head_dim", default=128)
    return width + _INDEX_SCALE_BYTES * -(-width // _INDEX_SCALE_ELEMENTS)


def _groups(hybrid: _Hybrid, config: Config, kinds: list[str]) -> tuple[LayerGroup, ...]:
    """Return the groups of layers that keep KV, ordered by their first layer.

    A chunked layer attends only within its chunk, so it keeps at most `attention_chunk_size` tokens: as a sliding
    layer of that window, which is the most that it ever holds.
    """
    heads = number(config, "num_attention_heads")
    kv_heads = number(config, "num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise UsageError(f"{heads} query heads cannot share {kv_heads} kv heads evenly")
    width = number(
        config, "head_dim", "attention_head_dim", default=hybrid.head_dim or number(config, "hidden_size") // heads
    )
    if width < 1:
        raise UsageError(f"{heads} query heads in a hidden size of {config['hidden_size']}?", hint="a head has a width")
    latent = number(config, "kv_lora_rank", default=512) if hybrid.latent else 0
    groups = []
    for wanted in dict.fromkeys(
        SLIDING if kind == SLIDING else FULL for kind in kinds if kind in (FULL, BOTH, SLIDING)
    ):
        members = (wanted,) if wanted == SLIDING else (FULL, BOTH)
        groups.append(
            LayerGroup(
                kind=LayerKind.LATENT if latent else LayerKind(wanted),
                layers=tuple(layer for layer, kind in enumerate(kinds) if kind in members),
                query_heads=heads,
                kv_heads=1 if latent else kv_heads,
                head_dim=latent + number(config, "qk_rope_head_dim", default=64) if latent else width,
                value_dim=latent or width,
                window=number(config, "attention_chunk_size", default=8192) if wanted == SLIDING else 0,
            )
        )
    return tuple(groups)
