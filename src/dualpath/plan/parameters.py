"""How many parameters a model has, how many a token uses, and how many bytes they take as published.

Counted are matrices: embeddings and head, attention projections, recurrent layers, MLPs, experts and routers. Biases
and norms are left out: under 0.2 % of any model here. Extra layers that only predict further tokens (MTP) are not
counted; neither is a vision tower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dualpath.errors import UsageError
from dualpath.kv.layout import LayerGroup, LayerKind
from dualpath.plan.fields import Config, count, number
from dualpath.plan.hybrid import NEITHER, Cache

# Architectures whose head shares the embedding's matrix unless the config says otherwise.
_TIED = frozenset({"cohere2", "gemma2", "gemma3_text", "lfm2", "smollm3", "starcoder2"})
_VOCABULARY = {"gemma3_text": 262208}  # its configs leave it to the code
_UNGATED = frozenset({"nemotron_h", "starcoder2"})  # MLPs of two matrices: no gate
_GATED_ATTENTION = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})  # q_proj yields a gate as wide as q
_FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Experts of one layer: `active` of `count` per token, of `width` each; `shared` experts run always.

    `shared_width` is the width of all shared experts together.
    """

    count: int
    active: int
    width: int
    shared: int = 0
    shared_width: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters by what holds them; `active_experts` is the part of `experts` that one token uses."""

    embeddings: int
    layers: int
    experts: int = 0
    active_experts: int = 0

    @property
    def total(self) -> int:
        """Return all parameters."""
        return self.embeddings + self.layers + self.experts

    @property
    def active(self) -> int:
        """Return the parameters that one token uses, both embeddings included."""
        return self.embeddings + self.layers + self.active_experts


def _first_dense(config: Config, layer: int) -> bool:
    frequency = config.get("moe_layer_freq", 1)
    sparse = frequency[layer] if isinstance(frequency, list) else layer % frequency == 0
    return layer >= count(config, "first_k_dense_replace") and bool(sparse)


def _stepped(config: Config, layer: int) -> bool:
    step = number(config, "decoder_sparse_step", default=1)
    return layer not in (config.get("mlp_only_layers") or ()) and (layer + 1) % step == 0


def _interleaved(config: Config, layer: int) -> bool:
    if config.get("moe_layers"):
        return layer in config["moe_layers"]
    return (layer + 1) % number(config, "interleave_moe_layer_step", default=1) == 0


def _periodic(config: Config, layer: int) -> bool:
    period, offset = number(config, "expert_layer_period", default=2), count(config, "expert_layer_offset", default=1)
    return layer % period == offset


def _every(config: Config, layer: int) -> bool:
    return True


def _nemotron_experts(config: Config, layer: int) -> bool:
    names = config.get("layers_block_type") or config.get("layer_types") or str(config.get("hybrid_override_pattern"))
    return names[layer] in ("E", "moe")


@dataclass(frozen=True, kw_only=True)
class _Experts:
    """Where one architecture's config says what its experts are, and which of its layers have them."""

    count: tuple[str, ...] = ("num_experts", "num_local_experts", "n_routed_experts")
    active: tuple[str, ...] = ("num_experts_per_tok", "num_experts_per_token")
    width: str = "moe_intermediate_size"
    shared: tuple[str, ...] = ()  # how many shared experts; none named: as many as `shared_width` makes one
    shared_width: str = ""  # width of them together; none named: `shared` times `width`
    sparse: Callable[[Config, int], bool] = _every


