"""What a model asks of memory and network: its KV by token, its state by sequence, its weights and experts.

A model comes from a hub-style `config.json` (`from_config`), from the catalogue by name or from a folder
(`load_model`), or as a bare shape (`bare`). What a config does not say is derived only where the architecture's
published modelling code leaves no doubt; any other architecture is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath.errors import UnknownModelError, UsageError
from dualpath.kv.configs import known_model_types, layer_groups
from dualpath.kv.layout import DTYPE_BYTES, LayerGroup, LayerKind
from dualpath.plan.catalogue import entry
from dualpath.plan.fields import MOST_LAYERS, MOST_PARAMETERS, Config, number, text_config
from dualpath.plan.hybrid import hybrid_cache, hybrid_model_types
from dualpath.plan.parameters import count_parameters, expanded_dim, mixture, published_bytes, sparse_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: `active` of `count` routed experts per token in each of `layers`, and `shared` always."""

    count: int
    active: int
    layers: int
    shared: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model as the planner sees it. Zero `parameters` mean that nobody said how many: a bare shape.

    `groups` are the layers that keep KV by token. `state_bytes` is the recurrent state (Mamba, linear attention,
    convolution) of one sequence over all layers, which does not grow with the context. `index_bytes_per_token` is
    what a sparse-attention indexer keeps beside the KV over all layers, and `index_top_k` the tokens that a query
    then reads (0: all). `expanded_dim` is a latent layer's width of q·k and p·v by head as prompts are computed, KV
    expanded; 0 where they are computed as decoding is, or nobody said. `weight_bytes` is the checkpoint as published.
    `source` is where the numbers come from.
    """

    name: str
    source: str
    layers: int
    groups: tuple[LayerGroup, ...]
    hidden_size: int
    parameters: int
    active_parameters: int
    weight_bytes: int
    kv_dtype: str
    max_context: int
    state_bytes: int = 0
    index_bytes_per_token: int = 0
    index_top_k: int = 0
    expanded_dim: int = 0
    experts: Experts | None = None


def bare(
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    query_heads: int | None = None,
    dtype: str = "bfloat16",
    window: int = 0,
    hidden_size: int | None = None,
    parameters: int = 0,
    max_context: int = 0,
) -> ModelSpec:
    """Return a model of which only the attention's shape is known: every layer alike, sliding if `window` is given.

    `query_heads` is `kv_heads` unless given, `hidden_size` is `query_heads * head_dim`. `parameters` and
    `max_context` stay 0, unknown, unless given; weights are taken to be in `dtype`. Raises `UsageError` for a shape
    that cannot be.
    """
    heads = kv_heads if query_heads is None else query_heads
    _positive({"layers": layers, "kv heads": kv_heads, "query heads": heads, "head_dim": head_dim})
    if heads % kv_heads:
        raise UsageError(
            f"{heads} query heads cannot share {kv_heads} kv heads evenly",
            hint="query heads are a multiple of kv heads",
        )
    group = LayerGroup(
        kind=LayerKind.SLIDING if window else LayerKind.FULL,
        layers=tuple(range(layers)),
        query_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=head_dim,
        window=window,
    )
    name = f"{layers} layers x {kv_heads} kv heads x {head_dim}"
    hidden = heads * head_dim if hidden_size is None else hidden_size
    return _shape(group, name, dtype=dtype, hidden_size=hidden, parameters=parameters, max_context=max_context)


def bare_latent(
    *,
    layers: int,
    latent_dim: int,
    rope_dim: int,
    query_heads: int,
    dtype: str = "bfloat16",
    hidden_size: int = 0,
    parameters: int = 0,
    max_context: int = 0,
) -> ModelSpec:
    """Return a model of latent attention of which only the shape is known: `latent_dim + rope_dim` elements a token.

    `hidden_size`, `parameters` and `max_context` are 0 where unknown. Raises `UsageError` for a shape that cannot be.
    """
    _positive({"layers": layers, "latent elements": latent_dim, "query heads": query_heads})
    _not_negative({"rope part": rope_dim})
    group = LayerGroup(
        kind=LayerKind.LATENT,
        layers=tuple(range(layers)),
        query_heads=query_heads,
        kv_heads=1,
        head_dim=latent_dim + rope_dim,
        value_dim=latent_dim,
    )
    name = f"{layers} layers x {latent_dim} + {rope_dim} latent"
    return _shape(group, name, dtype=dtype, hidden_size=hidden_size, parameters=parameters, max_context=max_context)


def _shape(
    group: LayerGroup, name: str, *, dtype: str, hidden_size: int, parameters: int, max_context: int
) -> ModelSpec:
    _not_negative({"window": group.window, "hidden size": hidden_size, "context": max_context})
    _not_negative({"number of parameters": parameters})
    if dtype not in DTYPE_BYTES:
        raise UsageError(f"unknown dtype {dtype!r}", hint=f"one of {', '.join(DTYPE_BYTES)}")
    return ModelSpec(
        name=name,
        source="given",
        layers=len(group.layers),
        groups=(group,),
        hidden_size=hidden_size,
        parameters=parameters,
        active_parameters=parameters,
        weight_bytes=parameters * DTYPE_BYTES[dtype],
        kv_dtype=dtype,
        max_context=max_context,
    )


def _positive(values: dict[str, int]) -> None:
    for name, value in values.items():
        if value < 1:
            raise UsageError(f"a model with {value} {name}?", hint="give at least 1")
    if values["layers"] > MOST_LAYERS:
        raise UsageError(f"a model with {values['layers']} layers?", hint=f"at most {MOST_LAYERS}")


def _not_negative(values: dict[str, int]) -> None:
    for name, value in values.items():
        if value < 0:
            raise UsageError(f"a {name} of {value}?", hint="0 means none or unknown")


def from_config(config: Mapping[str, Any], *, name: str, source: str, weight_bytes: int | None = None) -> ModelSpec:
    """Return the model that a hub-style `config.json` describes.

    `weight_bytes` is the size of the checkpoint where it is known; otherwise it follows from dtype and quantisation.

    KV is taken to be kept in bfloat16, or float16 if the checkpoint is. Raises `UnknownModelError` for an
    architecture whose cache is not known, `UsageError` for numbers that make no sense.
    """
    try:
        return _from_text(text_config(config), name=name, source=source, weight_bytes=weight_bytes)
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        raise UsageError(f"the config of {name} has an impossible field: {error}") from error


def _from_text(text: Config, *, name: str, source: str, weight_bytes: int | None) -> ModelSpec:
    if number(text, "num_hidden_layers", default=1) > MOST_LAYERS:
        raise UsageError(f"a model with {text['num_hidden_layers']} layers?", hint=f"at most {MOST_LAYERS}")
    cache = hybrid_cache(text)
    groups = _engine_groups(text) if cache is None else cache.groups
    layers = sum(len(group.layers) for group in groups) if cache is None else len(cache.kinds)
    parameters = count_parameters(text, layers=layers, groups=groups, cache=cache)
    if parameters.total > MOST_PARAMETERS:
        raise UsageError(f"a model with {parameters.total:.0e} parameters?", hint=f"at most {MOST_PARAMETERS:.0e}")
    mix = mixture(text)
    dtype = "float16" if "float16" in (text.get("dtype"), text.get("torch_dtype")) else "bfloat16"
    return ModelSpec(
        name=name,
        source=source,
        layers=layers,
        groups=groups,
        hidden_size=number(text, "hidden_size"),
        parameters=parameters.total,
        active_parameters=parameters.active,
        weight_bytes=published_bytes(text, parameters) if weight_bytes is None else weight_bytes,
        kv_dtype=dtype,
        max_context=number(text, "max_position_embeddings", "model_max_length"),
        state_bytes=0 if cache is None else cache.state_bytes(dtype),
        index_bytes_per_token=0 if cache is None else cache.index_bytes_per_token,
        index_top_k=0 if cache is None else cache.index_top_k,
        expanded_dim=0 if cache is not None and cache.index_top_k else expanded_dim(text, groups),
        experts=None
        if mix is None
        else Experts(count=mix.count, active=mix.active, shared=mix.shared, layers=sparse_layers(text, layers)),
    )


def _engine_groups(config: Config) -> tuple[LayerGroup, ...]:
    """Return the groups of an architecture that the engine runs; an unknown one is refused with all that are known."""
    kind = config.get("model_type")
    if kind not in known_model_types():
        known = sorted({*known_model_types(), *hybrid_model_types()})
        raise UnknownModelError(f"the cache of model type {kind!r} is not known", hint=f"known: {', '.join(known)}")
    return layer_groups(config)


def load_model(name: str) -> ModelSpec:
    """Return a model by its name in the catalogue, or by a path as `load_config` takes it.

    A hub id is a name too: of `meta-llama/Llama-3.1-8B` the part after the slash counts. Raises `UnknownModelError`
    for what is neither, with the names that come close in the hint.
    """
    folder_too = (name, os.path.join(name, "config.json"))
    if name.startswith((".", "/")) or name.endswith(".json") or any(map(os.path.isfile, folder_too)):
        return load_config(name)
    found, values = entry("models", name.rpartition("/")[2])
    return from_config(values["config"], name=found, source=values["source"])


def load_config(path_text: str) -> ModelSpec:
    """Return the model of a `config.json`, by its path or that of a folder that holds one.

    The folder's `model.safetensors.index.json`, if there, says how large its weights are. Raises `UsageError`.
    """
    path = Path(path_text, "config.json") if os.path.isdir(path_text) else Path(path_text)
    hint = "give a model's config.json, or the folder that holds it"
    if not os.path.isfile(path):
        raise UsageError(f"no such file: {path}", hint=hint)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UsageError(f"{path} is not a config.json: {error}", hint=hint) from error
    if not isinstance(config, dict):
        raise UsageError(f"{path} is not a config.json: it holds no object", hint=hint)
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return from_config(config, name=name, source=str(path), weight_bytes=_index_bytes(path.parent))


def _index_bytes(folder: Path) -> int | None:
    """Return the bytes of a checkpoint by its index of shards, or None if there is none that says."""
    try:
        size = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))["metadata"][
            "total_size"
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return size if isinstance(size, int) and size > 0 else None
