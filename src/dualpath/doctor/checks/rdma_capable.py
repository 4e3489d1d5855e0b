"""Has a NIC that can do RDMA an RDMA device?"""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor import fabric
from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.rdma import parse_rdma_system
from dualpath.host.nics import Nic

_MLX5_VIRTUAL = ("0x1014", "0x1016", "0x1018", "0x101a", "0x101c", "0x101e")
"""PCI device ids of virtual functions (mlx5_core_pci_table of the kernel), which a guest cannot tell otherwise."""

_FAST_BITS_PER_S = 25e9
"""Below it nobody misses RDMA: such ports are there for management."""


def _judge(host: Host) -> Iterator[Finding]:
    devices = {port.pci_address or "" for port in fabric.ports(host)}
    # The ports of a card that are bonded share the RDMA device of the first.
    cards = {address.rpartition(".")[0] for address in devices}
    without = [
        nic
        for nic in host.physical_nics
        if nic.driver in fabric.MODULES
        and nic.up
        and not _virtual_function(host, nic)
        and not fabric.accelerates_netvsc(host, nic.name)
        and not nic.rdma_devices
        and nic.pci_address not in devices
        and not (nic.kind == "member" and (nic.pci_address or "").rpartition(".")[0] in cards)
    ]
    fast = [nic for nic in without if (nic.speed_bits_per_s or 0) >= _FAST_BITS_PER_S]
    loaded = fabric.modules(host)
    for nic in without:
        if nic not in fast:
            yield Finding(level=Level.INFO, symptom=f"{nic.name} ({nic.driver}) could do RDMA", subject=nic.name)
        elif loaded is None:
            raise Unknown(f"{nic.name} has no RDMA device, and /proc/modules was not recorded")
        else:
            yield _finding(host, nic, fabric.MODULES[nic.driver or ""], loaded)


def _finding(host: Host, nic: Nic, module: str, loaded: set[str]) -> Finding:
    evidence = (
        f"/sys/class/net/{nic.name}/device/infiniband: not there",
        f"/proc/modules: {module} {'is' if module in loaded else 'is not'} loaded",
    )
    blacklist = fabric.blacklisted(host, module)
    if module in loaded and _per_namespace(host):
        cause = (
            "RDMA devices belong to one network namespace each (`rdma system show`: netns exclusive), not to this one"
        )
        fix = "ip netns list; then, in the namespace that has it: rdma dev set DEVICE netns NAME"
    elif module in loaded:
        cause = f"{module} is loaded but made no device for it: RDMA is off in the card's settings or in devlink"
        fix = _enable(nic)
    elif blacklist:
        cause = f"{module} is kept from loading by {blacklist}"
        fix = f"sed -i '/{module}/d' {blacklist} && modprobe {module}"
    else:
        cause = f"the kernel module {module} is not loaded"
        keep = f"echo {module} > /etc/modules-load.d/{module}.conf"
        fix = f"modprobe {module} && {keep}; if there is no such module, install the distribution's extra modules " + (
            "(linux-modules-extra-$(uname -r), kernel-modules-extra)"
        )
    return Finding(
        level=Level.WARNING,
        symptom=f"{nic.name} ({nic.driver}, {fabric.gigabits(nic.speed_bits_per_s or 0)}) can do RDMA "
        "but has no RDMA device",
        cause=cause,
        fix=fix,
        evidence=evidence,
        subject=nic.name,
    )


def _virtual_function(host: Host, nic: Nic) -> bool:
    """Whether a NIC is a virtual function: whether it may do RDMA is for the physical one to say."""
    base = f"/sys/class/net/{nic.name}/device"
    return host.tree.link(f"{base}/physfn") is not None or host.tree.read(f"{base}/device") in _MLX5_VIRTUAL


def _per_namespace(host: Host) -> bool:
    output = host.output("rdma system show")
    return output is not None and parse_rdma_system(output.stdout).get("netns") == "exclusive"


def _enable(nic: Nic) -> str:
    if nic.driver == "bnxt_en":
        return "niccli -i 1 nvm -setoption support_rdma -scope 0 -value 1 (its number: `niccli --list`), then reboot"
    if nic.driver == "ice":
        return f"devlink dev param set pci/{nic.pci_address} name enable_roce value true cmode runtime"
    reload = f"devlink dev reload pci/{nic.pci_address}"
    return f"devlink dev param set pci/{nic.pci_address} name enable_roce value true cmode driverinit && {reload}"


CHECK = Check(
    name="rdma-capable",
    title="A fast NIC that can do RDMA has an RDMA device",
    reads=(
        "/sys/class/net/NIC/device/{driver,infiniband}",
        "/sys/class/infiniband/DEVICE/device",
        "/proc/modules",
        "/sys/module",
        "/etc/modprobe.d/*",
        "rdma system show",
    ),
    reference="Linux drivers/infiniband/hw; devlink parameters enable_roce and enable_rdma, "
    "https://docs.kernel.org/networking/devlink/devlink-params.html",
    judge=_judge,
)