_DEEPSEEK = _Experts(shared=("n_shared_experts", "num_shared_experts"), sparse=_first_dense)
_EXPERTS: dict[str, _Experts] = {
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "glm4_moe": _DEEPSEEK,
    "glm_moe_dsa": _DEEPSEEK,
    "gpt_oss": _Experts(width="intermediate_size"),
    "granitemoehybrid": _Experts(width="intermediate_size", shared_width="shared_intermediate_size"),
    "jamba": _Experts(width="intermediate_size", sparse=_periodic),
    "kimi_linear": _DEEPSEEK,
    "llama4_text": _Experts(width="intermediate_size", shared_width="intermediate_size", sparse=_interleaved),
    "minimax": _Experts(width="intermediate_size"),
    "minimax_m2": _Experts(width="intermediate_size"),
    "mixtral": _Experts(width="intermediate_size"),
    "nemotron_h": _Experts(shared_width="moe_shared_expert_intermediate_size", sparse=_nemotron_experts),
    "qwen2_moe": _Experts(shared_width="shared_expert_intermediate_size", sparse=_stepped),
    "qwen3_5_moe_text": _Experts(shared_width="shared_expert_intermediate_size"),
    "qwen3_moe": _Experts(sparse=_stepped),
    "qwen3_next": _Experts(shared_width="shared_expert_intermediate_size", sparse=_stepped),
}


def mixture(config: Config) -> Mixture | None:
    """Return what the experts of a model's sparse layers are, or None for a dense model."""
    found = _EXPERTS.get(str(config.get("model_type")))
    if found is None or not count(config, *found.count):
        return None
    experts, active = number(config, *found.count), number(config, *found.active)
    if active > experts:
        raise UsageError(f"{active} of {experts} experts per token?", hint="a token uses at most all experts")
    width = number(config, found.width)
    shared = count(config, *found.shared) if found.shared else 0
    shared_width = count(config, found.shared_width) if found.shared_width else shared * width
    if not found.shared:
        shared = 1 if shared_width else 0
    return Mixture(count=experts, active=active, width=width, shared=shared, shared_width=shared_width)


def sparse_layers(config: Config, layers: int) -> int:
    """Return how many of a model's layers have experts."""
    found = _EXPERTS.get(str(config.get("model_type")))
    return 0 if found is None or mixture(config) is None else sum(found.sparse(config, i) for i in range(layers))


def count_parameters(config: Config, *, layers: int, groups: tuple[LayerGroup, ...], cache: Cache | None) -> Parameters:
    """Return the parameters of a model of `layers` layers by its config.

    `groups` are the layers that attend; `cache` is the hybrid's, None for a model whose every layer attends. Raises
    `UsageError` if the config lacks a field that it takes.
    """
    kind, hidden = str(config.get("model_type")), number(config, "hidden_size")
    vocabulary = number(config, "vocab_size", default=_VOCABULARY.get(kind))
    tied = config.get("tie_word_embeddings", kind in _TIED)
    body = sum(len(group.layers) * _attention(config, group) for group in groups)
    if cache is not None and cache.recurrence is not None:
        body += cache.recurrent_layers * cache.recurrence.weights
    if cache is not None and cache.index_layers:
        body += cache.index_layers * _indexer(config)
    sparse = sparse_layers(config, layers)
    dense = _dense_layers(config, layers, sparse, cache)
    matrices = 2 if kind in _UNGATED else 3
    if dense:
        body += dense * matrices * hidden * _dense_width(config)
    experts = active = 0
    if (mix := mixture(config)) is not None:
        latent = count(config, "moe_latent_size")  # Nemotron 3: experts work on a narrower hidden state
        body += sparse * (hidden * mix.count + matrices * hidden * mix.shared_width + 2 * hidden * latent)
        expert = matrices * (latent or hidden) * mix.width
        experts, active = sparse * mix.count * expert, sparse * mix.active * expert
    return Parameters(
        embeddings=vocabulary * hidden * (1 if tied else 2), layers=body, experts=experts, active_experts=active
    )


def _dense_layers(config: Config, layers: int, sparse: int, cache: Cache | None) -> int:
    """Return how many layers have a plain MLP. Nemotron-H's MLPs are layers of their own."""
    if config.get("model_type") != "nemotron_h" or cache is None:
        return layers - sparse
    return sum(kind == NEITHER for kind in cache.kinds) - sparse


