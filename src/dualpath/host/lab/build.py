"""The runner of a lab's steps, and its undoing."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from dualpath.errors import HostError, UsageError
from dualpath.host.lab.config import NETWORKS, LabConfig
from dualpath.host.lab.topology import CreateBridge, CreateCable, CreateNamespace, ShapeInterface, Step, steps
from dualpath.host.netlink import inside, open_netlink, signals_held
from dualpath.host.shaping import apply_shape

GRACE_S = 2.0
"""How long processes in a lab have to end by themselves when it is taken down."""

_NO_DUPLICATE_DETECTION = 0x02  # IFA_F_NODAD: an IPv6 address would be unusable for its first second


def up(lab: LabConfig) -> None:
    """Make `lab`. All or nothing: a failure half-way, or an interruption, takes down what there was.

    Raises `HostError` without root or where the kernel lacks something, `UsageError` if a lab of this name is up.
    """
    require_root()
    plan = steps(lab)
    if namespaces(lab.name):
        raise UsageError(f"lab {lab.name} is up already", hint=f"take it down first: dualpath lab down {lab.name}")
    try:
        with contextlib.ExitStack() as stack:
            sockets: dict[str, Any] = {}
            for step in plan:
                _apply(step, sockets, stack)
    except _Taken as error:
        raise UsageError(f"lab {lab.name} is being brought up by another process") from error
    except BaseException:
        down(lab.name)
        raise


def down(name: str) -> bool:
    """Remove the lab called `name` and end the processes in its hosts; return whether there was anything to remove.

    Signals wait until it is done, so that a second Ctrl-C leaves nothing behind.
    """
    from pyroute2 import netns  # type: ignore[import-untyped] # it has no annotations

    require_root()
    with signals_held():
        found = namespaces(name)
        end_processes(found)
        for namespace in sorted(found, key=lambda one: one == f"dp-{name}-{NETWORKS}"):  # the claim on the name last
            with contextlib.suppress(FileNotFoundError):
                netns.remove(namespace)
    return bool(found)


def labs() -> dict[str, list[str]]:
    """Return the names of the labs that are up, each with its namespaces."""
    from pyroute2 import netns

    found: dict[str, list[str]] = {}
    for namespace in sorted(netns.listnetns()):
        prefix, _, _ = namespace.rpartition("-")
        if prefix.startswith("dp-"):
            found.setdefault(prefix.removeprefix("dp-"), []).append(namespace)
    return found


def namespaces(name: str) -> list[str]:
    """Return the namespaces of the lab called `name`; empty if it is not up."""
    return labs().get(name, [])


def processes(found: list[str]) -> dict[str, list[int]]:
    """Return the ids of the processes in each of these namespaces, this process excepted."""
    from pyroute2 import netns

    everywhere = netns.ns_pids()
    return {name: sorted(pid for pid in everywhere.get(name, ()) if pid != os.getpid()) for name in found}


def end_processes(found: list[str]) -> None:
    """End the processes in these namespaces: SIGTERM, and SIGKILL for those that are there after `GRACE_S`."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        waiting: list[int] = []
        try:
            for pid in [pid for pids in processes(found).values() for pid in pids]:
                with contextlib.suppress(ProcessLookupError):
                    waiting.append(os.pidfd_open(pid))
                    signal.pidfd_send_signal(waiting[-1], number)
            _wait(waiting, GRACE_S)
        finally:
            for descriptor in waiting:
                os.close(descriptor)


def require_root() -> None:
    """Raise `HostError` unless this process runs as root."""
    if os.geteuid() != 0:
        raise HostError("a lab needs root: it makes network namespaces", hint="run it with sudo")


def iproute2() -> str:
    """Return where the program `ip` is. Raises `HostError` if it is not installed."""
    found = shutil.which("ip") or shutil.which("ip", path="/usr/sbin:/sbin")  # not on every user's PATH
    if found is None:
        raise HostError("the program ip is not installed", hint="install iproute2")
    return found


