"""From what was said to a deployment in base units: units parsed, catalogue consulted, nonsense questioned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from dualpath.cost.kv import DTYPES
from dualpath.errors import UsageError
from dualpath.kv.layout import DTYPE_BYTES
from dualpath.plan import hardware
from dualpath.plan.fields import MOST_LAYERS, MOST_PARAMETERS
from dualpath.plan.inputs import Compute, Deployment, Measured, Network, Origin, Pool, Prices, Workload, shape_of
from dualpath.plan.measured import RawRates
from dualpath.plan.model import ModelSpec, bare, bare_latent, load_config, load_model
from dualpath.plan.options import (
    DEFAULTS,
    ComputeOptions,
    ModelOptions,
    NetworkOptions,
    PlanOptions,
    PoolOptions,
    PriceOptions,
    WorkloadOptions,
    merge,
    said,
)
from dualpath.plan.quantities import parse_flop_per_s, parse_seconds, parse_tokens
from dualpath.units import parse_bytes

BLOCK_TOKENS = 256
SAME = "same"
"""What a user calls the dtype that the model's KV has by itself."""
MOST_NODES = 4096
MOST_IN_HOST = 1024
MOST_TARGET = 1_000_000
_NAMES = {
    "workload.context": "context", "workload.concurrency": "concurrency", "workload.target": "target",
    "workload.latency": "latency", "workload.chunk": "chunk", "compute.gpu": "gpus", "compute.gpus": "gpus",
    "compute.hosts": "gpus", "compute.dram": "dram", "compute.dram_bandwidth": "dram", "network.nic": "nic",
    "network.nics": "nic", "network.round_trip": "round_trip", "pool.nodes": "nodes", "pool.memory": "nodes",
    "pool.nics": "nodes", "pool.bandwidth": "pool_bandwidth", "pool.flops": "pool_flops", "model.dtype": "dtype",
    "compute.hot": "hot", "compute.window": "window", "network.storage_nics": "storage_nics",
    **{f"prices.{name}": f"price_{name}" for name in Prices.__struct_fields__},
}  # fmt: skip
"""Option: the row of the inputs table that it stands in."""
_MOST = {
    "layers": MOST_LAYERS, "kv_heads": 10**5, "query_heads": 10**5, "head_dim": 10**5, "latent_dim": 10**6,
    "rope_dim": 10**6, "parameters": MOST_PARAMETERS,
}  # fmt: skip
"""More than any model has: a slip, and a large range to no avail."""


_SHAPE = ("layers", "kv_heads", "query_heads", "head_dim", "latent_dim", "rope_dim", "window", "parameters")
_USUAL = {"h100": "h100-sxm", "a100": "a100-80gb"}
"""What a family's bare name stands for."""


def deployment(options: PlanOptions, *, raw: RawRates | None = None) -> Deployment:
    """Return the deployment that `options` describe, with `raw` rates in place of nominal ones.

    Raises `UsageError` for what makes no sense, `UnknownModelError` for a model that is not known.
    """
    model, dtype = _model(options.model)
    full = merge(options, _defaults(model))
    origins: dict[str, Origin] = {_NAMES[name]: "given" for name in said(options) if name in _NAMES}
    nic = hardware.load_nic(str(full.network.nic))
    if "nic" in origins and nic.source != "given":
        origins["nic"] = "nominal"
    network = _network(full.network, nic)
    if raw is not None:
        nics = raw.rails if options.network.nics is None else network.nics
        network = msgspec.structs.replace(
            network, nic_bytes_per_s=raw.link_bytes_per_s, nics=nics, round_trip_s=raw.round_trip_s
        )
        origins |= {"nic": "measured", "round_trip": "measured"}
    compute = _compute(full.compute)
    measured = full.measured
    prices = _prices(full.prices, compute.gpu)
    return Deployment(
        model=model,
        shape=shape_of(model, dtype, BLOCK_TOKENS),
        workload=_workload(full.workload, model),
        compute=compute,
        network=network,
        pool=_pool(full.pool),
        prices=prices,
        measured=Measured(
            compute_s=None if measured.compute is None else _positive("compute time", measured.compute, parse_seconds),
            local_bytes_per_s=None if measured.local is None else hardware.parse_bytes_per_s(measured.local),
        ),
        block_tokens=BLOCK_TOKENS,
        origins=origins,
        notes=() if raw is None else raw.notes,
    )


def _defaults(model: ModelSpec) -> PlanOptions:
    """Return the defaults, with a context no longer than the model's."""
    context = parse_tokens(DEFAULTS.workload.context or 0)
    if not 0 < model.max_context < context:
        return DEFAULTS
    workload = msgspec.structs.replace(DEFAULTS.workload, context=model.max_context)
    return msgspec.structs.replace(DEFAULTS, workload=workload)


def _model(o: ModelOptions) -> tuple[ModelSpec, str]:
    """Return the model and the dtype of its KV."""
    shape = [key for key in _SHAPE if getattr(o, key) is not None]
    if (o.name is not None) + (o.config is not None) + bool(shape) != 1:
        raise UsageError(
            "which model?" if o.name is None and o.config is None else "more than one model, or a shape beside it",
            hint="one of --model NAME, --config PATH, or a shape: --layers 32 --kv-heads 32 --head-dim 128",
        )
    if o.dtype not in (None, SAME, *DTYPES):
        raise UsageError(f"unknown dtype {o.dtype!r} of KV", hint=f"one of {', '.join((SAME, *DTYPES))}")
    load = load_config if o.name is None else load_model
    model = _bare(o) if shape else load(o.name or o.config or "")
    return model, model.kv_dtype if o.dtype in (None, SAME) else o.dtype


