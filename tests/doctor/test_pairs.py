"""What is found between two hosts, and the healthy twins in which nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dualpath.doctor.base import Finding, Level
from dualpath.doctor.ends import vlan
from dualpath.doctor.host import Host
from dualpath.doctor.recording import Output, Recording
from dualpath.doctor.run import examine, pair_checks

from .hosts import V2, roce_host

V1 = ((0, "::ffff:10.0.0.2", "v1", "eth2"),)
PEER = ((0, "fe80::0e42:a1ff:fe65:bb2b", "v1", "eth2"), (3, "::ffff:10.0.0.2", "v2", "eth2"))
ON_VLAN = ((4, "::ffff:10.0.7.2", "v2", "eth2.100"),)
LINK_LOCAL = ((1, "fe80::0e42:a1ff:fe65:bb2b", "v2", "eth2"),)

PFC = """DCBX mode: OS controlled
Priority trust state: dscp
PFC configuration:
\tpriority    0   1   2   3   4   5   6   7
\tenabled     {}
"""


def pfc(*priorities: int) -> dict[str, str]:
    return {"mlnx_qos -i eth2": PFC.format("   ".join("1" if p in priorities else "0" for p in range(8)))}


def between(one: Recording, other: Recording) -> list[Finding]:
    """Return what pair checks find, and make sure that the order of the hosts does not matter to it."""
    found = [f for f in examine([one, other], checks=()).findings if f.level != Level.OK]
    turned = [f for f in examine([other, one], checks=()).findings if f.level != Level.OK]
    assert [(f.check, f.level) for f in found] == [(f.check, f.level) for f in turned]
    return found


def levels(one: Recording, other: Recording) -> dict[str, Level]:
    return {finding.check: finding.level for finding in between(one, other)}


A = roce_host("a")


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (roce_host("b", gids=PEER), {}),
        (roce_host("b", gids=PEER, mtu=1500), {"pair-mtu": Level.CRITICAL}),
        (roce_host("b", gids=PEER, mtu=9216), {"pair-mtu": Level.INFO}),
        (roce_host("b", gids=V1), {"pair-roce-version": Level.CRITICAL}),
        (roce_host("b", gids=ON_VLAN), {"pair-gid": Level.CRITICAL}),
        (roce_host("b", gids=LINK_LOCAL), {"pair-gid": Level.CRITICAL}),
        (roce_host("b", gids=((7, "::ffff:10.0.0.2", "v2", "eth2"),)), {}),  # the index alone may differ
        (roce_host("b", gids=PEER, rate="25 Gb/sec (1X EDR)"), {"pair-rates": Level.WARNING}),
        (roce_host("b", gids=PEER, firmware="28.40.1000"), {"pair-firmware": Level.INFO}),
        (roce_host("b", gids=PEER, devices=("rocep59s0f0",), nic="ens2f0np0"), {}),
        (roce_host("b", gids=PEER, devices=("rocep59s0f0",), nic="ens2f0np0", mtu=1500), {"pair-mtu": Level.CRITICAL}),
        (Recording("b"), {}),
    ],
)
def test_two_hosts(other: Recording, expected: dict[str, Level]) -> None:
    assert levels(A, other) == expected


def test_a_finding_names_both_ends_and_what_to_do() -> None:
    (finding,) = between(A, roce_host("b", gids=PEER, mtu=1500))
    assert finding.host == "a, b"
    assert "a eth2 9000" in finding.symptom
    assert "b eth2 1500" in finding.symptom
    assert finding.fix.startswith("on b: ip link set dev eth2 mtu 9000")
    assert "b /sys/class/net/eth2/mtu: 1500" in finding.evidence


def test_an_index_that_is_pinned_is_the_one_that_counts() -> None:
    both = (*PEER, (4, "::ffff:10.0.7.2", "v2", "eth2.100"))
    pinned = {"/etc/nccl.conf": "NCCL_IB_GID_INDEX=4"}
    assert levels(A, roce_host("b", gids=both)) == {}
    (finding,) = between(A, roce_host("b", gids=both, files=pinned))
    assert (finding.check, finding.level) == ("pair-gid", Level.CRITICAL)
    assert "NCCL_IB_GID_INDEX=4 in /etc/nccl.conf" in finding.cause
    old = {"/proc/self/environ": "UCX_IB_GID_INDEX=0"}
    assert levels(A, roce_host("b", gids=PEER, files=old)) == {"pair-roce-version": Level.CRITICAL}


def test_an_index_without_an_entry_is_left_to_the_hosts_own_check() -> None:
    assert levels(A, roce_host("b", gids=PEER, files={"/etc/nccl.conf": "NCCL_IB_GID_INDEX=9"})) == {}


def test_the_connection_managers_version_counts_too() -> None:
    def mode(version: str) -> dict[str, str]:
        return {"/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode": version}

    new = roce_host("a", files=mode("RoCE v2"))
    assert levels(new, roce_host("b", gids=PEER, files=mode("RoCE v2"))) == {}
    (finding,) = between(new, roce_host("b", gids=PEER, files=mode("IB/RoCE v1")))
    assert finding.check == "pair-roce-version"
    assert "on b: cma_roce_mode -d mlx5_0 -p 1 -m 2" in finding.fix


@pytest.mark.parametrize(
    ("here", "there", "level"),
    [
        (pfc(3), pfc(3), None),
        (pfc(3), pfc(4), Level.CRITICAL),
        (pfc(3), pfc(), Level.CRITICAL),
        (pfc(3), pfc(3, 5), Level.WARNING),
        (pfc(), pfc(), None),
        (pfc(3), {}, None),
    ],
)
def test_priorities(here: dict[str, str], there: dict[str, str], level: Level | None) -> None:
    found = levels(roce_host("a", commands=here), roce_host("b", gids=PEER, commands=there))
    assert found == ({} if level is None else {"pair-priorities": level})


def test_priorities_do_not_matter_under_link_wide_pause_or_without_rdma() -> None:
    one = roce_host("a", commands=pfc(3))
    paused = {"ethtool -a eth2": "Pause parameters for eth2:\nAutonegotiate:\toff\nRX:\t\ton\nTX:\t\ton\n"}
    assert levels(one, roce_host("b", gids=PEER, commands={**pfc(), **paused})) == {}
    counters = "/sys/class/infiniband/mlx5_0/ports/1/counters/port_"
    unused = {f"{counters}rcv_data": "0", f"{counters}xmit_data": "0"}
    assert levels(one, roce_host("b", gids=PEER, commands=pfc(), files=unused)) == {}


def test_packets_that_are_marked_differently() -> None:
    def marked(value: str) -> dict[str, str]:
        return {"/sys/class/infiniband/mlx5_0/tc/1/traffic_class": value}

    one = roce_host("a", files=marked("Global tclass=106"))
    assert levels(one, roce_host("b", gids=PEER, files=marked("Global tclass=106"))) == {}
    assert levels(one, roce_host("b", gids=PEER, files=marked("Global tclass=0"))) == {"pair-priorities": Level.WARNING}


def test_where_names_differ_a_port_is_at_fault_only_if_it_agrees_with_none() -> None:
    two = roce_host("a", devices=("mlx5_0", "mlx5_1"))
    names = ("rocep1", "rocep2", "rocep3")
    mixed = roce_host("b", gids=PEER, devices=names, nic="ens")
    assert levels(two, mixed) == {}
    mixed = replace(mixed, files={**mixed.files, "/sys/class/net/ens2/mtu": "1500"})  # one of three, and not needed
    assert [f for f in between(mixed, two) if f.level == Level.CRITICAL] == []


def test_hosts_without_rdma_are_told_of_mtus_and_not_alarmed() -> None:
    def plain(name: str, mtu: int) -> Recording:
        return Recording(
            name,
            files={"/sys/class/net/eth0/mtu": str(mtu), "/sys/class/net/eth0/operstate": "up"},
            links={"/sys/class/net/eth0/device": "../../../0000:01:00.0"},
        )

    assert levels(plain("a", 9000), plain("b", 1500)) == {"pair-mtu": Level.INFO}
    assert levels(plain("a", 1500), plain("b", 1500)) == {}


@pytest.mark.parametrize(
    ("name", "files", "commands", "number"),
    [
        ("eth2", {}, {}, 0),
        (None, {}, {}, 0),
        ("storage", {"/proc/net/vlan/storage": "storage  VID: 30\t REORDER_HDR: 1"}, {}, 30),
        (
            "storage",
            {},
            {"ip -d -j link": '[{},{"ifname":"storage","linkinfo":{"info_kind":"vlan","info_data":{"id":31}}}]'},
            31,
        ),
        ("eth2.100", {}, {"ip -d -j link": "not json"}, 100),
        ("vlan7", {}, {}, 7),
    ],
)
def test_vlans(name: str | None, files: dict[str, str], commands: dict[str, str], number: int) -> None:
    host = Host(Recording("a", files=files, commands={line: Output(text) for line, text in commands.items()}))
    assert vlan(host, name) == number


def test_there_is_a_pair_check_for_each_thing_that_must_agree() -> None:
    assert {check.name for check in pair_checks()} == {
        "pair-mtu",
        "pair-roce-version",
        "pair-gid",
        "pair-priorities",
        "pair-rates",
        "pair-firmware",
    }


def test_the_first_entry_of_a_healthy_host_is_v1_and_not_used() -> None:
    assert V2[0][2] == "v1"
    assert levels(A, A) == {}
