"""Labs on the real kernel. Rates are checked from below, by the time that they take at least; lanes by bytes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dualpath.cli import main
from dualpath.errors import HostError, UsageError
from dualpath.host.lab import Lab, LabConfig, build, lab
from dualpath.host.netlink import open_netlink
from dualpath.testing.transport_case import eventually

from .pair import SINK, SOURCE, TWO_LANES, TWO_SINKS, lab_text

TIMEOUT_S = 60


def seconds(pair: Lab, count: int) -> float:
    """Return how long `count` bytes take from a to b, as b counts them."""
    with pair.host("b").python(SINK, stdout=subprocess.PIPE, text=True) as sink:
        port = sink.stdout.readline().strip()
        pair.host("a").run([sys.executable, "-c", SOURCE, port, str(count)], timeout=TIMEOUT_S)
        received, elapsed_s = sink.communicate(timeout=TIMEOUT_S)[0].split()
    assert int(received) == count
    return float(elapsed_s)


def test_a_nic_has_its_rate_and_another_when_it_is_changed(pair: Lab) -> None:
    nic = pair.host("a").nic("data0")
    assert nic.link().shaped_bits_per_s == 200_000_000
    assert seconds(pair, 4_000_000) > 0.7 * 32e6 / 200e6  # an unshaped veth takes a tenth or less
    nic.set_rate("50Mbit")
    assert nic.link().shaped_bits_per_s == 50_000_000
    assert seconds(pair, 3_000_000) > 0.7 * 24e6 / 50e6  # long against how late b's clock may start


def test_what_a_host_receives_is_shaped_too(pair: Lab) -> None:
    pair.host("b").nic("data0").set_rate("50Mbit")
    assert seconds(pair, 3_000_000) > 0.7 * 24e6 / 50e6


def test_realtime_goes_before_bulk(pair: Lab) -> None:
    # The queues last a second while other processes have the core: all that is counted is in the sender's socket soon.
    pair.host("a").nic("data0").set_rate("5Mbit")
    with (
        pair.host("b").python(TWO_SINKS, "600000", stdout=subprocess.PIPE, text=True) as sinks,
        pair.host("a").python(TWO_LANES, *sinks.stdout.readline().split()) as sender,
    ):
        realtime, bulk = map(int, sinks.communicate(timeout=TIMEOUT_S)[0].split())
        sender.kill()
    assert bulk < realtime / 2  # without lanes, both get the same


@pytest.mark.parametrize(
    ("nic", "family", "address"), [("data0", "AF_INET", "10.99.0.2"), ("six0", "AF_INET6", "fd00:99::2")]
)  # fmt: skip
def test_packets_are_sorted_by_their_dscp(pair: Lab, nic: str, family: str, address: str) -> None:
    code = """
import socket, sys
level, option = (socket.IPPROTO_IP, socket.IP_TOS) if sys.argv[1] == "AF_INET" else (41, socket.IPV6_TCLASS)
for tos, packets in ((0xB8, 5), (0x68, 4), (0x21, 3)):
    with socket.socket(getattr(socket, sys.argv[1]), socket.SOCK_DGRAM) as lane:
        lane.setsockopt(level, option, tos)
        for _ in range(packets):
            lane.sendto(bytes(1000), (sys.argv[2], 9))
