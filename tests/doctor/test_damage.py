"""Recorded hosts whose texts are damaged: no check crashes, whatever it reads."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from dualpath.doctor.recording import Output
from dualpath.doctor.run import examine
from dualpath.testing.recordings import load_fixture

FILES = sorted((Path(__file__).parent / "fixtures").rglob("*.toml"))
ODD = ("", "-1", "9" * 24, "nan", "\0", "٣", "²", "x", "0x", "1e400", " ", "\n", ":", "=")
"""Digits that `str.isdigit` takes for digits and `int` does not, numbers that no integer or float holds, …"""


def damaged(text: str, chance: random.Random) -> str:
    """Return `text` cut, shuffled, doubled in places or with something odd in it; every fourth time as it was."""
    if not text:
        return text
    start = chance.randrange(len(text))
    end = min(len(text), start + chance.randrange(1, 12))
    lines = text.splitlines(keepends=True)
    return chance.choice(
        (
            text,
            text,
            text[:start],
            text[start:],
            text[:start] + chance.choice(ODD) + text[end:],
            text[:start] + text[start:end] * 3 + text[end:],
            "".join(chance.sample(lines, len(lines))),
            "",
        )
    )


@pytest.mark.parametrize("seed", range(30))
def test_no_check_crashes(seed: int) -> None:
    chance = random.Random(seed)
    whole = load_fixture(chance.choice(FILES)).recording
    peer = load_fixture(chance.choice(FILES)).recording

    def texts(table: dict[str, str]) -> dict[str, str]:
        return {path: damaged(text, chance) for path, text in table.items() if chance.random() > 0.02}

    def outputs(table: dict[str, Output]) -> dict[str, Output]:
        return {
            line: Output(damaged(output.stdout, chance), output.stderr, chance.choice((0, 0, 0, 1, -1)))
            for line, output in table.items()
            if chance.random() > 0.02
        }

    host = replace(
        whole,
        files=texts(whole.files),
        links=texts(whole.links),
        commands=outputs(whole.commands),
        later=texts(whole.later),
        later_commands=outputs(whole.later_commands),
    )
    assert [f.symptom for f in examine([host, peer]).findings if " failed: " in f.symptom] == []
