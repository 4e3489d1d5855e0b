"""Do IOMMU and PCIe access control let a NIC and a GPU talk directly?"""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor import fabric
from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.lspci import LspciDevice
from dualpath.host.rdma import RdmaPort

_REDIRECTS = ("ReqRedir", "CmpltRedir")


def _judge(host: Host) -> Iterator[Finding]:
    ports = [port for port in fabric.ports(host) if port.state == "ACTIVE" and port.pci_address is not None]
    gpus = fabric.gpus(host)
    translated = [port for port in ports if _group_type(host, port).startswith("DMA")]
    if translated:
        yield _translated(host, translated, with_gpus=bool(gpus))
    between: dict[str, str] = {}
    for port in ports:
        theirs = fabric.pci(host, port.pci_address or "").bridges
        for gpu in gpus:
            for bridge in _between(fabric.pci(host, gpu.address).bridges, theirs):
                between.setdefault(bridge, f"{gpu.name} and {port.device}")
    yield from _redirected(host, between)


def _between(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """Return a switch's ports on the way between two devices; none if they meet only in the root complex.

    The last bridge that both paths share is the switch's upstream port (or a root port above two functions); what
    follows on either side are downstream ports, whose access control decides.
    """
    shared = sum(1 for a, b in zip(one, other, strict=False) if a == b)
    return (*one[shared:], *other[shared:]) if shared else ()


def _redirected(host: Host, between: dict[str, str]) -> Iterator[Finding]:
    devices = fabric.lspci(host)
    hidden: list[str] = []
    redirecting: dict[str, str] = {}
    for bridge, pair in between.items():
        said = devices.get(bridge)
        if said is None or said.denied:
            hidden.append(bridge)
        # DirectTrans lets translated requests of ATS devices pass the switch all the same.
        elif said.acs and any(said.acs.get(bit) for bit in _REDIRECTS) and not said.acs.get("DirectTrans"):
            redirecting[bridge] = pair
    if redirecting:
        first = next(iter(redirecting))
        yield Finding(
            level=Level.WARNING,
            symptom=f"PCIe access control (ACS) at {', '.join(redirecting)} sends traffic between "
            f"{', '.join(dict.fromkeys(redirecting.values()))} up to the root complex and back",
            cause="ACS request redirection is on for the switch ports between GPU and NIC, as virtualisation wants it",
            fix="; ".join(f"setpci -s {bridge} ECAP_ACS+0x6.w=0000" for bridge in redirecting)
            + " (until reboot), and turn ACS off in the BIOS; on a virtualisation host use ATS instead",
            evidence=tuple(f"lspci -Dvvv: {bridge} ACSCtl: {_acs(devices[bridge])}" for bridge in redirecting),
            subject=first,
        )
    if hidden:
        yield Finding(
            level=Level.UNKNOWN,
            symptom=f"whether PCIe access control at {', '.join(hidden)} redirects GPU-to-NIC traffic is not known",
            fix="install pciutils" if "lspci" in host.recording.missing else "run the doctor as root, with lspci",
        )


def _acs(device: LspciDevice) -> str:
    return " ".join(f"{name}{'+' if on else '-'}" for name, on in (device.acs or {}).items())


def _group_type(host: Host, port: RdmaPort) -> str:
    """Return `DMA`, `DMA-FQ` (translated), `identity` (passthrough), or nothing without an IOMMU.

    Where the group's type was not recorded, only a command line that turns the IOMMU on and passthrough off tells.
    """
    group = host.tree.link(f"/sys/bus/pci/devices/{port.pci_address}/iommu_group") or ""
    if not group:
        return ""
    kind = host.tree.read(f"/sys/kernel/iommu_groups/{group.rpartition('/')[2]}/type")
    if kind is not None:
        return kind
    words = (host.tree.read("/proc/cmdline") or "").split()
    return "DMA" if {"intel_iommu=on", "amd_iommu=on"} & set(words) and "iommu=pt" not in words else ""


def _translated(host: Host, ports: list[RdmaPort], *, with_gpus: bool) -> Finding:
    names = ", ".join(port.name for port in ports)
    return Finding(
        level=Level.WARNING if with_gpus else Level.INFO,
        symptom=f"the IOMMU translates every DMA of {names}",
        cause="the kernel runs the IOMMU without passthrough; transfers between GPU and NIC go through it, slowly, or "
        "fail",
        fix="add iommu=pt to the kernel's command line (`grubby --update-kernel=ALL --args=iommu=pt`, or "
        "GRUB_CMDLINE_LINUX in /etc/default/grub and `update-grub`; on Arm iommu.passthrough=1) and reboot",
        evidence=(
            f"/proc/cmdline: {host.tree.read('/proc/cmdline') or 'not recorded'}",
            *(f"IOMMU group of {port.name} ({port.pci_address}): {_group_type(host, port)}" for port in ports),
        ),
        subject=ports[0].name,
    )


CHECK = Check(
    name="iommu-acs",
    title="IOMMU and PCIe access control let NIC and GPU talk directly",
    reads=(
        "/sys/bus/pci/devices/PCI/iommu_group",
        "/sys/kernel/iommu_groups/*/type",
        "/proc/cmdline",
        "lspci -Dvvv",
        "lspci -Dtv",
    ),
    reference="NCCL, Troubleshooting: PCI Access Control Services, "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html; "
    "GPUDirect RDMA, https://docs.nvidia.com/cuda/gpudirect-rdma/",
    judge=_judge,
)
