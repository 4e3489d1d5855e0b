"""What a deployment has: memory and links, less what must be deducted, and the decode step that follows. Pure."""

from __future__ import annotations

from dualpath.cost import bandwidth, compute, deductions, kv, tpot, window
from dualpath.cost.balance import NodeRates, Rates, Speed, StepLoad
from dualpath.errors import CapacityError
from dualpath.plan.inputs import Deployment
from dualpath.plan.result import Demand, Links, Memory, Window
from dualpath.units import format_bytes

WINDOW_SHARE = 1 / 8
"""Most of the room for KV that the prefetch window may take, unless the user says otherwise."""


def total_kv_bytes(d: Deployment) -> int:
    """Return the KV bytes of all sequences."""
    return kv.held_bytes(d.shape, d.workload.context) * d.workload.concurrency


def step_read_bytes(d: Deployment) -> int:
    """Return the KV bytes that one decode step of all sequences reads."""
    return kv.read_bytes(d.shape, d.workload.context) * d.workload.concurrency


def kv_layers(d: Deployment) -> int:
    """Return the number of layers that keep KV by token: each costs a shipped query its round trip."""
    return sum(len(group.layers) for group in d.shape.groups)


def activation_bytes(d: Deployment) -> int:
    """Return the HBM that a chunk of a prompt beside a decode step needs for activations."""
    return deductions.activation_bytes(d.workload.chunk_tokens + d.workload.concurrency, d.model.hidden_size)


def compute_s(d: Deployment) -> float:
    """Return the time of a decode step outside attention; 0 where the model's parameters are not known."""
    if d.measured.compute_s is not None:
        return d.measured.compute_s
    model, gpus, batch = d.model, d.compute.all_gpus, d.workload.concurrency
    if not model.parameters:
        return 0.0
    experts = model.experts
    read = float(model.weight_bytes)
    if experts is not None:
        share = model.active_parameters / model.parameters
        read = compute.weights_read_bytes(read, share, count=experts.count, active=experts.active, tokens=batch)
    gpu = d.compute.gpu
    return compute.outside_attention_s(
        read,
        gpu.memory_bytes_per_s * gpus,
        compute.linear_flop(model.active_parameters, batch),
        gpu.bf16_flop_per_s * gpus,
    )


def links(d: Deployment) -> Links:
    """Return what every link carries, and what of it is left for KV at the target rate."""
    model, network, host = d.model, d.network, d.compute
    nics = network.nic_bytes_per_s * network.nics * host.hosts
    experts = model.experts
    busy = 0.0
    if experts is not None:
        per_token = deductions.all_to_all_bytes_per_token(
            layers=experts.layers, active=experts.active, hidden_size=model.hidden_size, hosts=host.hosts
        )
        busy = per_token * d.workload.concurrency * d.workload.target_tokens_per_s
    pcie = host.gpu.pcie_bytes_per_s * host.all_gpus
    sender = network.nic_bytes_per_s * d.pool.nics
    receiver = deductions.receiver_bytes_per_s(
        nic_bytes_per_s=deductions.nic_left_bytes_per_s(nics, busy), pcie_bytes_per_s=pcie
    )
    return Links(
        nic_bytes_per_s=nics,
        all_to_all_bytes_per_s=busy,
        pcie_bytes_per_s=pcie,
        receiver_bytes_per_s=receiver,
        sender_bytes_per_s=sender,
        all_senders_bytes_per_s=sender * d.pool.nodes,
        joined_bytes_per_s=bandwidth.joined_bytes_per_s([sender] * d.pool.nodes, receiver),
        tier_bytes_per_s=min(pcie, d.compute.dram_bytes_per_s * host.hosts),
    )


def memory(d: Deployment) -> Memory:
    """Return what comes off HBM and which tier holds what. Raises `CapacityError` for a hot region that cannot be."""
    ahead = prefetch_window(d)
    return _memory(d, 0.0 if ahead is None else ahead.bytes)


def prefetch_window(d: Deployment) -> Window | None:
    """Return the window that prefetching a decode step's remote KV wants, `None` where nothing is remote.

    The period is a layer's; compute drains fetched bytes no faster than they can come. The window may take up to
    `WINDOW_SHARE` of the room for KV, or what `--window` or a given hot region leave it.
    """
    found, has = _memory(d, 0.0), links(d)
    load, rates = step(d, found, has)
    fetched = sum(load.remote_bytes)
    if not fetched:
        return None
    period = load.outside_s / load.layers + (load.hot_bytes + fetched) * rates.local.s_per_byte(1)
    block = kv.bytes_per_token(d.shape) * d.block_tokens / load.layers
    room, given = max(found.room_bytes, 0.0), d.compute.window_bytes
    budget = room * WINDOW_SHARE if given is None else given
    if d.compute.hot_bytes is not None:
        budget = min(budget, room - found.hot_bytes)
    blocks = window.window_blocks(
        compute_period_s=period,
        rtt_s=d.network.round_trip_s,
        drain_bytes_per_s=min(fetched / period, has.joined_bytes_per_s),
        layer_block_bytes=block,
        budget_bytes=budget,
    )
    lead = window.lead_s(period, d.network.round_trip_s)
    return Window(lead_s=lead, blocks=blocks, layer_block_bytes=block, bytes=blocks * block)


