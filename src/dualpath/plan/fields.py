"""Reading a hub-style config: what is needed and absent, or makes no sense, is an error that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dualpath.errors import UsageError

Config = Mapping[str, Any]
MOST_LAYERS, MOST_PARAMETERS = 10_000, 10**16  # more than any model has: a slip, not a model

# Multimodal configs that wrap a text model, and the text model's type where the inner config does not say it.
_WRAPPERS = {
    "gemma3": "gemma3_text",
    "kimi_k25": "kimi_k2",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
# Types under which a checkpoint is published that name another architecture in `architectures`.
_SAME = {"kimi_k2": "deepseek_v3", "minimax_text_01": "minimax"}
_OUTER = ("quantization_config", "tie_word_embeddings", "torch_dtype", "dtype")


def text_config(config: Config) -> Config:
    """Return the text model's config: `config` itself, or the one inside a multimodal wrapper."""
    inner = _WRAPPERS.get(str(config.get("model_type")))
    text: dict[str, Any] = dict(config)
    if inner is not None and isinstance(config.get("text_config"), Mapping):
        text = {"model_type": inner, **{key: config[key] for key in _OUTER if key in config}, **config["text_config"]}
    text["model_type"] = _SAME.get(str(text.get("model_type")), text.get("model_type"))
    return text


def number(config: Config, *keys: str, default: int | None = None) -> int:
    """Return the first of `keys` that the config has, a whole number of at least 1; `default` if it has none."""
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"the config says {key} is {value!r}", hint="it must be a whole number of at least 1")
        return value
    if default is None:
        kind = config.get("model_type")
        raise UsageError(f"the config of model type {kind!r} does not say {keys[0]}", hint="use the whole config.json")
    return default


def count(config: Config, *keys: str, default: int = 0) -> int:
    """Return the same as `number`, where 0 is allowed too and stands for none."""
    if any(config.get(key) == 0 and not isinstance(config.get(key), bool) for key in keys):
        return 0
    return number(config, *keys, default=default)
