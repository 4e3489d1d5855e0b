"""From a deployment to a plan: what it needs, what each scheme takes, whether it helps. Pure, no I/O, no clock."""

from __future__ import annotations

import math

import msgspec

from dualpath.cost import bandwidth, compute, kv, tpot
from dualpath.cost.balance import Rates, StepLoad
from dualpath.cost.prefill_decode import RatioBounds, ratio_bounds
from dualpath.cost.tpot import Scheme, SchemeTime
from dualpath.plan import budget, needs
from dualpath.plan.assumptions import assumptions, input_rows
from dualpath.plan.costs import cost_rows, price_notes
from dualpath.plan.inputs import Deployment, shape_of
from dualpath.plan.result import Cell, Kv, LayerKv, Links, Memory, Plan, SchemeRow, Sweep, SweepPoint
from dualpath.plan.verdict import best_pooled, judge


def simulate(d: Deployment) -> Plan:
    """Return the plan of a deployment. Raises `CapacityError` for a hot region larger than what HBM has left."""
    found, has = budget.memory(d), budget.links(d)
    rows = scheme_rows(d, found, has)
    asked, costs, cells = budget.demand(d, found), cost_rows(d), compression(d)
    return Plan(
        model=d.model.name,
        model_source=d.model.source,
        context=d.workload.context,
        concurrency=d.workload.concurrency,
        target_tokens_per_s=d.workload.target_tokens_per_s,
        budget_s=d.workload.budget_s,
        verdict=judge(d, found, has, asked, rows, costs, cells),
        inputs=input_rows(d),
        kv=kv_of(d),
        memory=found,
        links=has,
        demand=asked,
        window=budget.prefetch_window(d),
        schemes=rows,
        costs=costs,
        price_notes=price_notes(d),
        compression=cells,
        prefill_decode=_ratio(d),
        assumptions=assumptions(d),
    )


def kv_of(d: Deployment) -> Kv:
    """Return the KV of one sequence and of all."""
    context, shape = d.workload.context, d.shape
    span = shape.block_tokens
    groups = tuple(
        LayerKv(
            kind=str(group.kind),
            layers=len(group.layers),
            bytes_per_token_and_layer=kv.layer_bytes(group, span, shape.dtype, block_tokens=span) / span,
            window_tokens=group.window,
            held_bytes=len(group.layers)
            * kv.layer_bytes(group, kv.visible_tokens(group, context), shape.dtype, block_tokens=span),
        )
        for group in shape.groups
    )
    return Kv(
        dtype=shape.dtype,
        bytes_per_token=kv.bytes_per_token(shape),
        index_bytes_per_token=shape.index_bytes_per_token,
        state_bytes=shape.state_bytes,
        groups=groups,
        sequence_bytes=kv.held_bytes(shape, context),
        total_bytes=budget.total_kv_bytes(d),
        read_bytes=budget.step_read_bytes(d),
    )


def scheme_rows(d: Deployment, found: Memory, has: Links, *, search: bool = True) -> tuple[SchemeRow, ...]:
    """Return a row for every scheme; `search`: with what it would take to meet the target."""
    load, rates = budget.step(d, found, has)
    rows = []
    for scheme in Scheme:
        time = tpot.tpot(scheme, load, rates, tier_bytes_per_s=has.tier_bytes_per_s)
        short = _short_bytes(scheme, found)
        meets = short <= 0 and time.seconds <= d.workload.budget_s
        row = SchemeRow(
            scheme=scheme,
            tpot_s=time.seconds,
            bottleneck=time.bottleneck,
            fits=short <= 0,
            short_bytes=max(0.0, short),
            meets_target=meets,
            tokens_per_s=d.workload.concurrency / time.seconds if time.seconds else math.inf,
            wire_bytes_per_step=_wire_bytes(d, scheme, time, load),
            ttft_s=_ttft_s(d, scheme, found, has),
            resume_s=_resume_s(d, scheme, has),
        )
        rows.append(row if meets or not search else _with_needs(row, d, found, has, load, rates))
    return tuple(rows)


def compression(d: Deployment) -> tuple[Cell, ...]:
    """Return the 2 x 2: KV as stored and compressed, without a dual path and with it. Empty if compressed already."""
    if d.shape.dtype in kv.QUANTISED:
        return ()
    cells = []
    for dtype in (d.shape.dtype, d.compressed):
        other = msgspec.structs.replace(d, shape=shape_of(d.model, dtype, d.block_tokens))
        total = budget.total_kv_bytes(other)
        rows = {row.scheme: row for row in scheme_rows(other, budget.memory(other), budget.links(other), search=False)}
        alone = next((rows[scheme] for scheme in (Scheme.ALL_LOCAL, Scheme.TIERS) if rows[scheme].fits), None)
        pooled = best_pooled(tuple(rows.values())) if budget.memory(other).remote_bytes else alone
        for dual, row in ((False, alone), (True, pooled)):
            cells.append(
                Cell(
                    dtype=dtype,
                    dual_path=dual,
                    total_bytes=total,
                    tpot_s=None if row is None else row.tpot_s,
                    how="does not fit" if row is None else str(row.scheme),
                    meets_target=row is not None and row.meets_target,
                )
            )
    return tuple(cells)


