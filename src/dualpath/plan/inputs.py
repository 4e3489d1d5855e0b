"""What a plan is made from: one frozen value object by subject, every number in base units and with its origin.

| origin | where the number comes from |
|---|---|
| `given` | a flag or the plan file |
| `measured` | a measurement that replaces a nominal value |
| `nominal` | a data sheet in the catalogue |
| `default` | a default of this program, to be replaced by yours |
"""

from __future__ import annotations

from typing import Literal

import msgspec

from dualpath.cost.kv import KVShape
from dualpath.plan.hardware import Gpu
from dualpath.plan.model import ModelSpec

Origin = Literal["given", "measured", "nominal", "default"]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the model: `concurrency` sequences of `context` tokens, decoded together.

    `target_tokens_per_s` is of each sequence; `latency_s` the end-to-end time in which a user wants an answer;
    `chunk_tokens` what a prompt is computed in at a time.
    """

    context: int
    concurrency: int
    target_tokens_per_s: float
    latency_s: float
    chunk_tokens: int

    @property
    def budget_s(self) -> float:
        """Return the time per output token that meets the target."""
        return 1 / self.target_tokens_per_s


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """Where the model runs: `hosts` hosts of `gpus` GPUs each, as one (tensor or expert parallel).

    `hot_bytes` and `window_bytes`: HBM for Path A and Path B, `None` as much as is left or wanted. `dram_bytes` is each
    host's own DRAM for KV, `dram_bytes_per_s` how fast it is read.
    """

    gpu: Gpu
    gpus: int
    hosts: int
    dram_bytes: float
    dram_bytes_per_s: float
    hot_bytes: float | None = None
    window_bytes: float | None = None

    @property
    def all_gpus(self) -> int:
        """Return the GPUs of all hosts."""
        return self.gpus * self.hosts


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """NICs by host, the bytes per second of one, and the round trip to a node and back.

    `storage_nics` of them are for storage, where a cluster keeps such apart (prefill/decode ratio only).
    """

    nic_bytes_per_s: float
    nics: int
    round_trip_s: float
    storage_nics: int = 1


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Pool nodes, alike: DRAM for KV, the rate at which attention reads it, FLOP/s (infinite: not a limit), NICs."""

    nodes: int
    memory_bytes: float
    bytes_per_s: float
    flop_per_s: float
    nics: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of this deployment that replace what would be derived from data sheets; `None`: not measured."""

    compute_s: float | None = None
    """A decode step outside attention."""
    local_bytes_per_s: float | None = None
    """KV read by local attention, over all accelerators."""


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars: bought and written off over `lifetime_years`, or by the hour, which goes first. `None`: not known."""

    gpu: float | None = None
    node: float | None = None
    nic: float | None = None
    dram_gib: float | None = None
    gpu_hour: float | None = None
    node_hour: float | None = None
    lifetime_years: float = 4.0


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `origins` says by name where a number is from; `notes` what was taken from measurements."""

    model: ModelSpec
    shape: KVShape
    workload: Workload
    compute: Compute
    network: Network
    pool: Pool
    prices: Prices
    measured: Measured = Measured()
    block_tokens: int = 256
    compressed: str = "fp8"
    origins: dict[str, Origin] = {}
    notes: tuple[str, ...] = ()


def shape_of(model: ModelSpec, dtype: str, block_tokens: int) -> KVShape:
    """Return the KV of `model` stored as `dtype` in blocks of `block_tokens`."""
    return KVShape(
        groups=model.groups,
        dtype=dtype,
        state_bytes=model.state_bytes,
        index_bytes_per_token=model.index_bytes_per_token,
        index_top_k=model.index_top_k,
        expanded_dim=model.expanded_dim,
        block_tokens=block_tokens,
    )
