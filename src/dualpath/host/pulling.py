"""A NIC of this host taken down for a while, as if its cable were pulled, to see what goes on without it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dualpath.errors import HostError, UsageError
from dualpath.host.addresses import local_addresses
from dualpath.host.netlink import open_netlink, signals_held

NAMESPACES = Path("/run/netns")
"""Where `ip netns` keeps names of network namespaces."""
PROC = Path("/proc")


def check_pull(nic: str, *, on_the_machine_itself: bool) -> None:
    """Raise `HostError` without root, `UsageError` where taking `nic` down would do lasting harm.

    Outside of a network namespace that has a name, this machine may be reached over that NIC; `on_the_machine_itself`
    says that this is meant.
    """
    if os.geteuid() != 0:
        raise HostError(f"taking {nic} down needs root", hint="run it with sudo")
    known = [one for one in local_addresses() if one.nic == nic]
    if not known:
        raise UsageError(f"no NIC called {nic} is up and has an address here", hint="`ip -br address` shows them")
    if any(one.interface.version == 6 for one in known):
        raise UsageError(
            f"{nic} has an IPv6 address, which the kernel forgets when the NIC goes down",
            hint="pull a NIC with IPv4 addresses only, or unplug the cable by hand",
        )
    if not on_the_machine_itself and not in_named_namespace():
        raise UsageError(
            f"{nic} belongs to this machine itself, which may be reached over it",
            hint="say --yes if that is meant, or run in a lab: dualpath lab exec two-hosts-two-nics a -- …",
        )


def in_named_namespace() -> bool:
    """Whether this process is in a network namespace that `ip netns` has a name for, as the hosts of a lab have.

    The machine's own is none, whatever it is called (`ip netns attach`): who is in an emulated host was started from
    outside of it. Where that cannot be seen the answer is no.
    """
    own = _namespace("self")
    try:
        named = {file.stat().st_ino for file in NAMESPACES.iterdir()}
    except OSError:  # there are none, or one was taken down meanwhile
        return False
    return own in named and {_namespace(pid) for pid in ancestors()} - {own, None} != set()


def ancestors() -> list[int]:
    """Return the ids of the process that started this one, of the one that started that, and so on."""
    import psutil

    return [process.pid for process in psutil.Process().parents()]


def _namespace(pid: int | str) -> int | None:
    """Return the number of a process's network namespace, `None` if it cannot be looked at."""
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "ns" / "net").stat().st_ino
    return None


@contextlib.contextmanager
def pulled(nic: str) -> Iterator[None]:
    """Take `nic` down for the block; it comes up again however the block is left. Raises `HostError`."""
    try:
        _set_state(nic, "down")
        yield
    finally:
        with signals_held():
            _set_state(nic, "up")


def _set_state(nic: str, state: str) -> None:
    with open_netlink() as netlink:
        found = netlink.link_lookup(ifname=nic)
        if not found:
            raise HostError(f"the interface {nic} is gone", hint="has the lab been taken down?")
        netlink.link("set", index=int(found[0]), state=state)
