"""Where the nodes of a pool are, the transport for each kind, and how long one may be waited for.

tcp://host:port      another process or host
host:port            the same
mapped:/path.sock    this host only: the node's memory is mapped and read in place
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dualpath.errors import UsageError
from dualpath.transport.base import Peer
from dualpath.transport.rails import MAX_RAILS

LONGEST_DEADLINE_S = 86400.0
_HINT = "write tcp://127.0.0.1:7700 or mapped:/run/dualpath.sock, several with commas between"


@dataclass(frozen=True)
class Address:
    """One node's place: a TCP host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"mapped:{self.path}" if self.path else f"tcp://{host}:{self.port}"

    @property
    def start_command(self) -> str:
        """What would start a node there."""
        where = f"--socket {self.path}" if self.path else f"--listen {str(self).removeprefix('tcp://')}"
        return f"dualpath pool {where}"


def parse(spec: str) -> list[Address]:
    """Return the addresses in `spec`. Raises `UsageError`."""
    addresses = [parse_one(text.strip()) for text in spec.split(",") if text.strip()]
    if not addresses:
        raise UsageError("no pool node was named", hint=_HINT)
    if len(set(addresses)) != len(addresses):
        raise UsageError(f"a pool node is named twice in {spec!r}")
    return addresses


def parse_one(text: str) -> Address:
    """Return the address that `text` names."""
    if text.startswith("mapped:"):
        path = text.removeprefix("mapped:")
        if not path:
            raise UsageError(f"not a pool node: {text!r}", hint=_HINT)
        return Address(path=path)
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    if not colon or not host or "/" in host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"not a pool node: {text!r}", hint=_HINT)
    return Address(host.strip("[]"), int(port))


def check_deadline(deadline_s: float) -> None:
    """Raise `UsageError` unless this is a time that can be waited: more than nothing, and at most a day."""
    if not 0 < deadline_s <= LONGEST_DEADLINE_S:  # also NaN
        raise UsageError(f"not a deadline: {deadline_s} s", hint=f"more than 0 and at most {LONGEST_DEADLINE_S:.0f}")


def dial(
    address: Address, *, key: str | bytes | None, tenant: str, nics: Sequence[str] = (), max_rails: int = MAX_RAILS
) -> Peer:
    """Return a peer for `address`; nothing is sent yet. `nics` and `max_rails` are as for `connect`."""
    secret = key.encode() if isinstance(key, str) else key
    if address.path:
        from dualpath.transport.mapped import MappedPeer

        return MappedPeer(address.path, key=secret, tenant=tenant)
    from dualpath.transport.tcp import TcpPeer

    return TcpPeer(address.host, address.port, key=secret, tenant=tenant, nics=nics, max_rails=max_rails)
