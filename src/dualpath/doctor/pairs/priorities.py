"""Do both ends sort prefetch in the same priority, and is it lossless at both?"""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.doctor.base import Finding, Level, PairCheck, Unknown
from dualpath.doctor.ends import End, disagreements, ends
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.ethtool_pause import parse_pause
from dualpath.doctor.qos import PREFETCH_DSCP, Qos, pfc_command, read_qos
from dualpath.doctor.subjects import rdma_unused
from dualpath.host.nics import Nic


def _judge(one: Host, other: Host) -> Iterator[Finding]:
    yield from disagreements(one, other, _by_sorting)
    yield from disagreements(one, other, _by_marking)


def _by_sorting(mine: End, theirs: End) -> Finding | None:
    near, far = (end.host.once(_sorting).get(end.port.name) for end in (mine, theirs))
    if near is None or far is None:
        return None
    here, there = near.priority(PREFETCH_DSCP), far.priority(PREFETCH_DSCP)
    lossless = here in near.pfc, there in far.pfc
    if lossless == (False, False) or (here == there and near.pfc == far.pfc and near.trust == far.trust):
        return None  # neither end is set up: each host's own check says so
    good, bad = (mine, theirs) if lossless[0] else (theirs, mine)
    nic, priority = _hardware(bad), here if good is mine else there
    same = here == there and all(lossless)
    return Finding(
        level=Level.WARNING if same else Level.CRITICAL,
        symptom=f"priorities differ: {_said(mine, near)}, {_said(theirs, far)}",
        cause="one end's pauses stop another class than the other's data: packets are lost, transfers break off",
        fix=f"on {bad.host.name}: {pfc_command(nic, priority)}; and the same at every switch port" if nic else "",
        evidence=tuple(f"{end.name}: {line}" for end, qos in ((mine, near), (theirs, far)) for line in qos.evidence),
        subject=f"{mine.port.name}, {theirs.port.name}",
    )


def _by_marking(mine: End, theirs: End) -> Finding | None:
    near, far = _marks(mine), _marks(theirs)
    differing = {path for path in near if path in far and near[path] != far[path]}
    if not differing:
        return None
    path = min(differing)
    return Finding(
        level=Level.WARNING,
        symptom=f"the ends mark RDMA packets differently: {mine.name} {near[path]}, {theirs.name} {far[path]}",
        cause="one direction of a transfer falls in another class than the other, perhaps one that is not lossless",
        fix=f"write the same value to {_place(mine, path)} on {mine.host.name} and {_place(theirs, path)} on "
        f"{theirs.host.name}, at every boot",
        evidence=tuple(
            f"{end.host.name} {_place(end, name)}: {marks[name]}"
            for end, marks in ((mine, near), (theirs, far))
            for name in sorted(differing)
        ),
        subject=f"{mine.port.name}, {theirs.port.name}",
    )


_MARKS = (
    "/sys/class/infiniband/DEVICE/tc/PORT/traffic_class",
    "/sys/kernel/config/rdma_cm/DEVICE/ports/PORT/default_roce_tos",
)


def _marks(end: End) -> dict[str, str]:
    """Return what was set for all traffic of a port, by the path's pattern; without what is not set."""
    texts = {pattern: (end.host.tree.read(_place(end, pattern)) or "").strip() for pattern in _MARKS}
    return {pattern: text for pattern, text in texts.items() if text}


def _place(end: End, pattern: str) -> str:
    return pattern.replace("DEVICE", end.port.device).replace("PORT", str(end.port.port))


def _sorting(host: Host) -> dict[str, Qos | None]:
    return {end.port.name: _qos(end) for end in ends(host)}


def _qos(end: End) -> Qos | None:
    """Return how the port's NIC sorts; `None` where that does not matter, or nobody can say.

    It does not matter where RDMA was never used, and where link-wide pause makes every priority lossless.
    """
    nic = _hardware(end)
    if nic is None or rdma_unused(end.host, end.port.device):
        return None
    asked = end.host.output(f"ethtool -a {nic.name}")
    pause = parse_pause(asked.stdout if asked is not None else "")
    if pause.rx and pause.tx:
        return None
    try:
        return read_qos(end.host, nic)
    except Unknown:
        return None


def _hardware(end: End) -> Nic | None:
    names = end.port.netdevs
    return next((nic for nic in end.host.physical_nics if nic.name in names), None)


def _said(end: End, qos: Qos) -> str:
    priority = qos.priority(PREFETCH_DSCP)
    kind = "lossless" if priority in qos.pfc else "lossy"
    return f"{end.name} trusts {qos.trust} and sorts DSCP {PREFETCH_DSCP} in priority {priority} ({kind})"


CHECK = PairCheck(
    name="pair-priorities",
    title="Both ends sort prefetch in the same priority, lossless at both, and mark it alike",
    reads=(
        "mlnx_qos -i NIC",
        "dcb {pfc,app,apptrust,buffer} show dev NIC",
        "ethtool -a NIC",
        "/sys/class/infiniband/*/ports/1/counters/port_{rcv,xmit}_data",
        *(pattern.replace("DEVICE", "*").replace("PORT", "*") for pattern in _MARKS),
    ),
    reference="IEEE 802.1Q, clause 36 (priority-based flow control); dcb-pfc(8), dcb-app(8)",
    judge=_judge,
)
