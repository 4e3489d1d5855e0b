"""Which rails lead to a node: pairs of a NIC here and a NIC there. Pure; the addresses are arguments.

A node says at the handshake at which addresses it listens. Each of them is one rail at least. Where several NICs of
this host are in an address's network, they take turns, so that none of them idles:

    here              there                 rails
    10.0.0.1 eth2     10.0.0.2:7700         eth2 → 10.0.0.2        one network for each pair of NICs
    10.0.1.1 eth3     10.0.1.2:7700         eth3 → 10.0.1.2
    10.0.0.1 eth2     10.0.0.2:7700         eth2 → 10.0.0.2        two NICs here, one there
    10.0.0.3 eth3                           eth3 → 10.0.0.2
    10.9.0.1 eth0     10.0.0.2:7700         (route) → 10.0.0.2     another network: the kernel chooses the NIC

A rail is bound at both ends: a connection leaves from the address of its NIC here and arrives at that of its NIC there.

What a node says is not taken on trust: a node that listens everywhere names addresses that mean something else here, or
nothing (its loopback, the bridge of its containers).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dualpath.host.addresses import LocalAddress, reaching
from dualpath.transport.dial import Tcp, is_loopback

MAX_RAILS = 16


@dataclass(frozen=True, slots=True)
class Rail:
    """One way to a node. `nic` is the name of the NIC here; empty where the kernel chooses it."""

    address: Tcp
    nic: str = ""

    def __str__(self) -> str:
        return f"{self.nic or 'route'} → {self.address}"


@dataclass(frozen=True, slots=True)
class RailState:
    """What a rail has done for reads so far, and whether it carries any now."""

    name: str
    bytes_received: int
    connected: bool


def rails_to(
    primary: Tcp, advertised: Sequence[str], locals_: Sequence[LocalAddress], *, nics: Sequence[str] = ()
) -> list[Rail]:
    """Return the rails to a node that was dialled at `primary` and says that it listens at `advertised` (`host:port`).

    `nics` restricts the NICs of this host; a node that none of them reaches has no rail but `primary`. Addresses of
    this host lead to the node only if `primary` is one.
    """
    here = [one for one in locals_ if not nics or one.nic in nics]
    own = {one.host for one in locals_}
    there = list(dict.fromkeys(address for text in advertised if (address := _address(text)) is not None))
    if not _is_here(primary, own):
        there = [address for address in there if not _is_here(address, own)]
    if primary.host not in [address.host for address in there]:
        there.insert(0, primary)
    there.sort(key=lambda address: address.host != primary.host)  # what was dialled comes first
    rails: list[Rail] = []
    busy: dict[str, int] = {}
    reach = [reaching(address.host, here) for address in there]
    for count, (address, near) in enumerate(zip(there, reach, strict=True)):
        if not near:
            if not nics or (count == 0 and len(there) == 1):
                rails.append(Rail(address))
            continue
        peers = sum(any(one in other for one in near) for other in reach)  # how many addresses share these NICs
        for _ in range(max(1, len(near) // peers)):
            idlest = min(near, key=lambda one: busy.get(one.host, 0))
            busy[idlest.host] = busy.get(idlest.host, 0) + 1
            rails.append(Rail(Tcp(address.host, address.port, source=idlest.host), idlest.nic))
    return rails[:MAX_RAILS] or [Rail(primary)]


def _address(text: str) -> Tcp | None:
    """Return a literal address that a connection can be made to, `None` for anything else."""
    host, _, port = text.rpartition(":")
    try:
        ip, number = ipaddress.ip_address(host.strip("[]")), int(port)
    except ValueError:
        return None
    if not 0 < number < 1 << 16 or ip.is_unspecified or ip.is_multicast or ip.is_link_local:
        return None
    return Tcp(str(ip), number)


def _is_here(address: Tcp, own: Collection[str]) -> bool:
    return address.host in own or is_loopback(address.host)
