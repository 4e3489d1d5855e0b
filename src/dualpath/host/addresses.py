"""The addresses of this host's NICs, and which of them reach another host's directly."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """One address of a NIC, with its network."""

    nic: str
    interface: Interface

    @property
    def host(self) -> str:
        """Return the address alone, as text."""
        return str(self.interface.ip)


def local_addresses() -> list[LocalAddress]:
    """Return the IPv4 and IPv6 addresses of all NICs that are up; link-local ones, which name no rail, are left out."""
    import psutil

    states = psutil.net_if_stats()
    found = []
    for nic, addresses in psutil.net_if_addrs().items():
        if nic not in states or not states[nic].isup:
            continue
        for one in addresses:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.netmask is not None:
                interface = _interface(one.address, one.netmask)
                if interface is not None and not interface.ip.is_link_local:
                    found.append(LocalAddress(nic, interface))
    return found


def is_here(host: str) -> bool:
    """Whether `host`, a name or a literal address, is this host; yes where it cannot be told."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return True
    addresses = {ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found}
    own = {one.interface.ip for one in local_addresses()}
    return any(address.is_loopback for address in addresses) or not own.isdisjoint(addresses)


def _interface(address: str, netmask: str) -> Interface | None:
    """Return what psutil's two texts mean. It writes IPv6 masks as addresses and adds `%nic` to link-local ones."""
    try:
        mask = ipaddress.ip_address(netmask.partition("/")[0])
        length = bin(int(mask)).count("1")
        return ipaddress.ip_interface(f"{address.partition('%')[0]}/{length}")
    except ValueError:
        return None


def reaching(host: str, locals_: Sequence[LocalAddress]) -> list[LocalAddress]:
    """Return the local addresses whose network holds `host`, a literal address; none if it is reached by a route."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return []
    return [one for one in locals_ if address in one.interface.network]
