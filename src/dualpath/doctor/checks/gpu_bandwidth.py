"""GPU to GPU should be as fast as host to host: if it is not, the bytes take a detour through host memory."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level
from dualpath.doctor.host import Host
from dualpath.host.raw import RawRow

LEAST_SHARE = 0.7
"""Staging through host memory gives about half of the rate; a healthy path loses little."""

_MODULES = ("nvidia_peermem", "nv_peer_mem")
_LOADED = "GPUDirect RDMA is not in use, or the NIC is far from the GPU"
_NOT_LOADED = "nvidia_peermem is not loaded, and dma-buf does not take its place"
_FAR = "nvidia-smi topo -m  # take a NIC that is PIX or PXB from the GPU, then measure again"
_LOAD = "modprobe nvidia_peermem  # then measure again with GPU buffers: ib_write_bw --use_cuda=0, perftest with CUDA"


def judge(host: Host) -> Iterator[Finding]:
    """Yield each pair of rails on which GPU memory is far slower than host memory one way, at its best size."""
    raw = host.measured.raw
    best: dict[tuple[str, str, str], dict[str, RawRow]] = {}
    for row in raw.relied_on if raw else ():
        kinds = best.setdefault((row.local_rail, row.remote_rail, row.direction), {})
        if row.memory not in kinds or row.bits_per_s > kinds[row.memory].bits_per_s:
            kinds[row.memory] = row
    for (*rails, direction), kinds in best.items():
        if "gpu" not in kinds or "host" not in kinds:
            continue
        gpu, cpu = kinds["gpu"].bits_per_s, kinds["host"].bits_per_s
        if gpu >= LEAST_SHARE * cpu:
            continue
        loaded = [name for name in _MODULES if _loaded(host, name)]
        yield Finding(
            level=Level.WARNING,
            symptom=f"{rails[0]} to {rails[1]}, {direction}s: {gpu / 1e9:.3g} Gbit/s between GPUs, "
            f"{cpu / 1e9:.3g} between hosts ({gpu / cpu:.0%})",
            cause=f"data is staged through host memory: {_LOADED if loaded else _NOT_LOADED}",
            fix=_FAR if loaded else _LOAD,
            evidence=(
                f"bench raw: gpu {kinds['gpu'].block_bytes} bytes, host {kinds['host'].block_bytes} bytes",
                f"/sys/module: {', '.join(loaded) or 'no nvidia_peermem'}",
            ),
            subject=rails[0],
        )


def _loaded(host: Host, name: str) -> bool:
    listed = any(line.startswith(f"{name} ") for line in (host.tree.read("/proc/modules") or "").splitlines())
    return listed or name in host.tree.names("/sys/module")


CHECK = Check(
    name="gpu-bandwidth",
    title="GPU memory is as fast to reach as host memory",
    reads=("dualpath bench raw --json", "/proc/modules", "/sys/module"),
    reference="https://docs.nvidia.com/cuda/gpudirect-rdma/",
    judge=judge,
)
