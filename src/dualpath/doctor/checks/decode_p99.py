"""Slow tokens: compute waited for KV (the window is too small), or small messages waited for large ones (QoS)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.qos import BULK_DSCP, PREFETCH_DSCP, REALTIME_DSCP, Qos, read_qos
from dualpath.doctor.runs import Run, SchemeRow, read_run
from dualpath.doctor.subjects import roce_nics

BUDGET = 2.0
"""P99 may be so many times P50."""
STALLED = 0.25
"""Share of the time per token spent waiting for KV from which waiting explains the tail."""


def judge(host: Host) -> Iterator[Finding]:
    """Yield each scheme that keeps KV elsewhere and whose P99 is over budget, with the likelier of the two causes."""
    run = read_run(host.measured.run)
    for row in run.remote_rows if run else ():
        if run is not None and row.tpot_ms_p99 > BUDGET * row.tpot_ms_p50 > 0:
            yield _finding(host, run, row)


def _finding(host: Host, run: Run, row: SchemeRow) -> Finding:
    waits = f"{row.stall_ms_per_token:.3g} ms of each token waiting for KV ({row.stall_share:.0%})"
    if row.stall_share >= STALLED and row.scheme != "reduce":  # which fetches nothing, and has no window to enlarge
        cause = f"the prefetch window is too small: {waits}"
        fix = f"dualpath run --window {_doubled(run)}  # or scheme reduce, which fetches nothing"
    else:
        sorts = [qos.priority(REALTIME_DSCP) != qos.priority(PREFETCH_DSCP) for qos in _known(host)]
        where = " somewhere on the path, though this host's NICs sort the lanes" if sorts and all(sorts) else ""
        cause = f"QoS is off{where}: some messages wait behind bulk ({waits})"
        fix = (
            f"give the lanes priorities of their own on NICs and switches: DSCP {REALTIME_DSCP} real-time, "
            f"{PREFETCH_DSCP} prefetch, {BULK_DSCP} bulk; prefetch in a priority with PFC"
        )
    return Finding(
        level=Level.WARNING,
        symptom=f"{row.scheme}: P99 of a token is {row.tpot_ms_p99:.3g} ms, {row.tpot_ms_p99 / row.tpot_ms_p50:.1f} "
        f"times the P50 of {row.tpot_ms_p50:.3g} ms",
        cause=cause,
        fix=fix,
        evidence=(
            f"run: {row.scheme}: tpot_ms_p99 {row.tpot_ms_p99:.3f}, stall_ms_per_token {row.stall_ms_per_token:.3f}",
            *(line for qos in _known(host) for line in qos.evidence),
        ),
        subject=row.scheme,
    )


def _doubled(run: Run) -> str:
    return f"{max(1, int(2 * run.window_bytes) >> 20)}MiB" if run.window_bytes > 0 else "larger than now"


def _known(host: Host) -> list[Qos]:
    """Return how the RoCE NICs sort, where that can be seen."""
    found = []
    for roce in roce_nics(host):
        with suppress(Unknown):
            qos = read_qos(host, roce.nic)
            if qos is not None:
                found.append(qos)
    return found


CHECK = Check(
    name="decode-p99",
    title="The slowest tokens take at most twice the usual time",
    reads=("dualpath run --json", "mlnx_qos -i NIC", "dcb pfc show dev NIC"),
    reference="https://arxiv.org/abs/2602.21548",
    judge=judge,
)
