"""How fast layer blocks come from a node on this machine, beside what the machine can do at all.

Theory of operation. A node in a process of its own serves random blocks out of `REGION` bytes of shared memory; the
client keeps `in_flight` of them in flight, and lets them land in turn in destinations that it reuses. The limit is
measured in the same rounds, right before and after:

    tcp      a plain stream: as many sockets as the lane has connections, the sender `sendall`s 1 MiB pieces out of such
             memory, a thread per socket receives them into the same destinations. No requests, no blocks, no choice.
    mapped   memcpy of the same random blocks out of the same mapping, by as many threads as the peer has copiers.

Each round gives one ratio; the row states their median and how far they spread. Absolute speeds vary from hour to hour;
ratios do not much.
"""

from __future__ import annotations

import contextlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualpath.errors import HostError, UsageError
from dualpath.transport.base import Peer, Ticket
from dualpath.transport.mapped import MappedPeer
from dualpath.transport.peer import DEFAULT_CONNECTIONS
from dualpath.transport.tcp import TcpPeer
from dualpath.wire.messages import Lane, Ping, SlotRef

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REGION = 256 << 20
MIN_ROUND_BYTES = 512 << 20
STREAM_PIECE = 1 << 20
SIZES = (256 << 10, 1 << 20, 4 << 20)
SOCKETS = DEFAULT_CONNECTIONS[Lane.PREFETCH]
COPIERS = 1
OPERATIONS = 4  # reads that share the blocks in flight over TCP, to fill the pipe; a mapping needs only two

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
    smallest ratio). Raises `UsageError`, or `HostError` if the node cannot be started.
    """
    if in_flight < 1 or repeat < 1 or any(not 0 < size <= REGION for size in sizes):
        raise UsageError(f"sizes must be within (0, {REGION}], in_flight and repeat at least 1")
    tell = progress or (lambda _: None)
    rows: list[dict[str, Any]] = []
    calls: dict[str, dict[str, float]] = {}
    for size in sizes:
        for transport in ("tcp", "mapped"):
            tell(f"{transport}, blocks of {size} bytes")
            with _node(transport, size) as address, contextlib.closing(_connect(transport, address)) as peer:
                rows.append(_measure(transport, peer, size, in_flight, repeat))
                calls.setdefault(transport, _call_times(peer))
    return {"rows": rows, "call_us": calls}


def _measure(transport: str, peer: Peer, size: int, in_flight: int, repeat: int) -> dict[str, Any]:
    import numpy as np

    memory = np.full(max(64 << 20, 2 * in_flight * size), 255, np.uint8)
    with _plain_stream(memory) if transport == "tcp" else _memcpy(peer, memory, size) as limit:
        _read_blocks(peer, memory, size, in_flight, MIN_ROUND_BYTES // 4)  # connections and pages are warm now
        limit(MIN_ROUND_BYTES // 4)
        got, possible, ratios = [], [], []
        for _ in range(repeat):
            before = limit(MIN_ROUND_BYTES // 2)
            got.append(_read_blocks(peer, memory, size, in_flight, MIN_ROUND_BYTES))
            possible.append(statistics.mean((before, limit(MIN_ROUND_BYTES // 2))))
            ratios.append(got[-1] / possible[-1])
    return {
        "transport": transport,
        "bytes": size,
        "in_flight": in_flight,
        "gbps": round(statistics.median(got) / 1e9, 3),
        "limit_gbps": round(statistics.median(possible) / 1e9, 3),
        "ratio": round(statistics.median(ratios), 3),
        "spread": round(max(ratios) - min(ratios), 3),
    }


# --- what is measured ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _node(transport: str, size: int) -> Iterator[str]:
    """Start the node of the conformance suite in a process of its own; yield its address."""
    with tempfile.TemporaryDirectory() as folder:
        where = "127.0.0.1:0" if transport == "tcp" else str(Path(folder) / "node.sock")
        program = ["dualpath.testing.transport_node", transport, where, str(REGION // size), str(size)]
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


def _read_blocks(peer: Peer, memory: NDArray[np.uint8], size: int, in_flight: int, total: int) -> float:
    """Read `total` bytes in random blocks, `in_flight` at a time; return bytes/s."""
    group = max(1, in_flight // (2 if isinstance(peer, MappedPeer) else OPERATIONS))
    operations, places = max(2, total // size // group), len(memory) // size
    views = [memoryview(memory.data)[n * size : (n + 1) * size] for n in range(places)]
    refs = [SlotRef(slot, 1) for slot in range(REGION // size)]
    noise = random.Random(total)  # noqa: S311 seeded on purpose
    work = [
        (noise.choices(refs, k=group), [views[(number * group + n) % places] for n in range(group)])
        for number in range(operations)
    ]
    tickets: deque[Ticket] = deque()
    started = time.perf_counter()
    for wanted, into in work:
        if len(tickets) * group >= in_flight:
            _finish(tickets.popleft())
        tickets.append(peer.read(wanted, into, slot_bytes=size, timeout_s=60.0))
    while tickets:
        _finish(tickets.popleft())
    return operations * group * size / (time.perf_counter() - started)


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

    yield lambda total: total / _timed([(work, (n, total // size)) for n in range(COPIERS)])


@contextlib.contextmanager
def _plain_stream(memory: NDArray[np.uint8]) -> Iterator[Callable[[int], float]]:
    """Yield a function that receives so many bytes over plain sockets into `memory`, and returns bytes/s."""
    with _child(["dualpath.bench.transport"]) as port, contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_connection(("127.0.0.1", int(port)))) for _ in range(SOCKETS)]
        view = memoryview(memory.data)
        share = len(memory) // SOCKETS // STREAM_PIECE * STREAM_PIECE

        def work(number: int, total: int) -> None:
            sock = sockets[number]
            sock.sendall(total.to_bytes(8, "little"))
            for start in range(0, total, STREAM_PIECE):
                place = number * share + start % share
                if sock.recv_into(view[place : place + STREAM_PIECE], 0, socket.MSG_WAITALL) != STREAM_PIECE:
                    raise HostError("the plain stream was cut short")

        def receive(total: int) -> float:
            part = total // SOCKETS // STREAM_PIECE * STREAM_PIECE
            return part * SOCKETS / _timed([(work, (n, part)) for n in range(SOCKETS)])

        yield receive


def _timed(jobs: Sequence[tuple[Callable[..., None], tuple[int, int]]]) -> float:
    """Run each job in a thread of its own; return the seconds until the last has ended."""
    threads = [threading.Thread(target=work, args=args) for work, args in jobs]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def _stream_sender() -> None:
    """The plain stream's other end: told a number of bytes, send as many out of a memfd. Ends with the parent."""
    import mmap
    import os

    fd = os.memfd_create("dualpath-stream", os.MFD_CLOEXEC)
    os.ftruncate(fd, REGION)
    memory = memoryview(mmap.mmap(fd, REGION))
    for start in range(0, REGION, STREAM_PIECE):
        memory[start : start + STREAM_PIECE] = b"\x5a" * STREAM_PIECE

    def serve(sock: socket.socket, number: int) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        place = number * REGION // 2 % REGION
        while wanted := sock.recv(8, socket.MSG_WAITALL):
            for _ in range(0, int.from_bytes(wanted, "little"), STREAM_PIECE):
                sock.sendall(memory[place : place + STREAM_PIECE])
                place = (place + STREAM_PIECE) % REGION

    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)  # noqa: T201 the child's one line to its parent
    for number in range(SOCKETS):
        threading.Thread(target=serve, args=(listener.accept()[0], number), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    _stream_sender()
