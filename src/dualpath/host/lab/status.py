"""How a lab is doing: its hosts, their NICs and processes."""

from __future__ import annotations

import msgspec

from dualpath.host.lab import build
from dualpath.host.lab.config import LabConfig
from dualpath.host.lab.emulation import Lab
from dualpath.host.netlink import Link, links, open_netlink


class HostStatus(msgspec.Struct, frozen=True):
    """One host of a lab that is up."""

    name: str
    namespace: str
    processes: tuple[int, ...]
    nics: tuple[Link, ...]


class LabStatus(msgspec.Struct, frozen=True):
    """A lab, and its hosts if it is up."""

    name: str
    up: bool
    hosts: tuple[HostStatus, ...] = ()


def status(config: LabConfig) -> LabStatus:
    """Look at a lab. Needs root where it is up. Raises `HostError`."""
    if not Lab(config).up:
        return LabStatus(config.name, up=False)
    build.require_root()
    running = build.processes([config.namespace(host.name) for host in config.hosts])
    hosts = []
    for host in config.hosts:
        namespace = config.namespace(host.name)
        with open_netlink(namespace) as netlink:
            nics = tuple(link for link in links(netlink) if link.name != "lo")
        hosts.append(HostStatus(host.name, namespace, tuple(running[namespace]), nics))
    return LabStatus(config.name, up=True, hosts=tuple(hosts))
