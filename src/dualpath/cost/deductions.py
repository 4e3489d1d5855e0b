"""What is taken from HBM, NICs and PCIe before any of it is left for KV."""

from __future__ import annotations

ACTIVATION_BYTES = 34
"""Bytes of one layer's activations by token and hidden unit, 16-bit, without the score matrix, which flash attention
never stores: Korthikanti et al. 2022 (arXiv 2205.05198), equation 1. Training keeps them for every layer; inference
holds one layer's at a time, so this is an upper bound."""
BUFFER_SHARE = 0.1
"""Share of HBM for graphs, communication buffers and fragmentation: what vLLM leaves (`gpu_memory_utilization` 0.9)."""


def activation_bytes(tokens: int, hidden_size: int) -> int:
    """Return the HBM that a forward pass over `tokens` tokens needs beside weights and KV."""
    return ACTIVATION_BYTES * tokens * hidden_size


def kv_room_bytes(
    hbm_bytes: float, *, weights: float, activations: float, buffers: float, window: float = 0.0
) -> float:
    """Return the HBM left for KV after weights, activations, buffers and the prefetch window; negative if none is."""
    return hbm_bytes - weights - activations - buffers - window


def all_to_all_bytes_per_token(
    *, layers: int, active: int, hidden_size: int, hosts: int, dispatch_bytes: int = 1, combine_bytes: int = 2
) -> float:
    """Return what a host's NICs send for one token of a mixture of experts spread over `hosts` hosts.

    In each expert layer the token's hidden row goes to `active` experts (dispatch, fp8) and comes back from each
    (combine, bf16): DeepSeek-V3, arXiv 2412.19437, section 3.3. `(hosts - 1) / hosts` of that leaves the host; rows for
    several experts of one host are counted each, so this is an upper bound. Nothing leaves a single host.
    """
    away = (hosts - 1) / hosts
    return layers * active * hidden_size * (dispatch_bytes + combine_bytes) * away


def nic_left_bytes_per_s(nic_bytes_per_s: float, busy_bytes_per_s: float) -> float:
    """Return what NICs have left beside other traffic, never below 0."""
    return max(0.0, nic_bytes_per_s - busy_bytes_per_s)


def receiver_bytes_per_s(
    *, nic_bytes_per_s: float, pcie_bytes_per_s: float, pcie_busy_bytes_per_s: float = 0.0
) -> float:
    """Return how fast a receiver can take KV into its accelerators: NIC and PCIe are in a row, so the slower counts.

    A byte from a NIC crosses the GPU's own PCIe link, as does a byte from this host's DRAM (`pcie_busy_bytes_per_s`).
    """
    return min(nic_bytes_per_s, nic_left_bytes_per_s(pcie_bytes_per_s, pcie_busy_bytes_per_s))
