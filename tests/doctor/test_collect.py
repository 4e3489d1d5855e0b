"""What is recorded of a made-up machine, and how commands end."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from dualpath.doctor import collect as collecting
from dualpath.doctor import sources
from dualpath.doctor.collect import collect, probe_lines, run_command
from dualpath.doctor.globs import alternatives, expand
from dualpath.doctor.recording import Output
from dualpath.errors import UsageError
from dualpath.host.tree import LiveTree, RecordedTree

MAPPED = "0000:0000:0000:0000:0000:ffff:0a00:0001"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def write(root: Path, path: str, text: str = "") -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text + "\n" if text else "")


def link(root: Path, path: str, target: str) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """One RoCE NIC below a bridge, a container's veth, and the files around them."""
    pci = "/sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0"
    for path, text in {
        f"{pci}/class": "0x020000",
        f"{pci}/numa_node": "1",
        f"{pci}/current_link_speed": "16.0 GT/s PCIe",
        f"{pci}/current_link_width": "16",
        f"{pci}/infiniband/mlx5_0/fw_ver": "28.39.1002",
        f"{pci}/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        f"{pci}/infiniband/mlx5_0/ports/1/link_layer": "Ethernet",
        f"{pci}/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "7",
        f"{pci}/infiniband/mlx5_0/ports/1/gids/0": EMPTY,
        f"{pci}/infiniband/mlx5_0/ports/1/gids/3": MAPPED,
        f"{pci}/infiniband/mlx5_0/ports/1/gid_attrs/types/0": "IB/RoCE v1",
        f"{pci}/infiniband/mlx5_0/ports/1/gid_attrs/types/3": "RoCE v2",
        f"{pci}/net/eth2/mtu": "9000",
        f"{pci}/net/eth2/operstate": "up",
        f"{pci}/net/eth2/type": "1",
        f"{pci}/net/eth2/statistics/rx_bytes": "1000",
        f"{pci}/net/eth2/ecn/roce_np/enable/3": "1",
        "/sys/devices/pci0000:3a/0000:3a:01.0/class": "0x060400",
        "/sys/devices/pci0000:00/0000:00:1f.0/class": "0x060100",
        "/sys/devices/virtual/net/veth1/mtu": "1500",
        "/sys/devices/virtual/net/veth1/statistics/rx_bytes": "5",
        "/proc/sys/kernel/hostname": "decode-1",
        "/proc/mounts": "nas:/secret /mnt nfs rw 0 0\nhugetlbfs /dev/hugepages hugetlbfs rw 0 0",
        "/proc/self/environ": "PASSWORD=hunter2\0NCCL_IB_GID_INDEX=3\0HOME=/",
        "/proc/cpuinfo": "processor : 0\nmodel name : EPYC\nprocessor : 1\nmodel name : EPYC",
        "/sys/module/nvidia_peermem/refcnt": "0",
    }.items():
        write(tmp_path, path, text)
    write(tmp_path, "/.dockerenv")
    link(tmp_path, "/sys/class/net/eth2", f"../..{pci.removeprefix('/sys')}/net/eth2")
    link(tmp_path, "/sys/class/net/veth1", "../../devices/virtual/net/veth1")
    link(tmp_path, f"{pci}/net/eth2/device", "../../../0000:3b:00.0")
    link(tmp_path, f"{pci}/subsystem", "../../../../bus/pci")
    link(tmp_path, f"{pci}/driver", "../../../../bus/pci/drivers/mlx5_core")
    link(tmp_path, "/sys/class/infiniband/mlx5_0", f"../..{pci.removeprefix('/sys')}/infiniband/mlx5_0")
    link(tmp_path, "/sys/bus/pci/devices/0000:3b:00.0", f"../../..{pci.removeprefix('/sys')}")
    link(tmp_path, "/sys/bus/pci/devices/0000:3a:01.0", "../../../devices/pci0000:3a/0000:3a:01.0")
    link(tmp_path, "/sys/bus/pci/devices/0000:00:1f.0", "../../../devices/pci0000:00/0000:00:1f.0")
    return tmp_path


def answer(line: str, _until_s: float) -> Output | None:
    program = line.split()[0]
    return None if program in ("mlnx_qos", "nvidia-smi") else Output(f"said by {line}")


