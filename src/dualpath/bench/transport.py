"""How fast layer blocks come from a node on this machine, beside what the machine can do at all.

Theory of operation. A node in a process of its own serves random blocks out of `REGION` bytes of shared memory; the
client has at most `in_flight` blocks under way, as `OPERATIONS` reads of `in_flight / OPERATIONS` blocks each, and
starts the next read when the oldest has ended: so at times fewer are under way, never more. They land in turn in
destinations that are reused. The limit is measured in the same rounds, right before and after (`bench.limits`):

    tcp      a plain stream: as many sockets as the lane has connections, the sender `sendall`s 1 MiB pieces out of such
             memory, a thread per socket receives them into the same destinations. No requests, no blocks, no choice,
             and the host's own settings. `unpaced_gbps` is such a stream with the congestion control that the
             connections of a peer have on one host: where the host's own one paces, that is part of what they gain.
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
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualpath.bench.limits import child, memcpy, plain_stream
from dualpath.bench.stream_sender import REGION
from dualpath.errors import HostError, UsageError
from dualpath.transport.base import Peer, Pending, Ticket
from dualpath.transport.dial import SAME_HOST_CONGESTION
from dualpath.transport.mapped import MappedPeer
from dualpath.transport.peer import DEFAULT_CONNECTIONS
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
SOCKETS = {"tcp": DEFAULT_CONNECTIONS[Lane.PREFETCH], "call": 1}
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
    `in_flight`, `gbps` and `limit_gbps` (10⁹ bytes/s, medians), over TCP `unpaced_gbps`, `ratio` (of `gbps` to
    `limit_gbps`, median over rounds), `spread` (largest minus smallest ratio); and of all its rounds together
    `payload_bytes`, `received_bytes` (by the client's kernel, headers included) and `served_bytes` (payload that the
    node sent). Raises `UsageError`, or `HostError` if the node cannot be started or what arrives is wrong.
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
    with _limit(transport, peer, memory, size) as limit, _unpaced(transport, memory) as unpaced:
        read(peer, memory, size, in_flight, MIN_ROUND_BYTES // 4)  # connections and pages are warm now
        limit(MIN_ROUND_BYTES // 4)
        received, served, payload = peer.counters.rx_bytes, _served(peer), 0
        got, possible, unpaced_rates, ratios = [], [], [], []
        for _ in range(repeat):
            before = limit(MIN_ROUND_BYTES // 2)
            speed, moved = read(peer, memory, size, in_flight, MIN_ROUND_BYTES)
            payload += moved
            got.append(speed)
            possible.append(statistics.mean((before, limit(MIN_ROUND_BYTES // 2))))
            ratios.append(got[-1] / possible[-1])
            if unpaced is not None:
                unpaced_rates.append(unpaced(MIN_ROUND_BYTES // 2))
        received, served = peer.counters.rx_bytes - received, _served(peer) - served
    return {
        "transport": transport,
        "bytes": size,
        "in_flight": in_flight,
        "gbps": _gbps(got),
        "limit_gbps": _gbps(possible),
        **({"unpaced_gbps": _gbps(unpaced_rates)} if unpaced_rates else {}),
        "ratio": round(statistics.median(ratios), 3),
        "spread": round(max(ratios) - min(ratios), 3),
        "payload_bytes": payload,
        "received_bytes": received,
        "served_bytes": served,
    }


def _gbps(rates: Sequence[float]) -> float:
    return round(statistics.median(rates) / 1e9, 3)


def _limit(
    transport: str, peer: Peer, memory: NDArray[np.uint8], size: int
) -> contextlib.AbstractContextManager[Callable[[int], float]]:
    if isinstance(peer, MappedPeer):
        return memcpy(peer, memory, size, threads=COPIERS)
    return plain_stream(memory, SOCKETS[transport])


def _unpaced(
    transport: str, memory: NDArray[np.uint8]
) -> contextlib.AbstractContextManager[Callable[[int], float] | None]:
    if transport == "mapped":
        return contextlib.nullcontext()
    return plain_stream(memory, SOCKETS[transport], congestion=SAME_HOST_CONGESTION)


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
        with child(program) as address:
            yield address


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
