"""Two hosts that are to talk over RoCE: which ports face each other, and what each end will put on the wire.

Ports face each other by name where both hosts have the same names, as the rails of like machines do. Otherwise nobody
knows, and a port is at fault only if it agrees with none of the other host's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from dualpath.doctor import fabric
from dualpath.doctor.base import Finding
from dualpath.doctor.checks.roce_gid import automatic_gid
from dualpath.doctor.host import Host
from dualpath.host.nics import Nic
from dualpath.host.rdma import Gid, RdmaPort

_PINS = ("/proc/self/environ", "/etc/nccl.conf", "/etc/ucx/ucx.conf")
_PIN = re.compile(r"^\s*((?:NCCL|UCX)_IB_GID_INDEX)\s*=\s*(\d{1,4})\s*$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True)
class End:
    """An active RoCE port of one host, and how it will connect."""

    host: Host
    port: RdmaPort
    gid: Gid | None
    """The GID in use: the pinned one, else the one that is chosen by itself; `None` if there is no such entry."""
    pin: str
    """Where an index is pinned: `NCCL_IB_GID_INDEX=3 in /etc/nccl.conf`; empty if it is not."""

    @property
    def name(self) -> str:
        """Return host and port: `decode-1 mlx5_0/1`."""
        return f"{self.host.name} {self.port.name}"

    @property
    def nic(self) -> Nic | None:
        """Return the interface that the GID in use belongs to, a VLAN or bond perhaps; else the port's own."""
        names = (*([self.gid.netdev] if self.gid is not None and self.gid.netdev else []), *self.port.netdevs)
        return next((nic for name in names if (nic := fabric.nic_named(self.host, name)) is not None), None)


Judge = Callable[[End, End], Finding | None]
"""What is wrong between two ends that face each other; `None` if they agree."""


def ends(host: Host) -> list[End]:
    """Return the active RoCE ports of `host`."""
    return host.once(_ends)


def _ends(host: Host) -> list[End]:
    pin = next(
        (
            (int(found.group(2)), f"{found.group(1)}={found.group(2)} in {path}")
            for path in _PINS
            for found in _PIN.finditer(host.tree.read(path) or "")
        ),
        None,
    )
    found: list[End] = []
    for port in fabric.ports(host):
        if port.state == "ACTIVE" and fabric.roce(port):
            gid = automatic_gid(port.gids)
            if pin is not None:
                gid = next((entry for entry in port.gids if entry.index == pin[0]), None)
            found.append(End(host, port, gid, pin[1] if pin is not None else ""))
    return found


def disagreements(one: Host, other: Host, judge: Judge) -> Iterator[Finding]:
    """Yield what `judge` says of the ends that face each other; nothing for hosts without RoCE."""
    here, there = ends(one), ends(other)
    if {end.port.name for end in here} == {end.port.name for end in there}:
        for mine, theirs in zip(here, there, strict=True):
            found = judge(mine, theirs)
            if found is not None:
                yield found
        return
    said = [found for mine in here if (found := _with_none(judge, mine, there, turned=False)) is not None]
    said = said or [found for theirs in there if (found := _with_none(judge, theirs, here, turned=True)) is not None]
    yield from said


def vlan(host: Host, name: str | None) -> int:
    """Return the VLAN of an interface; 0 if it is none."""
    if name is None:
        return 0
    listed = re.search(r"\bVID: (\d{1,4})\b", host.tree.read(f"/proc/net/vlan/{name}") or "", re.ASCII)
    if listed:
        return int(listed.group(1))
    tagged = host.once(_tagged).get(name)
    if tagged is not None:
        return tagged
    suffix = re.fullmatch(r".+\.(\d{1,4})|vlan(\d{1,4})", name, re.ASCII)  # how most hosts call them
    return int(suffix.group(1) or suffix.group(2)) if suffix else 0


def _tagged(host: Host) -> dict[str, int]:
    """Return the VLANs of `ip -d -j link`, by interface."""
    output = host.output("ip -d -j link")
    with suppress(msgspec.MsgspecError):
        links = msgspec.json.decode(output.stdout if output else "[]", type=list[_Link])
        return {link.ifname: link.linkinfo.info_data.id for link in links if link.linkinfo.info_data.id is not None}
    return {}


class _VlanData(msgspec.Struct):
    id: int | None = None


class _LinkInfo(msgspec.Struct):
    info_data: _VlanData = msgspec.field(default_factory=_VlanData)


class _Link(msgspec.Struct):
    ifname: str = ""
    linkinfo: _LinkInfo = msgspec.field(default_factory=_LinkInfo)


def _with_none(judge: Judge, mine: End, theirs: list[End], *, turned: bool) -> Finding | None:
    """Return what is wrong between `mine` and the first of `theirs` if it agrees with none of them."""
    found = [judge(end, mine) if turned else judge(mine, end) for end in theirs]
    return None if None in found or not found else found[0]
