"""What 10^6 output tokens cost by each of four plans, from the user's prices. Pure.

| plan | made of |
|---|---|
| big HBM | as many GPUs as hold all KV |
| local tiers | the given GPUs; KV that they have no room for in this host's DRAM |
| dual path, fetch | the given GPUs, NICs and nodes; remote KV fetched in every step (sharded) |
| dual path, reduce | the same; remote KV reduced at the nodes |

A NIC or DRAM of this host without a price counts as there already. Machines are taken to be busy all the time; power,
space, switches and people are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from dualpath.cost import money, tpot
from dualpath.cost.tpot import Scheme
from dualpath.plan.budget import links, memory, step
from dualpath.plan.inputs import Deployment, Measured, Prices
from dualpath.plan.needs import gpus_needed
from dualpath.plan.result import CostRow
from dualpath.units import format_bytes

_GIB = 1 << 30


def cost_rows(d: Deployment) -> tuple[CostRow, ...]:
    """Return the four plans."""
    found, has = memory(d), links(d)
    load, rates = step(d, found, has)
    times = {
        scheme: tpot.tpot(scheme, load, rates, tier_bytes_per_s=has.tier_bytes_per_s).seconds
        for scheme in (Scheme.TIERS, Scheme.SHARDED, Scheme.REDUCE)
    }
    gpus = d.compute.all_gpus
    nodes = d.pool.nodes if found.remote_bytes else 0
    pool = {"gpu": gpus, "node": nodes, "nic": d.network.nics * d.compute.hosts if nodes else 0}
    used = f"{_plural(gpus, 'GPU')}, {_plural(nodes, 'node')}" if nodes else _plural(gpus, "GPU")
    pooled = found.room_bytes > 0 and found.remote_bytes <= found.pool_bytes
    tiered = found.room_bytes > 0 and found.remote_bytes <= found.dram_bytes
    return (
        _big_hbm(d),
        _row(
            d,
            "local tiers",
            f"{_plural(gpus, 'GPU')}, {format_bytes(found.remote_bytes)} of DRAM",
            times[Scheme.TIERS] if tiered else None,
            {"gpu": gpus, "dram_gib": found.remote_bytes / _GIB},
        ),
        _row(d, "dual path, fetch", used, times[Scheme.SHARDED] if pooled else None, pool),
        _row(d, "dual path, reduce", used, times[Scheme.REDUCE] if pooled else None, pool),
    )


def price_notes(d: Deployment) -> tuple[str, ...]:
    """Return where the prices are from."""
    gpu, prices = d.compute.gpu, d.prices
    if prices.gpu_hour is not None or prices.gpu is None:
        return ()
    whence = f"{gpu.price_basis} ({gpu.price_date})" if d.origins.get("price") == "default" else "given"
    return (
        f"A {gpu.name} at {prices.gpu:,.0f} USD: {whence}; bought things are written off over "
        f"{prices.lifetime_years:g} years.",
    )


def usd_per_hour(prices: Prices, counts: Mapping[str, float]) -> tuple[float | None, str]:
    """Return the hourly cost of `counts` of things by name, or `None` and what has no price."""
    total, missing = 0.0, []
    for name, count in counts.items():
        if not count:
            continue
        hourly, bought = getattr(prices, f"{name}_hour", None), getattr(prices, name)
        if hourly is not None:
            total += count * hourly
        elif bought is not None:
            total += count * money.per_hour(bought, prices.lifetime_years)
        elif name in ("gpu", "node"):
            missing.append(f"--price-{name}")
    return (None, f"give {' and '.join(missing)}") if missing else (total, "")


def _big_hbm(d: Deployment) -> CostRow:
    """The same work on so many GPUs that all KV is local."""
    count = max(gpus_needed(d), d.compute.all_gpus)
    factor = count / d.compute.all_gpus
    measured = Measured(
        compute_s=None if d.measured.compute_s is None else d.measured.compute_s / factor,
        local_bytes_per_s=None if d.measured.local_bytes_per_s is None else d.measured.local_bytes_per_s * factor,
    )
    compute = msgspec.structs.replace(d.compute, gpus=count, hosts=1, hot_bytes=None)
    big = msgspec.structs.replace(d, compute=compute, measured=measured)
    seconds = tpot.tpot(Scheme.ALL_LOCAL, *step(big, memory(big), links(big))).seconds
    return _row(d, "big HBM", _plural(count, "GPU"), seconds, {"gpu": count})


def _row(d: Deployment, plan: str, made_of: str, seconds: float | None, counts: Mapping[str, float]) -> CostRow:
    hourly, missing = usd_per_hour(d.prices, counts)
    per_million = None
    if hourly is not None and seconds is not None and math.isfinite(seconds):
        per_million = money.per_million_tokens(hourly, d.workload.concurrency / seconds)
    return CostRow(
        plan=plan,
        made_of=made_of,
        nodes=int(counts.get("node", 0)),
        tpot_s=seconds,
        meets_target=seconds is not None and seconds <= d.workload.budget_s,
        usd_per_hour=hourly,
        usd_per_million_tokens=per_million,
        missing=missing if seconds is not None else "the memory is not there",
    )


def _plural(count: int, name: str) -> str:
    return f"{count} {name}" + ("" if count == 1 else "s")
