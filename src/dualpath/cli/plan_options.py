"""Options of `dualpath plan`, in groups: each is a table of the plan file, by flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from dualpath.plan.options import (
    ComputeOptions,
    MeasuredOptions,
    ModelOptions,
    NetworkOptions,
    PoolOptions,
    PriceOptions,
    WorkloadOptions,
)

Word = str | None
Count = int | None
Number = float | None


@dataclass(frozen=True)
class ModelFlags:
    """What is served."""

    title: ClassVar[str] = "Model"
    model: Annotated[Word, typer.Option(help="Model of the catalogue, or a folder with config.json.")] = None
    config: Annotated[Word, typer.Option(metavar="PATH", help="A hub-style config.json.")] = None
    layers: Annotated[Count, typer.Option(help="A bare shape instead of a model.")] = None
    kv_heads: Annotated[Count, typer.Option(help="KV heads of that shape.")] = None
    query_heads: Annotated[Count, typer.Option(help="Query heads; default: as many as KV heads.")] = None
    head_dim: Annotated[Count, typer.Option(help="Elements of a head.")] = None
    latent_dim: Annotated[Count, typer.Option(help="Latent elements of a token (MLA).")] = None
    rope_dim: Annotated[Count, typer.Option(help="Elements of RoPE beside them.")] = None
    sliding: Annotated[Word, typer.Option(metavar="TOKENS", help="All layers of the shape slide over so many.")] = None
    parameters: Annotated[Number, typer.Option(help="Parameters of the shape, such as 8e9.")] = None
    dtype: Annotated[
        Word,
        typer.Option("--kv-dtype", "--dtype", help="KV kept in: same, float32, bfloat16, float16, int8 or fp8. [same]"),
    ] = None

    def section(self) -> ModelOptions:
        """Return the table of the plan file that says the same."""
        return ModelOptions(
            name=self.model,
            config=self.config,
            layers=self.layers,
            kv_heads=self.kv_heads,
            query_heads=self.query_heads,
            head_dim=self.head_dim,
            latent_dim=self.latent_dim,
            rope_dim=self.rope_dim,
            window=self.sliding,
            parameters=self.parameters,
            dtype=self.dtype,
        )


@dataclass(frozen=True)
class WorkloadFlags:
    """What is asked of it."""

    title: ClassVar[str] = "Work"
    context: Annotated[Word, typer.Option(metavar="TOKENS", help="128K, 1M or a number. [128K]")] = None
    concurrency: Annotated[Count, typer.Option(help="Sequences decoded together. [8]")] = None
    target: Annotated[Number, typer.Option(metavar="TOKENS/S", help="Wanted of each sequence. [10]")] = None
    latency: Annotated[Word, typer.Option(metavar="TIME", help="Wanted end to end. [10s]")] = None
    chunk: Annotated[Word, typer.Option(metavar="TOKENS", help="Of a prompt at a time. [8192]")] = None

    def section(self) -> WorkloadOptions:
        """Return the table of the plan file that says the same."""
        return WorkloadOptions(
            context=self.context,
            concurrency=self.concurrency,
            target=self.target,
            latency=self.latency,
            chunk=self.chunk,
        )


@dataclass(frozen=True)
class ComputeFlags:
    """Where the model runs."""

    title: ClassVar[str] = "Hosts that compute"
    gpu: Annotated[Word, typer.Option(help="GPU of the catalogue. [H100]")] = None
    gpus: Annotated[Count, typer.Option(help="GPUs by host. [1]")] = None
    hosts: Annotated[Count, typer.Option(help="Hosts that the model is spread over. [1]")] = None
    hot: Annotated[Word, typer.Option(metavar="SIZE", help="HBM for KV (Path A). [what is left]")] = None
    window: Annotated[Word, typer.Option(metavar="SIZE", help="Most HBM for prefetched KV. [1/8 of that]")] = None
    dram: Annotated[Word, typer.Option(metavar="SIZE", help="This host's DRAM for KV. [256GiB]")] = None
    dram_bandwidth: Annotated[Word, typer.Option(metavar="RATE", help="Of that DRAM. [300GB/s]")] = None

    def section(self) -> ComputeOptions:
        """Return the table of the plan file that says the same."""
        return ComputeOptions(
            gpu=self.gpu,
            gpus=self.gpus,
            hosts=self.hosts,
            hot=self.hot,
            window=self.window,
            dram=self.dram,
            dram_bandwidth=self.dram_bandwidth,
        )


@dataclass(frozen=True)
class NetworkFlags:
    """What those hosts are reached by."""

    title: ClassVar[str] = "Their NICs"
    nic: Annotated[Word, typer.Option(help="NIC of the catalogue, or 400G, 2x100G. [400G]")] = None
    nics: Annotated[Count, typer.Option(help="Such NICs by host. [1]")] = None
    storage_nics: Annotated[Count, typer.Option(help="Of storage, for the P/D ratio. [1]")] = None
    round_trip: Annotated[Word, typer.Option(metavar="TIME", help="To a node and back. [16us]")] = None

    def section(self) -> NetworkOptions:
        """Return the table of the plan file that says the same."""
        return NetworkOptions(nic=self.nic, nics=self.nics, storage_nics=self.storage_nics, round_trip=self.round_trip)


@dataclass(frozen=True)
class PoolFlags:
    """Where the rest of the KV is."""

    title: ClassVar[str] = "Pool nodes"
    nodes: Annotated[Count, typer.Option(help="Pool nodes. [4]")] = None
    node_memory: Annotated[Word, typer.Option(metavar="SIZE", help="DRAM of a node for KV. [512GiB]")] = None
    node_nics: Annotated[Count, typer.Option(help="NICs of a node. [1]")] = None
    pool_bandwidth: Annotated[Word, typer.Option(metavar="RATE", help="At which a node reads KV. [300GB/s]")] = None
    pool_flops: Annotated[Word, typer.Option(metavar="FLOP/S", help="Of a node, such as 3T. [no limit]")] = None

    def section(self) -> PoolOptions:
        """Return the table of the plan file that says the same."""
        return PoolOptions(
            nodes=self.nodes,
            memory=self.node_memory,
            nics=self.node_nics,
            bandwidth=self.pool_bandwidth,
            flops=self.pool_flops,
        )


@dataclass(frozen=True)
class MeasuredFlags:
    """What was measured."""

    title: ClassVar[str] = "Measured instead of derived"
    measured: Annotated[Word, typer.Option(metavar="RAW.json", help="Rates of `dualpath bench raw --json`.")] = None
    measured_compute: Annotated[Word, typer.Option(metavar="TIME", help="A step outside attention, measured.")] = None
    measured_local: Annotated[Word, typer.Option(metavar="RATE", help="Local attention over KV, measured.")] = None

    def section(self) -> MeasuredOptions:
        """Return the table of the plan file that says the same."""
        return MeasuredOptions(raw=self.measured, compute=self.measured_compute, local=self.measured_local)


@dataclass(frozen=True)
class PriceFlags:
    """What things cost."""

    title: ClassVar[str] = "Prices"
    price_gpu: Annotated[Number, typer.Option(metavar="USD", help="Of a GPU with its share of the host.")] = None
    price_node: Annotated[Number, typer.Option(metavar="USD", help="Of a pool node with memory and NICs.")] = None
    price_nic: Annotated[Number, typer.Option(metavar="USD", help="Of a NIC here. [there already]")] = None
    price_dram: Annotated[Number, typer.Option(metavar="USD", help="Of a GiB here. [there already]")] = None
    gpu_hour: Annotated[Number, typer.Option(metavar="USD", help="A GPU by the hour instead.")] = None
    node_hour: Annotated[Number, typer.Option(metavar="USD", help="A node by the hour instead.")] = None
    lifetime: Annotated[Number, typer.Option(metavar="YEARS", help="Over which prices are written off. [4]")] = None

    def section(self) -> PriceOptions:
        """Return the table of the plan file that says the same."""
        return PriceOptions(
            gpu=self.price_gpu,
            node=self.price_node,
            nic=self.price_nic,
            dram_gib=self.price_dram,
            gpu_hour=self.gpu_hour,
            node_hour=self.node_hour,
            lifetime_years=self.lifetime,
        )


@dataclass(frozen=True)
class CheckFlags:
    """What a plan is held against."""

    title: ClassVar[str] = "Instead of a plan"
    check: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN.json", help="Compare with what `dualpath run --json` measured; may be repeated."),
    ] = None
    raw: Annotated[Path | None, typer.Option(metavar="RAW.json", help="Links for --check.")] = None
