"""ECN (with DCQCN) slows senders down before a buffer is full; without it PFC's pauses are all there is."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.qos import PREFETCH_DSCP, read_qos
from dualpath.doctor.subjects import RoceNic, rdma_unused, roce_nics

_POINTS = {"roce_np": "notification", "roce_rp": "reaction"}


def judge(host: Host) -> Iterator[Finding]:
    """Yield the mlx5 NICs that neither mark nor react at the prefetch lane's priority. Others have no such switch."""
    for roce in roce_nics(host):
        if roce.nic.driver != "mlx5_core" or rdma_unused(host, roce.device):
            continue
        priority = _priority(host, roce)
        paths = {point: f"/sys/class/net/{roce.name}/ecn/{point}/enable/{priority}" for point in _POINTS}
        read = {point: host.tree.read(path) for point, path in paths.items()}
        if None in read.values():
            symptom = (
                f"{roce.name}: ECN settings are not in sysfs; the kernel's own mlx5 driver has them in debugfs only"
            )
            yield Finding(level=Level.INFO, symptom=symptom, subject=roce.name)
            continue
        off = [point for point, value in read.items() if value == "0"]
        if off:
            kinds = " and ".join(f"{_POINTS[point]} point" for point in off)
            yield Finding(
                level=Level.WARNING,
                symptom=f"{roce.name}: ECN is off at priority {priority} ({kinds})",
                cause="congestion is answered by pauses alone, which spread to other flows and hosts",
                fix=" && ".join(f"echo 1 > {paths[point]}" for point in off),
                evidence=tuple(f"{path}: {read[point]}" for point, path in paths.items()),
                subject=roce.name,
            )


def _priority(host: Host, roce: RoceNic) -> int:
    """Return the prefetch lane's priority; what a NIC does by itself if it cannot be seen."""
    try:
        qos = read_qos(host, roce.nic)
    except Unknown:
        qos = None
    return qos.priority(PREFETCH_DSCP) if qos is not None else PREFETCH_DSCP >> 3


CHECK = Check(
    name="ecn",
    title="ECN and DCQCN are on for the priority of prefetch",
    reads=("/sys/class/net/NIC/ecn/{roce_np,roce_rp}/enable/PRIORITY", "mlnx_qos -i NIC", "dcb app show dev NIC"),
    reference="https://doi.org/10.1145/2785956.2787484",
    judge=judge,
)
