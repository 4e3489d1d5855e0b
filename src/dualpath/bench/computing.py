"""Threads that compute attention over local blocks while something else is measured: what an engine does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

TOKENS, BLOCK_TOKENS = 4096, 256
"""Local context of a thread: 16 MiB of bf16, more than a core's cache."""


@dataclass
class Computing:
    """KV bytes that each thread has attended to so far."""

    done: list[int] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """KV bytes of all threads."""
        return sum(self.done)


@contextlib.contextmanager
def computing(threads: int) -> Iterator[Computing]:
    """Keep `threads` threads at decode attention (bf16, 32 query heads over 8 kv heads) until the block is left."""
    found, end = Computing([0] * threads), threading.Event()
    workers = [
        threading.Thread(target=_attend, args=(found, number, end), name="compute", daemon=True)
        for number in range(threads)
    ]
    for worker in workers:
        worker.start()
    try:
        yield found
    finally:
        end.set()
        for worker in workers:
            worker.join()


def _attend(found: Computing, number: int, end: threading.Event) -> None:
    from dualpath.attention.kernels import chosen
    from dualpath.bench.attention import decode_problem

    problem, kernel = decode_problem("bfloat16", TOKENS, BLOCK_TOKENS), chosen()
    while not end.is_set():
        problem.attend(kernel, threads=1)
        found.done[number] += problem.bytes
