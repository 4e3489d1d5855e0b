"""The lossless priority needs a traffic class of its own, and a share of the link."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.qos import PREFETCH_DSCP, Qos, read_qos
from dualpath.doctor.subjects import RoceNic, rdma_unused, roce_nics


def judge(host: Host) -> Iterator[Finding]:
    """Yield RoCE NICs whose lossless priority is in a class with others, or gets no bandwidth by right."""
    for roce in roce_nics(host):
        try:
            qos = read_qos(host, roce.nic)
        except Unknown:  # pfc-priority says so already
            continue
        lossless = qos is not None and qos.priority(PREFETCH_DSCP) in qos.pfc
        if qos is not None and lossless and not rdma_unused(host, roce.device):
            yield from _judge(roce, qos)


def _judge(roce: RoceNic, qos: Qos) -> Iterator[Finding]:
    priority = qos.priority(PREFETCH_DSCP)
    number = qos.class_of_priority.get(priority)
    if number is None:
        return
    others = [p for p, tc in sorted(qos.class_of_priority.items()) if tc == number and p not in qos.pfc]
    share = qos.classes.get(number)
    if others:
        listed = ", ".join(map(str, others))
        symptom = f"{roce.name}: lossless priority {priority} is in traffic class {number} together with {listed}"
        cause = "one queue for both: ordinary traffic delays prefetch, and a pause holds up all of it"
    elif share is not None and share.tsa == "ets" and share.percent == 0:
        symptom = f"{roce.name}: traffic class {number} of lossless priority {priority} is guaranteed 0 % of the link"
        cause = "under load the other classes take all bandwidth, and prefetch comes to a halt"
    else:
        return
    source = qos.source.replace(" pfc ", " ets ")  # dcb has a command for each
    yield Finding(
        level=Level.WARNING,
        symptom=symptom,
        cause=cause,
        fix=_fix(roce, priority),
        evidence=(
            f"{source}: class by priority {dict(sorted(qos.class_of_priority.items()))}",
            *((f"{source}: class {number}: {share.tsa}, {share.percent} %",) if share else ()),
        ),
        subject=roce.name,
    )


def _fix(roce: RoceNic, priority: int) -> str:
    """Return the command that gives the lossless priority a class of its own, with half of the link."""
    name = roce.name
    if roce.nic.driver == "mlx5_core":
        shares = ",".join("50" if tc in (0, priority) else "0" for tc in range(8))
        kinds = ",".join("ets" if tc in (0, priority) else "strict" for tc in range(8))
        return f"mlnx_qos -i {name} --prio_tc 0,1,2,3,4,5,6,7 --tsa {kinds} --tcbw {shares}"
    classes = " ".join(f"{p}:{1 if p == priority else 0}" for p in range(8))
    return f"dcb ets set dev {name} prio-tc {classes} tc-tsa 0:ets 1:ets tc-bw 0:50 1:50"


CHECK = Check(
    name="ets",
    title="The lossless priority has a traffic class and bandwidth of its own",
    reads=("mlnx_qos -i NIC", "dcb ets show dev NIC", "dcb pfc show dev NIC", "dcb app show dev NIC"),
    reference="https://man7.org/linux/man-pages/man8/dcb-ets.8.html",
    judge=judge,
)
