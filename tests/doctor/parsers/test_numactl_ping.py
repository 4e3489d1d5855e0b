"""`numactl --hardware` and `ping -M do`."""

from __future__ import annotations

import pytest

from dualpath.doctor.parsers.numactl import parse_numactl
from dualpath.doctor.parsers.ping import Probe, parse_ping

SUMMARY = (
    "\n--- 10.0.0.2 ping statistics ---\n1 packets transmitted, 0 received, +1 errors, 100% packet loss, time 0ms\n"
)


def test_numactl_gives_nodes_with_their_memory() -> None:
    nodes = parse_numactl(
        "available: 3 nodes (0-2)\nnode 0 cpus: 0 1 2 3\nnode 0 size: 515705 MB\nnode 0 free: 431222 MB\n"
        "node 1 cpus: 4 5 6 7\nnode 1 size: 0 MB\nnode 1 free: 0 MB\n"
        "node 2 cpus:\nnode 2 size: 97280 MB\nnode 2 free: 97000 MB\n"
        "node distances:\nnode   0   1   2 \n  0:  10  21  80 \n  1:  21  10  80 \n  2:  80  80  10 \n"
    )
    assert (nodes[0].cpus, nodes[0].size_mib, nodes[0].free_mib) == ((0, 1, 2, 3), 515705, 431222)
    assert (nodes[1].size_mib, nodes[1].distances) == (0, (21, 10, 80))
    assert nodes[2].cpus == ()


def test_numactl_without_numa() -> None:
    assert parse_numactl("No NUMA available on this system\n") == {}


@pytest.mark.parametrize(
    ("line", "probe"),
    [
        ("From 10.0.0.1 icmp_seq=1 Frag needed and DF set (mtu = 1500)", Probe(1, 0, None, "10.0.0.1", 1500)),
        ("ping: local error: message too long, mtu=1500", Probe(1, 0, 1500)),
        ("ping: local error: Message too long, mtu: 1500", Probe(1, 0, 1500)),
        ("From fd00::1 icmp_seq=1 Packet too big: mtu=1500", Probe(1, 0, None, "fd00::1", 1500)),
        ("", Probe(1, 0)),
    ],
)
def test_ping_says_where_a_packet_was_too_long(line: str, probe: Probe) -> None:
    assert parse_ping(f"PING 10.0.0.2 (10.0.0.2) 8972(9000) bytes of data.\n{line}{SUMMARY}") == probe


def test_ping_that_passes() -> None:
    assert parse_ping("2 packets transmitted, 2 packets received, 0% packet loss") == Probe(2, 2)