def _memory(d: Deployment, ahead: float) -> Memory:
    """Return memory with `ahead` bytes of window."""
    host, total = d.compute, float(total_kv_bytes(d))
    hbm = float(host.gpu.memory_bytes * host.all_gpus)
    weights, activations = float(d.model.weight_bytes), float(activation_bytes(d))
    buffers = deductions.BUFFER_SHARE * hbm
    room = deductions.kv_room_bytes(hbm, weights=weights, activations=activations, buffers=buffers)
    if host.hot_bytes is not None and host.hot_bytes > max(room, 0.0):
        raise CapacityError(
            f"a hot region of {format_bytes(host.hot_bytes)}, where {format_bytes(max(room, 0.0))} of "
            f"{format_bytes(hbm)} HBM are left for KV",
            hint="give --hot less, or leave it out to use what is left",
        )
    hot = max(room - ahead, 0.0) if host.hot_bytes is None else host.hot_bytes
    return Memory(
        hbm_bytes=hbm,
        weight_bytes=weights,
        activation_bytes=activations,
        buffer_bytes=buffers,
        window_bytes=ahead,
        room_bytes=room,
        hot_bytes=min(hot, total),
        remote_bytes=max(0.0, total - hot),
        dram_bytes=host.dram_bytes * host.hosts,
        pool_bytes=d.pool.memory_bytes * d.pool.nodes,
    )


def demand(d: Deployment, found: Memory) -> Demand:
    """Return the rates that the target asks for, over all sequences."""
    rate, batch = d.workload.target_tokens_per_s, d.workload.concurrency
    total, read = total_kv_bytes(d), step_read_bytes(d)
    return Demand(
        new_kv_bytes_per_s=bandwidth.new_kv_bytes_per_s(kv.bytes_per_token(d.shape) * batch, rate),
        reread_bytes_per_s=bandwidth.reread_bytes_per_s(read, rate),
        remote_reread_bytes_per_s=bandwidth.reread_bytes_per_s(read * _remote_share(found), rate),
        load_bytes_per_s=bandwidth.needed_bytes_per_s(total, d.workload.latency_s),
    )


def step(d: Deployment, found: Memory, has: Links, *, nodes: int | None = None) -> tuple[StepLoad, Rates]:
    """Return the decode step as the balancer sees it, with the remote KV spread over `nodes` (default: the pool's).

    What is read is local in the proportion in which what is held is.
    """
    count = d.pool.nodes if nodes is None else nodes
    layers, read, remote = max(1, kv_layers(d)), step_read_bytes(d), _remote_share(found)
    load = StepLoad(
        outside_s=compute_s(d),
        layers=layers,
        hot_bytes=read * (1 - remote) / layers,
        remote_bytes=tpot.spread(read * remote / layers, count),
    )
    flop_per_byte = kv.attention_flop(d.shape, d.workload.context) / max(1, kv.read_bytes(d.shape, d.workload.context))
    gpus, gpu = d.compute.all_gpus, d.compute.gpu
    local = d.measured.local_bytes_per_s
    exchange = tpot.exchange_s(
        query_bytes=kv.query_bytes(d.shape) * d.workload.concurrency / layers,
        partial_bytes=kv.partial_bytes(d.shape) * d.workload.concurrency / layers,
        nodes=count,
        sender_bytes_per_s=has.sender_bytes_per_s,
        receiver_bytes_per_s=has.receiver_bytes_per_s,
    )
    node = NodeRates(
        near=Speed(d.pool.bytes_per_s, d.pool.flop_per_s / max(flop_per_byte, 1e-9)),
        rail_bytes_per_s=has.sender_bytes_per_s,
        round_trip_s=d.network.round_trip_s,
        reply_s_per_row=exchange,
    )
    rates = Rates(
        local=Speed(
            gpu.memory_bytes_per_s * gpus if local is None else local,
            gpu.bf16_flop_per_s * gpus / max(flop_per_byte, 1e-9),
        ),
        receiver_bytes_per_s=has.receiver_bytes_per_s,
        nodes=(node,) * len(load.remote_bytes),
    )
    return load, rates


def _remote_share(found: Memory) -> float:
    total = found.hot_bytes + found.remote_bytes
    return found.remote_bytes / total if total else 0.0
