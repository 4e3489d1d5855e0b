"""Which rails the raw bench measures: the node says at which addresses it listens, and NICs here are paired with them.

The pairs are the ones that transfers use (`transport.rails`), or every NIC here with every address there that is in its
network. Each pair gets a peer of its own, bound to it at both ends.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dualpath.errors import HostError, UsageError
from dualpath.host.addresses import LocalAddress, local_addresses, reaching
from dualpath.host.rails import candidates, observe
from dualpath.host.tree import Tree
from dualpath.pool.spec import Address
from dualpath.transport.dial import CALLER_USER_TIMEOUT_MS, Dialer, Tcp
from dualpath.transport.rails import MAX_RAILS, Rail, rails_to
from dualpath.wire.messages import Lane

ROUTE = "route"
"""What a local rail is called where the kernel chooses the NIC, and it is not known which."""


@dataclass(frozen=True)
class Greeting:
    """What a node said, and over which addresses it was reached."""

    node: str
    primary: Tcp
    """The literal address that was dialled."""
    source: str
    """The address here that the connection left from."""
    advertised: Sequence[str]


def greet(address: Address, *, key: bytes | None, tenant: str, timeout_s: float) -> Greeting:
    """Shake hands with the node once. Raises `UnreachableError`, `DeadlineError`, `AuthError`, `ProtocolError`."""
    dialer = Dialer(Tcp(address.host, address.port), key, tenant, timeout_s, secrets.token_bytes(16))
    deadline = time.monotonic() + timeout_s
    stream, welcome = dialer.dial(Lane.REALTIME, user_timeout_ms=CALLER_USER_TIMEOUT_MS, deadline=deadline)
    try:
        there, here = stream.sock.getpeername(), stream.sock.getsockname()
    finally:
        stream.close()
    return Greeting(welcome.node, Tcp(there[0], address.port), here[0], welcome.rails)


def rails_of(
    greeting: Greeting, *, nics: Sequence[str], every_pair: bool, locals_: Sequence[LocalAddress] | None = None
) -> list[tuple[Rail, str]]:
    """Return the pairs of NICs to measure, each with the name of the NIC here, which a rail over a router has not.

    Raises `UsageError` if none of `nics` leads to the node.
    """
    known = local_addresses() if locals_ is None else locals_
    rails = rails_to(greeting.primary, greeting.advertised, known, nics=nics)
    if every_pair:
        rails = _every_pair(greeting, [one for one in known if not nics or one.nic in nics]) or rails
    if nics and any(rail.nic not in nics for rail in rails):
        raise UsageError(
            f"no NIC called {', '.join(nics)} is in a network of {greeting.node}",
            hint=f"`ip -br address` shows the NICs here; the node listens at {', '.join(greeting.advertised)}"
            if greeting.advertised
            else "`ip -br address` shows the NICs here",
        )
    left_by = next((one.nic for one in known if one.host == greeting.source), ROUTE)
    primary = greeting.primary.host
    return [(rail, rail.nic or (left_by if rail.address.host == primary else ROUTE)) for rail in rails]


def _every_pair(greeting: Greeting, known: Sequence[LocalAddress]) -> list[Rail]:
    """Return every NIC here with every address there that it reaches without a router."""
    used = rails_to(greeting.primary, greeting.advertised, known)
    there = {(rail.address.host, rail.address.port): None for rail in used}
    return [
        Rail(Tcp(host, port, source=near.host), near.nic) for host, port in there for near in reaching(host, known)
    ][: MAX_RAILS * MAX_RAILS]


def nominal_speeds(tree: Tree) -> dict[str, int | None]:
    """Return the nominal speed of each NIC here in bits per second, or what it is shaped to if that is less.

    `None` where nothing says; empty where the kernel does not list its NICs.
    """
    try:
        seen = observe(tree)
    except HostError:
        return {}
    return {rail.nic.name: rail.nominal_bits_per_s for rail in candidates(seen.nics, seen.links)}


def gpus(tree: Tree) -> int:
    """Return how many GPUs this host's drivers show: NVIDIA's by procfs, AMD's by the nodes of its compute driver."""
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    amd = [name for name in tree.names(nodes) if (tree.read(f"{nodes}/{name}/gpu_id") or "0") != "0"]
    return len(tree.names("/proc/driver/nvidia/gpus")) + len(amd)
