"""RoCE v2 is UDP to port 4791; a firewall that drops it lets a connection begin, and then nothing arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.firewall import Verdict, judge_iptables, judge_nft
from dualpath.doctor.subjects import rdma_devices, roce_nics

ROCE_PORT = 4791

_INFINIBAND = "/sys/class/infiniband"

_TOOLS: dict[str, Callable[[str, int, Iterable[str]], Verdict]] = {
    "nft list ruleset": judge_nft,
    "iptables-save": judge_iptables,
}


def judge(host: Host) -> Iterator[Finding]:
    """Yield the rule that drops RoCE's port, where there is RoCE."""
    software = [device for device in rdma_devices(host) if _software(host, device)]
    names = {roce.name for roce in roce_nics(host)}
    names |= {host.tree.read(f"{_INFINIBAND}/{device}/parent") or "" for device in software} - {""}
    if not names and not software:
        return
    seen = False
    for line, verdict_of in _TOOLS.items():
        output = host.output(line)
        if output is None or (output.exit_code != 0 and not output.stdout.strip()):
            continue
        seen = True
        verdict = verdict_of(output.stdout, ROCE_PORT, names)
        if verdict.dropped:
            yield _dropped(host, line, verdict, software)
            return
    if not seen and any(host.output(line) is not None for line in _TOOLS):
        raise Unknown(
            f"whether a firewall drops UDP port {ROCE_PORT} cannot be seen without root", fix="run the doctor as root"
        )


def _dropped(host: Host, line: str, verdict: Verdict, software: list[str]) -> Finding:
    if software:
        where = f"software RoCE ({', '.join(software)}) loses all its packets"
    else:
        where = "a NIC passes its own host's filter by, but a bridge, an offloaded flow or software RoCE does not"
    firewalld = host.output("systemctl is-active firewalld")
    if firewalld is not None and firewalld.stdout.strip() == "active":
        fix = f"firewall-cmd --permanent --add-port={ROCE_PORT}/udp && firewall-cmd --reload"
    elif line.startswith("nft"):
        fix = f"nft insert rule {verdict.table} {verdict.chain} udp dport {ROCE_PORT} accept"
    else:
        fix = f"iptables -t {verdict.table} -I {verdict.chain} -p udp --dport {ROCE_PORT} -j ACCEPT"
    return Finding(
        level=Level.CRITICAL if software else Level.WARNING,
        symptom=f"the firewall drops UDP port {ROCE_PORT}, which is RoCE v2: {verdict.because}",
        cause=f"connections begin and handshakes vanish: {where}",
        fix=fix,
        evidence=(f"{line}: table {verdict.table}, chain {verdict.chain}: {verdict.because}",),
    )


def _software(host: Host, device: str) -> bool:
    """Return whether the device is rxe: those have a parent interface, and are no RNIC (that is siw, over TCP)."""
    parent = host.tree.read(f"{_INFINIBAND}/{device}/parent")
    node_type = host.tree.read(f"{_INFINIBAND}/{device}/node_type") or ""
    return device.startswith("rxe") or (bool(parent) and not node_type.startswith("4"))


CHECK = Check(
    name="firewall",
    title="UDP port 4791 (RoCE v2) is not dropped",
    reads=(
        "nft list ruleset",
        "iptables-save",
        "systemctl is-active firewalld",
        "/sys/class/infiniband/DEVICE/{parent,node_type}",
    ),
    reference="https://www.iana.org/assignments/service-names-port-numbers/service-names-port-numbers.xhtml?search=4791",
    judge=judge,
)
