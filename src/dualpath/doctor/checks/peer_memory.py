"""Can a NIC read and write GPU memory directly?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from dualpath.doctor import fabric
from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host

_KERNEL = (5, 12)
_DRIVER = 515
_VERSION = "/proc/driver/nvidia/version"
_LOAD = "modprobe nvidia_peermem && echo nvidia_peermem > /etc/modules-load.d/nvidia_peermem.conf"


def _judge(host: Host) -> Iterator[Finding]:
    ports = [port for port in fabric.ports(host) if port.state == "ACTIVE" and port.pci_address is not None]
    gpus = fabric.gpus(host)
    if not ports or not gpus:
        return
    loaded = fabric.modules(host)
    if loaded is None:
        raise Unknown("whether nvidia_peermem is loaded is not known: /proc/modules was not recorded")
    if "nv_peer_mem" in loaded:
        yield _legacy(loaded)
        return
    kernel, driver, open_ = _kernel(host), _driver(host), _open_modules(host)
    peermem = sorted(loaded & {"nvidia_peermem", "efa_nv_peermem"})
    lacking = _lacking(kernel, driver, open_)
    evidence = (
        f"/proc/modules: {', '.join(peermem) or 'neither nvidia_peermem nor nv_peer_mem'}",
        f"/proc/version: {host.tree.read('/proc/version') or 'not recorded'}",
        f"{_VERSION}: driver {driver or 'unknown'}, {_kind(open_)} kernel modules",
    )
    if peermem:
        kept = "" if _kept(host, peermem[0]) else f"; nothing in /etc/modules-load.d loads {peermem[0]} at boot"
        yield Finding(
            level=Level.INFO if kept else Level.OK,
            symptom=f"{peermem[0]} is loaded: NICs reach GPU memory directly{kept}",
            evidence=evidence,
        )
    elif lacking == "":
        yield Finding(
            level=Level.OK,
            symptom="NICs reach GPU memory directly by dma-buf (perftest: --use_cuda=0 --use_cuda_dmabuf)",
            evidence=evidence,
        )
    elif lacking is None:
        raise Unknown(
            "nvidia_peermem is not loaded, and whether dma-buf works in its place is not known",
            fix=f"record {_VERSION} and /proc/version, or just load it: {_LOAD}",
        )
    else:
        finding = _neither(len(gpus), len(ports), lacking, efa="efa" in loaded, evidence=evidence)
        unused = all(fabric.never_used(host, port) for port in ports)
        yield replace(finding, level=Level.WARNING) if unused else finding


def _legacy(loaded: set[str]) -> Finding:
    both = "nvidia_peermem" in loaded
    return Finding(
        level=Level.WARNING,
        symptom="nv_peer_mem and nvidia_peermem are both loaded: they claim the same GPU memory"
        if both
        else "the legacy module nv_peer_mem is loaded in place of nvidia_peermem",
        cause="nvidia-peer-memory-dkms is still installed; since driver 470 the module comes with the driver",
        fix=f"systemctl disable --now nv_peer_mem; rmmod nv_peer_mem; apt remove nvidia-peer-memory-dkms; {_LOAD}",
        evidence=("/proc/modules: nv_peer_mem" + (", nvidia_peermem" if both else ""),),
    )


def _neither(gpus: int, ports: int, lacking: str, *, efa: bool, evidence: tuple[str, ...]) -> Finding:
    return Finding(
        level=Level.CRITICAL,
        symptom=f"{fabric.plural(gpus, 'GPU')} and {fabric.plural(ports, 'RDMA port')}, but NICs cannot reach GPU "
        "memory: transfers are staged through host memory, at about half the rate",
        cause=f"{'efa_nv_peermem' if efa else 'nvidia_peermem'} is not loaded, and dma-buf cannot stand in: {lacking}",
        fix="install the open kernel modules of driver 515 or later: EFA then uses dma-buf"
        if efa
        else f"{_LOAD}; if it says `Invalid argument`, ib_core lacks peer memory: install DOCA-OFED, or the driver's "
        "open kernel modules; then measure again: ib_write_bw --use_cuda=0 (perftest)",
        evidence=evidence,
    )


def _lacking(kernel: tuple[int, int] | None, driver: int | None, open_: bool | None) -> str | None:
    """Return what dma-buf lacks, empty if nothing; `None` if that is not known.

    RDMA memory regions out of dma-buf came with Linux 5.12, their export with the open modules of driver 515 and CUDA
    11.7, which that driver supports (GPUDirect RDMA, CUDA Toolkit documentation).
    """
    if kernel is not None and kernel < _KERNEL:
        return f"kernel {kernel[0]}.{kernel[1]} is older than 5.12"
    if driver is not None and driver < _DRIVER:
        return f"driver {driver} is older than 515"
    if open_ is False:
        return "the driver's kernel modules are the proprietary ones"
    return None if None in (kernel, driver, open_) else ""


def _kernel(host: Host) -> tuple[int, int] | None:
    release = re.match(r"Linux version (\d{1,3})\.(\d{1,4})", host.tree.read("/proc/version") or "", re.ASCII)
    return (int(release[1]), int(release[2])) if release else None


def _driver(host: Host) -> int | None:
    texts = [host.tree.read(_VERSION), host.tree.read("/sys/module/nvidia/version")]
    texts += [row.get("driver_version") for row in fabric.gpu_query(host)]
    found = (re.search(r"\b(\d{3,4})\.\d{1,4}(?:\.\d{1,4})?\b", text or "", re.ASCII) for text in texts)
    return next((int(match[1]) for match in found if match), None)


def _open_modules(host: Host) -> bool | None:
    text = host.tree.read(_VERSION)
    return "Open Kernel Module" in text if text else None


def _kind(open_: bool | None) -> str:
    return {True: "open", False: "proprietary", None: "unknown kind of"}[open_]


def _kept(host: Host, module: str) -> bool:
    """Whether the module is loaded at boot, as far as the usual files say; also if none of them was recorded."""
    folder = "/etc/modules-load.d"
    texts = [host.tree.read(f"{folder}/{name}") or "" for name in host.tree.names(folder)]
    texts.append(host.tree.read("/etc/modules") or "")
    names = module, module.replace("_", "-")
    return not any(texts) or any(line.strip() in names for text in texts for line in text.splitlines())


CHECK = Check(
    name="peer-memory",
    title="NICs reach GPU memory directly, by nvidia_peermem or dma-buf",
    reads=(
        "/proc/modules",
        "/proc/driver/nvidia/version",
        "/proc/version",
        "/etc/modules-load.d/*",
        "nvidia-smi --query-gpu=…",
    ),
    reference="GPUDirect RDMA, https://docs.nvidia.com/cuda/gpudirect-rdma/; "
    "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html",
    judge=_judge,
)
