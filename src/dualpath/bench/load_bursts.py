"""Prompts that arrive while a batch decodes: cold, computed a chunk at a time, written to the pool in lane BULK.

A prompt has a path of its own, with room for all of its KV: it reads nothing back, and takes no room from those who
decode. What its chunks may add to a decode step is bounded (`engine.pacing`). Prompts that arrive before the one ahead
of them is done wait; at its end its blocks lie sealed in the pool, as for a hand-over, and are let go of.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dualpath.bench.prompt import random_ids
from dualpath.engine.pacing import Pacer

if TYPE_CHECKING:
    from dualpath.engine.engine import Engine
    from dualpath.kv import KVLayout
    from dualpath.path import PathConfig, SequenceId
    from dualpath.pool.client import Pool

MOST_TOKENS = 512
"""Of one chunk."""


@dataclasses.dataclass(frozen=True)
class BurstSettings:
    """A prompt of `tokens` tokens every `every_s` seconds; a decode step may take longer by `share` of itself."""

    every_s: float
    tokens: int
    share: float


class Bursts:
    """Steps of a batch that decodes in `engine`, with chunks of prompts where there are any. A context manager."""

    def __init__(
        self,
        settings: BurstSettings,
        layout: KVLayout,
        config: PathConfig,
        pool: Pool,
        *,
        vocabulary: int,
        seed: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        from dualpath.path import DualPath

        blocks = -(-settings.tokens // layout.block_tokens) + 1
        self._path = DualPath(layout, dataclasses.replace(config, hot_bytes=blocks * layout.open.block_bytes), pool)
        self._settings, self._vocabulary, self._seed, self._clock = settings, vocabulary, seed, clock
        self._pacer = Pacer(settings.share, MOST_TOKENS)
        self._began: float | None = None
        self._ids: list[int] = []
        self._sequence: SequenceId | None = None
        self.tokens = 0
        """Prompt tokens computed so far."""
        self.took_s: list[float] = []
        """Of each prompt that is done, from its arrival to its end."""

    def __enter__(self) -> Bursts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._path.close()

    def step(self, engine: Engine, batch: Sequence[tuple[SequenceId, Sequence[int]]]) -> Any:
        """Append tokens to the batch and return its logits, as `Engine.step` does."""
        started = self._clock()
        if self._began is None:
            self._began = started
        sequence, count = self._next_chunk(started)
        if sequence is None or not count:
            logits = engine.step(batch)
        else:
            logits = engine.step_beside(batch, self._path, (sequence, self._ids[:count]))[: len(batch)]
        ended = self._clock()
        self._pacer.stepped(ended - started, count)
        self._advance(count, ended)
        return logits

    def _next_chunk(self, now: float) -> tuple[SequenceId | None, int]:
        assert self._began is not None
        number = len(self.took_s)
        if self._sequence is None and now >= self._began + self._arrival_s(number):
            self._sequence = self._path.open()
            self._ids = list(random_ids(self._vocabulary, self._settings.tokens, self._seed + number))
        if self._sequence is None:
            return None, 0
        wanted = min(self._pacer.tokens(), len(self._ids))
        return self._sequence, self._path.room(self._sequence, wanted) if wanted else 0

    def _advance(self, count: int, now: float) -> None:
        assert self._began is not None
        if not count or self._sequence is None:
            return
        self.tokens += count
        del self._ids[:count]
        if not self._ids:
            self.took_s.append(now - self._began - self._arrival_s(len(self.took_s)))
            self._path.close_sequence(self._sequence)
            self._sequence = None

    def _arrival_s(self, number: int) -> float:
        """Return when prompt `number` arrives, in seconds from the first step: staggered, not all at once."""
        return number * self._settings.every_s
