"""What a user says, by plan file or by flags.

    [model]      name, config, layers, kv_heads, query_heads, head_dim, latent_dim, rope_dim, window, parameters, dtype
    [workload]   context, concurrency, target, latency, chunk
    [compute]    gpu, gpus, hosts, hot, window, dram, dram_bandwidth
    [network]    nic, nics, storage_nics, round_trip
    [pool]       nodes, memory, bandwidth, flops, nics
    [measured]   raw, compute, local
    [prices]     gpu, node, nic, dram_gib, gpu_hour, node_hour, lifetime_years

Everything is optional but the model. A value is a number or a text with a unit; an unknown key is an error. A flag goes
before the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from dualpath.errors import UsageError
from dualpath.plan.inputs import Prices

Text = str | int | float | None
S = TypeVar("S", bound=msgspec.Struct)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the plan file: what is `None` was not said."""


class ModelOptions(Section, frozen=True):
    """Which model, by name, by a config's path, or as a bare shape; `dtype` is that of its KV."""

    name: str | None = None
    config: str | None = None
    layers: int | None = None
    kv_heads: int | None = None
    query_heads: int | None = None
    head_dim: int | None = None
    latent_dim: int | None = None
    rope_dim: int | None = None
    window: Text = None
    parameters: float | None = None
    dtype: str | None = None


class WorkloadOptions(Section, frozen=True):
    """What is asked of it."""

    context: Text = None
    concurrency: Text = None
    target: float | None = None
    latency: Text = None
    chunk: Text = None


class ComputeOptions(Section, frozen=True):
    """Where the model runs."""

    gpu: str | None = None
    gpus: int | None = None
    hosts: int | None = None
    hot: Text = None
    window: Text = None
    dram: Text = None
    dram_bandwidth: str | None = None


class NetworkOptions(Section, frozen=True):
    """NICs of one host."""

    nic: str | None = None
    nics: int | None = None
    storage_nics: int | None = None
    round_trip: Text = None


class PoolOptions(Section, frozen=True):
    """Pool nodes."""

    nodes: int | None = None
    memory: Text = None
    bandwidth: str | None = None
    flops: Text = None
    nics: int | None = None


class MeasuredOptions(Section, frozen=True):
    """`raw`: path of what `dualpath bench raw --json` said; `compute`, `local`: see `inputs.Measured`."""

    raw: str | None = None
    compute: Text = None
    local: str | None = None


class PlanOptions(Section, frozen=True):
    """A whole plan file."""

    model: ModelOptions = ModelOptions()
    workload: WorkloadOptions = WorkloadOptions()
    compute: ComputeOptions = ComputeOptions()
    network: NetworkOptions = NetworkOptions()
    pool: PoolOptions = PoolOptions()
    measured: MeasuredOptions = MeasuredOptions()
    prices: Prices = Prices()


DEFAULTS = PlanOptions(
    workload=WorkloadOptions(context="128K", concurrency=8, target=10.0, latency="10s", chunk=8192),
    compute=ComputeOptions(gpu="H100", gpus=1, hosts=1, dram="256GiB", dram_bandwidth="300GB/s"),
    network=NetworkOptions(nic="400G", nics=1, storage_nics=1, round_trip="16us"),
    pool=PoolOptions(nodes=4, memory="512GiB", bandwidth="300GB/s", flops="inf", nics=1),
)
"""One GPU with one NIC, and a few nodes. A socket with eight channels of DDR5-4800 reads 307 GB/s; 16 us is the round
trip over NDR InfiniBand in arXiv 2606.01502; chunks of 8,192 tokens are vLLM's default on large GPUs."""


def parse_file(text: str) -> PlanOptions:
    """Return the options of a plan file. Raises `UsageError` for bad TOML, an unknown key or a wrong type."""
    try:
        return msgspec.convert(tomllib.loads(text), PlanOptions)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"plan file: {error}", hint="docs/guides/plan.md lists tables and keys") from None


def merge(first: PlanOptions, second: PlanOptions) -> PlanOptions:
    """Return the options of `first`, and where it says nothing those of `second`."""
    return PlanOptions(
        model=_over(first.model, second.model),
        workload=_over(first.workload, second.workload),
        compute=_over(first.compute, second.compute),
        network=_over(first.network, second.network),
        pool=_over(first.pool, second.pool),
        measured=_over(first.measured, second.measured),
        prices=_over(first.prices, second.prices),
    )


def said(options: PlanOptions) -> Iterator[str]:
    """Yield `table.key` for everything that `options` say."""
    for table in PlanOptions.__struct_fields__:
        section = getattr(options, table)
        for key in section.__struct_fields__:
            if getattr(section, key) != getattr(type(section)(), key):
                yield f"{table}.{key}"


def _over(first: S, second: S) -> S:
    """Return a section with the values of `first`, and those of `second` where it has none."""
    values = {
        key: getattr(second, key) if getattr(first, key) in (None, getattr(type(first)(), key)) else getattr(first, key)
        for key in first.__struct_fields__
    }
    return type(first)(**values)
