"""The loop of the experiment over made-up decoders: order, turns, comparison, cleaning up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualpath.bench.decoders import Counters
from dualpath.bench.experiment import WARM_UP_STEPS, measure, outcome_is_right, run_experiment
from dualpath.bench.prompt import Prompt, check_context, default_document, document_prompt
from dualpath.bench.rows import row
from dualpath.bench.settings import ON_REQUEST, SCHEMES, ExperimentConfig, check_memory, node_capacity
from dualpath.errors import CapacityError, DualPathError, UnreachableError, UsageError
from dualpath.kv import KVLayout


class QuietView:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.done = 0.0

    def say(self, text: str) -> None:
        self.titles.append(text)

    @contextlib.contextmanager
    def progress(self, title: str, *, total: float | None = None, unit: str = "") -> Iterator[Any]:
        self.titles.append(title)
        yield self

    def advance(self, count: float = 1) -> None:
        self.done += count

    def note(self, text: str) -> None:
        pass


class FakeDecoder:
    """The next token is the sum of all tokens so far, modulo 7, plus `skew` from step `skew_from` on."""

    def __init__(self, scheme: str, journal: list[str], *, skew_from: int | None = None, fail_at: int = -1) -> None:
        self.scheme, self.journal = scheme, journal
        self.total, self.steps = 0, 0
        self.skew_from, self.fail_at = skew_from, fail_at
        self.wire, self.ended = 0, False

    def _logits(self) -> np.ndarray:
        skew = int(self.skew_from is not None and self.steps >= self.skew_from)
        found = np.zeros(7, np.float32)
        found[(self.total + skew) % 7] = 1
        return found

    def prefill(self, ids: Sequence[int], on_progress: Callable[[int, int], None]) -> np.ndarray:
        self.journal.append(f"{self.scheme} prefill")
        self.total = sum(ids)
        self.wire = 1_000_000
        for done in range(1, len(ids) + 1):
            on_progress(done, len(ids))
        return self._logits()

    def fill(self, tokens: int, seed: int, on_progress: Any) -> None:
        self.journal.append(f"{self.scheme} fill {tokens} {seed}")

    def decode(self, token: int) -> np.ndarray:
        if self.steps == self.fail_at:
            raise UnreachableError("node1 is gone", node="node1")
        self.journal.append(f"{self.scheme} decode {token}")
        self.total += token
        self.steps += 1
        self.wire += 10
        return self._logits()

    def counters(self) -> Counters:
        return Counters(self.wire, wasted_bytes=77 if self.ended else 0, peak_local_kv_bytes=5)

    def choice(self) -> dict[str, Any] | None:
        return {"form": "mixed"} if self.scheme == "auto" else None

    def end(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.journal.append(f"{self.scheme} close")


CONFIG = ExperimentConfig(schemes=("hf", "local", "reduce"), context=3, new_tokens=5)
PROMPT = Prompt("test", (1, 2, 3))


def test_schemes_run_one_after_another_and_are_closed() -> None:
    journal: list[str] = []
    found = measure(CONFIG, PROMPT, lambda s: FakeDecoder(s, journal), view=QuietView())
    assert list(found) == ["hf", "local", "reduce"]
    assert [line for line in journal if "decode" not in line] == [
        "hf prefill", "hf close", "local prefill", "local close", "reduce prefill", "reduce close",
    ]  # fmt: skip
    assert journal[1:5] == ["hf decode 6", "hf decode 5", "hf decode 3", "hf decode 6"]


def test_counters_cover_the_decode_steps_only() -> None:
    found = measure(CONFIG, PROMPT, lambda s: FakeDecoder(s, []), view=QuietView())
    measured, comparison = found["reduce"]
    assert len(measured.step_s) == 4  # the first of 5 new tokens came with the prompt
    assert len(measured.tokens) == 5
    assert measured.wire_bytes == 40
    assert measured.wasted_bytes == 77
    assert measured.peak_local_kv_bytes == 5
    assert comparison is not None
    assert comparison.identical
    assert found["hf"][1] is None


def test_a_scheme_that_differs_is_found() -> None:
    def make(scheme: str) -> FakeDecoder:
        return FakeDecoder(scheme, [], skew_from=2 if scheme == "local" else None)

    found = measure(CONFIG, PROMPT, make, view=QuietView())
    assert not found["local"][1].identical  # type: ignore[union-attr]  # it was compared
    assert found["reduce"][1].identical  # type: ignore[union-attr]  # it was compared


def test_interleaved_schemes_take_turns_and_compare_the_same() -> None:
    journal: list[str] = []
    config = replace(CONFIG, interleave=2, new_tokens=6)
    found = measure(config, PROMPT, lambda s: FakeDecoder(s, journal), view=QuietView())
    turns = [line.split()[0] for line in journal if "decode" in line]
    assert turns == ["hf"] * 2 + ["local"] * 2 + ["reduce"] * 2 + ["hf"] * 2 + ["local"] * 2 + ["reduce"] * 2 + [
        "hf", "local", "reduce",
    ]  # fmt: skip
    assert all(c is None or c.identical for _, c in found.values())
    assert [line for line in journal if line.endswith("close")] == ["reduce close", "local close", "hf close"]


def test_random_fill_feeds_a_fixed_stream_after_warming_up() -> None:
    journal: list[str] = []
    config = replace(CONFIG, schemes=("reduce",), fill="random", context=1000, new_tokens=3, seed=9)
    stream = Prompt("random", (5, 5, 1, 2, 3))
    found = measure(config, stream, lambda s: FakeDecoder(s, journal), view=QuietView())
    assert journal[:6] == [
        "local fill 1000 9", "local decode 5", "local decode 5", "local decode 1", "local decode 2", "local decode 3",
    ]  # fmt: skip
    assert len(found["reduce"][0].step_s) == len(stream.ids) - WARM_UP_STEPS == 3
    assert found["reduce"][0].ttft_s is None
    assert found["reduce"][0].wire_bytes == 30


@pytest.mark.parametrize("interleave", [0, 2])
def test_every_decoder_is_closed_after_an_error(interleave: int) -> None:
    journal: list[str] = []

    def make(scheme: str) -> FakeDecoder:
        return FakeDecoder(scheme, journal, fail_at=1 if scheme == "local" else -1)

    with pytest.raises(UnreachableError):
        measure(replace(CONFIG, interleave=interleave), PROMPT, make, view=QuietView())
    opened = {line.split()[0] for line in journal if "prefill" in line}
    assert {line.split()[0] for line in journal if "close" in line} == opened


def test_what_auto_chose_is_in_its_row_only() -> None:
    config = replace(CONFIG, schemes=("reduce", "auto"))
    found = measure(config, PROMPT, lambda s: FakeDecoder(s, []), view=QuietView())
    rows = {scheme: row(*one) for scheme, one in found.items()}
    assert rows["auto"]["choice"] == {"form": "mixed"}
    assert "choice" not in rows["reduce"]


def test_progress_is_shown_per_scheme() -> None:
    view = QuietView()
    measure(CONFIG, PROMPT, lambda s: FakeDecoder(s, []), view=view)
    assert view.titles[:2] == ["hf: prefill", "hf: decode"]
    assert view.done == 3 * (3 + 4)


# --- settings ----------------------------------------------------------------------------------------------------


def test_rows_and_order() -> None:
    assert ExperimentConfig().rows() == tuple(s for s in SCHEMES if s not in ON_REQUEST)
    assert ExperimentConfig(schemes=("reduce", "local")).rows() == ("local", "reduce")
    assert ExperimentConfig(schemes=("reduce",)).order() == ("hf", "reduce")
    assert ExperimentConfig(fill="random").rows() == ExperimentConfig().rows()[1:]
    assert ExperimentConfig(fill="random", schemes=("fetch",)).order() == ("local", "fetch")
    assert ExperimentConfig(schemes=("auto", "local")).rows() == ("local", "auto")
    assert "mapped" not in ExperimentConfig(pool="10.0.0.1:7480").rows()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (ExperimentConfig(schemes=("fast",)), "unknown scheme 'fast'"),
        (ExperimentConfig(fill="zeros"), "unknown fill"),
        (ExperimentConfig(fill="random", schemes=("hf",)), "hf cannot start from random"),
        (ExperimentConfig(fill="random", prompt_file=Path("x")), "no prompt"),
        (ExperimentConfig(pool="10.0.0.1:7480", schemes=("mapped",)), "on this host"),
        (ExperimentConfig(hot_bytes=0), "at least 1"),
        (ExperimentConfig(block_tokens=-1), "negative"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(config: ExperimentConfig, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        run_experiment(config, view=QuietView())


LAYOUT = KVLayout.from_config(
    {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1},
    dtype="float32", block_tokens=16,
)  # fmt: skip


def test_a_node_can_hold_all_kv_of_every_scheme_that_is_alive() -> None:
    alone = ExperimentConfig(context=1 << 20, new_tokens=16)
    together = replace(alone, interleave=1)
    assert node_capacity(alone, LAYOUT) > (1 << 20) * 512
    assert node_capacity(together, LAYOUT) > 5 * (1 << 20) * 512


def test_too_little_memory_is_said_before_anything_is_filled() -> None:
    with pytest.raises(CapacityError, match="copies of"):
        check_memory(ExperimentConfig(context=1 << 20), LAYOUT, 1 << 29)
    check_memory(ExperimentConfig(context=1 << 20), LAYOUT, 4 << 30)


def test_quantised_kv_is_held_against_itself() -> None:
    """hf keeps its KV in float32, and reduce adds in another order: neither says whether the others are right."""
    rows = [{"scheme": scheme, "identical": scheme == "hf", "tokens": [1, 2]} for scheme in SCHEMES]
    rows[0]["tokens"] = [1, 1]
    quantised = ExperimentConfig(kv_dtype="int8")
    assert outcome_is_right(quantised, rows)
    assert not outcome_is_right(ExperimentConfig(), rows)
    next(row for row in rows if row["scheme"] == "reduce")["tokens"] = [3]
    assert outcome_is_right(quantised, rows)
    next(row for row in rows if row["scheme"] == "sharded")["tokens"] = [2, 1]
    assert not outcome_is_right(quantised, rows)
    assert outcome_is_right(ExperimentConfig(dtype="bfloat16"), rows)
    with pytest.raises(UsageError, match="int4"):
        ExperimentConfig(kv_dtype="int4").check()


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"threads": 9999}, "cannot use 9999 threads"), ({"nics": ("eth9",)}, "not reached over its NICs")],
)
def test_what_cannot_work_is_refused_before_anything_slow(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ExperimentConfig(**changes).check()


# --- prompts -----------------------------------------------------------------------------------------------------


class Words:
    """A tokenizer with one token per word."""

    def __call__(self, text: str, verbose: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}


def test_a_document_is_cut_to_the_context(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_text("a bb ccc dddd eeeee")
    found = document_prompt(Words(), file, 2, offset=1)
    assert found.ids == (2, 3)
    assert found.source.endswith("book.txt")


def test_a_document_of_long_words_is_read_further(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_text(("x" * 50 + " ") * 10)
    assert document_prompt(Words(), file, 10).ids == (50,) * 10


def test_a_short_document_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_text("a b c")
    with pytest.raises(UsageError, match=r"book.txt has 3 tokens, but 4 are wanted") as caught:
        document_prompt(Words(), file, 4)
    assert "--context 3" in caught.value.hint


def test_an_unreadable_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DualPathError, match="cannot read"):
        document_prompt(Words(), tmp_path / "nothing", 4)


def test_a_context_beyond_the_model_names_both_figures() -> None:
    with pytest.raises(CapacityError, match=r"context 8192 \+ 64 .* 8192 tokens of smol") as caught:
        check_context(8192, 64, 8192, model="smol")
    assert "--context 8128" in caught.value.hint
    check_context(8128, 64, 8192, model="smol")


def test_python_brings_a_long_document() -> None:
    assert default_document().stat().st_size > 500_000
