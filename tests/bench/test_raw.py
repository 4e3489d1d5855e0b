"""The raw bench counts what it moves at both ends and leaves nothing behind; how fast is not a test's business."""

from __future__ import annotations

import ipaddress
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dualpath.bench import raw_measure
from dualpath.bench.raw import TENANT, run_raw_bench
from dualpath.bench.raw_clock import LEAST_SAMPLES, percentile, pump, times_alone
from dualpath.bench.raw_findings import doubt, findings
from dualpath.bench.raw_flows import blocks_in_flight, room_needed, stored_blocks
from dualpath.bench.raw_measure import RawSettings
from dualpath.bench.raw_rails import Greeting, gpus, rails_of
from dualpath.cli import main
from dualpath.errors import AuthError, HostError, PeerError, PoolFullError, UnreachableError, UsageError
from dualpath.host.addresses import LocalAddress
from dualpath.host.raw import RawBeside, RawReport, RawRow
from dualpath.host.tree import RecordedTree
from dualpath.pool.client import connect
from dualpath.pool.service import PoolService
from dualpath.transport.dial import Tcp
from dualpath.transport.tcp import TcpServer
from dualpath.wire.messages import BlockKey, PrepareItem

KEY = b"0123456789abcdef0123456789abcdef"
QUICK = RawSettings(sizes=(4096, 128 << 10), seconds=0.01, in_flight=4)
ONE_SIZE = RawSettings(sizes=(4096,), seconds=0.01, in_flight=4)
GBIT = 1e9


# --- findings, from made-up rows -------------------------------------------------------------------------------------


def row(rate: float, *, block: int = 1 << 20, nic: str = "eth2", nominal: float | None = None, **more: Any) -> RawRow:
    fields: dict[str, Any] = {
        "local_rail": nic,
        "remote_rail": "10.0.0.2:7700",
        "lane": "prefetch",
        "transport": "tcp",
        "block_bytes": block,
        "in_flight": 8,
        "bytes_sent": int(rate / 8),
        "bytes_received": int(rate / 8),
        "seconds": 1.0,
        "bits_per_s": rate,
        "nominal_bits_per_s": nominal,
        "latency_p50_s": 1e-4,
        "latency_p99_s": 2e-4,
    }
    return RawRow(**(fields | more))


def beside(p50_s: float, p99_s: float, nic: str = "eth2") -> RawBeside:
    return RawBeside(
        local_rail=nic,
        remote_rail="10.0.0.2:7700",
        block_bytes=1 << 20,
        prefetch_bits_per_s=GBIT,
        idle_p50_s=1e-4,
        idle_p99_s=3e-4,
        idle_samples=100,
        beside_p50_s=p50_s,
        beside_p99_s=p99_s,
        beside_samples=100,
    )


def one(found: tuple[str, ...]) -> str:
    assert len(found) == 1, found
    return found[0]


def test_a_healthy_network_has_no_findings() -> None:
    rows = [row(0.95 * GBIT, nic=nic, nominal=GBIT, block=size) for nic in ("eth2", "eth3") for size in (4096, 1 << 20)]
    together = [row(1.9 * GBIT, nic="eth2+eth3", rail_bytes={"a": 1, "b": 1})]
    assert findings(rows, together, [beside(1.2e-4, 1.1e-3)]) == ()
    assert findings(()) == ()


def test_under_half_of_nominal_points_below_the_software() -> None:
    assert findings([row(0.5 * GBIT, nominal=GBIT)]) == ()
    said = one(findings([row(0.2 * GBIT, nominal=GBIT, block=4096), row(0.49 * GBIT, nominal=GBIT)]))
    assert "490 Mbit/s at best, 49% of nominal 1 Gbit/s" in said
    assert "PCIe" in said
    assert "`dualpath doctor`" in said
    assert findings([row(0.01 * GBIT)]) == ()  # nothing to hold it against
    assert findings([row(0.9 * GBIT, nominal=GBIT), row(0.01 * GBIT, nominal=GBIT, lane="realtime")]) == ()


