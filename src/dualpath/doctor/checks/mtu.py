"""Do RDMA packets have their full size, on all data NICs alike, and do they pass whole?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dualpath.doctor import fabric
from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.ping import parse_ping
from dualpath.host.rdma import RdmaPort

_JUMBO = 9000
_PATH_MTUS = (4096, 2048, 1024, 512, 256)
_HEADERS = 96
"""Bytes of GRH, UDP, BTH, XRC, atomic header and ICRC that RoCE sets aside: `iboe_get_mtu` of the kernel."""


def _judge(host: Host) -> Iterator[Finding]:
    active = [port for port in fabric.ports(host) if port.state == "ACTIVE" and port.pci_address is not None]
    mtus = {
        nic.name: nic.mtu
        for port in active
        if fabric.roce(port)
        for nic in (fabric.nic_named(host, name) for name in port.netdevs)
        if nic is not None and nic.mtu is not None and nic.up
    }
    for port in active:
        if fabric.roce(port):
            yield from _roce(host, port, mtus)
        elif port.link_layer == "InfiniBand":
            yield from _infiniband(host, port)
    yield from _probes(host)


def roce_path_mtu(mtu: int) -> int:
    """Return the RDMA path MTU that an interface's MTU allows, both in bytes: 1024 for 1500, 4096 for 9000."""
    return next((path for path in _PATH_MTUS if path <= mtu - _HEADERS), 0)


def _roce(host: Host, port: RdmaPort, mtus: dict[str, int]) -> Iterator[Finding]:
    name = next((name for name in port.netdevs if name in mtus), None)
    verbs = fabric.verbs_port(host, port)
    limit = (verbs.max_mtu if verbs else None) or _PATH_MTUS[0]
    active = verbs.active_mtu if verbs and verbs.active_mtu else roce_path_mtu(mtus[name]) if name else None
    largest = max(mtus.values(), default=0)
    if name is None or active is None:
        return
    evidence = (
        f"/sys/class/net/{name}/mtu: {mtus[name]}",
        f"ibv_devinfo -v: {port.name} active_mtu {active}, max_mtu {limit}",
        *(f"/sys/class/net/{other}/mtu: {mtu}" for other, mtu in mtus.items() if other != name),
    )
    differs = mtus[name] < largest
    if active < limit or differs:
        # A port that never carried RDMA may be there for TCP alone, unless it is one of the fast ones.
        aside = fabric.never_used(host, port.device, port.port) and not (differs and _as_fast(host, port))
        others = ", ".join(other for other, mtu in mtus.items() if mtu == largest)
        yield Finding(
            level=Level.INFO if aside else Level.WARNING,
            symptom=f"{name} ({port.name}): MTU {mtus[name]}, so RDMA packets carry {active} of at most {limit} bytes"
            + (f"; {others} has {largest}" if differs else ""),
            cause="the interface is not set to jumbo frames"
            + (": peers of the other NICs send packets that this one's path drops" if differs else ""),
            fix=f"ip link set dev {name} mtu {max(_JUMBO, largest)}, the same at the switch and at every peer, "
            "and keep it in netplan or NetworkManager",
            evidence=evidence,
            subject=name,
        )


def _as_fast(host: Host, port: RdmaPort) -> bool:
    """Whether the port is about as fast as the host's fastest."""
    fastest = max((other.rate_bits_per_s or 0 for other in fabric.ports(host) if other.state == "ACTIVE"), default=0)
    return 2 * (port.rate_bits_per_s or 0) > fastest


def _infiniband(host: Host, port: RdmaPort) -> Iterator[Finding]:
    verbs = fabric.verbs_port(host, port)
    if verbs is None or verbs.active_mtu is None or verbs.max_mtu is None or verbs.active_mtu >= verbs.max_mtu:
        return
    # The subnet manager grants 2048 in many fabrics; little is lost there.
    yield Finding(
        level=Level.WARNING if verbs.active_mtu < 2048 else Level.INFO,
        symptom=f"{port.name}: path MTU {verbs.active_mtu} bytes of at most {verbs.max_mtu}",
        cause="the switch port at the other end is capable of no more, or set to no more",
        fix=f"compare MtuCap and NeighborMTU: `smpquery -C {port.device} -P {port.port} -D portinfo 0` "
        "(infiniband-diags); set the switch port to 4K",
        evidence=(f"ibv_devinfo -v: {port.name} active_mtu {verbs.active_mtu}, max_mtu {verbs.max_mtu}",),
        subject=port.name,
    )


