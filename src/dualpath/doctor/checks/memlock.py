"""RDMA registers memory by pinning it, and what a process may pin is limited."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.limits import parse_capabilities, parse_limits
from dualpath.doctor.subjects import rdma_devices
from dualpath.units import format_bytes

ENOUGH_BYTES = 1 << 30
"""A hot region and a window of any use take more than this."""


def judge(host: Host) -> Iterator[Finding]:
    """Yield a limit too small for an arena. Without RDMA nothing is pinned; `CAP_IPC_LOCK` lifts the limit."""
    limits = parse_limits(host.tree.read("/proc/self/limits") or "")
    if "Max locked memory" not in limits:
        return
    soft, hard = limits["Max locked memory"]
    if soft is None or soft >= ENOUGH_BYTES:
        return
    capabilities = parse_capabilities(host.tree.read("/proc/self/status") or "")
    devices = rdma_devices(host)
    exempt = capabilities is not None and "IPC_LOCK" in capabilities
    symptom = f"a process may pin {format_bytes(soft)} of memory"
    if not devices or exempt:
        why = "no RDMA device here needs more" if not devices else "CAP_IPC_LOCK lifts the limit for this user"
        yield Finding(level=Level.INFO, symptom=f"{symptom}; {why}")
        return
    lines = "* soft memlock unlimited\\n* hard memlock unlimited\\n"
    raised = "ulimit -l unlimited" if hard is None else f"printf '{lines}' > /etc/security/limits.d/rdma.conf"
    yield Finding(
        level=Level.WARNING,
        symptom=f"{symptom}, and RDMA on {', '.join(devices)} pins all that it registers",
        cause="registering a larger arena fails with `Cannot allocate memory`",
        fix=f"{raised}  # then log in again; for a service LimitMEMLOCK=infinity, for a container --ulimit memlock=-1",
        evidence=(
            f"/proc/self/limits: Max locked memory {soft} bytes (hard: {'unlimited' if hard is None else hard})",
        ),
    )


CHECK = Check(
    name="memlock",
    title="Enough memory may be pinned for RDMA",
    reads=("/proc/self/limits", "/proc/self/status", "/sys/class/infiniband"),
    reference="https://docs.kernel.org/infiniband/user_verbs.html",
    judge=judge,
)