def test_a_recording_reads_like_the_machine(machine: Path) -> None:
    recording = collect(LiveTree(machine), run=answer, seconds=0)
    tree, live = RecordedTree(recording.files, recording.links), LiveTree(machine)
    assert recording.host == "decode-1"
    for path in (
        "/sys/class/net/eth2/mtu",
        "/sys/class/net/eth2/device/numa_node",
        "/sys/class/net/eth2/statistics/rx_bytes",
        "/sys/class/net/eth2/ecn/roce_np/enable/3",
        "/sys/class/net/veth1/mtu",
        "/sys/class/infiniband/mlx5_0/ports/1/gids/3",
        "/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data",
        "/sys/bus/pci/devices/0000:3b:00.0/current_link_width",
        "/sys/module/nvidia_peermem/refcnt",
        "/.dockerenv",
    ):
        assert tree.read(path) == live.read(path) is not None, path
    for path in (
        "/sys/class/net/eth2/device",
        "/sys/class/net/eth2/device/driver",
        "/sys/bus/pci/devices/0000:3b:00.0",
    ):
        assert tree.link(path) == live.link(path) is not None, path
    assert tree.names("/sys/class/net/eth2/device/infiniband") == ["mlx5_0"]
    assert tree.names("/sys/class/infiniband/mlx5_0/ports") == ["1"]


def test_nics_and_ports_come_out_of_a_recording_as_of_the_machine(machine: Path) -> None:
    from dualpath.host.nics import nics

    recording = collect(LiveTree(machine), run=answer, seconds=0)
    assert nics(RecordedTree(recording.files, recording.links)) == nics(LiveTree(machine))


def test_bridges_are_recorded_and_what_is_beside_the_way_is_not(machine: Path) -> None:
    files = collect(LiveTree(machine), run=answer, seconds=0).files
    assert files["/sys/bus/pci/devices/0000:3a:01.0/class"] == "0x060400"
    assert "/sys/bus/pci/devices/0000:00:1f.0/class" not in files


def test_empty_gids_and_a_containers_counters_are_left_out(machine: Path) -> None:
    files = collect(LiveTree(machine), run=answer, seconds=0).files
    assert [path for path in files if "/gids/" in path or "/types/" in path] == [
        "/sys/class/infiniband/mlx5_0/ports/1/gids/3",
        "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3",
    ]
    assert "/sys/class/net/veth1/statistics/rx_bytes" not in files


def test_only_lines_that_matter_are_recorded(machine: Path) -> None:
    files = collect(LiveTree(machine), run=answer, seconds=0).files
    assert files["/proc/self/environ"] == "NCCL_IB_GID_INDEX=3"
    assert files["/proc/mounts"] == "hugetlbfs /dev/hugepages hugetlbfs rw 0 0"
    assert files["/proc/cpuinfo"] == "model name : EPYC"


def test_commands_run_for_hardware_and_missing_ones_are_listed(machine: Path) -> None:
    recording = collect(LiveTree(machine), run=answer, seconds=0)
    assert recording.commands["ethtool -g eth2"].stdout == "said by ethtool -g eth2"
    assert "rdma statistic show" in recording.commands
    assert not any("veth1" in line for line in recording.commands)
    assert recording.missing == ("mlnx_qos", "nvidia-smi")


def test_counters_are_read_twice(machine: Path) -> None:
    counter = machine / "sys/class/net/eth2/statistics/rx_bytes"

    def count(line: str, until_s: float) -> Output | None:
        if line == "numactl --hardware":  # between the two readings
            counter.write_text("2000\n")
        return answer(line, until_s)

    recording = collect(_Slow(machine, counter), run=count, seconds=1e-6)
    assert recording.later["/sys/class/net/eth2/statistics/rx_bytes"] == "2000"
    assert set(recording.later_commands) == {"ethtool -S eth2", "rdma statistic show"}
    assert recording.later_s > 0
    assert "/sys/class/net/eth2/mtu" not in recording.later


class _Slow(LiveTree):
    """A tree whose counter is 1000 when it is read first, whatever the command beside has written."""

    def __init__(self, root: Path, counter: Path) -> None:
        super().__init__(root)
        self._counter, self._first = counter, True

    def read(self, path: str) -> str | None:
        if self._first and path.endswith("eth2/statistics/rx_bytes"):
            self._first = False
            return "1000"
        return super().read(path)


