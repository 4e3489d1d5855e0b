"""What netlink says of this host's NICs beyond sysfs: addresses, kind, bridge or bond they belong to, shaped rate."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dualpath.errors import HostError
from dualpath.host.nics import Counters
from dualpath.host.shaping import read_rates


@dataclass(frozen=True, slots=True)
class Link:
    """One interface as rtnetlink(7) describes it."""

    name: str
    kind: str | None
    """`veth`, `bridge`, `vlan`, …; `None` for hardware and loopback."""
    state: str
    """`operstate` in lower case, as sysfs has it."""
    carrier: bool
    """Whether it is connected now; `state` may lag behind by a second."""
    mtu: int
    master: bool
    """Whether it belongs to a bridge or bond, which then has the addresses."""
    addresses: tuple[str, ...]
    """IPv4 and global IPv6 addresses with their prefix length; link-local ones are left out."""
    shaped_bits_per_s: int | None
    """Rate of the `tbf` or `htb` that its packets leave through."""
    counters: Counters


@contextlib.contextmanager
def open_netlink(namespace: str | None = None) -> Iterator[Any]:
    """Open pyroute2's socket to the kernel, in the network namespace called so or in this process's own.

    Use it in the thread that opened it. Raises `HostError` for what the kernel refuses while the block runs.
    """
    from pyroute2 import IPRoute  # type: ignore[import-untyped] # it has no annotations
    from pyroute2.netlink.exceptions import NetlinkError  # type: ignore[import-untyped] # it has no annotations

    try:
        with inside(namespace):
            netlink = IPRoute()
        with netlink:
            yield netlink
    except NetlinkError as error:
        raise _refused(error.code, str(error.args[-1]), namespace) from error
    except PermissionError as error:
        raise _refused(errno.EPERM, error.strerror or "not permitted", namespace) from error


@contextlib.contextmanager
def inside(namespace: str | None) -> Iterator[None]:
    """Move this thread into a network namespace for a short block, during which signals wait; `None`: leave it.

    A socket belongs to the namespace that it was made in, and /proc/sys/net shows that of who looks.
    pyroute2's own `NetNS` forks this whole interpreter to make the socket, with signal handlers and pending clean-up.
    """
    if namespace is None:
        yield
        return
    from pyroute2 import netns

    with signals_held():
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            netns.setns(namespace, flags=0)
            yield
        except FileNotFoundError:
            raise HostError(f"there is no namespace {namespace}", hint="has the lab been taken down?") from None
        finally:
            netns.setns(here)
            os.close(here)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP wait until the block is left: it is short, and must not stop half-way."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def links(netlink: Any) -> list[Link]:
    """Return every interface that the socket's namespace has, by name."""
    shaped = read_rates(netlink)
    addresses: dict[int, list[str]] = {}
    for one in netlink.get_addr():
        address = one.get_attr("IFA_LOCAL") or one.get_attr("IFA_ADDRESS")
        if address and not str(address).lower().startswith("fe80:"):
            addresses.setdefault(one["index"], []).append(f"{address}/{one['prefixlen']}")
    found = [
        _link(one, tuple(addresses.get(one["index"], ())), shaped.get(one["index"])) for one in netlink.get_links()
    ]
    return sorted(found, key=lambda link: link.name)


def _link(message: Any, addresses: tuple[str, ...], shaped_bits_per_s: int | None) -> Link:
    info = message.get_attr("IFLA_LINKINFO")
    counted = message.get_attr("IFLA_STATS64") or {}
    return Link(
        name=message.get_attr("IFLA_IFNAME"),
        kind=info.get_attr("IFLA_INFO_KIND") if info is not None else None,
        state=str(message.get_attr("IFLA_OPERSTATE")).lower(),
        carrier=bool(message.get_attr("IFLA_CARRIER")),
        mtu=message.get_attr("IFLA_MTU"),
        master=message.get_attr("IFLA_MASTER") is not None,
        addresses=addresses,
        shaped_bits_per_s=shaped_bits_per_s,
        counters=Counters(**{field: counted.get(field, 0) for field in Counters.__slots__}),
    )


def _refused(code: int, reason: str, namespace: str | None) -> HostError:
    where = f" in namespace {namespace}" if namespace else ""
    if code in (errno.EPERM, errno.EACCES):
        return HostError(
            f"the kernel does not permit this{where}: {reason}",
            hint="run it as root; in a container, with the capabilities NET_ADMIN and SYS_ADMIN",
        )
    if code in (errno.ENOENT, errno.EOPNOTSUPP):
        hint = "does the kernel have bridge, veth, sch_htb and cls_u32? try `modprobe` for them"
        return HostError(f"the kernel lacks something{where}: {reason}", hint=hint)
    return HostError(f"the kernel refused{where}: {reason}", hint="`ip netns` and `ip link` show what is there")
