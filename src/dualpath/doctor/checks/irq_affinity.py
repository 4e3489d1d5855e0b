"""A NIC's interrupts belong on CPUs of its own NUMA node, and on more than one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.interrupts import Interrupt, parse_cpus, parse_interrupts
from dualpath.doctor.subjects import fast_nics
from dualpath.host.nics import Nic

LEAST_QUEUES = 4
MANY = 100_000
"""Interrupts of one queue after which their spread says something: a single flow keeps to one queue."""
ONE_CPU_SHARE = 0.95

_QUEUE = re.compile(r"comp|tx-?rx|[-_](?:rx|tx|input|output|fp)\b|ceq", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Queue:
    interrupt: Interrupt
    cpus: frozenset[int]
    """Where it may be delivered; empty if that cannot be read."""


def judge(host: Host) -> Iterator[Finding]:
    """Yield NICs whose queues all interrupt one CPU, or CPUs of another NUMA node."""
    interrupts = parse_interrupts(host.tree.read("/proc/interrupts") or "")
    if not interrupts:
        return
    online = parse_cpus(host.tree.read("/sys/devices/system/cpu/online") or "") or frozenset(
        range(len(interrupts[0].counts))
    )
    balanced = host.output("systemctl is-active irqbalance")
    mover = "irqbalance" if balanced is not None and balanced.stdout.strip() == "active" else ""
    for nic in fast_nics(host):
        queues = [_Queue(found, _cpus(host, found)) for found in _of(host, nic, interrupts)]
        if len(queues) >= LEAST_QUEUES and len(online) >= LEAST_QUEUES:
            finding = _elsewhere(host, nic, queues, online, mover) or _one_cpu(host, nic, queues, mover)
            if finding is not None:
                yield finding


def _of(host: Host, nic: Nic, interrupts: Sequence[Interrupt]) -> list[Interrupt]:
    """Return the interrupts of the NIC's queues: by number where sysfs lists them, else by name."""
    numbers = {int(name) for name in host.tree.names(f"/sys/class/net/{nic.name}/device/msi_irqs") if name.isdigit()}
    own = [
        found
        for found in interrupts
        if found.number in numbers
        or re.search(rf"(?:^|[\s-]){re.escape(nic.name)}(?:-|$)|@pci:{nic.pci_address}", found.name)
    ]
    queues = [found for found in own if _QUEUE.search(found.name.rpartition(" ")[2])]
    return queues or own


def _cpus(host: Host, found: Interrupt) -> frozenset[int]:
    for name in ("effective_affinity_list", "smp_affinity_list"):
        cpus = parse_cpus(host.tree.read(f"/proc/irq/{found.number}/{name}") or "")
        if cpus:
            return cpus
    return frozenset()


def _one_cpu(host: Host, nic: Nic, queues: Sequence[_Queue], mover: str) -> Finding | None:
    allowed = frozenset[int]().union(*(queue.cpus for queue in queues))
    taken = [sum(counts) for counts in zip(*(queue.interrupt.counts for queue in queues), strict=False)]
    busy = [queue for queue in queues if sum(queue.interrupt.counts) >= MANY]
    busiest = max(range(len(taken)), key=lambda cpu: taken[cpu], default=0)
    if len(allowed) == 1 and all(queue.cpus for queue in queues):
        what = f"all {len(queues)} queues interrupt CPU {min(allowed)}"
    elif len(busy) >= LEAST_QUEUES and taken[busiest] >= ONE_CPU_SHARE * sum(taken):
        what = f"{taken[busiest] / sum(taken):.0%} of the interrupts of {len(queues)} queues went to CPU {busiest}"
    else:
        return None
    return Finding(
        level=Level.WARNING,
        symptom=f"{nic.name}: {what}",
        cause="one CPU does the work of all queues: it saturates, load rises, and packets wait",
        fix=_fix(host, nic, mover),
        evidence=_evidence(queues, mover),
        subject=nic.name,
    )


def _elsewhere(host: Host, nic: Nic, queues: Sequence[_Queue], online: frozenset[int], mover: str) -> Finding | None:
    near = _near(host, nic)
    known = [queue for queue in queues if queue.cpus]
    far = [queue for queue in known if not queue.cpus & near]
    if not near or near >= online or 2 * len(far) <= len(known):
        return None
    return Finding(
        level=Level.WARNING,
        symptom=f"{nic.name}: {len(far)} of {len(known)} queues interrupt CPUs outside its NUMA node {nic.numa_node}",
        cause="each packet's data crosses between the processors, and CPU load rises with traffic",
        fix=_fix(host, nic, mover),
        evidence=_evidence(far, mover),
        subject=nic.name,
    )


def _near(host: Host, nic: Nic) -> frozenset[int]:
    """Return the CPUs of the NIC's NUMA node; empty on a host with one node."""
    if nic.numa_node is None:
        return frozenset()
    return parse_cpus(
        host.tree.read(f"/sys/devices/system/node/node{nic.numa_node}/cpulist")
        or host.tree.read(f"/sys/class/net/{nic.name}/device/local_cpulist")
        or ""
    )


def _fix(host: Host, nic: Nic, mover: str) -> str:
    stop = f"systemctl disable --now {mover} && " if mover else ""  # it would move them back
    if nic.driver == "mlx5_core":  # both scripts are in mlnx-tools
        by_node = f"set_irq_affinity_bynode.sh {nic.numa_node} {nic.name}"
        return stop + (by_node if nic.numa_node is not None else f"set_irq_affinity.sh {nic.name}")
    cpus = " ".join(map(str, sorted(_near(host, nic)))) or "$(seq 0 $(($(nproc) - 1)))"
    return (
        f"{stop}cpus=({cpus}); n=0; for irq in $(ls /sys/class/net/{nic.name}/device/msi_irqs); do "
        "echo ${cpus[n++ % ${#cpus[@]}]} > /proc/irq/$irq/smp_affinity_list; done"
    )


def _evidence(queues: Sequence[_Queue], mover: str) -> tuple[str, ...]:
    shown = tuple(
        f"/proc/irq/{queue.interrupt.number}/effective_affinity_list: {','.join(map(str, sorted(queue.cpus)))}"
        for queue in queues[:8]
    )
    return (*shown, *((f"systemctl is-active {mover}: active",) if mover else ()))


CHECK = Check(
    name="irq-affinity",
    title="A NIC's interrupts are spread over CPUs of its NUMA node",
    reads=(
        "/proc/interrupts",
        "/proc/irq/*/{effective_affinity_list,smp_affinity_list}",
        "/sys/class/net/NIC/device/{msi_irqs,local_cpulist}",
        "/sys/devices/system/node/*/cpulist",
        "/sys/devices/system/cpu/online",
        "systemctl is-active irqbalance",
    ),
    reference="https://docs.kernel.org/core-api/irq/irq-affinity.html",
    judge=judge,
)
