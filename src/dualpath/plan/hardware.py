"""The GPUs and NICs that a plan reckons with: nominal rates, to be replaced by measured ones where there are any."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU by its data sheet. Rates are peaks; bytes are as sold, FLOP/s are dense.

    `price_usd` is a default to be edited, not a quotation: 0 where nobody publishes one, as of `price_date`.
    `nvlink_bytes_per_s` is the sum of both directions of the GPU's links to others, 0 where it has none.
    """

    name: str
    source: str
    memory_bytes: int
    memory_bytes_per_s: float
    bf16_flop_per_s: float
    nvlink_bytes_per_s: float
    pcie_generation: int
    pcie_lanes: int
    price_usd: float = 0.0
    price_date: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NicSpec:
    """A NIC by its data sheet. `rdma` is what it speaks: `infiniband`, `roce`, `iwarp`, `srd` (EFA), or nothing."""

    name: str
    source: str
    ports: int
    bits_per_s: float  # of one port
    pcie_generation: int
    pcie_lanes: int
    rdma: tuple[str, ...] = ()

    @property
    def bytes_per_s(self) -> float:
        """Return the bytes per second of all ports in one direction, before protocol and PCIe."""
        return self.ports * self.bits_per_s / 8
