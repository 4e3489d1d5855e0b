"""Decoders that take turns: what is measured, what is not, and what is compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dualpath.bench.decoders import Counters
from dualpath.bench.turns import LEAD_STEPS, TURN_STEPS, Contender, Turn, summary, take_turns


class FakeDecoder:
    """Says the sum of the tokens since it was rewound, modulo 7; `skew` is added to it. 10 bytes a step."""

    def __init__(self, name: str, journal: list[str], *, skew: int = 0) -> None:
        self.name, self.journal, self.skew = name, journal, skew
        self.total = self.steps = 0

    def rewind(self, tokens: int) -> None:
        self.journal.append(f"{self.name} rewind {tokens}")
        self.total = 0

    def decode(self, token: int) -> np.ndarray:
        self.journal.append(f"{self.name} {token}")
        self.total, self.steps = self.total + token, self.steps + 1
        found = np.zeros(7, np.float32)
        found[(self.total + self.skew) % 7] = 1
        return found

    def counters(self) -> Counters:
        return Counters(wire_bytes=10 * self.steps, stall_s=0.5 * self.steps)

    def prefill(self, ids: Sequence[int], on_progress: Any) -> np.ndarray:
        raise NotImplementedError

    def fill(self, tokens: int, seed: int, on_progress: Any) -> None:
        raise NotImplementedError

    def choice(self) -> None:
        return None

    def end(self) -> None: ...

    def close(self) -> None: ...


def contender(name: str, journal: list[str], *, skew: int = 0) -> Contender:
    return Contender(name, FakeDecoder(name, journal, skew=skew), 32)


def test_all_are_fed_alike_and_only_what_follows_the_lead_counts() -> None:
    journal: list[str] = []
    advanced: list[int] = []
    pair = [contender("a", journal), contender("b", journal)]
    for _ in range(2):
        take_turns(pair, Turn((5, 6), (1, 2, 3)), lambda: advanced.append(1))
    one = ["rewind 32", "5", "6", "1", "2", "3"]
    assert journal == [f"{name} {what}" for _ in range(2) for name in "ab" for what in one]
    assert len(advanced) == 12
    row = summary(pair[1])
    assert row["samples"] == len(row["tpot_ms"]) == 6
    assert row["wire_bytes_per_token"] == 10
    assert row["stall_ms_per_token"] == 500
    assert row["identical"]


def test_one_that_says_something_else_is_found_even_in_the_lead() -> None:
    journal: list[str] = []
    odd = contender("odd", journal, skew=1)
    take_turns([contender("a", journal), odd], Turn((1,), (2,)), lambda: None)
    assert not odd.identical
    odd.restart()
    assert odd.identical
    assert odd.measured.step_s == []


def test_a_turn_is_short_and_rounds_make_up_the_samples() -> None:
    turn = Turn.of(100, 50, seed=1)
    assert (len(turn.lead), len(turn.ids)) == (LEAD_STEPS, TURN_STEPS)
    assert turn == Turn.of(100, 50, seed=1)
    assert turn.rounds(100) == 13
    few = Turn.of(3, 50, seed=1)
    assert (len(few.ids), few.rounds(3)) == (3, 1)