def _dense_width(config: Config) -> int:
    """Return the width of a plain MLP. LFM2 rounds its own (transformers `lfm2`, Lfm2MLP)."""
    kind = config.get("model_type")
    if kind == "granitemoehybrid":
        return number(config, "shared_intermediate_size")
    if kind == "llama4_text":
        return number(config, "intermediate_size_mlp")
    width = (
        number(config, "block_ff_dim", "intermediate_size") if kind == "lfm2" else number(config, "intermediate_size")
    )
    if kind != "lfm2" or not config.get("block_auto_adjust_ff_dim", True):
        return width
    multiple = number(config, "block_multiple_of", default=256)
    scaled = int(config.get("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
    return multiple * -(-scaled // multiple)


def _attention(config: Config, group: LayerGroup) -> int:
    """Return the weights of one attention layer: the four projections, or those of latent attention."""
    hidden, heads = number(config, "hidden_size"), group.query_heads
    if group.kind is not LayerKind.LATENT:
        queries = 2 if config.get("model_type") in _GATED_ATTENTION else 1
        return hidden * group.head_dim * ((queries + 1) * heads + 2 * group.kv_heads)
    latent = group.value_dim
    nope, value = number(config, "qk_nope_head_dim", default=128), number(config, "v_head_dim", default=128)
    rope = group.head_dim - latent
    rank = count(config, "q_lora_rank")
    query = (hidden + heads * (nope + rope)) * rank if rank else hidden * heads * (nope + rope)
    return query + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden


def expanded_dim(config: Config, groups: tuple[LayerGroup, ...]) -> int:
    """Return a latent layer's width of q·k and p·v by head with KV expanded, as for prompts; 0: none is latent.

    `qk_nope_head_dim + qk_rope_head_dim + v_head_dim` (DeepSeek-V2, arXiv 2405.04434, section 2.1): 320, where the
    absorbed form that decoding takes has 1,088.
    """
    for group in groups:
        if group.kind is LayerKind.LATENT:
            nope, value = number(config, "qk_nope_head_dim", default=128), number(config, "v_head_dim", default=128)
            return nope + (group.head_dim - group.value_dim) + value
    return 0


def _indexer(config: Config) -> int:
    """Return the weights of one indexer: queries from q's latent, one key, and a weight for each of its heads."""
    hidden, heads, width = (number(config, key) for key in ("hidden_size", "index_n_heads", "index_head_dim"))
    return number(config, "q_lora_rank") * heads * width + hidden * (width + heads)


def published_bytes(config: Config, parameters: Parameters) -> int:
    """Return the bytes of the checkpoint, from the config's dtype and quantisation.

    `fp8` holds all but the embeddings in one byte each; `mxfp4` the experts in 4 bits with an 8-bit scale per 32
    (OCP Microscaling Formats 1.0); `gptq` and `awq` all but the embeddings in `bits` with a 16-bit scale per
    `group_size`. What is not quantised has two bytes, or the dtype's. Raises `UsageError` for any other method.
    """
    quantised = config.get("quantization_config")
    plain = _FLOAT_BYTES.get(str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"), 2)
    if not quantised:
        return parameters.total * plain
    method = quantised.get("quant_method")
    body = parameters.total - parameters.embeddings
    if method == "fp8":
        return body + parameters.embeddings * 2
    if method == "mxfp4":
        return parameters.experts * 17 // 32 + (parameters.total - parameters.experts) * 2
    if method in ("gptq", "awq"):
        group = max(number(quantised, "group_size", default=128) if quantised.get("group_size") != -1 else 0, 0)
        bits = number(quantised, "bits") + (16 / group if group else 0)
        return int(body * bits / 8) + parameters.embeddings * 2
    raise UsageError(
        f"weights quantised by {method!r}, whose size is not known",
        hint="take quantization_config out of the config to plan with plain weights",
    )
