"""Which layers of a Hugging Face config keep which KV: an explicit table of known architectures.

The table holds only architectures whose attention has been read in transformers: where `head_dim` comes
from, which layers slide, and that a query at position r with window w sees key p exactly if r - w < p <= r.
Everything else is refused rather than guessed, since a wrong layout gives wrong text and no error.

No import of transformers: a config is a dict (`config.json`), or anything with `to_dict()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dualpath.errors import UnknownModelError
from dualpath.kv.layout import LayerGroup, LayerKind

Config = Mapping[str, Any]
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class _Family:
    """One architecture: its config's defaults, and which layers slide where `layer_types` is absent."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None  # None: as many as query heads
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    sliding_window: int | None = None
    slides: Callable[[Config, int], bool] | None = None  # None: the architecture has no sliding layers
    uniform: bool = False  # every layer slides, or none: `layer_types` has no say
    gated: bool = False  # `sliding_window` counts only beside `use_sliding_window`
    latent: bool = False  # multi-head latent attention

    def get(self, config: Config, key: str) -> Any:
        """Return what the config says about `key`, or the architecture's default if it says nothing."""
        return config[key] if key in config else getattr(self, key)


def _every(config: Config, layer: int) -> bool:
    return True


def _never(config: Config, layer: int) -> bool:
    return False


def _alternate(config: Config, layer: int) -> bool:
    return layer % 2 == 0


def _pattern(default: int) -> Callable[[Config, int], bool]:
    return lambda config, layer: (layer + 1) % int(config.get("sliding_window_pattern", default)) != 0


def _after_max_window_layers(config: Config, layer: int) -> bool:
    return layer >= int(config.get("max_window_layers", 28))


def _even_below_max_window_layers(config: Config, layer: int) -> bool:
    return layer % 2 == 0 and layer < int(config.get("max_window_layers", 28))


def _where_no_rope(config: Config, layer: int) -> bool:
    rope = config.get("no_rope_layers")
    if rope is not None:
        return not rope[layer]
    return (layer + 1) % int(config.get("no_rope_layer_interval", 4)) == 0


_FAMILIES: dict[str, _Family] = {
    "cohere2": _Family(8192, 40, 64, None, None, 4096, slides=_pattern(4)),
    "deepseek_v2": _Family(4096, 32, 32, latent=True),
    "deepseek_v3": _Family(7168, 61, 128, latent=True),
    "gemma2": _Family(2304, 26, 8, 4, 256, 4096, slides=_alternate),
    "gemma3_text": _Family(2304, 26, 8, 4, 256, 4096, slides=_pattern(6)),
    "glm4": _Family(4096, 40, 32, 2, 128),
    "glm4_moe": _Family(4096, 46, 96, 8),
    "gpt_oss": _Family(2880, 36, 64, 8, 64, 128, slides=_alternate),
    "granite": _Family(4096, 32, 32),
    "llama": _Family(4096, 32, 32),
    "minimax_m2": _Family(3072, 62, 48, 8, 128),
    "mistral": _Family(4096, 32, 32, 8, None, 4096, slides=_every, uniform=True),
    "mixtral": _Family(4096, 32, 32, 8, None, None, slides=_every, uniform=True),
    "olmo2": _Family(4096, 32, 32),
    "phi3": _Family(3072, 32, 32, None, None, None, slides=_every, uniform=True),
    "qwen2": _Family(4096, 32, 32, 32, None, 4096, slides=_after_max_window_layers, gated=True),
    "qwen2_moe": _Family(2048, 24, 16, 16, None, 4096, slides=_even_below_max_window_layers, gated=True),
    "qwen3": _Family(4096, 32, 32, 32, 128, 4096, slides=_after_max_window_layers, gated=True),
    "qwen3_moe": _Family(2048, 24, 32, 4, None, 4096, slides=_every, uniform=True, gated=True),
    "smollm3": _Family(2048, 36, 16, 4, None, None, slides=_where_no_rope, gated=True),
    "starcoder2": _Family(3072, 30, 24, 2, None, None, slides=_every, uniform=True),
}
_WRAPPERS = {"gemma3": "gemma3_text"}  # a text model inside a multimodal config

# Fields that change what attention sees in ways the layout cannot express.
_REFUSED = {
    "is_encoder_decoder": "an encoder-decoder",
    "add_cross_attention": "cross-attention",
    "use_bidirectional_attention": "bidirectional attention",
    "attention_chunk_size": "chunked attention",
    "num_kv_shared_layers": "layers that share KV",
}

# Rotations that change for all positions once a sequence has grown long: KV computed before is then not what the model
# would have computed, and a block's KV depends on the length of the sequence that it was computed in.
_ROPE_OF_LENGTH = ("dynamic", "longrope", "su")


def known_model_types() -> tuple[str, ...]:
    """Return the `model_type`s whose attention layout is known."""
    return tuple(sorted({*_FAMILIES, *_WRAPPERS}))