class _Taken(Exception):
    """Another process has claimed the lab's name."""


def _apply(step: Step, sockets: dict[str, Any], stack: contextlib.ExitStack) -> None:
    if isinstance(step, CreateNamespace):
        _create_namespace(step.namespace, claims_the_name=not sockets)
        sockets[step.namespace] = stack.enter_context(open_netlink(step.namespace))
        _set_up(sockets[step.namespace], "lo")
        _use_reno(step.namespace)
    elif isinstance(step, CreateBridge):
        netlink = sockets[step.namespace]
        # Snooping would hold back IPv6 neighbour discovery until a querier shows up.
        netlink.link("add", ifname=step.name, kind="bridge", br_mcast_snooping=0)
        _set_up(netlink, step.name)
    elif isinstance(step, CreateCable):
        _create_cable(step, sockets[step.port_namespace], sockets[step.host_namespace])
    else:
        assert isinstance(step, ShapeInterface)
        netlink = sockets[step.namespace]
        apply_shape(netlink, interface_index(netlink, step.interface), step.shape)


def _create_namespace(namespace: str, *, claims_the_name: bool) -> None:
    # By iproute2: pyroute2's `netns.create` forks this whole interpreter, see `open_netlink`.
    done = subprocess.run([iproute2(), "netns", "add", namespace], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if "File exists" in done.stderr:
        if claims_the_name:
            raise _Taken(namespace)
        raise HostError(f"there is a namespace {namespace} already", hint=f"ip netns delete {namespace}")
    raise HostError(
        f"cannot make the namespace {namespace}: {done.stderr.strip()}",
        hint="in a container, it takes the capability SYS_ADMIN",
    )


def _use_reno(namespace: str) -> None:
    """Have TCP in a host behave alike on every machine; a new namespace starts with the machine's congestion control.

    Every kernel has Reno and allows it here; at round trips as short as a lab's, CUBIC behaves like it. BBR would stop
    for 200 ms every 10 s to measure the round trip.
    """
    try:
        with inside(namespace):
            Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")
    except OSError as error:
        raise HostError(
            f"cannot set the congestion control of {namespace}: {error.strerror}", hint="/proc/sys must be writable"
        ) from error


def _create_cable(step: CreateCable, ports: Any, host: Any) -> None:
    ports.link(
        "add",
        ifname=step.port,
        kind="veth",
        mtu=step.mtu,
        peer={"ifname": step.nic, "net_ns_fd": step.host_namespace, "mtu": step.mtu},
    )
    ports.link(
        "set",
        index=interface_index(ports, step.port),
        master=interface_index(ports, step.bridge),
    )
    host.addr(
        "add",
        index=interface_index(host, step.nic),
        address=step.address,
        prefixlen=step.prefix_length,
        flags=_NO_DUPLICATE_DETECTION if ":" in step.address else 0,
    )
    _set_up(ports, step.port)
    _set_up(host, step.nic)


def interface_index(netlink: Any, name: str) -> int:
    """Return the index of an interface. Raises `HostError` if it is gone."""
    found = netlink.link_lookup(ifname=name)
    if not found:
        raise HostError(f"the interface {name} is gone", hint="has the lab been taken down?")
    return int(found[0])


def _set_up(netlink: Any, name: str) -> None:
    netlink.link("set", index=interface_index(netlink, name), state="up")


def _wait(process_descriptors: list[int], timeout_s: float) -> None:
    """Wait until these processes have ended; a pidfd becomes readable when its process does."""
    poll = select.poll()
    for descriptor in process_descriptors:
        poll.register(descriptor, select.POLLIN)
    left, deadline_s = len(process_descriptors), time.monotonic() + timeout_s
    while left and (now_s := time.monotonic()) < deadline_s:
        for descriptor, _ in poll.poll(1000 * (deadline_s - now_s)):
            poll.unregister(descriptor)
            left -= 1
