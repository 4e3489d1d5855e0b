"""In which priority a NIC sorts each lane, and which priorities are lossless, whichever tool said so.

A switch and a NIC sort packets into eight priorities, by the DSCP of the IP header (trust `dscp`) or by the PCP of the
VLAN tag (trust `pcp`); an untagged packet has no PCP and falls in priority 0. PFC makes a priority lossless.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dualpath.doctor.base import Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.parsers import dcb
from dualpath.doctor.parsers.mlnx_qos import TrafficClass, parse_mlnx_qos
from dualpath.doctor.subjects import said
from dualpath.host.lanes import LANES
from dualpath.host.nics import Nic

REALTIME_DSCP, PREFETCH_DSCP, BULK_DSCP = (LANES[lane].dscp for lane in ("realtime", "prefetch", "bulk"))
"""What the lanes write into their packets: EF, AF31 and CS1. Prefetch is the lossless one."""

PRIORITIES = 8


@dataclass(frozen=True, slots=True)
class Qos:
    """How one NIC sorts. `source` is the command that said so."""

    source: str
    trust: str
    """`dscp` or `pcp`."""
    pfc: frozenset[int]
    priority_of_dscp: Mapping[int, int] = field(default_factory=dict)
    buffer_of_priority: Mapping[int, int] = field(default_factory=dict)
    buffer_bytes: Mapping[int, int] = field(default_factory=dict)
    class_of_priority: Mapping[int, int] = field(default_factory=dict)
    classes: Mapping[int, TrafficClass] = field(default_factory=dict)
    """How traffic classes share the link (ETS, IEEE 802.1Qaz)."""

    def priority(self, dscp: int) -> int:
        """Return the priority of an untagged packet with this DSCP."""
        return self.priority_of_dscp.get(dscp, 0) if self.trust == "dscp" else 0

    @property
    def evidence(self) -> tuple[str, ...]:
        """Return what was read, for a finding."""
        lossless = ", ".join(map(str, sorted(self.pfc))) or "none"
        sorts = f"DSCP {PREFETCH_DSCP} in priority {self.priority(PREFETCH_DSCP)}"
        return (f"{self.source}: trust {self.trust}, PFC on priorities: {lossless}, {sorts}",)


def read_qos(host: Host, nic: Nic) -> Qos | None:
    """Return how `nic` sorts; `None` if no tool was asked. Raises `Unknown` if none could say.

    `mlnx_qos` says the most, so it counts first; `dcb` works with every driver.
    """
    missing: list[Unknown] = []
    for read in (_by_mlnx_qos, _by_dcb):
        try:
            found = read(host, nic)
        except Unknown as why:
            missing.append(why)
            continue
        if found is not None:
            return found
    if len(missing) == 2:
        raise Unknown(f"priorities of {nic.name} cannot be seen: mlnx_qos and dcb are missing", fix=missing[1].fix)
    return None


def pfc_command(nic: Nic, priority: int) -> str:
    """Return the command that makes `priority` lossless, trusts the DSCP, and sorts prefetch there."""
    if nic.driver == "mlx5_core":
        bits = ",".join("1" if p == priority else "0" for p in range(PRIORITIES))
        mapped = "" if priority == PREFETCH_DSCP >> 3 else f" --dscp2prio set,{PREFETCH_DSCP},{priority}"
        return f"mlnx_qos -i {nic.name} --trust dscp --pfc {bits}{mapped}"
    # the E810's firmware speaks DCBX itself, unless told not to
    own = f"ethtool --set-priv-flags {nic.name} fw-lldp-agent off && " if nic.driver == "ice" else ""
    return (
        f"{own}dcb app replace dev {nic.name} dscp-prio {PREFETCH_DSCP}:{priority} && "
        f"dcb pfc set dev {nic.name} prio-pfc all:off {priority}:on"
    )


def _by_mlnx_qos(host: Host, nic: Nic) -> Qos | None:
    line = f"mlnx_qos -i {nic.name}"
    text = said(host, line)
    qos = parse_mlnx_qos(text) if text else None
    if qos is None or qos.pfc is None:
        return None
    trust = "pcp" if qos.trust == "pcp" else "dscp"
    by_rule = {dscp: dscp >> 3 for dscp in range(64)}  # what mlx5 does unless told otherwise
    return Qos(
        line,
        trust if qos.trust or qos.priority_of_dscp else "pcp",
        qos.pfc,
        {**by_rule, **qos.priority_of_dscp},
        dict(enumerate(qos.buffer_of_priority)),
        dict(enumerate(qos.buffer_bytes)),
        qos.class_of_priority,
        qos.classes,
    )


def _by_dcb(host: Host, nic: Nic) -> Qos | None:
    line = f"dcb pfc show dev {nic.name}"
    text = said(host, line)
    pfc = dcb.parse_pfc(text) if text else None
    if pfc is None:
        return None
    table = dcb.parse_dscp_priorities(said(host, f"dcb app show dev {nic.name}") or "")
    order = dcb.parse_trust(said(host, f"dcb apptrust show dev {nic.name}") or "")
    buffers = said(host, f"dcb buffer show dev {nic.name}") or ""
    ets = said(host, f"dcb ets show dev {nic.name}") or ""
    shares, algorithms = dcb.parse_tc_bandwidth(ets), dcb.parse_tc_algorithms(ets)
    trusts_dscp = "dscp" in order if order else bool(table)  # drivers trust the DSCP once one is mapped
    return Qos(
        line,
        "dscp" if trusts_dscp else "pcp",
        pfc,
        table,
        dcb.parse_prio_buffer(buffers),
        dcb.parse_buffer_bytes(buffers),
        dcb.parse_prio_tc(ets),
        {tc: TrafficClass(tsa, shares.get(tc) if tsa == "ets" else None) for tc, tsa in algorithms.items()},
    )
