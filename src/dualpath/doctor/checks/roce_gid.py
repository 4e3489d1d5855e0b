"""Which RoCE version and address will a RoCE port use, and is it one that peers can reach?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dualpath.doctor import fabric
from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.host.rdma import Gid, RdmaPort

_PINS = ("/etc/nccl.conf", "/etc/ucx/ucx.conf", "/proc/self/environ")
_PIN = re.compile(r"^\s*(NCCL_IB_GID_INDEX|UCX_IB_GID_INDEX)\s*=\s*(\d{1,4})\s*$", re.MULTILINE | re.ASCII)


def _judge(host: Host) -> Iterator[Finding]:
    chosen: dict[str, Gid] = {}
    for port in fabric.ports(host):
        if not fabric.roce(port) or port.state != "ACTIVE":
            continue
        gid = automatic_gid(port.gids)
        if gid is None:
            yield _empty(host, port)
            continue
        chosen[port.name] = gid
        yield _table(host, port, gid)
        yield from _pinned(host, port)
        yield from _connection_manager(host, port)
    if len({gid.index for gid in chosen.values()}) > 1:
        yield Finding(
            level=Level.INFO,
            symptom="ports differ in the index of the GID in use: "
            + ", ".join(f"{name} {gid.index}" for name, gid in chosen.items()),
            cause="the index counts addresses in the order in which they came; only version and address matter",
            fix="leave NCCL_IB_GID_INDEX and UCX_IB_GID_INDEX unset, so that each port takes its own",
        )


def automatic_gid(gids: tuple[Gid, ...]) -> Gid | None:
    """Return the entry that UCX (`UCX_IB_GID_INDEX=auto`) takes, as NCCL since 2.21 with its default IPv4 family does.

    RoCE v2 before v1, IPv4 before IPv6, link-local last, the lowest index among equals: `uct_ib_device_select_gid` of
    UCX; `NCCL_IB_ROCE_VERSION_NUM` and `NCCL_IB_ADDR_FAMILY` of NCCL.
    """
    return min(gids, key=lambda g: (-(g.version or 0), g.ipv4 is None, g.link_local, g.index), default=None)


def _empty(host: Host, port: RdmaPort) -> Finding:
    at = f"/sys/class/infiniband/{port.device}/ports/{port.port}/gids"
    if fabric.verbs_port(host, port) is None and host.output("show_gids") is None:
        return Finding(level=Level.UNKNOWN, symptom=f"{port.name}: GID table was not recorded", subject=port.name)
    if not port.netdevs:
        return Finding(
            level=Level.INFO,
            symptom=f"{port.name}: its interface, and with it its GIDs, are in another network namespace",
            subject=port.name,
        )
    pci = f"pci/{port.pci_address}"
    return Finding(
        level=Level.CRITICAL,
        symptom=f"{port.name}: GID table is empty, so no RoCE connection can be made",
        cause="RoCE is off for the device",
        fix=f"devlink dev param set {pci} name enable_roce value true cmode driverinit && devlink dev reload {pci}",
        evidence=(f"{at}: no entry",),
        subject=port.name,
    )


def _table(host: Host, port: RdmaPort, gid: Gid) -> Finding:
    name = gid.netdev or (port.netdevs[0] if port.netdevs else "the interface")
    evidence = tuple(_line(port, entry) for entry in port.gids)
    if gid.version == 1 and None not in {entry.version for entry in port.gids}:
        return Finding(
            level=Level.CRITICAL,
            symptom=f"{port.name}: RoCE v1 only; index {gid.index} ({gid.address}) will be used",
            cause="RoCE v2 is off in the card or not supported by its driver; v1 frames are not routed, "
            "and peers on v2 do not answer them",
            fix="update the card's firmware and driver until `show_gids` (mlnx-tools) lists v2 entries; on hosts whose "
            "peers speak v1 too, set NCCL_IB_ROCE_VERSION_NUM=1 meanwhile",
            evidence=evidence,
            subject=port.name,
        )
    if gid.version != 2:
        return Finding(
            level=Level.UNKNOWN,
            symptom=f"{port.name}: RoCE version of its GIDs is not known",
            fix="run `show_gids` (mlnx-tools), or record gid_attrs of sysfs",
            evidence=evidence,
            subject=port.name,
        )
    if gid.link_local:
        return Finding(
            level=Level.INFO if fabric.never_used(host, port) else Level.WARNING,
            symptom=f"{port.name} ({name}): link-local GIDs only; index {gid.index} ({gid.address}) will be used",
            cause="the interface has no IP address, so the table lacks an IPv4-mapped entry; "
            "link-local addresses do not pass a router, and NCCL_IB_GID_INDEX=3 finds nothing",
            fix=f"give {name} an address of the fabric's subnet: "
            f"`nmcli connection modify {name} ipv4.method manual ipv4.addresses ADDRESS/PREFIX`, or in netplan",
            evidence=evidence,
            subject=port.name,
        )
    return Finding(
        level=Level.OK if gid.ipv4 is not None else Level.INFO,
        symptom=f"{port.name}: RoCE v2 at index {gid.index} ({gid.ipv4 or gid.address}, {name}) will be used",
        evidence=evidence,
        subject=port.name,
    )


def _pinned(host: Host, port: RdmaPort) -> Iterator[Finding]:
    """Judge an index that a configuration file pins for every port."""
    pins = [(path, *pin.groups()) for path in _PINS for pin in _PIN.finditer(host.tree.read(path) or "")]
    for path, variable, index in pins:
        entry = next((gid for gid in port.gids if gid.index == int(index)), None)
        if entry is not None and entry.version == 2:
            continue
        what = "is empty" if entry is None else f"is RoCE v{entry.version or '?'} ({entry.address})"
        best = automatic_gid(port.gids)
        yield Finding(
            level=Level.CRITICAL,
            symptom=f"{port.name}: {variable}={index} in {path}, but entry {index} {what}",
            cause="the index counts addresses in the order in which they came, so it differs between ports, hosts and "
            "reboots",
            fix=(f"unset {variable}" if path.startswith("/proc") else f"sed -i '/^{variable}=/d' {path}")
            + f": index {best.index if best else '?'} is then found by itself",
            evidence=(f"{path}: {variable}={index}", *(_line(port, gid) for gid in port.gids)),
            subject=port.name,
        )


def _connection_manager(host: Host, port: RdmaPort) -> Iterator[Finding]:
    path = f"/sys/kernel/config/rdma_cm/{port.device}/ports/{port.port}/default_roce_mode"
    mode = host.tree.read(path)
    if mode and "v1" in mode and any(gid.version == 2 for gid in port.gids):
        yield Finding(
            level=Level.WARNING,
            symptom=f"{port.name}: rdma_cm connects with RoCE v1, verbs applications with v2",
            cause="default_roce_mode is v1; a peer on v2 refuses or never hears these connections",
            fix=f"cma_roce_mode -d {port.device} -p {port.port} -m 2, at every boot (the setting is not kept)",
            evidence=(f"{path}: {mode}",),
            subject=port.name,
        )


def _line(port: RdmaPort, gid: Gid) -> str:
    kind = f"v{gid.version}" if gid.version else "?"
    return f"{port.name} GID {gid.index}: {gid.address} RoCE {kind} {gid.netdev or ''}".rstrip()


CHECK = Check(
    name="roce-gid",
    title="A RoCE port has a RoCE v2 GID with a routable address, and that is the one that will be used",
    reads=(
        "/sys/class/infiniband/DEVICE/ports/PORT/gids/*",
        "/sys/class/infiniband/DEVICE/ports/PORT/gid_attrs/{types,ndevs}/*",
        "/sys/kernel/config/rdma_cm/DEVICE/ports/PORT/default_roce_mode",
        "/etc/nccl.conf",
        "/etc/ucx/ucx.conf",
        "/proc/self/environ",
        "show_gids",
        "ibv_devinfo -v",
    ),
    reference="NCCL, NCCL_IB_GID_INDEX and NCCL_IB_ROCE_VERSION_NUM, "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; InfiniBand Architecture, Annex A17 (RoCE v2)",
    judge=_judge,
)