"""
    pair.host("a").run([sys.executable, "-c", code, family, address], timeout=TIMEOUT_S)
    with open_netlink(pair.host("a").namespace) as netlink:
        index = build.interface_index(netlink, nic)

        def kib(handle: int) -> int:
            (found,) = (one for one in netlink.get_classes(index=index) if one["handle"] == handle)
            return int(found.get_attr("TCA_STATS2").get_attr("TCA_STATS_BASIC")["bytes"] // 1000)

        # What is sent waits for its neighbour to be found, and is counted as it leaves.
        assert eventually(lambda: (kib(0x10010), kib(0x10020)) == (5, 4))
        assert eventually(lambda: kib(0x10030) >= 3)  # neighbour discovery is unmarked and goes here too


def test_a_pulled_cable_takes_the_carrier_and_nothing_else(pair: Lab) -> None:
    nic = pair.host("a").nic("six0")
    nic.down()
    pulled = nic.link()
    nic.up()
    assert (pulled.carrier, nic.link().carrier) == (False, True)
    assert pulled.addresses == nic.link().addresses == ("fd00:99::1/64",)


def test_a_host_sees_its_own_nics_and_counts_what_they_carry(pair: Lab) -> None:
    before = pair.host("b").nic("data0").counters()
    seconds(pair, 1_000_000)
    after = pair.host("b").nic("data0").counters()
    assert 1_000_000 < after.rx_bytes - before.rx_bytes < 1_200_000
    listed = pair.host("a").run(["ls", "/sys/class/net"], capture_output=True, text=True)
    assert listed.stdout.split() == ["data0", "lo", "six0"]


def test_loopback_is_up_in_every_host(pair: Lab) -> None:
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())"
    assert pair.host("a").run([sys.executable, "-c", code]).returncode == 0


def test_tcp_is_the_same_in_every_host_whatever_this_machine_prefers(pair: Lab) -> None:
    outside = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text()
    shown = pair.host("a").run(["cat", "/proc/sys/net/ipv4/tcp_congestion_control"], capture_output=True, text=True)
    assert shown.stdout == "reno\n"
    assert Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text() == outside


def test_a_lab_is_brought_up_once(pair: Lab) -> None:
    with pytest.raises(UsageError, match="is up already") as caught:
        build.up(pair.config)
    assert "lab down" in caught.value.hint
    assert pair.up  # the refusal took nothing down


def test_down_ends_what_runs_in_the_hosts(pair: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "GRACE_S", 0.1)
    stubborn = "trap '' TERM; echo ready; while :; do read line || sleep 60; done"
    with pair.host("a").popen(["sh", "-c", stubborn], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        process.stdout.readline()
        assert build.processes([pair.host("a").namespace]) == {pair.host("a").namespace: [process.pid]}
        assert build.down(pair.config.name)
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    assert not build.down(pair.config.name)
    assert not pair.up


@pytest.mark.parametrize("failure", [HostError("no htb here"), KeyboardInterrupt()])
def test_half_a_lab_is_taken_down(config: LabConfig, monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(build, "apply_shape", fail)
    with pytest.raises(type(failure)):
        build.up(config)
    assert build.namespaces(config.name) == []


def test_what_the_kernel_refuses_is_said_with_a_hint(config: LabConfig) -> None:
    build.up(config)
    with (
        pytest.raises(HostError, match="the kernel refused") as caught,
        open_netlink(config.namespace("a")) as netlink,
    ):
        netlink.link("add", ifname="data0", kind="bridge")
    assert caught.value.hint


def test_an_exception_in_the_block_takes_the_lab_down(config: LabConfig) -> None:
    with pytest.raises(HostError, match="with 3 namespaces"), lab(config) as emulated:
        raise HostError(f"with {len(build.namespaces(emulated.config.name))} namespaces")
    assert build.namespaces(config.name) == []


def file(tmp_path: Path, name: str) -> str:
    path = tmp_path / "lab.toml"
    path.write_text(lab_text(name))
    return str(path)


def dualpath(*words: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dualpath", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def test_commands_bring_a_lab_up_and_down(tmp_path: Path, lab_name: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, lab_name)
    assert main(["lab", "up", path]) == 0
    assert "200 Mbit/s" in capfd.readouterr().out
    with dualpath("lab", "exec", path, "b", "--", "sh", "-c", "ip -o link show data0; exit 3") as inside:
        assert "data0" in inside.communicate(timeout=TIMEOUT_S)[0]
    assert inside.returncode == 3
    assert main(["lab", "status"]) == 0
    assert f"dp-{lab_name}-a" in capfd.readouterr().out
    assert main(["lab", "up", path]) == 2
    assert main(["lab", "down", path]) == 0
    assert main(["lab", "down", path]) == 0
    assert "was not up" in capfd.readouterr().err
    assert main(["lab", "exec", path, "b", "--", "true"]) == 2
    assert main(["lab", "status", path]) == 0


@pytest.mark.parametrize(
    ("host", "script", "code"), [((), "exit 7", 7), (("--host", "a"), "kill -TERM $$", 128 + signal.SIGTERM)]
)  # fmt: skip
def test_run_returns_what_its_command_returned(
    tmp_path: Path, lab_name: str, host: tuple[str, ...], script: str, code: int
) -> None:
    path = file(tmp_path, lab_name)
    assert main(["lab", "run", path, *host, "--", "sh", "-c", script]) == code
    assert build.namespaces(lab_name) == []


def test_run_of_a_command_that_is_not_there_leaves_nothing(tmp_path: Path, lab_name: str) -> None:
    assert main(["lab", "run", file(tmp_path, lab_name), "--", "no-such-command"]) == 1
    assert build.namespaces(lab_name) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_run_cleans_up_when_a_signal_ends_it(tmp_path: Path, lab_name: str, number: signal.Signals) -> None:
    straggler = "sleep 60 & echo ready; exec sleep 60"
    with dualpath(
        "lab", "run", file(tmp_path, lab_name), "--host", "a", "--", "sh", "-c", straggler, start_new_session=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        if number == signal.SIGINT:  # as a terminal sends it: to everybody in the foreground
            os.killpg(running.pid, number)
        else:
            running.send_signal(number)
        assert running.wait(TIMEOUT_S) == 128 + number
    assert build.namespaces(lab_name) == []


@pytest.mark.parametrize("words", [["up"], ["down"], ["run", "--", "true"], ["exec", "a", "--", "true"]])
def test_without_root_it_says_so(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["lab", words[0], "two-hosts-one-nic", *words[1:]]) == 1
    assert "needs root" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["list", "up", "status", "exec", "run", "down"])
def test_every_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", name, "--help"]) == 0
    assert f"dualpath lab {name}" in capsys.readouterr().out.partition("Examples:")[2]


def test_ready_made_labs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "list"]) == 0
    assert "storage-prefill-decode" in capsys.readouterr().out


def test_a_thread_that_enters_a_host_makes_the_hosts_sockets(pair: Lab) -> None:
    def listen() -> None:
        with socket.create_server((pair.host("b").address("data0"), 0)):  # an address that only host b has
            done.append(True)

    done: list[bool] = []
    with pytest.raises(OSError, match="assign"):
        listen()
    with pair.host("b").entered():
        listen()
        thread = threading.Thread(target=listen)
        thread.start()
        thread.join()
    assert len(done) == 2
    with pytest.raises(OSError, match="assign"):
        listen()


def test_a_host_that_is_gone_cannot_be_entered(config: LabConfig) -> None:
    with pytest.raises(HostError, match="no host a"), Lab(config).host("a").entered():
        pass
