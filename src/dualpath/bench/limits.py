"""What moving bytes on this machine can reach at all, measured for the transport bench: a plain stream, and memcpy."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dualpath.bench.stream_sender import REGION, STREAM_BYTE, STREAM_PIECE
from dualpath.errors import HostError
from dualpath.transport.mapped import MappedPeer
from dualpath.wire.messages import SlotRef

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@contextlib.contextmanager
def child(program: Sequence[str]) -> Iterator[str]:
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


@contextlib.contextmanager
def memcpy(peer: MappedPeer, memory: NDArray[np.uint8], size: int, *, threads: int) -> Iterator[Callable[[int], float]]:
    """Yield a function that copies so many bytes in random blocks out of the peer's mapping, and returns bytes/s."""
    import numpy as np

    found = peer.view(SlotRef(0, 1), size)
    assert found is not None
    arena, places, slots = found[0], len(memory) // size, REGION // size

    def work(seed: int, count: int) -> None:
        noise = random.Random(seed)  # noqa: S311 seeded on purpose
        for n in range(seed, count, threads):
            source, place = noise.randrange(slots) * size, n % places * size
            np.copyto(memory[place : place + size], arena[source : source + size])

    def copy(total: int) -> float:
        memory.fill(255)
        seconds = timed([(work, (n, total // size)) for n in range(threads)])
        for place in range(0, min(places, total // size), threads):
            if memory[place * size] == 255:
                raise HostError("memcpy did not reach every destination")
        return total // size * size / seconds

    yield copy


@contextlib.contextmanager
def plain_stream(memory: NDArray[np.uint8], count: int, *, congestion: bytes = b"") -> Iterator[Callable[[int], float]]:
    """Yield a function that receives so many bytes over plain sockets into `memory`, and returns bytes/s.

    `congestion` is the congestion control of the sender; empty: what the host uses.
    """
    with (
        child(["dualpath.bench.stream_sender", str(count), congestion.decode()]) as port,
        contextlib.ExitStack() as opened,
    ):
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
            seconds = timed([(work, (n, part)) for n in range(count)])
            for number in range(count):
                start = number * share
                if (memory[start : start + min(part, share)] != STREAM_BYTE).any():
                    raise HostError("the plain stream arrived spoiled")
            return part * count / seconds

        yield receive


def timed(jobs: Sequence[tuple[Callable[..., None], tuple[int, int]]]) -> float:
    """Run each job in a thread of its own; return the seconds until the last has ended. Raises what one of them did."""
    with ThreadPoolExecutor(len(jobs)) as threads:
        started = time.perf_counter()
        for one in [threads.submit(work, *args) for work, args in jobs]:
            one.result()
        return time.perf_counter() - started
