"""A prefetch window larger than memory allows works for short contexts, and ends in OOM when they grow."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.labels import integer, labelled
from dualpath.doctor.runs import Run, read_run
from dualpath.units import format_bytes

TOLERANCE = 1.05
HALF = 0.5
WASTE = 0.2


def judge(host: Host) -> Iterator[Finding]:
    """Yield budgets that memory does not cover, and schemes that held more than their budget."""
    run = read_run(host.measured.run)
    if run is None:
        return
    yield from _budget(host, run)
    yield from _overrun(run)
    yield from _unused(run)


def _budget(host: Host, run: Run) -> Iterator[Finding]:
    """NaN compares false: what is not known is not judged."""
    available, source = _available(host, run)
    budget = run.hot_bytes + run.window_bytes
    if not (budget > available or run.window_bytes > HALF * available):
        return
    beyond = budget > available
    yield Finding(
        level=Level.CRITICAL if beyond else Level.WARNING,
        symptom=f"hot region and window may take {format_bytes(budget)} of {format_bytes(available)} available memory",
        cause="the window is filled only once contexts are long: then the process is killed for want of memory",
        fix=f"dualpath run --window {max(1, int(available / 8) >> 20)}MiB  # an eighth of what is available",
        evidence=(f"run: hot_bytes {run.hot_bytes:.0f}, window_bytes {run.window_bytes:.0f}", source),
    )


def _available(host: Host, run: Run) -> tuple[float, str]:
    kib = dict(labelled(host.tree.read("/proc/meminfo") or "")).get("MemAvailable", "")
    value = integer(kib)
    if value is not None:
        return value * 1024.0, f"/proc/meminfo: MemAvailable {kib}"
    return run.memory_bytes, f"run: memory_bytes {run.memory_bytes:.0f}"


def _overrun(run: Run) -> Iterator[Finding]:
    budget = run.hot_bytes + run.window_bytes
    for row in run.remote_rows:
        if row.peak_local_kv_bytes > TOLERANCE * budget:
            yield Finding(
                level=Level.WARNING,
                symptom=f"{row.scheme} held {format_bytes(row.peak_local_kv_bytes)} of KV, over its budget of "
                f"{format_bytes(budget)} (hot region and window)",
                cause="remote blocks are kept beyond the window, so memory grows with the context",
                fix="cap the remote blocks with --window, sized to the memory that is free",
                evidence=(f"run: {row.scheme}: peak_local_kv_bytes {row.peak_local_kv_bytes:.0f}",),
                subject=row.scheme,
            )


def _unused(run: Run) -> Iterator[Finding]:
    """Blocks fetched and never used say that the window reaches too far ahead."""
    for row in run.remote_rows:
        fetched = row.wire_bytes_per_token * run.new_tokens
        if row.wasted_bytes > WASTE * fetched:
            yield Finding(
                level=Level.INFO,
                symptom=f"{row.scheme}: {format_bytes(row.wasted_bytes)} were prefetched and never used "
                f"({row.wasted_bytes / fetched:.0%} of all)"
                if fetched
                else f"{row.scheme}: prefetched in vain",
                fix="a smaller --window fetches less in vain",
                subject=row.scheme,
            )


CHECK = Check(
    name="window-memory",
    title="The prefetch window fits the memory",
    reads=("dualpath run --json", "/proc/meminfo"),
    reference="https://docs.kernel.org/filesystems/proc.html",
    judge=judge,
)