def test_small_fine_and_large_slow_in_every_lane() -> None:
    small, large = row(0.9 * GBIT, block=64 << 10), row(0.1 * GBIT, block=1 << 20)
    said = one(findings([small, large]))
    assert "900 Mbit/s with 64 KiB, but 100 Mbit/s with 1 MiB" in said
    assert "ping -M do -s 8972 10.0.0.2" in said
    assert findings([small, large, row(0.8 * GBIT, lane="bulk")]) == ()  # one lane does not see it: not the path
    assert findings([small, large, row(0.8 * GBIT, direction="write")]) == (said,)
    assert findings([row(0.9 * GBIT, block=512 << 10), large]) == ()  # hardly larger
    assert findings([row(0.1 * GBIT, block=4096), row(0.9 * GBIT)]) == ()  # the other way round is what one expects


def test_unequal_rails_are_held_against_their_own_nominal_speed() -> None:
    slow, fast = row(0.19 * GBIT, nic="eth3"), row(0.95 * GBIT)
    assert one(findings([slow, fast])).startswith("rails are unequal: eth3 → 10.0.0.2:7700 gives 190 Mbit/s, eth2")
    known = [row(0.19 * GBIT, nic="eth3", nominal=0.2 * GBIT), row(0.95 * GBIT, nominal=GBIT)]
    assert findings(known) == ()


def test_rails_that_do_not_add_up() -> None:
    rows = [row(GBIT), row(GBIT, nic="eth3")]
    together = [row(1.5 * GBIT, nic="eth2+eth3", rail_bytes={"eth2 → x": 10, "eth3 → y": 0})]
    slow, idle = findings(rows, together)
    assert "1.5 Gbit/s, 75% of 2 Gbit/s" in slow
    assert idle.startswith("eth3 → y brought nothing")
    shared = [row(GBIT), row(GBIT, remote_rail="10.0.0.3:7700")]  # two rails over one NIC are as fast as the NIC
    assert findings(shared, [row(GBIT, nic="eth2+eth2")]) == ()


def test_jitter_of_the_network_and_of_the_processor_differ() -> None:
    assert "queue behind the prefetch" in one(findings((), beside=[beside(2e-3, 5e-3)]))
    assert "busy cores" in one(findings((), beside=[beside(1.1e-4, 5e-3)]))
    assert findings((), beside=[beside(1.1e-4, 5e-4)]) == ()


def test_loopback_is_judged_for_its_counts_only() -> None:
    rows = [row(9 * GBIT, nic="lo", block=4096), row(GBIT, nic="lo", nominal=100 * GBIT)]
    assert findings(rows, [row(GBIT, nic="lo+lo")], [beside(1, 1, "lo")]) == ()
    assert "not to be relied on" in one(findings([row(GBIT, nic="lo", doubt="other traffic")]))


def test_gpus_are_a_finding_over_tcp() -> None:
    tree = RecordedTree(
        {
            "/proc/driver/nvidia/gpus/0000:3b:00.0/information": "",
            "/sys/class/kfd/kfd/topology/nodes/0/gpu_id": "0",
            "/sys/class/kfd/kfd/topology/nodes/1/gpu_id": "4711",
        },
        {},
    )
    assert gpus(tree) == 2
    assert gpus(RecordedTree({}, {})) == 0
    assert "stages" in one(findings((), gpus=2))


@pytest.mark.parametrize(
    ("sent", "received", "interface", "direction", "says"),
    [
        (1000, 1000, None, "read", ""),
        (1_000_000, 1_000_000, 1_050_000, "read", ""),
        (1_005_000, 1_000_000, 1_050_000, "read", ""),
        (2_000_000, 1_000_000, 1_050_000, "read", "others use the node too, or requests were made twice"),
        (1_000_000, 2_000_000, 2_100_000, "write", "others use the node too, or requests were made twice"),
        (900_000, 1_000_000, 1_050_000, "read", "the node does not know of all of it"),
        (1_000_000, 1_000_000, 900, "read", "the others took another way"),
        (1_000_000, 1_000_000, 900, "write", "the others took another way"),
        (1_000_000, 1_000_000, 9_000_000, "read", "other traffic shares it"),
    ],
)
def test_counts_that_do_not_agree(sent: int, received: int, interface: int | None, direction: str, says: str) -> None:
    found = doubt(sent=sent, received=received, interface_bytes=interface, direction=direction)
    assert found.endswith(says)
    assert bool(found) == bool(says)


# --- small parts -----------------------------------------------------------------------------------------------------


def test_percentiles_by_nearest_rank() -> None:
    hundred = [float(n) for n in range(1, 101)]
    assert (percentile(hundred, 0.5), percentile(hundred, 0.99), percentile(hundred, 1.0)) == (50, 99, 100)
    assert (percentile([7.0], 0.5), percentile([1.0, 2.0], 0.99)) == (7, 2)