def _probes(host: Host) -> Iterator[Finding]:
    """Judge each peer's probes: packets that may not be fragmented, of the interface's full size and short ones."""
    if "ping" in host.recording.missing:  # it is asked for only where somebody wants to know
        yield Finding(
            level=Level.UNKNOWN,
            symptom="whether full-size packets reach the peer was not tried: ping is not installed",
            fix="install iputils-ping",
        )
    probes: dict[str, dict[int, str]] = {}
    for line in host.recording.commands:
        asked = re.fullmatch(r"ping -M do .*-s (\d{1,5}) ([\w.:%-]+)", line, re.ASCII)
        if asked:
            # what ping -s gives is the payload: 8 bytes of ICMP go before it, and 20 of IPv4 or 40 of IPv6
            size = int(asked[1]) + (48 if ":" in asked[2] else 28)
            probes.setdefault(asked[2], {})[size] = line
    for peer, by_size in sorted(probes.items()):
        yield _probe(host, peer, by_size)


def _probe(host: Host, peer: str, by_size: dict[int, str]) -> Finding:
    outputs = {size: host.recording.commands[line] for size, line in by_size.items()}
    probes = {size: parse_ping(f"{output.stdout}\n{output.stderr}") for size, output in outputs.items()}
    packet = max(probes)
    probe = probes[packet]
    small = any(other.received for size, other in probes.items() if size < packet)
    evidence = tuple(
        f"{by_size[size]}: " + ("no result" if one.sent is None else f"{one.received} of {one.sent} answered")
        for size, one in probes.items()
    )
    blocked = probe.router_mtu or probe.local_mtu
    if blocked is not None and packet > blocked:
        where = f"at {probe.router}" if probe.router else "at this host's interface or route"
        return Finding(
            level=Level.CRITICAL,
            symptom=f"packets of {packet} bytes do not reach {peer}: MTU {blocked} {where}",
            cause="the MTU differs along the path: connections are made, then large transfers break off",
            fix=f"raise the MTU to {packet} {where}, and check every hop: tracepath -n {peer}",
            evidence=evidence,
            subject=peer,
        )
    if probe.received:
        return Finding(
            level=Level.OK, symptom=f"packets of {packet} bytes reach {peer} whole", evidence=evidence, subject=peer
        )
    if small and probe.sent is not None:
        return Finding(
            level=Level.CRITICAL,
            symptom=f"packets of {packet} bytes to {peer} vanish, small ones arrive",
            cause="a hop drops what is larger than its MTU without saying so",
            fix=f"set the MTU to {packet} port by port; find the hop: tracepath -n {peer}",
            evidence=evidence,
            subject=peer,
        )
    said = outputs[packet].stderr.strip().splitlines() if probe.sent is None else []
    return Finding(
        level=Level.UNKNOWN,
        symptom=f"whether packets of {packet} bytes reach {peer} is not known: "
        + (said[-1] if said else "nothing there answers ping"),
        fix=f"ping -c 3 {peer}",
        evidence=evidence,
        subject=peer,
    )


CHECK = Check(
    name="mtu",
    title="RDMA packets have their full size, on all data NICs alike, and pass whole",
    reads=("/sys/class/net/NIC/mtu", "ibv_devinfo -v", "ping -M do -s SIZE PEER"),
    reference="NVIDIA, RDMA over Converged Ethernet (RoCE): MTU, https://docs.nvidia.com/networking/; ping(8), -M do; "
    "iboe_get_mtu of include/rdma/ib_addr.h",
    judge=_judge,
)
