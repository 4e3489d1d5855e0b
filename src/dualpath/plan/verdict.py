"""Whether a dual path helps, and why, in a sentence with numbers. Pure.

Short contexts, few sequences, or KV that fits on one machine gain nothing: then Path B is *not needed*. It is *worth
it* where local memory misses the target and the pool meets it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dualpath.cost.balance import Bottleneck
from dualpath.cost.tpot import WORDS, Scheme
from dualpath.plan.budget import compute_s, total_kv_bytes
from dualpath.plan.inputs import Deployment
from dualpath.plan.quantities import plural, seconds
from dualpath.plan.result import Cell, CostRow, Demand, Links, Memory, Ruling, SchemeRow, Verdict
from dualpath.units import format_bits_per_s, format_bytes, format_bytes_per_s

WELL_UNDER = 0.2
"""A load under this share of the NICs is well under them: software comes first."""

POOLED = (Scheme.FETCH, Scheme.SHARDED, Scheme.REDUCE, Scheme.AUTO)


def best_pooled(rows: Sequence[SchemeRow]) -> SchemeRow | None:
    """Return the fastest scheme whose KV the pool can hold; of equals the simpler one. `None` if it can hold none."""
    return min((row for row in rows if row.scheme in POOLED and row.fits), key=lambda row: row.tpot_s, default=None)


def judge(
    d: Deployment,
    found: Memory,
    has: Links,
    asked: Demand,
    rows: Sequence[SchemeRow],
    costs: Sequence[CostRow] = (),
    compressed: Sequence[Cell] = (),
) -> Verdict:
    """Return the ruling for `rows`, one of every scheme. `costs` and `compressed`: to say what it is worth, or what
    would meet the target instead."""
    by_scheme = {row.scheme: row for row in rows}
    ruling, reason = _ruling(d, found, by_scheme, best_pooled(rows))
    if ruling is Ruling.WORTH_IT:
        reason += _money(costs)
    if ruling is Ruling.WILL_NOT_MEET:
        reason += _remedies(d, rows, costs, compressed)
    return Verdict(ruling, reason, deployment_test(d, has, asked))


def deployment_test(d: Deployment, has: Links, asked: Demand) -> str:
    """Return what loading all KV in the wanted time takes of the NICs."""
    share = asked.load_bytes_per_s / has.nic_bytes_per_s
    words = (
        f"all KV ({format_bytes(total_kv_bytes(d))}) in {seconds(d.workload.latency_s)} is "
        f"{format_bytes_per_s(asked.load_bytes_per_s)} = {format_bits_per_s(8 * asked.load_bytes_per_s)}, "
        f"{_percent(share)} of the NICs"
    )
    if share < WELL_UNDER:
        return f"{words}: well under them, so tune software first."
    return f"{words}: more than they carry." if share > 1 else f"{words}."


def _percent(share: float) -> str:
    return f"{share:,.0%}" if share >= 0.01 else "under 1%"


def _ruling(d: Deployment, found: Memory, rows: dict[Scheme, SchemeRow], best: SchemeRow | None) -> tuple[Ruling, str]:
    local, tiers = rows[Scheme.ALL_LOCAL], rows[Scheme.TIERS]
    budget = seconds(d.workload.budget_s)
    kv = format_bytes(total_kv_bytes(d))
    if found.room_bytes <= 0:
        return (
            Ruling.WILL_NOT_MEET,
            f"weights, activations and buffers alone leave none of the {format_bytes(found.hbm_bytes)} of HBM, "
            f"{format_bytes(-found.room_bytes)} are missing; no way of keeping KV changes that.",
        )
    if local.meets_target:
        return (
            Ruling.NOT_NEEDED,
            f"all {kv} of KV fit the {format_bytes(found.room_bytes)} of HBM left for it, and a token takes "
            f"{seconds(local.tpot_s)} of the {budget} allowed; Path B would stay out of the way.",
        )
    if compute_s(d) > d.workload.budget_s:
        return (
            Ruling.WILL_NOT_MEET,
            f"{WORDS[Bottleneck.COMPUTE]} alone takes {seconds(compute_s(d))} of the {budget} allowed; "
            "faster KV does not help.",
        )
    if not found.remote_bytes:
        return (
            Ruling.WILL_NOT_MEET,
            f"all {kv} of KV fit HBM, and a token still takes {seconds(local.tpot_s)} of the {budget} allowed, bound "
            f"by {local.bottleneck}: take faster GPUs, fewer sequences, or a smaller --hot.",
        )
    if tiers.meets_target:
        return (
            Ruling.NOT_NEEDED,
            f"HBM holds {format_bytes(found.hot_bytes)} of {kv}, this host's DRAM the rest; over PCIe a token takes "
            f"{seconds(tiers.tpot_s)} of the {budget} allowed: the KV fits on one machine.",
        )
    without = f"this host's DRAM {_of(tiers)}"
    if best is not None and best.meets_target:
        instead = f"all of it in HBM {_of(local)}"
        if local.gpus_needed is not None:
            instead = f"{plural(local.gpus_needed, 'GPU')} would hold it all"
        return (
            Ruling.WORTH_IT,
            f"HBM holds {format_bytes(found.hot_bytes)} of {kv}; {best.scheme} over {plural(d.pool.nodes, 'node')} "
            f"takes {seconds(best.tpot_s)} a token of the {budget} allowed, {without}; {instead}.",
        )
    if best is None:
        return (
            Ruling.WILL_NOT_MEET,
            f"{plural(d.pool.nodes, 'node')} with {format_bytes(found.pool_bytes)} cannot hold the "
            f"{format_bytes(found.remote_bytes)} of KV that HBM has no room for.",
        )
    return (
        Ruling.WILL_NOT_MEET,
        f"the best scheme, {best.scheme}, takes {seconds(best.tpot_s)} a token where {budget} are allowed, bound by "
        f"{best.bottleneck}; {without}.",
    )


def _money(costs: Sequence[CostRow]) -> str:
    """Return what the cheapest plans that meet the target cost, with a pool and without one, if both have a price.

    By the hour for this load; by the token for machines that are kept busy: more GPUs are faster than was asked for.
    """
    priced = [row for row in costs if row.meets_target and row.usd_per_hour is not None]
    best = min((row for row in priced if row.nodes), key=_hourly, default=None)
    other = min((row for row in priced if not row.nodes), key=_hourly, default=None)
    if best is None or other is None:
        return ""
    return (
        f" By the hour, and by 10^6 tokens if kept busy, it costs {_hourly(best):.2f} and "
        f"{best.usd_per_million_tokens or 0:.2f} USD; {other.made_of} alone {_hourly(other):.2f} and "
        f"{other.usd_per_million_tokens or 0:.2f}."
    )


def _hourly(row: CostRow) -> float:
    return row.usd_per_hour or 0.0


def _of(row: SchemeRow) -> str:
    if not row.fits:
        return f"is {format_bytes(row.short_bytes)} too small"
    return f"would take {seconds(row.tpot_s)}"


def _remedies(d: Deployment, rows: Sequence[SchemeRow], costs: Sequence[CostRow], compressed: Sequence[Cell]) -> str:
    """Return what would meet the target after all: more nodes, NICs or GPUs, smaller KV."""
    nodes = [row.nodes_needed for row in rows if row.nodes_needed is not None]
    nics = [row.nics_needed for row in rows if row.nics_needed is not None]
    found = [f"with {plural(min(nodes), 'node')}"] if nodes else []
    found += [f"with {plural(min(nics), 'NIC')}"] if nics else []
    big = next((row for row in costs if not row.nodes and row.meets_target), None)
    found += [f"on {big.made_of} ({_time(big.tpot_s)})"] if big is not None else []
    cell = next((cell for cell in compressed if cell.meets_target and cell.dtype != d.shape.dtype), None)
    found += [f"with KV in {cell.dtype} ({cell.how}, {_time(cell.tpot_s)})"] if cell is not None else []
    if found:
        return f" The target would be met {', or '.join(found)}."
    return " Lower the context, concurrency or target, or take faster GPUs or nodes."


def _time(value: float | None) -> str:
    return "" if value is None else seconds(value)