def test_operations_are_kept_under_way_and_all_are_waited_for() -> None:
    log: list[str] = []

    class Flow:
        depth, group, block_bytes = 2, 3, 10

        def start(self, number: int, count: int) -> Any:
            log.append(f"start {number}")
            return lambda: log.append(f"end {number}")

        def verify(self) -> None: ...

    going = iter([True, False])
    moved = pump(Flow(), lambda: next(going))
    assert log == ["start 0", "start 1", "end 0", "start 2", "end 1", "end 2"]
    assert moved.payload_bytes == 3 * 3 * 10
    assert len(times_alone(lambda: None, 0.0)) == LEAST_SAMPLES


def test_what_is_in_flight_and_at_the_node() -> None:
    assert [blocks_in_flight(size) for size in (4096, 64 << 10, 1 << 20, 16 << 20)] == [512, 128, 8, 4]
    assert max(room_needed(size, blocks_in_flight(size)) for size in raw_measure.SIZES) == 40 << 20
    assert stored_blocks(1) == 2048


def local(nic: str, text: str) -> LocalAddress:
    return LocalAddress(nic, ipaddress.ip_interface(text))


HERE = [local("eth0", "192.168.0.5/24"), local("eth2", "10.0.0.1/24"), local("eth3", "10.0.0.3/24")]
THERE = Greeting("n", Tcp("10.0.0.2", 1), "10.0.0.1", ("10.0.0.2:1", "10.0.0.4:1"))


def pairs(**wanted: Any) -> list[tuple[str, str]]:
    options = {"nics": (), "every_pair": False} | wanted
    return [(nic, rail.address.host) for rail, nic in rails_of(THERE, locals_=HERE, **options)]


def test_pairs_of_nics() -> None:
    assert pairs() == [("eth2", "10.0.0.2"), ("eth3", "10.0.0.4")]
    every = [(nic, there) for there in ("10.0.0.2", "10.0.0.4") for nic in ("eth2", "eth3")]
    assert pairs(every_pair=True) == every
    assert pairs(nics=["eth3"]) == [("eth3", "10.0.0.2"), ("eth3", "10.0.0.4")]
    with pytest.raises(UsageError, match="no NIC called eth0"):
        pairs(nics=["eth0"])


def test_over_a_router_the_nic_is_the_one_that_the_kernel_chose() -> None:
    far = Greeting("n", Tcp("172.16.0.9", 1), "192.168.0.5", ())
    ((rail, nic),) = rails_of(far, nics=(), every_pair=False, locals_=HERE)
    assert (rail.nic, rail.address.source, nic) == ("", "", "eth0")
    advertised = replace(far, advertised=("172.16.0.9:1", "172.16.1.9:1"))
    assert [nic for _, nic in rails_of(advertised, nics=(), every_pair=False, locals_=HERE)] == ["eth0", "route"]


# --- over loopback ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node() -> Iterator[SimpleNamespace]:
    """A node at two addresses of loopback, in this process."""
    with two_rails(PoolService(64 << 20)) as found:
        yield found


@contextmanager
def two_rails(
    service: PoolService, *, key: bytes | None = None, advertise: tuple[str, ...] = ()
) -> Iterator[SimpleNamespace]:
    """Serve `service` at 127.0.0.1 and 127.0.0.2, and tell clients of further addresses."""

    class Server(TcpServer):
        @property
        def rails(self) -> tuple[str, ...]:
            return (*super().rails, *advertise)

    try:
        with Server(service, node_id="n", key=key, rails=[("127.0.0.2", 0)]) as server:
            yield SimpleNamespace(service=service, server=server, spec=f"127.0.0.1:{server.port}", port=server.port)
    finally:
        service.close()


@pytest.fixture(scope="module")
def report(node: SimpleNamespace) -> RawReport:
    told: list[tuple[int, int]] = []
    found = run_raw_bench(node.spec, QUICK, progress=lambda done, of, _: told.append((done, of)))
    assert told == [(n, len(told)) for n in range(len(told))]
    return found


