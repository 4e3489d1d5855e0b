"""What a plan takes for granted, and what it was made from: shown with every answer. Pure."""

from __future__ import annotations

import math

from dualpath.kv.layout import LayerKind
from dualpath.plan.inputs import Deployment, Origin
from dualpath.plan.quantities import plural, seconds
from dualpath.plan.result import InputRow
from dualpath.units import format_bits_per_s, format_bytes, format_bytes_per_s, three_digits


def input_rows(d: Deployment) -> tuple[InputRow, ...]:
    """Return every input as text with its origin."""
    gpu, host, net, pool, load = d.compute.gpu, d.compute, d.network, d.pool, d.workload
    nics = net.nics * net.nic_bytes_per_s
    arithmetic = (
        "no limit" if math.isinf(pool.flop_per_s) else f"{three_digits(pool.flop_per_s / 1e12)} TFLOP/s by node"
    )
    rows: list[tuple[str, str, Origin]] = [
        ("dtype", f"KV in {d.shape.dtype}", "default" if d.model.source == "given" else "nominal"),
        ("context", plural(load.context, "token"), "default"),
        ("concurrency", plural(load.concurrency, "sequence"), "default"),
        ("target", f"{load.target_tokens_per_s:g} tokens/s each", "default"),
        ("latency", seconds(load.latency_s), "default"),
        ("chunk", plural(load.chunk_tokens, "token"), "default"),
        ("gpus", f"{host.all_gpus} x {gpu.name}", "default"),
        ("hbm", f"{format_bytes(gpu.memory_bytes)}, {format_bytes_per_s(gpu.memory_bytes_per_s)} each", "nominal"),
        ("flops", f"{three_digits(gpu.bf16_flop_per_s / 1e12)} TFLOP/s each (bf16, dense)", "nominal"),
        ("hot", _size(host.hot_bytes, "what HBM has left"), "default"),
        ("window", _size(host.window_bytes, "1/8 of that at most"), "default"),
        ("dram", f"{format_bytes(host.dram_bytes)}, {format_bytes_per_s(host.dram_bytes_per_s)} by host", "default"),
        (
            "nic",
            f"{net.nics} x {format_bits_per_s(8 * net.nic_bytes_per_s)} = {format_bytes_per_s(nics)} by host",
            "default",
        ),
        ("storage_nics", f"{net.storage_nics} by host (for the P/D ratio)", "default"),
        ("round_trip", seconds(net.round_trip_s), "default"),
        ("nodes", f"{pool.nodes} of {format_bytes(pool.memory_bytes)}, {pool.nics} NIC each", "default"),
        ("pool_bandwidth", f"{format_bytes_per_s(pool.bytes_per_s)} by node", "default"),
        ("pool_flops", arithmetic, "default"),
    ]
    local, busy = d.measured.local_bytes_per_s, d.measured.compute_s
    if local is not None:
        rows.append(("local_attention", f"{format_bytes_per_s(local)}, instead of HBM's peak", "measured"))
    if busy is not None:
        rows.append(("outside_attention", f"{seconds(busy)} a step", "measured"))
    for name in d.prices.__struct_fields__:
        if (price := getattr(d.prices, name)) is not None:
            rows.append((f"price_{name}", f"{price:,g}" + ("" if name == "lifetime_years" else " USD"), "default"))
    return tuple(InputRow(name.replace("_", " "), value, d.origins.get(name, origin)) for name, value, origin in rows)


def assumptions(d: Deployment) -> tuple[str, ...]:
    """Return what is taken for granted here, one sentence each."""
    always = (
        "Rates are peaks unless measured: a real system reaches a part of them, and every scheme suffers.",
        "A step takes what its longest chain takes: fetches hide behind compute, round trips and partials do not.",
        "All sequences are as long as the context, decode in step, and share nothing.",
        "Weights, KV and work are divided evenly among the GPUs, at no cost of their own.",
        "Every step reads all KV that its attention sees, local KV in the proportion in which it is held.",
        "Buffers, graphs and fragmentation take 10 % of HBM; the window up to 1/8 of what is left for KV.",
        "TTFT is one prompt on idle GPUs: arithmetic at peak or reading the weights for each chunk, or writing and "
        "re-reading its remote KV.",
        "Costs are for machines that are never idle; power, space, switches and people are left out.",
    )
    here = []
    if not d.model.parameters:
        here.append("The model's parameters are not known: its weights take no memory here, and no time.")
    if math.isinf(d.pool.flop_per_s):
        here.append("Nodes are bound by memory alone; for MLA models on CPU nodes give --pool-flops.")
    if not d.shape.expanded_dim and any(group.kind is LayerKind.LATENT for group in d.shape.groups):
        here.append("Prompts compute latent attention in its absorbed form, as decoding does.")
    if d.model.experts is not None:
        here.append("Tokens choose experts evenly and independently.")
    return (*always, *here, *d.notes)


def _size(count: float | None, otherwise: str) -> str:
    return otherwise if count is None else format_bytes(count)