def sweep(d: Deployment, name: str, values: tuple[int, ...]) -> Sweep:
    """Return what schemes take at each of `values` of `context` or `concurrency`."""
    points = []
    for value in values:
        other = msgspec.structs.replace(d, workload=msgspec.structs.replace(d.workload, **{name: value}))
        found, has = budget.memory(other), budget.links(other)
        rows = scheme_rows(other, found, has, search=False)
        fitting = [row for row in rows if row.fits]
        points.append(
            SweepPoint(
                value=value,
                total_kv_bytes=budget.total_kv_bytes(other),
                tpot_s={str(row.scheme): row.tpot_s if row.fits else None for row in rows},
                best=str(min(fitting, key=lambda row: row.tpot_s).scheme) if fitting else "",
                ruling=judge(other, found, has, budget.demand(other, found), rows).ruling,
            )
        )
    return Sweep(name=name, points=tuple(points))


def _short_bytes(scheme: Scheme, found: Memory) -> float:
    """Return how many bytes of memory a scheme lacks; none or less: it fits."""
    if found.room_bytes <= 0:
        return -found.room_bytes + 1
    if scheme is Scheme.ALL_LOCAL:
        return found.hot_bytes + found.remote_bytes - found.room_bytes
    return found.remote_bytes - (found.dram_bytes if scheme is Scheme.TIERS else found.pool_bytes)


def _with_needs(row: SchemeRow, d: Deployment, found: Memory, has: Links, load: StepLoad, rates: Rates) -> SchemeRow:
    if row.scheme is Scheme.ALL_LOCAL:
        return row if row.fits else msgspec.structs.replace(row, gpus_needed=needs.gpus_needed(d))
    if row.scheme is Scheme.TIERS or found.room_bytes <= 0:
        return row
    changes: dict[str, int | None] = {}
    if row.scheme in (Scheme.FETCH, Scheme.SHARDED):
        busy_s = tpot.tpot(Scheme.ALL_LOCAL, load, rates).seconds
        senders = has.sender_bytes_per_s if row.scheme is Scheme.FETCH else has.all_senders_bytes_per_s
        changes["nics_needed"] = needs.nics_needed(d, load, busy_s, has, senders_bytes_per_s=senders)
    if row.scheme is not Scheme.FETCH:
        changes["nodes_needed"] = needs.nodes_needed(d, found, has, row.scheme)
    return msgspec.structs.replace(row, **changes)


def _wire_bytes(d: Deployment, scheme: Scheme, time: SchemeTime, load: StepLoad) -> float:
    """Return the bytes that a step moves over the NICs. Queries go to every node that reduces anything."""
    remote = load.layers * sum(load.remote_bytes)
    if scheme in (Scheme.ALL_LOCAL, Scheme.TIERS) or not remote:
        return 0.0
    shipped = kv.query_bytes(d.shape) + kv.partial_bytes(d.shape)
    asked = len(load.remote_bytes) if time.fetched_bytes < remote else 0
    return time.fetched_bytes + asked * shipped * d.workload.concurrency


def _ttft_s(d: Deployment, scheme: Scheme, found: Memory, has: Links) -> float | None:
    """Return the time to compute one cold prompt, which writes its remote KV as it goes and reads it again by chunk."""
    if not d.model.parameters:
        return None
    context, batch = d.workload.context, d.workload.concurrency
    gpu, gpus = d.compute.gpu, d.compute.all_gpus
    busy_s = compute.prefill_s(
        outside_s=budget.prompt_s(d),
        attention_flop=kv.prompt_attention_flop(d.shape, context),
        flop_per_s=gpu.bf16_flop_per_s * gpus,
    )
    remote = found.remote_bytes / batch
    if scheme is Scheme.ALL_LOCAL or not remote:
        return busy_s
    rate = {Scheme.TIERS: has.tier_bytes_per_s, Scheme.FETCH: min(has.sender_bytes_per_s, has.receiver_bytes_per_s)}
    again = compute.reread_in_chunks_bytes(remote, context, d.workload.chunk_tokens)
    return max(busy_s, bandwidth.transfer_s(max(remote, again), rate.get(scheme, has.joined_bytes_per_s)))


def _resume_s(d: Deployment, scheme: Scheme, has: Links) -> float:
    """Return the time of the first step of one sequence whose KV lies wholly in the pool (tiers: in DRAM).

    All-local brings it in once, from all nodes.
    """
    alone = msgspec.structs.replace(d, workload=msgspec.structs.replace(d.workload, concurrency=1))
    whole = kv.held_bytes(d.shape, d.workload.context)
    found = msgspec.structs.replace(budget.memory(alone), hot_bytes=0.0, remote_bytes=float(whole))
    load, rates = budget.step(alone, found, has)
    by = Scheme.SHARDED if scheme is Scheme.ALL_LOCAL else scheme
    return tpot.tpot(by, load, rates, tier_bytes_per_s=has.tier_bytes_per_s).seconds


def _ratio(d: Deployment) -> RatioBounds | None:
    """Return the P/D bounds, where the hosts are such as the formula is for: fewer storage NICs than GPUs."""
    storage = d.network.storage_nics
    if not 0 < storage < d.compute.gpus:
        return None
    return ratio_bounds(
        gpus=d.compute.gpus,
        storage_nics=storage,
        memory_bytes_per_s=d.compute.dram_bytes_per_s,
        storage_bytes_per_s=storage * d.network.nic_bytes_per_s,
    )
