"""Slow tokens: compute waited for KV (the window is too small), or small messages waited for large ones (QoS)."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.qos import BULK_DSCP, PREFETCH_DSCP, REALTIME_DSCP, read_qos
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
        if run is not None and row.tpot_ms_p99 > BUDGET * row.tpot_ms_p50:
            yield _finding(host, run, row)


def _finding(host: Host, run: Run, row: SchemeRow) -> Finding:
    stalled = row.stall_share >= STALLED
    waits = f"{row.stall_ms_per_token:.3g} ms of each token waiting for KV ({row.stall_share:.0%})"
    if stalled:
        cause = f"the prefetch window is too small: {waits}"
        fix = f"dualpath run --window {_doubled(run)}, or scheme reduce, which fetches nothing"
    else:
        cause = f"QoS is off: little waiting on average ({waits}), but some messages wait behind bulk"
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
            *_sorting(host),
        ),
        subject=row.scheme,
    )


def _doubled(run: Run) -> str:
    return f"{max(1, int(2 * run.window_bytes) >> 20)}MiB" if run.window_bytes > 0 else "larger than now"


def _sorting(host: Host) -> Iterator[str]:
    """Yield what is known of the NICs' priorities; nothing where they cannot be seen."""
    for roce in roce_nics(host):
        try:
            qos = read_qos(host, roce.nic)
        except Unknown:
            continue
        if qos is not None:
            yield from qos.evidence


CHECK = Check(
    name="decode-p99",
    title="The slowest tokens take at most twice the usual time",
    reads=("dualpath run --json", "mlnx_qos -i NIC", "dcb pfc show dev NIC"),
    reference="https://arxiv.org/abs/2602.21548",
    judge=judge,
)