def test_every_rail_and_lane_is_measured(report: RawReport, node: SimpleNamespace) -> None:
    assert report.remote_host == "n"
    small = [("realtime", "read")]
    both = [("prefetch", "read"), ("bulk", "read"), ("bulk", "write")]
    for address in (f"127.0.0.1:{node.port}", f"127.0.0.2:{node.port}"):
        rows = [row for row in report.rows if row.remote_rail == address]
        assert [(r.lane, r.direction, r.block_bytes) for r in rows] == [
            (*way, size) for way in small + both for size in QUICK.sizes if way in both or size == 4096
        ]
        assert {row.local_rail for row in rows} == {"lo"}
    assert [(row.lane, row.block_bytes) for row in report.together] == [
        (lane, size) for lane in ("prefetch", "bulk") for size in QUICK.sizes
    ]
    assert {row.local_rail for row in report.together} == {"lo+lo"}
    assert [one.block_bytes for one in report.beside] == [128 << 10] * 2


def test_bytes_are_counted_at_both_ends(report: RawReport) -> None:
    for measured in (*report.rows, *report.together):
        assert measured.bytes_sent == measured.bytes_received > 0
        assert measured.bytes_received % measured.block_bytes == 0
        assert measured.bits_per_s == pytest.approx(8 * measured.bytes_received / measured.seconds)
        assert measured.interface_bytes is not None
        assert measured.interface_bytes > measured.bytes_received
        assert "sent" not in measured.doubt  # other tests may use loopback meanwhile, but not this node
        assert 0 < measured.latency_p50_s <= measured.latency_p99_s
        assert measured.latency_samples >= LEAST_SAMPLES
    for measured in report.together:
        assert measured.rail_bytes is not None
        assert sum(measured.rail_bytes.values()) == measured.bytes_received


def test_nothing_stays_at_the_node(report: RawReport, node: SimpleNamespace) -> None:
    stats = node.service.stats()
    assert (stats["used_bytes"], stats["blocks_sealed"], stats["blocks_prepared"]) == (0, 0, 0)


def test_the_method_says_what_is_not_known(report: RawReport, node: SimpleNamespace) -> None:
    assert "nominal speed is not known" in report.method
    told = run_raw_bench(node.spec, replace(ONE_SIZE, nominal_bits_per_s=5e9))
    assert "as given" in told.method
    assert {row.nominal_bits_per_s for row in (*told.rows, *told.together)} == {5e9}


