"""RoCE needs a network that does not drop: PFC, on the priority that its packets really fall in."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.ethtool_pause import parse_pause
from dualpath.doctor.qos import BULK_DSCP, PREFETCH_DSCP, PRIORITIES, REALTIME_DSCP, Qos, pfc_command, read_qos
from dualpath.doctor.subjects import RoceNic, rdma_unused, roce_nics

BREAKS_OFF = "RDMA connects, and transfers break off or crawl as soon as a buffer overflows"


def judge(host: Host) -> Iterator[Finding]:
    """Yield what is wrong with the priorities of each RoCE NIC."""
    for roce in roce_nics(host):
        try:
            qos = read_qos(host, roce.nic)
        except Unknown as why:
            if not rdma_unused(host, roce.device):
                yield Finding(level=Level.UNKNOWN, symptom=str(why), fix=why.fix, subject=roce.name)
            continue
        if qos is None:
            continue
        if not qos.pfc:
            yield _lossy(host, roce, qos)
            continue
        finding = _forced(host, roce, qos) or _sorted_elsewhere(host, roce, qos)
        if finding is not None:
            yield finding
            continue
        yield from _sharing(roce, qos)
        yield from _no_buffer(roce, qos)


def _lossy(host: Host, roce: RoceNic, qos: Qos) -> Finding:
    """PFC is off altogether: fine with link-wide pause or without RDMA, else a loss waiting to happen."""
    printed = host.output(f"ethtool -a {roce.name}")
    pause = parse_pause(printed.stdout if printed else "")
    if pause.rx and pause.tx:
        symptom = f"{roce.name}: link-wide pause is on in place of PFC: lossless, but a pause stops every lane at once"
        return _info(roce, symptom, qos)
    if rdma_unused(host, roce.device):
        return _info(roce, f"{roce.name}: PFC is off, and {roce.device} has carried no RDMA so far: fine for TCP", qos)
    return Finding(
        level=Level.WARNING,
        symptom=f"{roce.name}: PFC is off on all eight priorities, so RoCE over {roce.device} can lose packets",
        cause=f"no lossless priority for prefetch (DSCP {PREFETCH_DSCP}): {BREAKS_OFF}",
        fix=f"{pfc_command(roce.nic, PREFETCH_DSCP >> 3)}  # and the same on every switch port of the path",
        evidence=qos.evidence,
        subject=roce.name,
    )


def _sorted_elsewhere(host: Host, roce: RoceNic, qos: Qos) -> Finding | None:
    """PFC is on, but not where prefetch goes."""
    priority = qos.priority(PREFETCH_DSCP)
    if priority in qos.pfc:
        return None
    lossless = ", ".join(map(str, sorted(qos.pfc)))
    if qos.trust == "pcp":
        above = _tagged_above(host, roce.name)
        if above:
            return Finding(
                level=Level.UNKNOWN,
                symptom=f"{roce.name} sorts by VLAN priority, and which one {above} writes cannot be seen",
                fix=f"ip -d link show {above}, and look at egress-qos-map",
                evidence=qos.evidence,
                subject=roce.name,
            )
        cause = "it trusts the VLAN tag's PCP, untagged packets have none and fall in priority 0"
    else:
        cause = f"DSCP {PREFETCH_DSCP} is mapped to priority {priority}"
    return Finding(
        level=Level.CRITICAL,
        symptom=f"{roce.name}: PFC is on for priority {lossless}, prefetch falls in priority {priority}",
        cause=f"{cause}: {BREAKS_OFF}",
        fix=f"{pfc_command(roce.nic, min(qos.pfc))}  # and the same on every switch port of the path",
        evidence=qos.evidence,
        subject=roce.name,
    )


def _forced(host: Host, roce: RoceNic, qos: Qos) -> Finding | None:
    """`traffic_class` overrides the DSCP that an application asks for."""
    path = f"/sys/class/infiniband/{roce.device}/tc/1/traffic_class"
    match = re.search(r"tclass=(\d{1,3})", host.tree.read(path) or "")
    if match is None or qos.trust != "dscp":
        return None
    dscp = int(match.group(1)) >> 2
    priority = qos.priority(dscp)
    if dscp > 63 or priority in qos.pfc:
        return None
    return Finding(
        level=Level.CRITICAL,
        symptom=f"{roce.device} writes DSCP {dscp} into all its packets: priority {priority}, which has no PFC",
        cause=f"a global traffic class overrides the lanes' own: {BREAKS_OFF}",
        fix=f"echo {PREFETCH_DSCP << 2} > {path}",
        evidence=(f"{path}: {host.tree.read(path)}", *qos.evidence),
        subject=roce.name,
    )


def _sharing(roce: RoceNic, qos: Qos) -> Iterator[Finding]:
    """A pause for prefetch must not stop the real-time lane."""
    lossless = qos.priority(PREFETCH_DSCP)
    lanes = [
        name for name, dscp in (("real-time", REALTIME_DSCP), ("bulk", BULK_DSCP)) if qos.priority(dscp) == lossless
    ]
    if lanes and qos.trust == "dscp":
        lane_dscps = f"DSCP {REALTIME_DSCP} (real-time), {PREFETCH_DSCP} (prefetch) and {BULK_DSCP} (bulk)"
        yield Finding(
            level=Level.WARNING,
            symptom=f"{roce.name}: prefetch shares priority {lossless} with {' and '.join(lanes)}",
            cause="one queue for several lanes: prefetch and its pauses hold up small messages, and P99 rises",
            fix=_spread(roce),
            evidence=(f"lanes: {lane_dscps}", *qos.evidence),
            subject=roce.name,
        )


def _spread(roce: RoceNic) -> str:
    name = roce.name
    if roce.nic.driver == "mlx5_core":
        return " && ".join(
            f"mlnx_qos -i {name} --dscp2prio set,{dscp},{dscp >> 3}"
            for dscp in (REALTIME_DSCP, PREFETCH_DSCP, BULK_DSCP)
        )
    pairs = " ".join(f"{dscp}:{dscp >> 3}" for dscp in (REALTIME_DSCP, PREFETCH_DSCP, BULK_DSCP))
    return f"dcb app replace dev {name} dscp-prio {pairs}"


def _no_buffer(roce: RoceNic, qos: Qos) -> Iterator[Finding]:
    """A lossless priority needs room for what is under way when it says stop."""
    priority = qos.priority(PREFETCH_DSCP)
    buffer = qos.buffer_of_priority.get(priority)
    if buffer is None or qos.buffer_bytes.get(buffer) != 0:
        return
    half = sum(qos.buffer_bytes.values()) // 2
    buffers = ",".join("1" if p == priority else "0" for p in range(PRIORITIES))
    yield Finding(
        level=Level.WARNING,
        symptom=f"{roce.name}: priority {priority} is lossless, but its receive buffer {buffer} has no bytes",
        cause="packets under way when a pause is sent have no room, and are dropped",
        fix=f"mlnx_qos -i {roce.name} --prio2buffer {buffers} --buffer_size {half},{half},0,0,0,0,0,0",
        evidence=qos.evidence,
        subject=roce.name,
    )


def _tagged_above(host: Host, name: str) -> str:
    """Return an interface that lies on `name`, such as a VLAN's; empty if there is none."""
    above = (
        nic.name
        for nic in host.nics
        if nic.kind == "virtual" and f"lower_{name}" in host.tree.names(f"/sys/class/net/{nic.name}")
    )
    return next(above, "")


def _info(roce: RoceNic, symptom: str, qos: Qos) -> Finding:
    return Finding(level=Level.INFO, symptom=symptom, evidence=qos.evidence, subject=roce.name)


CHECK = Check(
    name="pfc-priority",
    title="PFC is on for the priority that prefetch falls in, and no other lane shares it",
    reads=(
        "mlnx_qos -i NIC",
        "dcb pfc show dev NIC",
        "dcb app show dev NIC",
        "dcb apptrust show dev NIC",
        "dcb buffer show dev NIC",
        "ethtool -a NIC",
        "/sys/class/infiniband/DEVICE/tc/1/traffic_class",
        "/sys/class/infiniband/DEVICE/ports/1/counters/{port_rcv_data,port_xmit_data}",
    ),
    reference="https://docs.nvidia.com/networking/display/mlnxenv23106161lts/quality-of-service-(qos)",
    judge=judge,
)
