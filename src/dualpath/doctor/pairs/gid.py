"""Do both ends address each other the same way? The index of a GID may differ; what it stands for may not."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Finding, Level, PairCheck
from dualpath.doctor.ends import End, disagreements, vlan
from dualpath.doctor.host import Host
from dualpath.host.rdma import Gid


def _judge(one: Host, other: Host) -> Iterator[Finding]:
    yield from disagreements(one, other, _between)


def family(gid: Gid) -> str:
    """Return the kind of address that a GID is made of."""
    if gid.ipv4 is not None:
        return "IPv4"
    return "link-local IPv6" if gid.link_local else "IPv6"


def _between(mine: End, theirs: End) -> Finding | None:
    near, far = mine.gid, theirs.gid
    if near is None or far is None or near.version != far.version:  # said by roce-gid and pair-roce-version
        return None
    vlans = vlan(mine.host, near.netdev), vlan(theirs.host, far.netdev)
    if family(near) != family(far):
        what = f"address families differ: {_said(mine, near)}, {_said(theirs, far)}"
        cause = "an IPv4 GID cannot reach an IPv6 one: addresses are not resolved, or packets have the wrong headers"
    elif vlans[0] != vlans[1]:
        what = f"VLANs differ: {_said(mine, near)} {_tag(vlans[0])}, {_said(theirs, far)} {_tag(vlans[1])}"
        cause = "packets of one VLAN do not reach the other; only what the kernel routes (small, TCP) gets through"
    else:
        return None
    pins = " and ".join(end.pin for end in (mine, theirs) if end.pin)
    return Finding(
        level=Level.CRITICAL,
        symptom=what,
        cause=cause + (f"; pinned by {pins}" if pins else ""),
        fix="give both interfaces an IPv4 address in the same VLAN, choose the RoCE v2 entry that stands for it on "
        "each host (its index may differ: `show_gids`), and keep it where it survives a reboot",
        evidence=(_line(mine, near), _line(theirs, far)),
        subject=f"{mine.port.name}, {theirs.port.name}",
    )


def _said(end: End, gid: Gid) -> str:
    return f"{end.name} GID {gid.index} {family(gid)}"


def _tag(number: int) -> str:
    return f"VLAN {number}" if number else "no VLAN"


def _line(end: End, gid: Gid) -> str:
    return f"{end.name}: GID {gid.index} {gid.address} RoCE v{gid.version} {gid.netdev or ''}".rstrip()


CHECK = PairCheck(
    name="pair-gid",
    title="The GIDs in use at both ends are of one address family and one VLAN",
    reads=(
        "/sys/class/infiniband/*/ports/*/{gids,gid_attrs/types,gid_attrs/ndevs}/*",
        "/proc/net/vlan/*",
        "ip -d -j link",
        "/etc/nccl.conf",
        "/etc/ucx/ucx.conf",
        "/proc/self/environ",
        "show_gids",
    ),
    reference="InfiniBand Architecture, Annex A17 (RoCE v2); Linux Documentation/ABI/stable/sysfs-class-infiniband",
    judge=_judge,
)
