"""Do both ends speak the same version of RoCE?"""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Finding, Level, PairCheck
from dualpath.doctor.ends import End, disagreements
from dualpath.doctor.host import Host

_CAUSE = (
    "a v1 port neither sends nor understands v2 packets (UDP port 4791): small exchanges over TCP work, RDMA transfers "
    "are lost"
)


def _judge(one: Host, other: Host) -> Iterator[Finding]:
    yield from disagreements(one, other, _by_gid)
    yield from disagreements(one, other, _by_connection_manager)


def _by_gid(mine: End, theirs: End) -> Finding | None:
    near, far = mine.gid, theirs.gid
    if near is None or far is None or not near.version or not far.version or near.version == far.version:
        return None
    old = mine if near.version == 1 else theirs
    return Finding(
        level=Level.CRITICAL,
        symptom=f"RoCE version differs: {mine.name} v{near.version} (GID {near.index}), "
        f"{theirs.name} v{far.version} (GID {far.index})",
        cause=f"{old.name} uses a v1 entry" + (f" ({old.pin})" if old.pin else "") + "; " + _CAUSE,
        fix=f"on {old.host.name}: "
        + (f"remove {old.pin}, or pin a v2 entry of `show_gids`" if old.pin else "use a v2 entry of `show_gids`")
        + ", and keep it where it survives a reboot (/etc/nccl.conf, /etc/ucx/ucx.conf)",
        evidence=(_line(mine), _line(theirs)),
        subject=f"{mine.port.name}, {theirs.port.name}",
    )


def _by_connection_manager(mine: End, theirs: End) -> Finding | None:
    near, far = _mode(mine), _mode(theirs)
    if not near or not far or near == far:
        return None
    old = mine if "v1" in near else theirs
    return Finding(
        level=Level.CRITICAL,
        symptom=f"rdma_cm connects with another RoCE version: {mine.name} {near}, {theirs.name} {far}",
        cause=f"default_roce_mode; {_CAUSE}",
        fix=f"on {old.host.name}: cma_roce_mode -d {old.port.device} -p {old.port.port} -m 2 (mlnx-tools), "
        "at every boot",
        evidence=(f"{mine.host.name} {_path(mine)}: {near}", f"{theirs.host.name} {_path(theirs)}: {far}"),
        subject=f"{mine.port.name}, {theirs.port.name}",
    )


def _path(end: End) -> str:
    return f"/sys/kernel/config/rdma_cm/{end.port.device}/ports/{end.port.port}/default_roce_mode"


def _mode(end: End) -> str:
    return (end.host.tree.read(_path(end)) or "").strip()


def _line(end: End) -> str:
    gid = end.gid
    return f"{end.name}: " + ("no GID" if gid is None else f"GID {gid.index} {gid.address} RoCE v{gid.version}")


CHECK = PairCheck(
    name="pair-roce-version",
    title="Both ends speak the same version of RoCE",
    reads=(
        "/sys/class/infiniband/*/ports/*/{gids,gid_attrs/types}/*",
        "/sys/kernel/config/rdma_cm/*/ports/*/default_roce_mode",
        "/etc/nccl.conf",
        "/etc/ucx/ucx.conf",
        "/proc/self/environ",
        "show_gids",
    ),
    reference="InfiniBand Architecture, Annexes A16 (RoCE) and A17 (RoCE v2); Linux "
    "Documentation/ABI/testing/configfs-rdma_cm",
    judge=_judge,
)
