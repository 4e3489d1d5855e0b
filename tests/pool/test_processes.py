"""Real nodes in processes of their own, over real sockets: what clients see when nodes are full, killed or stopped."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dualpath.errors import (
    AuthError,
    BlockLostError,
    DeadlineError,
    PeerError,
    PoolFullError,
    UnreachableError,
    UsageError,
)
from dualpath.pool import Pool, PoolNode, connect
from dualpath.testing.node import block_key
from dualpath.testing.pool import LocalNodes
from dualpath.testing.transport_case import eventually
from dualpath.wire.failures import UnknownViewError
from dualpath.wire.messages import Attend, Geometry, Outcome, PrepareItem, ViewBlock, ViewQuery

OK, LOST = Outcome.OK, Outcome.LOST
KEY = "a key of at least sixteen bytes"
SLOT = 64 * 1024
GEOMETRY = Geometry(2, 64, 64, 64, "float32", False)  # 2 x 2 x 64 x 64 x 4 = SLOT
MIB = 1 << 20
PATIENCE_S = 60.0  # only a hang exceeds it


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    with LocalNodes(2, capacity=64 * MIB, key=KEY, threads=1) as running:
        yield running


@pytest.fixture
def pool(nodes: LocalNodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setattr("dualpath.pool.node.LET_GO_TIMEOUT_S", PATIENCE_S)
    with connect(nodes.spec, key=KEY, timeout_s=PATIENCE_S) as pool:
        yield pool


def put(node: PoolNode, number: int, layers: int = 2, seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    slots = [rng.standard_normal(SLOT // 4, np.float32).tobytes() for _ in range(layers)]
    (refs,) = node.prepare([PrepareItem(block_key(number), layers, SLOT, 64)])
    assert node.write(refs, [memoryview(slot) for slot in slots], SLOT) == [OK] * layers
    assert node.commit([block_key(number)]) == [OK]
    return slots


def test_blocks_go_and_come_back(pool: Pool) -> None:
    assert [node.name for node in pool.nodes] == ["node0", "node1"]
    slots = put(pool[0], 1)
    found = pool[0].resolve([block_key(1), block_key(2)], ttl_s=PATIENCE_S)
    assert found.tokens == [64, 0]
    buffers = [memoryview(bytearray(SLOT)) for _ in slots]
    ticket = pool[0].read(found.refs[0], buffers, SLOT, timeout_s=PATIENCE_S)
    assert list(ticket.wait()) == [OK, OK]
    assert [bytes(buffer) for buffer in buffers] == slots
    pool[0].drop([block_key(1)])
    assert pool[0].renew([found.lease], 0.0) == [OK]
    assert list(pool[0].read(found.refs[0], buffers, SLOT).wait()) == [LOST, LOST]
    assert pool.counters.tx_bytes > 2 * SLOT


def test_mapped_memory_is_read_in_place(nodes: LocalNodes, pool: Pool) -> None:
    with connect(nodes.mapped_spec, key=KEY, timeout_s=PATIENCE_S) as mapped:
        node = mapped[0]
        slots = put(node, 300)
        refs = node.resolve([block_key(300)], PATIENCE_S).refs[0]
        buffers = [memoryview(bytearray(SLOT)) for _ in refs]
        assert list(node.read(refs, buffers, SLOT).wait()) == [OK, OK]
        assert [bytes(buffer) for buffer in buffers] == slots
        array, start = node.view(refs[1], SLOT)
        assert array[start : start + SLOT].tobytes() == slots[1]
        with pytest.raises(ValueError, match="read-only"):
            array[start] = 0
        assert node.current(refs[1], SLOT)
        node.drop([block_key(300)])
        lease = node.resolve([block_key(300)], PATIENCE_S).lease
        node.renew(range(1, lease + 1), 0.0)
        assert not node.current(refs[1], SLOT)
        with pytest.raises(BlockLostError):
            node.view(refs[1], SLOT)
    with pytest.raises(UsageError, match="mapped"):
        pool[0].view(refs[0], SLOT)


def test_a_full_node_says_so(pool: Pool) -> None:
    with pytest.raises(PoolFullError, match="65 MiB wanted") as caught:
        pool[0].prepare([PrepareItem(block_key(5), 1040, SLOT, 64)])
    assert caught.value.node == "node0"
    assert "capacity" in caught.value.hint


def test_the_bytes_of_an_attend_do_not_grow_with_the_context(pool: Pool) -> None:
    q = np.random.default_rng(1).standard_normal((1, 4, 64), np.float32)
    costs = []
    for view, blocks in ((1, 1), (2, 60)):
        keys = [block_key(1000 * view + i) for i in range(blocks)]
        for i in range(blocks):
            put(pool[1], 1000 * view + i, layers=1)
        table = [ViewBlock(key, 64 * i, 64) for i, key in enumerate(keys)]
        assert set(pool[1].extend_view(view, 0, GEOMETRY, table)) == {OK}
        before = pool[1].counters
        request = Attend(0, 4, 0.125, 0.0, 0, False, [ViewQuery(view, blocks, 1, 5000)])
        answer = pool[1].start_attend(request, q).result()
        after = pool[1].counters
        assert list(answer.outcomes) == [OK]
        assert answer.out.shape == (1, 4, 64)
        assert np.isfinite(answer.lse).all()
        costs.append((after.tx_bytes - before.tx_bytes, after.rx_bytes - before.rx_bytes))
        pool[1].drop_view(view)
    assert costs[0] == costs[1]
    assert costs[0][0] < q.nbytes + 200


def test_attends_of_two_nodes_overlap_and_match_one(pool: Pool) -> None:
    q = np.random.default_rng(2).standard_normal((1, 4, 64), np.float32)
    request = Attend(0, 4, 0.125, 0.0, 0, True, [ViewQuery(7, 1, 1, 64)])
    for node in pool.nodes:
        put(node, 7, layers=1, seed=7)
        assert node.extend_view(7, 0, GEOMETRY, [ViewBlock(block_key(7), 0, 64)]) == [OK]
    one, two = (pending.result() for pending in [node.start_attend(request, q) for node in pool.nodes])
    for name in ("out", "lse", "max", "exp_sum"):
        assert (getattr(one, name) == getattr(two, name)).all()
    with pytest.raises(UnknownViewError):
        pool[0].start_attend(Attend(0, 4, 1.0, 0.0, 0, False, [ViewQuery(99, 1, 1, 64)]), q).result()
    with pytest.raises(PeerError, match="heads"):
        pool[0].start_attend(Attend(0, 3, 1.0, 0.0, 0, False, [ViewQuery(7, 1, 1, 64)]), q).result()


def test_a_client_that_left_has_nothing_prepared(nodes: LocalNodes, pool: Pool) -> None:
    pool.nodes[0].ping()
    before = pool[0].stats()["blocks_prepared"]
    with connect(nodes.spec, key=KEY) as other:
        other[0].prepare([PrepareItem(block_key(400), 2, SLOT, 64)])
        assert pool[0].stats()["blocks_prepared"] == before + 1
    assert eventually(lambda: pool[0].stats()["blocks_prepared"] == before)


@pytest.mark.parametrize("key", [None, "another key, long enough too"])
def test_a_wrong_key_is_refused(nodes: LocalNodes, key: str | None) -> None:
    with pytest.raises(AuthError):
        connect(nodes.spec, key=key, timeout_s=PATIENCE_S)


def test_a_dead_node_is_named_at_once() -> None:
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1\b") as caught:
        connect("127.0.0.1:1", timeout_s=5.0)
    assert "dualpath pool" in caught.value.hint


@pytest.mark.parametrize("spec", ["", "nonsense", "mapped:", "tcp://host:99999", "a:1,a:1", "tcp://:7"])
def test_a_bad_spec_is_refused(spec: str) -> None:
    with pytest.raises(UsageError):
        connect(spec)


def test_management_speaks_http(nodes: LocalNodes, pool: Pool) -> None:
    put(pool[0], 900)
    pages = {}
    for page in ("/healthz", "/stats", "/metrics"):
        with urllib.request.urlopen(nodes[0].management + page, timeout=PATIENCE_S) as response:
            pages[page] = response.read().decode()
    assert pages["/healthz"] == "ok\n"
    assert json.loads(pages["/stats"])["capacity_bytes"] == 64 * MIB
    assert "dualpath_pool_writes_total" in pages["/metrics"]
    assert 'dualpath_pool_request_seconds_bucket{le="+Inf",request="write"}' in pages["/metrics"]
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        urllib.request.urlopen(nodes[0].management + "/nothing", timeout=PATIENCE_S)
    caught.value.close()


def test_a_node_killed_in_mid_call_is_unreachable() -> None:
    with LocalNodes(1, capacity=MIB) as nodes, connect(nodes.spec, timeout_s=PATIENCE_S) as pool:
        put(pool[0], 1)
        refs = pool[0].resolve([block_key(1)], 60.0).refs[0]
        nodes[0].pause()
        q = np.zeros((1, 4, 64), np.float32)
        pending = pool[0].start_attend(Attend(0, 4, 1.0, 0.0, 0, False, [ViewQuery(1, 0, 1, 0)]), q)
        ticket = pool[0].read(refs, [memoryview(bytearray(SLOT)) for _ in refs], SLOT, timeout_s=PATIENCE_S)
        nodes[0].kill()
        with pytest.raises(UnreachableError):
            pending.result(PATIENCE_S)
        assert set(ticket.wait(PATIENCE_S)) == {LOST}
        with pytest.raises(UnreachableError):
            pool[0].ping()


def test_a_stopped_node_costs_a_deadline_and_can_come_back() -> None:
    with LocalNodes(1, capacity=MIB) as nodes, connect(nodes.spec, timeout_s=PATIENCE_S) as pool:
        pool[0].ping()
        nodes[0].pause()
        with pytest.raises(DeadlineError):
            pool[0].ping(timeout_s=0.1)
        with pytest.raises(UnreachableError, match="no pool node at tcp://"):
            connect(nodes.spec, timeout_s=0.1)
        nodes[0].resume()
        pool[0].ping()


def test_letting_go_of_things_at_a_stopped_node_neither_raises_nor_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualpath.pool.node.LET_GO_TIMEOUT_S", 0.1)
    with LocalNodes(1, capacity=MIB) as nodes, connect(nodes.spec, timeout_s=600.0) as pool:
        pool[0].prepare([PrepareItem(block_key(1), 1, SLOT, 64)])
        nodes[0].pause()
        pool[0].abort([block_key(1)])
        for view in range(8):
            pool[0].drop([block_key(1)])
            pool[0].drop_view(view)
        nodes[0].resume()
        pool[0].ping()
        assert eventually(lambda: not pool[0].stats()["used_bytes"])  # what was sent arrived


def test_a_node_that_does_not_start_leaves_none_of_the_others_running(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    def once(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        if started:
            raise BlockingIOError("no more processes")
        started.append(start_process(*arguments, **options))
        return started[0]

    start_process = subprocess.Popen
    monkeypatch.setattr("dualpath.pool.local.subprocess.Popen", once)
    with pytest.raises(BlockingIOError), LocalNodes(2, capacity=MIB):
        pass
    code = started[0].returncode  # known once it is reaped
    started[0].kill()
    started[0].wait()
    assert code is not None


def test_ctrl_c_is_for_their_parent_alone() -> None:
    """A terminal sends SIGINT to a whole process group: a step under way must not lose its nodes to it."""
    with LocalNodes(1, capacity=MIB) as nodes:
        assert os.getpgid(nodes[0].pid) != os.getpgid(0)
        assert os.getsid(nodes[0].pid) != os.getsid(0)


def test_nodes_end_with_their_parent() -> None:
    code = (
        "import sys, time; from dualpath.testing.pool import LocalNodes\n"
        "nodes = LocalNodes(1, capacity=1 << 20).__enter__(); print(nodes[0].pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    fd = None
    try:
        fd = os.pidfd_open(pid)
        import select

        assert select.select([fd], [], [], PATIENCE_S)[0], "the node outlived its parent"
    except ProcessLookupError:
        pass
    finally:
        if fd is not None:
            os.close(fd)


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dualpath", "pool", *arguments]
    clean = {name: value for name, value in os.environ.items() if name != "DUALPATH_KEY"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**clean, **environment}
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_ready_and_ends_with_totals(number: signal.Signals) -> None:
    with start("--capacity", "16MiB", "--parent", str(os.getpid())) as process:
        assert process.stdout is not None
        word, address, _, url = process.stdout.readline().split()
        assert (word, url[:17]) == ("ready", "http://127.0.0.1:")
        with connect(address) as pool:
            put(pool[0], 1)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
    assert "1 prepares, 0 reads, 1 writes" in out
    assert "1 blocks, 128 KiB held" in out


def test_a_signal_that_another_thread_gets_ends_the_command_too() -> None:
    """As when it comes while the process is stopped: the kernel then picks any thread."""
    with start("--capacity", "1MiB") as process:
        assert process.stdout is not None
        with connect(process.stdout.readline().split()[1]) as pool:
            pool[0].ping()  # by the time that it answers, the main thread sleeps
        _main, _acceptor, other = sorted(int(name) for name in os.listdir(f"/proc/{process.pid}/task"))[:3]
        assert ctypes.CDLL(None).tgkill(process.pid, other, signal.SIGTERM) == 0
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")
    assert out.startswith("ended ")


def test_the_command_speaks_json() -> None:
    with start("--capacity", "1MiB", "--json", "--management", "off", "--node-id", "n7") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.terminate()
        ended = json.loads(process.communicate(timeout=PATIENCE_S)[0])
    assert (ready["event"], ready["node"], ready["management"]) == ("ready", "n7", "")
    assert (ended["event"], ended["totals"]["capacity_bytes"]) == ("ended", MIB)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--listen", "0.0.0.0:0"),
        ("--management", "0.0.0.0:0"),
        ("--capacity", "0"),
        ("--capacity", "8G"),
        ("--capacity", "1000TiB"),
        ("--parent", "-5"),
        ("--socket", "/no/such/folder/node.sock"),
    ],
)
def test_the_command_refuses_what_it_must(arguments: tuple[str, ...]) -> None:
    with start(*arguments) as process:
        try:
            _, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 2
    assert err.startswith("error: ")
    assert "hint: " in err


def test_a_node_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "import dualpath.attention\n"
        "from dualpath.pool.server import NodeConfig, serve\n"
        "import dualpath.pool.client\n"
        "serve(NodeConfig(capacity=1 << 20))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