def test_json_is_a_report_and_findings_give_exit_code_1(
    node: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DUALPATH_KEY", raising=False)
    words = ["bench", "raw", "--pool", node.spec, "--sizes", "4KiB", "--seconds", "0.01", "--in-flight", "4"]
    code = main([*words, "--json"])
    captured = capsys.readouterr()
    found = msgspec.json.decode(captured.out, type=RawReport, strict=True)
    assert code == (1 if found.findings else 0)
    assert "realtime reads of 4 KiB" in captured.err
    code = main([*words, "--nominal", "1Gbit"])
    captured = capsys.readouterr()
    assert f"lo → 127.0.0.2:{node.port}, nominal 1 Gbit/s" in captured.out
    assert ("finding: " in captured.out, "no findings" in captured.out) == ((True, False) if code else (False, True))


def test_a_nic_that_counts_nothing_makes_its_rows_doubtful(
    node: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_measure, "_LATE_COUNTERS_S", 0.0)
    fields = ["rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_dropped", "tx_dropped", "rx_errors", "tx_errors"]
    still = RecordedTree({f"/sys/class/net/lo/statistics/{field}": "7" for field in fields}, {})
    found = run_raw_bench(node.spec, ONE_SIZE, tree=still)
    assert all("the NIC counted 0 of" in row.doubt for row in (*found.rows, *found.together))
    assert "ip route get 127.0.0.1" in found.findings[0]


def test_a_rail_that_is_not_there_is_a_finding() -> None:
    with two_rails(PoolService(16 << 20), advertise=("127.0.0.3:1",)) as found:
        measured = run_raw_bench(found.spec, ONE_SIZE)
    assert {row.remote_rail for row in measured.rows} == {f"127.0.0.{n}:{found.port}" for n in (1, 2)}
    assert measured.together == ()
    assert measured.findings[0].startswith("lo → 127.0.0.3:1: ")


def test_a_full_node_is_left_as_it_is() -> None:
    with two_rails(PoolService(1 << 20)) as found, connect(found.spec) as pool:
        item = PrepareItem(BlockKey(b"x", 0), 1, 4096, 1)
        pool[0].write(pool[0].prepare([item])[0], [memoryview(bytes(4096))], 4096)
        pool[0].commit([item.key])
        with pytest.raises(PoolFullError, match=r"writes 40 MiB, and .* of 1 MiB are free"):
            run_raw_bench(found.spec, RawSettings(sizes=(1 << 20,), seconds=0.01))
        assert found.service.stats()["blocks_sealed"] == 1


def test_a_wrong_key() -> None:
    with two_rails(PoolService(16 << 20), key=KEY) as found:
        with pytest.raises(AuthError):
            run_raw_bench(found.spec, ONE_SIZE)
        assert run_raw_bench(found.spec, ONE_SIZE, key=KEY).rows


def test_a_node_that_dies_in_the_middle() -> None:
    with two_rails(PoolService(16 << 20)) as found:

        def kill(done: int, _: int, __: str) -> None:
            if done == 2:
                found.server.close()

        with pytest.raises(PeerError, match="bulk reads of 4 KiB"):
            run_raw_bench(found.spec, ONE_SIZE, progress=kill)
    with pytest.raises(UnreachableError, match="no pool node at"):
        run_raw_bench(found.spec, ONE_SIZE)


def test_spoiled_data_voids_the_measurement() -> None:
    with two_rails(PoolService(16 << 20)) as found:

        def spoil(done: int, _: int, __: str) -> None:
            arena = found.service.arena(TENANT, 4096)
            for slot in range(stored_blocks(4096)):
                arena.view(slot)[17] ^= 1

        with pytest.raises(HostError, match="did not arrive as it was sent"):
            run_raw_bench(found.spec, ONE_SIZE, progress=spoil)


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        ("127.0.0.1:1,127.0.0.1:2", {}),
        ("mapped:/x.sock", {}),
        ("127.0.0.1:1", {"sizes": ()}),
        ("127.0.0.1:1", {"sizes": (4096, 4096)}),
        ("127.0.0.1:1", {"sizes": (1 << 30,)}),
        ("127.0.0.1:1", {"seconds": 0.0}),
        ("127.0.0.1:1", {"seconds": math.nan}),
        ("127.0.0.1:1", {"in_flight": 0}),
        ("127.0.0.1:1", {"nominal_bits_per_s": 0.0}),
        ("127.0.0.1:1", {"timeout_s": 0.0}),
    ],
)
def test_misuse(spec: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        run_raw_bench(spec, RawSettings(**changes))


# --- over emulated NICs ----------------------------------------------------------------------------------------------


def test_shaped_nics_are_measured_at_their_rate() -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("capability: root and iproute2, to emulate hosts")
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("capability: network namespaces")
    from dualpath.host.lab import lab

    # What is in flight lasts a sixth of a second, so that a link is busy also while other processes have the core.
    program, nominal = [sys.executable, "-m", "dualpath"], 50e6
    environment = os.environ | {"DUALPATH_KEY": KEY.decode()}
    with lab("two-hosts-two-nics", name=f"raw{os.getpid()}") as emulated:
        here, there = emulated.host("a"), emulated.host("b")
        for nic in (host.nic(name) for host in (here, there) for name in ("data0", "data1")):
            nic.set_rate("50Mbit")
        listen = ",".join(f"{there.address(nic)}:7700" for nic in ("data0", "data1"))
        node = there.popen(
            [*program, "pool", "--listen", listen, "--capacity", "64MiB", "--management", "off"],
            stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        assert node.stdout is not None
        assert node.stdout.readline().startswith(b"ready")
        done = here.run(
            [*program, "bench", "raw", "--pool", f"{there.address('data0')}:7700", "--sizes", "64KiB",
             "--in-flight", "16", "--seconds", "0.2", "--json"],
            env=environment, stdout=subprocess.PIPE, check=False, timeout=60,
        )  # fmt: skip
        node.terminate()
        node.communicate(timeout=60)
    found = msgspec.json.decode(done.stdout, type=RawReport)
    assert {row.local_rail for row in found.rows} == {"data0", "data1"}
    for row in found.rows:
        assert row.nominal_bits_per_s == nominal
        assert row.doubt == ""
        assert row.bits_per_s < 1.1 * nominal
    for rail in ("data0", "data1"):  # less only by what holds up this process, which is not all rows
        assert max(row.bits_per_s for row in found.rows if row.local_rail == rail) > 0.3 * nominal
    assert max(row.bits_per_s for row in found.together) < 2.2 * nominal
    shares = [min(row.rail_bytes.values()) / row.bytes_received for row in found.together if row.rail_bytes]
    assert max(shares) > 0.25  # a process that is held up reads less over both alike
