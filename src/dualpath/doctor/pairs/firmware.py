"""Do equal cards run equal firmware?"""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor import fabric
from dualpath.doctor.base import Finding, Level, PairCheck
from dualpath.doctor.host import Host


def _judge(one: Host, other: Host) -> Iterator[Finding]:
    here, there = one.once(_versions), other.once(_versions)
    for model in sorted(here.keys() & there.keys()):
        if here[model] != there[model]:
            yield Finding(
                level=Level.INFO,
                symptom=f"{model}: firmware {', '.join(sorted(here[model]))} on {one.name}, "
                f"{', '.join(sorted(there[model]))} on {other.name}",
                cause="updated at different times",
                fix="update the older: `mlxfwmanager -u` (MFT) or the vendor's tool, when there is trouble",
                evidence=tuple(
                    f"{host.name} /sys/class/infiniband/*/fw_ver of {model}: {', '.join(sorted(versions[model]))}"
                    for host, versions in ((one, here), (other, there))
                ),
                subject=model,
            )


def _versions(host: Host) -> dict[str, set[str]]:
    """Return the firmware versions by model of card."""
    found: dict[str, set[str]] = {}
    for port in fabric.ports(host):
        if port.model and port.firmware:
            found.setdefault(port.model, set()).add(port.firmware)
    return found


CHECK = PairCheck(
    name="pair-firmware",
    title="Equal cards run equal firmware",
    reads=("/sys/class/infiniband/*/{fw_ver,hca_type,board_id}",),
    reference="Linux Documentation/ABI/stable/sysfs-class-infiniband; release notes of the card's firmware",
    judge=_judge,
)
