"""The steps that make a lab, as a list: pure, so that what `up` would do can be looked at and tested.

    dp-LAB-net                         dp-LAB-a
    br-data ── port0 ═════ veth ═════ data0 10.77.0.1/24
            └─ port1 ═════ … data0 in dp-LAB-b

Both ends of a veth pair are shaped: `data0` holds back what the host sends, `port0` what it receives. The bridges have
a namespace of their own, so that nothing appears in this machine's.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from dualpath.host.lab.config import NETWORKS, LabConfig
from dualpath.host.shaping import Shape


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """Make a network namespace with its loopback interface up."""

    namespace: str


@dataclass(frozen=True, slots=True)
class CreateBridge:
    """Make a bridge and set it up."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class CreateCable:
    """Make a veth pair between a host and a bridge, give the host's end its address, and set both up."""

    port_namespace: str
    port: str
    bridge: str
    host_namespace: str
    nic: str
    mtu: int
    address: str
    prefix_length: int


@dataclass(frozen=True, slots=True)
class ShapeInterface:
    """Hold what leaves an interface to a rate."""

    namespace: str
    interface: str
    shape: Shape


Step = CreateNamespace | CreateBridge | CreateCable | ShapeInterface


def steps(lab: LabConfig) -> list[Step]:
    """Return what makes `lab`, in order. The first step claims its name: whoever succeeds with it owns the lab."""
    bridges = lab.namespace(NETWORKS)
    plan: list[Step] = [CreateNamespace(bridges)]
    plan += [CreateNamespace(lab.namespace(host.name)) for host in lab.hosts]
    plan += [CreateBridge(bridges, bridge(network.name)) for network in lab.networks]
    for host in lab.hosts:
        namespace = lab.namespace(host.name)
        for nic in host.nics:
            name = port(lab, host.name, nic.name)
            prefix_length = ipaddress.ip_network(lab.network(nic.network).subnet).prefixlen
            plan.append(
                CreateCable(
                    bridges, name, bridge(nic.network), namespace, nic.name, nic.mtu, nic.address, prefix_length
                )
            )
            if nic.shape is not None:
                plan.append(ShapeInterface(namespace, nic.name, nic.shape))
                plan.append(ShapeInterface(bridges, name, nic.shape))
    return plan


def bridge(network: str) -> str:
    """Return the name of a network's bridge."""
    return f"br-{network}"


def port(lab: LabConfig, host: str, nic: str) -> str:
    """Return the name of the bridge's end of a NIC's cable; short, since the kernel allows 15 characters."""
    placed = [(one.name, other.name) for one in lab.hosts for other in one.nics]
    return f"port{placed.index((host, nic))}"
