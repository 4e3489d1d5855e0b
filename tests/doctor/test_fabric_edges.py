"""What the recorded hosts do not show: numbers of links, order of GIDs, bonds, and recordings with holes in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv6Address
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.doctor import fabric
from dualpath.doctor.base import Finding, Level, Unknown
from dualpath.doctor.checks import (
    gpu_nic_distance,
    iommu_acs,
    mtu,
    nic_idle,
    nic_inventory,
    nic_numa,
    pcie_link,
    peer_memory,
    rdma_capable,
    rdma_link,
    roce_gid,
)
from dualpath.doctor.host import Host
from dualpath.doctor.recording import Output, Recording
from dualpath.doctor.subjects import roce_nics
from dualpath.host.pci import PcieLink, pci_device
from dualpath.host.rdma import Gid, parse_gid
from dualpath.testing.recordings import load_fixture

FIXTURES = Path(__file__).parent / "fixtures"
HEALTHY = {name: load_fixture(FIXTURES / f"{name}-healthy.toml").recording for name in ("mlx5", "cx6dx", "ib", "efa")}
CHECKS = [
    module.CHECK
    for module in (
        gpu_nic_distance,
        iommu_acs,
        mtu,
        nic_idle,
        nic_inventory,
        nic_numa,
        pcie_link,
        peer_memory,
        rdma_capable,
        rdma_link,
        roce_gid,
    )
]


def with_files(recording: Recording, files: dict[str, str], *, without: tuple[str, ...] = ()) -> Recording:
    kept = {path: text for path, text in recording.files.items() if not path.startswith(without)} if without else {}
    links = {path: to for path, to in recording.links.items() if not (without and path.startswith(without))}
    return replace(recording, files={**(kept or recording.files), **files}, links=links)


def said(module: object, recording: Recording) -> list[Finding]:
    return list(module.CHECK.judge(Host(recording)))  # type: ignore[attr-defined]  # each module has one


@pytest.mark.parametrize(
    ("link", "gigabytes_per_s"),
    [
        (PcieLink(8.0, 4), 3.94),
        (PcieLink(8.0, 16), 15.75),
        (PcieLink(16.0, 16), 31.51),
        (PcieLink(32.0, 16), 63.02),
        (PcieLink(64.0, 16), 118.0),
        (PcieLink(2.5, 1), 0.25),
    ],
)
def test_what_a_link_carries(link: PcieLink, gigabytes_per_s: float) -> None:
    assert link.bytes_per_s is not None
    assert link.bytes_per_s / 1e9 == pytest.approx(gigabytes_per_s, abs=0.005)


def test_a_speed_of_no_generation_is_written_as_it_is() -> None:
    link = PcieLink(20.0, 16)
    assert (str(link), link.bytes_per_s, str(PcieLink(8.0, 4))) == ("20 GT/s x16", None, "Gen3 x4")


def test_a_devices_bridges_are_read_off_its_link() -> None:
    device = pci_device(Host(HEALTHY["mlx5"]).tree, "0000:19:00.0")
    assert device.bridges == ("0000:15:01.0", "0000:16:00.0", "0000:17:01.0")
    assert (device.class_code, device.vendor, device.numa_node) == (0x020000, 0x15B3, 0)


def test_lspcis_tree_stands_in_for_sysfs() -> None:
    recording = replace(HEALTHY["mlx5"], links={})
    assert fabric.pci(Host(recording), "0000:19:00.0").bridges == ("0000:15:01.0", "0000:16:00.0", "0000:17:01.0")


def gid(index: int, address: str, version: int) -> Gid:
    return Gid(index, IPv6Address(address), version, None)


def test_the_automatic_gid_is_v2_then_ipv4_then_routable() -> None:
    table = (
        gid(0, "::ffff:10.0.0.1", 1),
        gid(1, "fe80::1", 2),
        gid(2, "fd00::1", 2),
        gid(5, "::ffff:10.0.0.1", 2),
        gid(6, "::ffff:10.0.0.2", 2),
    )
    order: list[int] = []
    while table:
        best = roce_gid.automatic_gid(table)
        assert best is not None
        order.append(best.index)
        table = tuple(entry for entry in table if entry is not best)
    assert order == [5, 6, 2, 1, 0]
    assert roce_gid.automatic_gid(()) is None


@pytest.mark.parametrize(
    "text", ["0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:0000:0000:0000:0000", ""]
)
def test_an_empty_gid_is_none(text: str) -> None:
    assert parse_gid(text) is None


@pytest.mark.parametrize(("mtu_bytes", "path"), [(1500, 1024), (4200, 4096), (4191, 2048), (9000, 4096), (300, 0)])
def test_the_path_mtu_that_an_interface_allows(mtu_bytes: int, path: int) -> None:
    assert mtu.roce_path_mtu(mtu_bytes) == path


def test_the_path_mtu_is_worked_out_where_no_tool_says_it() -> None:
    recording = with_files(HEALTHY["cx6dx"], {"/sys/class/net/enp65s0f1np1/mtu": "1500"})
    recording = replace(recording, commands={})
    (finding,) = said(mtu, recording)
    assert (finding.level, finding.subject) == (Level.WARNING, "enp65s0f1np1")
    assert "1024 of at most 4096 bytes" in finding.symptom


LOST = Output("1 packets transmitted, 0 received, 100% packet loss, time 0ms", exit_code=1)
PASSED = Output("1 packets transmitted, 1 received, 0% packet loss, time 0ms")
NO_ROUTE = Output("", "ping: connect: Network is unreachable", 2)


@pytest.mark.parametrize(
    ("large", "small", "level", "says"),
    [
        (PASSED, PASSED, Level.OK, "packets of 9000 bytes reach 192.0.2.9 whole"),
        (PASSED, LOST, Level.OK, "whole"),
        (LOST, PASSED, Level.CRITICAL, "vanish, small ones arrive"),
        (LOST, LOST, Level.UNKNOWN, "nothing there answers ping"),
        (LOST, None, Level.UNKNOWN, "nothing there answers ping"),
        (NO_ROUTE, NO_ROUTE, Level.UNKNOWN, "Network is unreachable"),
        (Output("", "stopped: it took too long", -1), PASSED, Level.UNKNOWN, "it took too long"),
    ],
)
def test_a_peers_probes_make_one_finding(large: Output, small: Output | None, level: Level, says: str) -> None:
    probes = {"ping -M do -c 1 -W 1 -s 8972 192.0.2.9": large, "ping -M do -c 1 -W 1 -s 56 192.0.2.9": small}
    given = {line: output for line, output in probes.items() if output is not None}
    (finding,) = said(mtu, replace(HEALTHY["cx6dx"], commands=given))
    assert finding.level is level
    assert says in finding.symptom


def test_a_peer_that_could_not_be_pinged_is_not_passed_over() -> None:
    (finding,) = said(mtu, Recording("h", missing=("ping",)))
    assert (finding.level, finding.fix) == (Level.UNKNOWN, "install iputils-ping")


def test_the_fast_path_below_a_hyper_v_nic_is_no_roce_nic() -> None:
    azure = load_fixture(FIXTURES / "azure-accelerated.toml").recording
    master = "/sys/class/net/enP6699s1/master"
    assert roce_nics(Host(azure)) == ()
    alone = {path: target for path, target in azure.links.items() if path != master}
    assert [nic.name for nic in roce_nics(Host(replace(azure, links=alone)))] == ["enP6699s1"]


def test_ports_that_together_outrun_their_slot_are_told() -> None:
    base = "/sys/bus/pci/devices/0000:41:00."
    recording = with_files(HEALTHY["cx6dx"], {f"{base}{n}/current_link_speed": "8.0 GT/s PCIe" for n in (0, 1)})
    shared = [finding.symptom for finding in said(pcie_link, recording) if "together" in finding.symptom]
    assert len(shared) == 1
    assert "200 Gbit/s together" in shared[0]
    assert "Gen3 x16 (15.8 GB/s)" in shared[0]


def test_bonded_ports_share_the_first_ones_rdma_device() -> None:
    second = "enp65s0f1np1"
    members = {f"/sys/class/net/enp65s0f{n}np{n}/bonding_slave/state": "ACTIVE" for n in (0, 1)}
    gone = ("/sys/class/infiniband/mlx5_1", f"/sys/class/net/{second}/device/infiniband")
    assert said(rdma_capable, with_files(HEALTHY["cx6dx"], members, without=gone)) == []
    assert [finding.subject for finding in said(rdma_capable, with_files(HEALTHY["cx6dx"], {}, without=gone))] == [
        second
    ]


def test_rdma_devices_of_another_namespace() -> None:
    gone = ("/sys/class/infiniband", "/sys/class/net/enp65s0f0np0/device/infiniband")
    recording = with_files(HEALTHY["cx6dx"], {}, without=gone)
    recording = replace(recording, commands={"rdma system show": Output("netns exclusive copy-on-fork on")})
    assert "namespace" in said(rdma_capable, recording)[0].cause


def test_equal_rates_of_a_bond_are_not_compared_with_single_ports() -> None:
    rate = "/sys/class/infiniband/mlx5_1/ports/1/rate"
    slow = with_files(HEALTHY["cx6dx"], {rate: "50 Gb/sec (2X EDR)"})
    assert [finding.level for finding in said(rdma_link, slow)] == [Level.WARNING]
    assert said(rdma_link, HEALTHY["cx6dx"]) == []


def test_a_half_height_infiniband_port_has_two_lanes_by_design() -> None:
    files = {f"/sys/class/infiniband/mlx5_{n}/ports/1/rate": "200 Gb/sec (2X NDR)" for n in (0, 1)}
    assert said(rdma_link, with_files(HEALTHY["ib"], files)) == []


def test_the_matrix_alone_shows_gpus() -> None:
    topo = HEALTHY["mlx5"].commands["nvidia-smi topo -m"]
    host = Host(Recording("h", commands={"nvidia-smi topo -m": topo}))
    assert [(gpu.name, gpu.address, gpu.numa_node) for gpu in fabric.gpus(host)] == [("GPU0", "", 0), ("GPU1", "", 1)]


def test_nvidia_smis_numbers_count_where_sysfs_shows_more_gpus() -> None:
    query = "nvidia-smi --query-gpu=index,name,pci.bus_id,driver_version --format=csv,noheader"
    recording = replace(HEALTHY["mlx5"], commands={query: Output("0, NVIDIA H100 PCIe, 00000000:9A:00.0, 535.183.06")})
    assert [(gpu.name, gpu.address, gpu.numa_node) for gpu in fabric.gpus(Host(recording))] == [
        ("GPU0", "0000:9a:00.0", 1)
    ]


def test_gids_come_from_a_tool_where_sysfs_was_not_recorded() -> None:
    gids = tuple(f"/sys/class/infiniband/mlx5_{n}/ports/1/gid" for n in (0, 1))
    bare = with_files(HEALTHY["mlx5"], {}, without=gids)
    for tool in ("show_gids", "ibv_devinfo -v"):
        (first, _) = fabric.ports(Host(replace(bare, commands={tool: bare.commands[tool]})))
        assert [(entry.index, entry.version, str(entry.ipv4)) for entry in first.gids][2:] == [
            (2, 1, "10.10.1.11"),
            (3, 2, "10.10.1.11"),
        ]


def test_an_empty_table_means_that_roce_is_off_or_elsewhere() -> None:
    port = "/sys/class/infiniband/mlx5_0/"
    gone = (f"{port}ports/1/gid", "/sys/class/infiniband/mlx5_1")
    empty = replace(with_files(HEALTHY["mlx5"], {}, without=gone), commands={"show_gids": Output("n_gids_found=0")})
    assert [finding.level for finding in said(roce_gid, empty)] == [Level.CRITICAL]
    elsewhere = with_files(empty, {}, without=(f"{port}device/net",))
    assert [finding.level for finding in said(roce_gid, elsewhere)] == [Level.INFO]
    assert [finding.level for finding in said(roce_gid, replace(empty, commands={}))] == [Level.UNKNOWN]


def test_the_command_line_tells_where_the_iommus_groups_do_not() -> None:
    on = with_files(HEALTHY["mlx5"], {"/proc/cmdline": "ro intel_iommu=on"}, without=("/sys/kernel/iommu_groups",))
    assert [finding.level for finding in said(iommu_acs, on)] == [Level.WARNING]
    through = with_files(on, {"/proc/cmdline": "ro intel_iommu=on iommu=pt"})
    assert said(iommu_acs, through) == []


def test_peer_memory_of_an_unknown_driver_is_unknown() -> None:
    gone = ("/proc/driver/nvidia", "/sys/module/nvidia", "/etc/modules-load.d")
    recording = with_files(HEALTHY["mlx5"], {"/proc/modules": "mlx5_ib 1 0 - Live 0x0"}, without=gone)
    with pytest.raises(Unknown, match="dma-buf"):
        said(peer_memory, recording)


def test_a_module_that_is_not_kept_is_mentioned() -> None:
    recording = with_files(HEALTHY["mlx5"], {"/etc/modules-load.d/nvidia_peermem.conf": "# none"})
    (finding,) = said(peer_memory, recording)
    assert finding.level is Level.INFO
    assert "at boot" in finding.symptom


def test_amounts_are_decimal() -> None:
    assert [fabric.amount(n) for n in (12, 20_500_000, 179_650e9, 3.2e18)] == ["12 B", "20.5 MB", "180 TB", "3200 PB"]


def holes(recording: Recording, seed: int) -> Recording:
    """Return a recording that lacks some of its entries, and whose others are damaged here and there."""
    random = Random(seed)
    share = random.choice([0.02, 0.2, 0.6])

    def damaged(text: str) -> str:
        at = random.randrange(len(text) + 1)
        return (
            text[:at]
            if random.random() < 0.5
            else text[:at] + random.choice(["x", "-1", "\n", "²", "9" * 30]) + text[at:]
        )

    def some(table: dict[str, str]) -> Iterator[tuple[str, str]]:
        for key, text in table.items():
            if random.random() > share:
                yield key, damaged(text) if random.random() < share else text

    commands = {line: Output(text) for line, text in some({k: v.stdout for k, v in recording.commands.items()})}
    return replace(
        recording,
        files=dict(some(recording.files)),
        links=dict(some(recording.links)),
        commands=commands,
        later=dict(some(recording.later)),
    )


@pytest.mark.parametrize("name", HEALTHY)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_what_was_not_recorded_raises_no_alarm(name: str, seed: int) -> None:
    random = Random(seed)
    recording = HEALTHY[name]

    def some(table: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in table.items() if random.random() > share}

    share = random.choice([0.02, 0.1, 0.4])
    host = Host(
        replace(recording, files=some(recording.files), links=some(recording.links), commands=some(recording.commands))
    )
    for check in CHECKS:
        # A GID table with gaps is a table, and a NIC whose RDMA device is not there has none: not these two.
        if check.name not in ("roce-gid", "rdma-capable"):
            with suppress(Unknown):
                assert {finding.level for finding in check.judge(host)} <= {Level.OK, Level.INFO, Level.UNKNOWN}


@pytest.mark.parametrize("name", HEALTHY)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_no_hole_in_a_recording_makes_a_check_crash(name: str, seed: int) -> None:
    host = Host(holes(HEALTHY[name], seed))
    for check in CHECKS:
        with suppress(Unknown):
            list(check.judge(host))