def _bare(o: ModelOptions) -> ModelSpec:
    """Return a model by its shape; its weights, if there are any, are in 16 bits."""
    dtype = o.dtype if o.dtype in DTYPE_BYTES else "bfloat16"
    parameters = 0 if o.parameters is None else int(_positive("number of parameters", o.parameters, float))
    for key, most in _MOST.items():
        if (getattr(o, key) or 0) > most:
            raise UsageError(f"a model with {getattr(o, key):,} {key.replace('_', ' ')}?", hint=f"at most {most:,}")
    if o.latent_dim is not None:
        if o.layers is None or o.query_heads is None or o.kv_heads is not None or o.head_dim is not None:
            raise UsageError(
                "which latent shape?", hint="--layers, --query-heads, --latent-dim, --rope-dim and no more"
            )
        return bare_latent(
            layers=o.layers, latent_dim=o.latent_dim, rope_dim=o.rope_dim or 0, query_heads=o.query_heads, dtype=dtype,
            parameters=parameters,
        )  # fmt: skip
    if o.layers is None or o.kv_heads is None or o.head_dim is None:
        raise UsageError("a shape needs --layers, --kv-heads and --head-dim", hint="all three of them")
    return bare(
        layers=o.layers, kv_heads=o.kv_heads, head_dim=o.head_dim, query_heads=o.query_heads, dtype=dtype,
        window=0 if o.window is None else parse_tokens(o.window), parameters=parameters,
    )  # fmt: skip


def _workload(o: WorkloadOptions, model: ModelSpec) -> Workload:
    context = int(_positive("context", o.context, parse_tokens))
    check_context(context, model)
    return Workload(
        context=context,
        concurrency=_count("sequences", o.concurrency),
        target_tokens_per_s=_target(o.target),
        latency_s=_positive("latency", o.latency, parse_seconds),
        chunk_tokens=int(_positive("chunk", o.chunk, parse_tokens)),
    )


def _target(value: float | None) -> float:
    if value is None or not 1 / MOST_TARGET <= value <= MOST_TARGET:
        raise UsageError(f"a target of {value} tokens/s?", hint=f"give {1 / MOST_TARGET:f} to {MOST_TARGET:,}")
    return value


def check_context(context: int, model: ModelSpec) -> None:
    """Raise `UsageError` for a context beyond the model's, where that is known."""
    if model.max_context and context > model.max_context:
        raise UsageError(
            f"a context of {context:,} tokens, where {model.name} has at most {model.max_context:,}?",
            hint=f"use --context {model.max_context} or less",
        )


def _compute(o: ComputeOptions) -> Compute:
    return Compute(
        gpu=hardware.load_gpu(_USUAL.get(str(o.gpu).lower(), str(o.gpu))),
        gpus=_count("GPUs in a host", o.gpus, most=MOST_IN_HOST),
        hosts=_count("hosts", o.hosts, most=MOST_NODES),
        dram_bytes=_size("DRAM", o.dram),
        dram_bytes_per_s=hardware.parse_bytes_per_s(str(o.dram_bandwidth)),
        hot_bytes=None if o.hot is None else _size("a hot region", o.hot),
        window_bytes=None if o.window is None else _size("a window", o.window),
    )


def _network(o: NetworkOptions, nic: hardware.NicSpec) -> Network:
    return Network(
        nic_bytes_per_s=nic.bytes_per_s,
        nics=_count("NICs in a host", o.nics, most=MOST_IN_HOST),
        round_trip_s=_positive("round trip", o.round_trip, parse_seconds),
        storage_nics=_count("storage NICs in a host", o.storage_nics, most=MOST_IN_HOST),
    )


def _pool(o: PoolOptions) -> Pool:
    return Pool(
        nodes=_count("nodes", o.nodes, most=MOST_NODES),
        memory_bytes=_size("a node's memory", o.memory),
        bytes_per_s=hardware.parse_bytes_per_s(str(o.bandwidth)),
        flop_per_s=math.inf if o.flops == "inf" else _positive("FLOP/s of a node", o.flops, parse_flop_per_s),
        nics=_count("NICs in a node", o.nics, most=MOST_IN_HOST),
    )


def _prices(o: PriceOptions, gpu: hardware.Gpu) -> Prices:
    """Return the prices, a GPU's out of the catalogue where none is given and there is one."""
    given = {name: price for name in o.__struct_fields__ if (price := getattr(o, name)) is not None}
    for name, price in given.items():
        if not 0 < price < math.inf:
            raise UsageError(f"a price or lifetime {name} of {price:g}?", hint="give more than 0, or leave it out")
    prices = Prices(**given)
    if prices.gpu is None and prices.gpu_hour is None and gpu.price_usd:
        return msgspec.structs.replace(prices, gpu=gpu.price_usd)
    return prices


def _positive(what: str, value: Any, parse: Callable[[Any], float]) -> float:
    found = parse(value)
    if not 0 < found < math.inf:
        raise UsageError(f"a {what} of {value}?", hint="give more than 0")
    return found


def _count(what: str, value: Any, *, most: int = 1_000_000) -> int:
    if not isinstance(value, int) or not 1 <= value <= most:
        raise UsageError(f"{value} {what}?", hint=f"give 1 to {most:,}")
    return value


def _size(what: str, value: Any) -> float:
    try:
        found = float(parse_bytes(value if isinstance(value, int) else str(value)))
    except OverflowError:
        found = math.inf
    if not 0 <= found < math.inf:
        raise UsageError(f"{what} of {value}?", hint="give 0 or more")
    return found
