"""How fast layer blocks come from a node on this machine, beside what the machine can do at all.

Theory of operation. A node in a process of its own serves random blocks out of `REGION` bytes of shared memory; the
client has at most `in_flight` blocks under way, as `OPERATIONS` reads of `in_flight / OPERATIONS` blocks each, and
starts the next read when the oldest has ended: so at times fewer are under way, never more. They land in turn in
destinations that are reused. The limit is measured in the same rounds, right before and after:

    tcp      a plain stream: as many sockets as the lane has connections, the sender `sendall`s 1 MiB pieces out of such
             memory, a thread per socket receives them into the same destinations. No requests, no blocks, no choice,
             and the kernel's own buffer sizes.
    call     the same, one socket. Blocks come as the payload of ordinary calls, two under way with half of the blocks
             each, on the connection of control messages: what the scheme `baseline` does, without its copies.
    mapped   memcpy of the same random blocks out of the same mapping, by as many threads as the peer has copiers.

Each round gives one ratio; the row states their median and how far they spread. Absolute speeds vary from hour to hour;
ratios do not much. After each measurement, outside the clock, what has landed is compared byte by byte with what was
asked for. Bytes are counted at both ends: received by the client, and served by the node (over `mapped`: nothing).
"""

from __future__ import annotations

import contextlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualpath.bench.stream_sender import REGION, SOCKETS, STREAM_BYTE, STREAM_PIECE
from dualpath.errors import HostError, UsageError
from dualpath.transport.base import Peer, Pending, Ticket
from dualpath.transport.mapped import MappedPeer
from dualpath.transport.tcp import TcpPeer
from dualpath.wire.messages import Lane, Ping, Read, SlotRef, Stats, StatsReply

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIN_ROUND_BYTES = 512 << 20
SIZES = (256 << 10, 1 << 20, 4 << 20)
COPIERS = 1
TRANSPORTS = ("tcp", "call", "mapped")
SMALLEST, IN_FLIGHT_BYTES = 1 << 10, 1 << 30  # of a block; of all together
CALLS = 2  # under way in row `call`
OPERATIONS = 2  # reads that share the blocks in flight

Progress = Callable[[str], None]


