"""A container sees the host's sysfs, but not its device nodes and rights unless they are handed in."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.limits import parse_capabilities, parse_limits
from dualpath.doctor.subjects import rdma_devices

_MARKS = ("/.dockerenv", "/run/.containerenv")
_GROUP = re.compile(r"docker|kubepods|libpod|containerd|\blxc\b|crio")


def judge(host: Host) -> Iterator[Finding]:
    """Yield what RDMA lacks inside a container whose host has RDMA devices; outside of one, nothing."""
    mark = _container(host)
    devices = rdma_devices(host)
    if not mark:
        return
    if not devices:
        yield Finding(
            level=Level.INFO, symptom="this is a container without RDMA devices: lanes use TCP", evidence=(mark,)
        )
        return
    if not any(name.startswith("uverbs") for name in host.tree.names("/dev/infiniband")):
        yield Finding(
            level=Level.WARNING,
            symptom=f"the host has {', '.join(devices)}, but this container has no /dev/infiniband/uverbs*",
            cause="the device nodes were not handed in, so RDMA cannot be opened and lanes fall back to TCP",
            fix="docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 --network=host; "
            "in Kubernetes ask for the RDMA device plugin's resource",
            evidence=(mark, f"/sys/class/infiniband: {' '.join(devices)}"),
        )
        return
    yield from _rights(host, mark)


def _rights(host: Host, mark: str) -> Iterator[Finding]:
    capabilities = parse_capabilities(host.tree.read("/proc/self/status") or "")
    if capabilities is None:
        return
    locked, _ = parse_limits(host.tree.read("/proc/self/limits") or "").get("Max locked memory", (None, None))
    missing = [name for name in ("IPC_LOCK", "NET_RAW") if name not in capabilities]
    if "IPC_LOCK" in missing and locked is not None:
        yield Finding(
            level=Level.WARNING,
            symptom="this container may not pin memory: no CAP_IPC_LOCK, and a memlock limit",
            cause="registering memory with the NIC fails with `Cannot allocate memory`",
            fix="docker run --cap-add=IPC_LOCK --ulimit memlock=-1; in Kubernetes securityContext.capabilities.add",
            evidence=(mark, f"/proc/self/limits: Max locked memory {locked} bytes"),
        )
    elif missing:
        yield Finding(level=Level.INFO, symptom=f"this container has no CAP_{', CAP_'.join(missing)}", evidence=(mark,))


def _container(host: Host) -> str:
    """Return the sign that this is a container, as evidence; empty if there is none."""
    for path in _MARKS:
        if host.tree.read(path) is not None:
            return f"{path} exists"
    for path in ("/proc/1/cgroup", "/proc/self/cgroup"):
        if match := _GROUP.search(host.tree.read(path) or ""):
            return f"{path}: {match.group()}"
    return ""


CHECK = Check(
    name="container",
    title="A container has what RDMA needs of its host",
    reads=(
        "/.dockerenv",
        "/run/.containerenv",
        "/proc/1/cgroup",
        "/proc/self/{cgroup,status,limits}",
        "/dev/infiniband",
        "/sys/class/infiniband",
    ),
    reference="https://docs.kernel.org/infiniband/user_verbs.html",
    judge=judge,
)