def layer_groups(config: Any) -> tuple[LayerGroup, ...]:
    """Return the layer groups of a model, ordered by their first layer.

    `config` is a dict as in `config.json`, or anything with `to_dict()`. Raises `UnknownModelError` if the
    layout is not known: an unlisted `model_type`, layers other than full and sliding attention, or
    contradictory or impossible fields.
    """
    config = _text_config(config)
    name = str(config.get("model_type", "(none)"))
    family = _FAMILIES.get(name)
    if family is None:
        raise _refusal(f"attention layout of model type {name!r} is not known")
    for field, meaning in _REFUSED.items():
        if config.get(field):
            raise _refusal(f"model type {name!r} with {meaning} ({field}) is not supported")
    try:
        groups = (_latent_group(family, config),) if family.latent else _full_and_sliding(name, family, config)
    except (TypeError, ValueError, ArithmeticError, AttributeError, KeyError) as error:
        raise _refusal(f"the config of model type {name!r} has an impossible field: {error}") from error
    if not groups or any(
        min(len(group.layers), group.query_heads, group.kv_heads, group.head_dim) < 1 for group in groups
    ):
        raise _refusal(f"the config of model type {name!r} has no layers, no heads or heads of no size")
    return groups


def require_reusable(config: Any) -> None:
    """Raise `UnknownModelError` unless the layout is known and KV, once computed, stays what it is."""
    layer_groups(config)
    config = _text_config(config)
    for rope in (config.get("rope_parameters"), config.get("rope_scaling")):
        for one in (rope, *rope.values()) if isinstance(rope, Mapping) else ():  # of all layers, or by kind of layer
            kind = one.get("rope_type", one.get("type")) if isinstance(one, Mapping) else None
            if kind in _ROPE_OF_LENGTH:
                raise UnknownModelError(
                    f"model type {config.get('model_type')!r} with rotations that depend on the length of the text "
                    f"(rope_type {kind!r}) is not supported: KV would not stay what it is",
                    hint="use a model, or a config of it, with rope_type default, linear, llama3 or yarn",
                )


def _text_config(config: Any) -> Config:
    found: Config = config if isinstance(config, Mapping) else config.to_dict()
    inner = _WRAPPERS.get(str(found.get("model_type")))
    if inner is None:
        return found
    text = found.get("text_config") or {}
    if not isinstance(text, Mapping):
        text = text.to_dict()
    return {"model_type": inner, **text}


def _refusal(message: str) -> UnknownModelError:
    return UnknownModelError(message, hint=f"known model types: {', '.join(known_model_types())}")


def _latent_group(family: _Family, config: Config) -> LayerGroup:
    latent, rope = int(config.get("kv_lora_rank", 512)), int(config.get("qk_rope_head_dim", 64))
    return LayerGroup(
        kind=LayerKind.LATENT,
        layers=tuple(range(int(family.get(config, "num_hidden_layers")))),
        query_heads=int(family.get(config, "num_attention_heads")),
        kv_heads=1,
        head_dim=latent + rope,
        value_dim=latent,
    )


def _full_and_sliding(name: str, family: _Family, config: Config) -> tuple[LayerGroup, ...]:
    heads = int(family.get(config, "num_attention_heads"))
    kv_heads = int(family.get(config, "num_key_value_heads") or heads)
    head_dim = int(family.get(config, "head_dim") or family.get(config, "hidden_size") // heads)
    if kv_heads < 1 or heads % kv_heads:
        raise _refusal(f"{heads} query heads cannot share {kv_heads} kv heads evenly")
    window = _window(family, config)
    types = _layer_types(name, family, config, window)
    if _SLIDING in types and window < 1:
        raise _refusal(f"model type {name!r} has sliding layers but no sliding_window")
    return tuple(
        LayerGroup(
            kind=LayerKind.SLIDING if kind == _SLIDING else LayerKind.FULL,
            layers=tuple(layer for layer, other in enumerate(types) if other == kind),
            query_heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            value_dim=head_dim,
            window=window if kind == _SLIDING else 0,
        )
        for kind in dict.fromkeys(types)
    )


def _window(family: _Family, config: Config) -> int:
    """Return the tokens a sliding layer sees, or 0 if the config turns sliding off."""
    if family.slides is None or (family.gated and not config.get("use_sliding_window", False)):
        return 0
    return int(family.get(config, "sliding_window") or 0)


def _layer_types(name: str, family: _Family, config: Config, window: int) -> list[str]:
    count = int(family.get(config, "num_hidden_layers"))
    slides = family.slides if family.slides is not None and window else _never
    derived = [_SLIDING if slides(config, layer) else _FULL for layer in range(count)]
    given = config.get("layer_types")
    if given is None:
        return derived
    given = list(given)
    strange = sorted({str(kind) for kind in given} - {_FULL, _SLIDING})
    if strange:
        raise _refusal(f"model type {name!r} has layers of kind {', '.join(strange)}")
    if len(given) != count:
        raise _refusal(f"layer_types lists {len(given)} layers, but the model has {count}")
    if (family.uniform or family.slides is None) and given != derived:
        raise _refusal(f"layer_types of model type {name!r} contradict its sliding_window")
    return given