def run_transport_bench(
    *,
    sizes: Sequence[int] = SIZES,
    in_flight: int = 16,
    repeat: int = 5,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure every transport at every block size.

    Returns `{"rows": [...], "call_us": {transport: {"p50", "p99"}}}`. A row has `transport`, `bytes` (of a block),
    `in_flight`, `gbps` and `limit_gbps` (10⁹ bytes/s, medians), `ratio` (median over rounds), `spread` (largest minus
    smallest ratio); and of all its rounds together `payload_bytes`, `received_bytes` (by the client's kernel, headers
    included) and `served_bytes` (payload that the node sent). Raises `UsageError`, or `HostError` if the node cannot be
    started or what arrives is wrong.
    """
    if repeat < 1 or any(not SMALLEST <= size <= REGION for size in sizes):
        raise UsageError(f"sizes must be within {SMALLEST}..{REGION} bytes, and there is a round at least")
    if not 1 <= in_flight <= IN_FLIGHT_BYTES // max(sizes):
        raise UsageError(f"1 to {IN_FLIGHT_BYTES // max(sizes)} blocks of {max(sizes)} bytes can be in flight")
    tell = progress or (lambda _: None)
    rows: list[dict[str, Any]] = []
    calls: dict[str, dict[str, float]] = {}
    for size in sizes:
        for transport in TRANSPORTS:
            tell(f"{transport}, blocks of {size} bytes")
            with _node(transport, size) as address, contextlib.closing(_connect(transport, address)) as peer:
                rows.append(_measure(transport, peer, size, in_flight, repeat))
                calls.setdefault(transport, _call_times(peer))
    return {"rows": rows, "call_us": calls}


def _measure(transport: str, peer: Peer, size: int, in_flight: int, repeat: int) -> dict[str, Any]:
    import numpy as np

    memory = np.full(max(64 << 20, 2 * in_flight * size), 255, np.uint8)
    read = _call_for_blocks if transport == "call" else _read_blocks
    with _limit(transport, peer, memory, size) as limit:
        read(peer, memory, size, in_flight, MIN_ROUND_BYTES // 4)  # connections and pages are warm now
        limit(MIN_ROUND_BYTES // 4)
        received, served, payload = peer.counters.rx_bytes, _served(peer), 0
        got, possible, ratios = [], [], []
        for _ in range(repeat):
            before = limit(MIN_ROUND_BYTES // 2)
            speed, moved = read(peer, memory, size, in_flight, MIN_ROUND_BYTES)
            payload += moved
            got.append(speed)
            possible.append(statistics.mean((before, limit(MIN_ROUND_BYTES // 2))))
            ratios.append(got[-1] / possible[-1])
        received, served = peer.counters.rx_bytes - received, _served(peer) - served
    return {
        "transport": transport,
        "bytes": size,
        "in_flight": in_flight,
        "gbps": round(statistics.median(got) / 1e9, 3),
        "limit_gbps": round(statistics.median(possible) / 1e9, 3),
        "ratio": round(statistics.median(ratios), 3),
        "spread": round(max(ratios) - min(ratios), 3),
        "payload_bytes": payload,
        "received_bytes": received,
        "served_bytes": served,
    }


def _served(peer: Peer) -> int:
    """Return the payload bytes that the node says it has sent in answer to reads."""
    reply, _ = peer.call(Stats())
    assert isinstance(reply, StatsReply)
    return int(reply.values["read_bytes"])


# --- what is measured ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _node(transport: str, size: int) -> Iterator[str]:
    """Start the node of the conformance suite in a process of its own; yield its address."""
    with tempfile.TemporaryDirectory() as folder:
        where = str(Path(folder) / "node.sock") if transport == "mapped" else "127.0.0.1:0"
        kind = "mapped" if transport == "mapped" else "tcp"
        program = ["dualpath.testing.transport_node", kind, where, str(REGION // size), str(size)]
        with _child(program) as address:
            yield address


@contextlib.contextmanager
def _child(program: Sequence[str]) -> Iterator[str]:
    """Run a module that prints one line when it is ready and ends with its stdin; yield the line."""
    process = subprocess.Popen(
        [sys.executable, "-m", *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        if not line:
            raise HostError(f"{program[0]} did not start", hint="its message is above, on stderr")
        yield line
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _connect(transport: str, address: str) -> Peer:
    if transport == "mapped":
        return MappedPeer(address, copiers=COPIERS)
    host, _, port = address.rpartition(":")
    return TcpPeer(host, int(port))


def _read_blocks(peer: Peer, memory: NDArray[np.uint8], size: int, in_flight: int, total: int) -> tuple[float, int]:
    """Read `total` bytes in random blocks, at most `in_flight` at a time; return bytes/s, and the bytes.

    Raises `HostError` if the node lost blocks, or if what landed is not what was asked for.
    """
    group = max(1, in_flight // OPERATIONS)
    limit = min(OPERATIONS, in_flight)
    operations, places = max(2, total // size // group), len(memory) // size
    views = [memoryview(memory.data)[n * size : (n + 1) * size] for n in range(places)]
    refs = [SlotRef(slot, 1) for slot in range(REGION // size)]
    noise = random.Random(total)  # noqa: S311 seeded on purpose
    work = [
        (noise.choices(refs, k=group), [views[(number * group + n) % places] for n in range(group)])
        for number in range(operations)
    ]
    memory.fill(255)
    tickets: deque[Ticket] = deque()
    started = time.perf_counter()
    for wanted, into in work:
        if len(tickets) >= limit:
            _finish(tickets.popleft())
        tickets.append(peer.read(wanted, into, slot_bytes=size, timeout_s=60.0))
    while tickets:
        _finish(tickets.popleft())
    seconds = time.perf_counter() - started
    landed = {
        (number * group + n) % places: ref for number, (wanted, _) in enumerate(work) for n, ref in enumerate(wanted)
    }
    for place, ref in landed.items():
        if (memory[place * size : (place + 1) * size] != ref.slot % 251).any():
            raise HostError(f"slot {ref.slot} did not arrive as it is", hint="this is a bug of the transport")
    return operations * group * size / seconds, operations * group * size


def _call_for_blocks(peer: Peer, memory: NDArray[np.uint8], size: int, in_flight: int, total: int) -> tuple[float, int]:
    """As `_read_blocks`, by calls: two under way with half of the blocks each, as `path.call_reader` does."""
    group = max(1, in_flight // CALLS)
    count, places = max(1, total // size // group), len(memory) // size // group
    refs = [SlotRef(slot, 1) for slot in range(REGION // size)]
    noise = random.Random(total)  # noqa: S311 seeded on purpose
    work = [noise.choices(refs, k=group) for _ in range(count)]
    share = group * size
    memory.fill(255)
    under_way: deque[Pending] = deque()
    started = time.perf_counter()
    for number, wanted in enumerate(work):
        into = memoryview(memory.data)[number % places * share :][:share]
        under_way.append(peer.start(Read(size, wanted), lane=Lane.BULK, timeout_s=60.0, into=into))
        if len(under_way) == CALLS:
            _answered(under_way.popleft(), share)
    while under_way:
        _answered(under_way.popleft(), share)
    seconds = time.perf_counter() - started
    for number in range(max(0, count - places), count):
        for n, ref in enumerate(work[number]):
            start = number % places * share + n * size
            if (memory[start : start + size] != ref.slot % 251).any():
                raise HostError(f"slot {ref.slot} did not arrive as it is", hint="this is a bug of the transport")
    return count * share / seconds, count * share


def _answered(call: Pending, wanted: int) -> None:
    reply, payload = call.result()
    if payload.nbytes != wanted:
        raise HostError(f"the node lost blocks during the measurement: {reply}")


def _finish(ticket: Ticket) -> None:
    if any(ticket.wait()):  # `OK` is 0
        raise HostError(f"the node lost blocks during the measurement: {ticket.error}")


def _call_times(peer: Peer) -> dict[str, float]:
    """Return the times of one small call after another, in microseconds."""
    times = []
    for _ in range(1200):
        started = time.perf_counter()
        peer.call(Ping())
        times.append((time.perf_counter() - started) * 1e6)
    times = sorted(times[200:])
    return {"p50": round(times[len(times) // 2], 1), "p99": round(times[len(times) * 99 // 100], 1)}


# --- limits ----------------------------------------------------------------------------------------------------------


def _limit(
    transport: str, peer: Peer, memory: NDArray[np.uint8], size: int
) -> contextlib.AbstractContextManager[Callable[[int], float]]:
    if transport == "mapped":
        return _memcpy(peer, memory, size)
    return _plain_stream(memory, 1 if transport == "call" else SOCKETS)


@contextlib.contextmanager
def _memcpy(peer: Peer, memory: NDArray[np.uint8], size: int) -> Iterator[Callable[[int], float]]:
    """Yield a function that copies so many bytes in random blocks out of the peer's mapping, and returns bytes/s."""
    import numpy as np

    assert isinstance(peer, MappedPeer)
    found = peer.view(SlotRef(0, 1), size)
    assert found is not None
    arena, places, slots = found[0], len(memory) // size, REGION // size

    def work(seed: int, count: int) -> None:
        noise = random.Random(seed)  # noqa: S311 seeded on purpose
        for n in range(seed, count, COPIERS):
            source, place = noise.randrange(slots) * size, n % places * size
            np.copyto(memory[place : place + size], arena[source : source + size])

    def copy(total: int) -> float:
        memory.fill(255)
        seconds = _timed([(work, (n, total // size)) for n in range(COPIERS)])
        for place in range(0, min(places, total // size), COPIERS):
            if memory[place * size] == 255:
                raise HostError("memcpy did not reach every destination")
        return total // size * size / seconds

    yield copy


@contextlib.contextmanager
def _plain_stream(memory: NDArray[np.uint8], count: int) -> Iterator[Callable[[int], float]]:
    """Yield a function that receives so many bytes over plain sockets into `memory`, and returns bytes/s."""
    with _child(["dualpath.bench.stream_sender", str(count)]) as port, contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_connection(("127.0.0.1", int(port)))) for _ in range(count)]
        view = memoryview(memory.data)
        share = len(memory) // count // STREAM_PIECE * STREAM_PIECE

        def work(number: int, total: int) -> None:
            sock = sockets[number]
            sock.sendall(total.to_bytes(8, "little"))
            for start in range(0, total, STREAM_PIECE):
                place = number * share + start % share
                if sock.recv_into(view[place : place + STREAM_PIECE], 0, socket.MSG_WAITALL) != STREAM_PIECE:
                    raise HostError("the plain stream was cut short")

        def receive(total: int) -> float:
            part = total // count // STREAM_PIECE * STREAM_PIECE
            memory.fill(255)
            seconds = _timed([(work, (n, part)) for n in range(count)])
            for number in range(count):
                start = number * share
                if (memory[start : start + min(part, share)] != STREAM_BYTE).any():
                    raise HostError("the plain stream arrived spoiled")
            return part * count / seconds

        yield receive


def _timed(jobs: Sequence[tuple[Callable[..., None], tuple[int, int]]]) -> float:
    """Run each job in a thread of its own; return the seconds until the last has ended. Raises what one of them did."""
    with ThreadPoolExecutor(len(jobs)) as threads:
        started = time.perf_counter()
        for one in [threads.submit(work, *args) for work, args in jobs]:
            one.result()
        return time.perf_counter() - started
