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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dualpath.host.addresses import LocalAddress, reaching
from dualpath.transport.dial import Tcp

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

    `nics` restricts the NICs of this host; a node that none of them reaches has no rail but `primary`.
    """
    here = [one for one in locals_ if not nics or one.nic in nics]
    there = [address for text in advertised if (address := _address(text)) is not None]
    if primary.host not in [address.host for address in there]:
        there.insert(0, primary)
    there.sort(key=lambda address: address.host != primary.host)  # what was dialled comes first
    rails: list[Rail] = []
    busy: dict[str, int] = {}
    for count, address in enumerate(there):
        near = reaching(address.host, here)
        if not near:
            if not nics or (count == 0 and len(there) == 1):
                rails.append(Rail(address))
            continue
        peers = sum(1 for other in there if reaching(other.host, near))  # how many addresses share these NICs
        for _ in range(max(1, len(near) // peers)):
            idlest = min(near, key=lambda one: busy.get(one.host, 0))
            busy[idlest.host] = busy.get(idlest.host, 0) + 1
            rails.append(Rail(Tcp(address.host, address.port, source=idlest.host), idlest.nic))
    return rails[:MAX_RAILS] or [Rail(primary)]


def _address(text: str) -> Tcp | None:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        return None
    return Tcp(host.strip("[]"), int(port))