def test_device_nodes_have_their_mode(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = machine / "dev/infiniband"
    write(machine, "/dev/infiniband/uverbs0")
    (folder / "uverbs0").chmod(0o660)
    monkeypatch.setattr(sources, "DEVICE_NODES", str(folder))
    found = dict(collecting._nodes(LiveTree()))
    assert found[f"{folder}/uverbs0"].startswith(stat.filemode(stat.S_IFREG | 0o660))


def test_a_machine_that_says_nothing_is_recorded_as_that(tmp_path: Path) -> None:
    recording = collect(LiveTree(tmp_path), run=lambda _line, _until: None, seconds=0)
    assert (recording.files, recording.links, recording.commands) == ({}, {}, {})
    assert "lspci" in recording.missing


def test_a_command_that_is_not_installed_is_none() -> None:
    assert run_command("no-such-program --at-all", time.monotonic() + 5) is None


def test_a_command_speaks_c_and_has_no_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "speak", 'echo "$LC_ALL"; cat; echo oops >&2; exit 3')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert run_command("speak", time.monotonic() + 30) == Output("C\n", "oops\n", 3)


def test_a_slow_command_is_stopped_and_so_is_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "slow", "echo first; sleep 600 & wait")  # the child holds stdout open
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    output = run_command("slow", time.monotonic() + 0.3)
    assert output is not None
    assert (output.exit_code, output.stdout) == (-1, "first\n")


def test_no_command_starts_after_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "late", f"touch {tmp_path}/started")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    output = run_command("late", time.monotonic() - 1)
    assert output is not None
    assert output.exit_code == -1
    assert not (tmp_path / "started").exists()


def test_a_command_killed_by_a_signal_does_not_look_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "crash", "kill -SEGV $$")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    output = run_command("crash", time.monotonic() + 30)
    assert output is not None
    assert output.exit_code == 139


def script(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("peer", "payload"), [("10.0.0.2", 8972), ("fd00::2", 8952), ("pool-1", 8972)])
def test_probes_fill_the_mtu(peer: str, payload: int) -> None:
    assert probe_lines(peer, 9000) == [
        f"ping -M do -c 1 -W 1 -s {payload} {peer}",
        f"ping -M do -c 1 -W 1 -s 56 {peer}",
    ]


def test_a_probe_is_no_larger_than_a_packet_can_be() -> None:
    assert "-s 65507 " in probe_lines("127.0.0.1", 65536)[0]


@pytest.mark.parametrize("peer", ["-f", "a b", "10.0.0.2;id", ""])
def test_a_peer_cannot_be_an_option(peer: str) -> None:
    with pytest.raises(UsageError):
        probe_lines(peer, 1500)


def test_a_probe_goes_with_the_recording(machine: Path) -> None:
    recording = collect(LiveTree(machine), run=answer, peer="127.0.0.1", seconds=0)
    assert sum(line.startswith("ping -M do") for line in recording.commands) == 2


def test_patterns() -> None:
    tree = RecordedTree({"/a/b1/c": "", "/a/b2/c": "", "/a/x/c": "", "/a/b1/d/e/f": ""}, {"/a/b1/loop": ".."})
    assert alternatives("/{a,b}/{c,d}") == ["/a/c", "/a/d", "/b/c", "/b/d"]
    assert list(expand(tree, "/a/b*/c")) == ["/a/b1/c", "/a/b2/c"]
    assert list(expand(tree, "/nowhere/{x,y}")) == ["/nowhere/x", "/nowhere/y"]
    assert "/a/b1/d/e/f" in expand(tree, "/a/b1/**")
    assert list(expand(tree, "/nowhere/**")) == []


def test_every_program_has_a_package_or_comes_with_the_system() -> None:
    lines = (*sources.HOST_COMMANDS, *sources.NIC_COMMANDS, *sources.COUNTER_COMMANDS, sources.PROBE)
    programs = {line.split()[0] for line in lines}
    assert programs - set(sources.PACKAGES) == {"nvidia-smi", "systemctl"}
    assert set(sources.PACKAGES) <= programs
