"""The simulated TPOT against a measured one: is the model of cost right for this machine? Pure: dicts in, rows out.

What is put in is measured apart from what is predicted: compute outside attention and the rate of local attention come
from the run's `local` row, the links' rate and round trip from `dualpath bench raw`, the rate of attention at a node
from what the run's balancer measured (its `auto` row). Without such a row nodes are taken to share this machine's
cores: each computes at the local rate over their number. On loopback received bytes cost compute what they take to
arrive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dualpath.cost.balance import NodeRates, Rates, Speed, StepLoad
from dualpath.cost.tpot import Scheme, spread, tpot
from dualpath.errors import UsageError
from dualpath.plan.tables import Table

TOLERANCE = 0.2
"""Largest difference from the measured TPOT, as a share of it."""

CHECKED = (Scheme.FETCH, Scheme.SHARDED, Scheme.REDUCE, Scheme.AUTO)


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """Links as measured: bytes per second of one, how many the receiver has, the round trip.

    `near_bytes_per_s`: attention at a node, if measured apart.
    """

    link_bytes_per_s: float
    rails: int
    round_trip_s: float
    near_bytes_per_s: float | None = None


class CheckRow(msgspec.Struct, frozen=True, kw_only=True):
    """One scheme of one run. `error` is simulated over measured, less 1."""

    run: str
    context: int
    scheme: Scheme
    simulated_ms: float
    measured_ms: float
    error: float
    bottleneck: str

    @property
    def within(self) -> bool:
        """Return whether the simulation is close enough."""
        return abs(self.error) <= TOLERANCE


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, the largest error of any, and whether all are within `TOLERANCE`."""

    rows: tuple[CheckRow, ...]
    largest_error: float
    ok: bool


def check(runs: Mapping[str, Mapping[str, Any]], fabric: Fabric) -> CheckReport:
    """Return the comparison for `runs`: what `dualpath run --json` printed, by name.

    Raises `UsageError` for a run without a `local` row, without a scheme to check, or that is no such object.
    """
    rows = [row for name, run in runs.items() for row in _rows(name, run, fabric)]
    largest = max(abs(row.error) for row in rows)
    return CheckReport(rows=tuple(rows), largest_error=largest, ok=all(row.within for row in rows))


def _rows(name: str, run: Mapping[str, Any], fabric: Fabric) -> list[CheckRow]:
    try:
        measured = {row["scheme"]: row for row in (run["reference"], *run["schemes"])}
        load, rates = step_of(run, measured, fabric)
        found = []
        for scheme in CHECKED:
            if str(scheme) in measured:
                time = tpot(scheme, load, rates)
                actual_ms = float(measured[str(scheme)]["tpot_ms_p50"])
                found.append(
                    CheckRow(
                        run=name,
                        context=int(run["prompt"]["tokens"]),
                        scheme=scheme,
                        simulated_ms=time.seconds * 1e3,
                        measured_ms=actual_ms,
                        error=time.seconds * 1e3 / actual_ms - 1,
                        bottleneck=time.bottleneck,
                    )
                )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UsageError(
            f"{name} is not what `dualpath run --json` prints: {type(error).__name__} {error}",
            hint="write it with `dualpath run --scheme local,fetch,sharded,reduce,auto --json`",
        ) from None
    if not found:
        raise UsageError(f"{name} has no scheme to check", hint=f"run one of {', '.join(CHECKED)}")
    return found


def step_of(
    run: Mapping[str, Any], measured: Mapping[str, Mapping[str, Any]], fabric: Fabric
) -> tuple[StepLoad, Rates]:
    """Return the run's decode step as the balancer sees it, from its bytes and its `local` row."""
    if "local" not in measured:
        raise UsageError("the run has no row local", hint="add local to --scheme: its rates are measured there")
    local, expected, settings = measured["local"], run["expected"], run["settings"]
    step_s = float(local["tpot_ms_p50"]) / 1e3
    # Both are means: their ratio is that of a usual step too, whatever a few slow ones do to them.
    attend_s = step_s * float(local["attend_ms_per_token"]) / 1e3 * float(local["tokens_per_s"])
    outside_s = max(0.0, step_s - attend_s)
    layers, nodes = int(run["model"]["layers"]), int(settings["nodes"])
    total, remote = float(expected["kv_bytes"]), float(expected["fetch_wire_bytes_per_token"])
    local_rate = total / attend_s
    near = fabric.near_bytes_per_s or _balancers_rate(measured) or local_rate / nodes
    exchange_bytes = float(expected["reduce_wire_bytes_per_token"]) / layers
    receiver = fabric.link_bytes_per_s * fabric.rails
    node = NodeRates(
        near=Speed(near),
        rail_bytes_per_s=fabric.link_bytes_per_s,
        round_trip_s=fabric.round_trip_s,
        reply_s_per_row=max(exchange_bytes / receiver, exchange_bytes / nodes / fabric.link_bytes_per_s),
    )
    load = StepLoad(
        outside_s=outside_s,
        layers=layers,
        hot_bytes=max(0.0, total - remote) / layers,
        remote_bytes=spread(remote / layers, nodes),
    )
    shared = is_loopback(settings)
    return load, Rates(
        local=Speed(local_rate),
        receiver_bytes_per_s=receiver,
        nodes=(node,) * len(load.remote_bytes),
        copy_s_per_byte=1 / fabric.link_bytes_per_s if shared else 0.0,
    )


def _balancers_rate(measured: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Return how fast a node computes attention, as the balancer of an `auto` row has measured it: the nodes' mean."""
    nodes = (measured.get(str(Scheme.AUTO), {}).get("choice") or {}).get("nodes", [])
    rates = [float(node["near_bytes_per_s"]) for node in nodes if node.get("near_bytes_per_s")]
    return sum(rates) / len(rates) if rates else None


def is_loopback(settings: Mapping[str, Any]) -> bool:
    """Return whether a run's nodes were reached over loopback, where the same cores move the bytes and compute."""
    pool = str(settings["pool"])
    return pool == "child processes" or "127.0.0.1" in pool or "localhost" in pool


def table(report: CheckReport) -> Table:
    """Return the rows as a table."""
    rows = tuple(
        (
            row.run,
            f"{row.context:,}",
            str(row.scheme),
            f"{row.simulated_ms:.1f}",
            f"{row.measured_ms:.1f}",
            f"{row.error:+.0%}" + ("" if row.within else " !"),
            row.bottleneck,
        )
        for row in report.rows
    )
    columns = ("run", "context", "scheme", "simulated ms", "measured ms", "error", "bound by")
    return Table("Time per token, simulated and measured", columns, rows, (0, 2, 6))
