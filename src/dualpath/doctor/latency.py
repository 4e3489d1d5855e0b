"""Two numbers and what they mean: the peak bandwidth against nominal, and decode's P99 against its budget.

If the peak is under half of nominal, the fault is below the software: PCIe or NUMA. If the P99 is over budget although
the bandwidth is there, the prefetch window is too small or the fabric does not keep the lanes apart; how long compute
waited per token, and how much was prefetched in vain, tell which. Schemes that keep all KV here are the control: if
they are over budget too, no network is to blame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial

from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.checks import gpu_bandwidth, peak_bandwidth, size_sweep
from dualpath.doctor.host import Host
from dualpath.doctor.runs import ALL_LOCAL, Run, SchemeRow, read_run
from dualpath.host.raw import RawReport
from dualpath.units import format_bytes

NEARLY_ALL = 0.8
"""Of the measured peak: who needs more than this of a link waits for the link."""
STALLED = 0.1
"""Of the time per token: compute that waits this long for KV is not hidden behind it."""
IN_VAIN = 0.05
"""Of the bytes on the wire: more than this prefetched and never used is a window that outgrew its room."""
JITTER = 2.0
"""P99 over P50. Without a budget, this is what a run is held against."""
PREFETCHING = ("fetch", "sharded", "auto")


def latency_checks(budget_ms: float | None) -> tuple[Check, ...]:
    """Return the checks of what was measured: decode against `budget_ms`, and those of raw bandwidth."""
    decode = Check(
        name="decode",
        title="Decode's P99 is within its budget",
        reads=("dualpath run --json", "dualpath bench raw --json"),
        reference="",
        judge=partial(_judge, budget_ms=budget_ms),
    )
    return (decode, peak_bandwidth.CHECK, size_sweep.CHECK, gpu_bandwidth.CHECK)


def _judge(host: Host, *, budget_ms: float | None) -> Iterator[Finding]:
    yield from peaks(host.measured.raw)
    run = read_run(host.measured.run)
    if run is not None:
        pool = _table(host.measured.run, "settings").get("pool")
        yield from decode(run, host.measured.raw, budget_ms=budget_ms, one_host=pool == "child processes")


def peaks(raw: RawReport | None) -> Iterator[Finding]:
    """Yield the best rate of each kind of memory, and its share of nominal. That half is too little, a check says."""
    rows = raw.relied_on if raw is not None else ()
    if raw is not None and raw.rows and not rows:
        yield Finding(
            level=Level.UNKNOWN,
            symptom="raw bandwidth: not one row is to be relied on",
            evidence=(f"raw: {raw.rows[0].doubt}",),
            fix="measure again, on a quiet node and quiet NICs: dualpath bench raw --json",
        )
    for memory in dict.fromkeys(row.memory for row in rows):
        best = max((row for row in rows if row.memory == memory), key=lambda row: row.bits_per_s)
        rate = f"{memory} memory, {best.local_rail} to {best.remote_rail}: peak {best.bits_per_s / 1e9:.3g} Gbit/s"
        nominal = best.nominal_bits_per_s
        yield Finding(
            level=Level.INFO if nominal else Level.UNKNOWN,
            symptom=f"{rate}, {best.bits_per_s / nominal:.0%} of nominal {nominal / 1e9:g} Gbit/s"
            if nominal
            else f"{rate}; the NICs do not say what is nominal",
            evidence=(f"raw: {format_bytes(best.block_bytes)} blocks, {best.in_flight} in flight, {best.transport}",),
            subject=best.local_rail,
        )


def decode(run: Run, raw: RawReport | None, *, budget_ms: float | None, one_host: bool) -> Iterator[Finding]:
    """Yield, for each scheme that reads remote KV, whether decode's P99 keeps `budget_ms`, and if not, why not.

    Without a budget a scheme is held against `JITTER` times its own median. `one_host`: the nodes ran beside the model,
    so no fabric was involved.
    """
    for row in run.remote_rows:
        budget = budget_ms if budget_ms is not None else JITTER * row.tpot_ms_p50
        if math.isnan(row.tpot_ms_p99) or math.isnan(budget):
            yield Finding(level=Level.UNKNOWN, symptom=f"{row.scheme}: no time per token", subject=row.scheme)
            continue
        over = row.tpot_ms_p99 > budget
        cause, fix = _why(row, run, raw, budget, one_host=one_host) if over else ("", "")
        yield Finding(
            level=Level.WARNING if over else Level.INFO,
            symptom=f"{row.scheme}: decode P99 {row.tpot_ms_p99:.3g} ms, {'over' if over else 'within'} {budget:.3g} ms"
            + ("" if budget_ms is not None else f" ({JITTER:g} times its median)"),
            cause=cause,
            fix=fix,
            evidence=_evidence(row, run, raw),
            subject=row.scheme,
        )


def _why(row: SchemeRow, run: Run, raw: RawReport | None, budget: float, *, one_host: bool) -> tuple[str, str]:
    """Return cause and fix for a scheme whose P99 is over budget, the surest cause first."""
    control = [local for local in run.rows if local.scheme in ALL_LOCAL and local.tpot_ms_p99 > budget]
    if control:
        return (
            f"{control[0].scheme}, which reads no remote KV, is over it too: compute alone takes that long",
            "give the model more cores or a faster device, or allow more time; the network is not the limit",
        )
    needed, peak = _needed_bits_per_s(row), _peak_bits_per_s(raw)
    stalled = row.stall_share >= STALLED
    if stalled and needed >= NEARLY_ALL * peak > 0:
        return (
            f"the link is full: {needed / 1e9:.3g} Gbit/s needed, {peak / 1e9:.3g} Gbit/s measured at best",
            "use --scheme reduce, which ships queries instead of KV, or more rails and nodes; no window helps",
        )
    if row.wasted_bytes >= IN_VAIN * row.wire_bytes_per_token * run.new_tokens > 0:
        return (
            "the window is larger than the room for it: blocks are prefetched and dropped before use",
            f"lower --window{_now(run)}, or give it more memory",
        )
    if stalled and row.scheme in PREFETCHING:
        return (
            f"the prefetch window is too small: compute waits for KV {row.stall_share:.0%} of the time",
            f"raise --window{_now(run)} until the stall per token is gone",
        )
    if stalled:
        return (
            f"compute waits for its nodes {row.stall_share:.0%} of the time, and {row.scheme} does not prefetch",
            "use a scheme that prefetches (sharded), or more nodes to share the work",
        )
    if one_host:
        return (
            "single tokens are late though most never wait; nodes and model share this machine's cores",
            "keep cores free for the nodes (--threads), or measure with nodes on other hosts (--pool)",
        )
    return (
        "single tokens are late though most never wait: bursts get ahead of real-time traffic, so QoS is off",
        "give prefetch's DSCP a PFC-enabled priority on every NIC and switch port, and real-time one above it; "
        "`dualpath doctor` shows these settings",
    )


def _needed_bits_per_s(row: SchemeRow) -> float:
    """Return what a scheme moves while it decodes."""
    return 8 * row.wire_bytes_per_token * row.tokens_per_s


def _peak_bits_per_s(raw: RawReport | None) -> float:
    """Return what all local rails read together: the best of each, summed. 0 where nothing is to be relied on."""
    rails: dict[str, float] = {}
    for row in [row for row in raw.relied_on if row.direction == "read"] if raw is not None else ():
        rails[row.local_rail] = max(rails.get(row.local_rail, 0.0), row.bits_per_s)
    return math.fsum(rails.values())


def _now(run: Run) -> str:
    return "" if math.isnan(run.window_bytes) else f" (now {format_bytes(run.window_bytes)})"


def _evidence(row: SchemeRow, run: Run, raw: RawReport | None) -> tuple[str, ...]:
    said = {
        "stall per token": (row.stall_ms_per_token, f"{row.stall_ms_per_token:.3g} ms ({row.stall_share:.0%})"),
        "prefetched in vain": (row.wasted_bytes, format_bytes(row.wasted_bytes)),
        "moved while decoding": (_needed_bits_per_s(row), f"{_needed_bits_per_s(row) / 1e9:.3g} Gbit/s"),
        "measured at best, all rails": (_peak_bits_per_s(raw) or math.nan, f"{_peak_bits_per_s(raw) / 1e9:.3g} Gbit/s"),
        "window": (run.window_bytes, format_bytes(run.window_bytes)),
    }
    return tuple(f"{name}: {text}" for name, (value, text) in said.items() if not math.isnan(value))


def _table(run: Mapping[str, object] | None, name: str) -> Mapping[str, object]:
    found = (run or {}).get(name)
    return found if isinstance(found, Mapping) else {}
