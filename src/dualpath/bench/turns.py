"""Decoders that take turns on one machine, so that one that drifts hits all of them alike.

A turn starts where the one before it did: what is local and what is remote is the same in all of them. Its first steps
are not measured: in a pause a prefetcher fills its window, which makes the next steps faster than they go on, and what
it still has in flight would slow down whoever is next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dualpath.bench.decoders import Decoder
from dualpath.bench.prompt import greedy, random_ids
from dualpath.bench.rows import Measured, percentile

LEAD_STEPS = 4
TURN_STEPS = 8


class Rewindable(Decoder, Protocol):
    """A decoder that can go back."""

    def rewind(self, tokens: int) -> None:
        """Cut the sequence to its first `tokens` tokens."""


@dataclass
class Contender:
    """A decoder over `context` tokens, and what was measured of it since `restart`.

    `tokens`: what it said in its last turn; `identical`: whether that was what others said, in all turns.
    """

    name: str
    decoder: Rewindable
    context: int
    measured: Measured = field(init=False)
    tokens: list[int] = field(default_factory=list)
    identical: bool = True

    def __post_init__(self) -> None:
        """Start a measurement."""
        self.restart()

    def restart(self) -> None:
        """Forget what was measured, and measure anew."""
        self.measured, self.identical = Measured(self.name), True

    def settle(self, ids: Sequence[int]) -> None:
        """Begin a turn: decode the tokens `ids`, without measuring."""
        self.decoder.rewind(self.context)
        self.tokens.clear()
        for token in ids:
            self._step(token)

    def measure(self, ids: Sequence[int], advance: Callable[[], None]) -> None:
        """Go on with the tokens `ids`, and measure. All contenders are fed the same ones."""
        before, measured = self.decoder.counters(), self.measured
        for token in ids:
            measured.step_s.append(self._step(token))
            advance()
        after = self.decoder.counters()
        measured.wire_bytes += after.wire_bytes - before.wire_bytes
        measured.stall_s += after.stall_s - before.stall_s
        measured.attend_s += after.attend_s - before.attend_s

    def _step(self, token: int) -> float:
        started_s = time.perf_counter()
        following = greedy(self.decoder.decode(token))
        taken_s = time.perf_counter() - started_s
        self.tokens.append(following)
        return taken_s


@dataclass(frozen=True)
class Turn:
    """The tokens that a turn is fed with: `lead` is not measured, `ids` is. No more than the model's block holds, so
    that none of it is sealed and leaves."""

    lead: tuple[int, ...]
    ids: tuple[int, ...]

    @classmethod
    def of(cls, samples: int, vocabulary: int, seed: int) -> Turn:
        """Return a turn of at most `samples` measured tokens: `TURN_STEPS`, after `LEAD_STEPS`."""
        ids = random_ids(vocabulary, LEAD_STEPS + min(samples, TURN_STEPS), seed)
        return cls(ids[:LEAD_STEPS], ids[LEAD_STEPS:])

    def rounds(self, samples: int) -> int:
        """Return how many turns make `samples` samples at least."""
        return -(-samples // len(self.ids))


def take_turns(contenders: Sequence[Contender], turn: Turn, advance: Callable[[], None]) -> None:
    """Give each contender one turn. What the first one says is what the others are compared with."""
    for one in contenders:
        one.settle(turn.lead)
        one.measure(turn.ids, advance)
        one.identical = one.identical and one.tokens == contenders[0].tokens


def summary(one: Contender) -> dict[str, Any]:
    """Return what was measured of a contender, ready for JSON."""
    measured, steps = one.measured, len(one.measured.step_s)
    return {
        "scheme": one.name,
        "identical": one.identical,
        "samples": steps,
        "tpot_ms_p50": 1e3 * percentile(measured.step_s, 0.5),
        "tpot_ms_p99": 1e3 * percentile(measured.step_s, 0.99),
        "tpot_ms_mean": 1e3 * sum(measured.step_s) / steps,
        "stall_ms_per_token": 1e3 * measured.stall_s / steps,
        "attend_ms_per_token": 1e3 * measured.attend_s / steps,
        "wire_bytes_per_token": measured.wire_bytes / steps,
        "tpot_ms": [round(1e3 * step_s, 3) for step_s in measured.step_s],
    }
