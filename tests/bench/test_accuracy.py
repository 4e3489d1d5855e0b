"""The accuracy bench: its arithmetic, its needles, and all of it over a small model with one token a character."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dualpath.bench.accuracy import AccuracyConfig, _Measuring, run_accuracy
from dualpath.bench.likelihood import compare, log_softmax
from dualpath.bench.needle import DEPTHS, hide
from dualpath.bench.report import FAR_READ, columns, verdict
from dualpath.bench.settings import ExperimentConfig
from dualpath.cli import main
from dualpath.cli.bench_accuracy import report_not_finite
from dualpath.errors import UsageError

SHAPE = "shape:layers=2,query_heads=4,kv_heads=2,head_dim=16,hidden=64,vocab=128"


class Characters:
    """A tokenizer whose tokens are ASCII characters."""

    def __init__(self, template: tuple[str, str] | None = None) -> None:
        self._template = template
        self.chat_template = "there is one" if template else None

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % 128 for letter in text]}

    def decode(self, ids: list[int], **_: object) -> str:
        return "".join(map(chr, ids))

    def apply_chat_template(self, messages: list[dict[str, str]], **_: object) -> str:
        assert self._template is not None
        return messages[0]["content"].join(self._template)


def text_of(ids: tuple[int, ...]) -> str:
    return "".join(map(chr, ids))


@contextlib.contextmanager
def nothing_shown() -> Iterator[Any]:
    class Bar:
        def advance(self, count: float = 1) -> None:
            pass

        def note(self, text: str) -> None:
            pass

    yield Bar()


class Quiet:
    def say(self, text: str) -> None:
        pass

    def progress(self, title: str, *, total: float | None = None, unit: str = "") -> Any:
        return nothing_shown()


# --- arithmetic --------------------------------------------------------------------------------------------------


def test_perplexity_of_a_uniform_guess_is_the_vocabulary() -> None:
    flat = [np.zeros(64, np.float32)] * 5
    found = compare(flat, flat, [1, 2, 3, 4, 5])
    assert found.perplexity == pytest.approx(64)
    assert (found.kl_mean, found.kl_p99, found.turned, found.logit_error, found.tokens) == (0, 0, 0, 0, 5)


def test_differences_are_those_of_the_definitions() -> None:
    exact = [np.log(np.array([0.5, 0.25, 0.25], np.float32)), np.log(np.array([0.1, 0.8, 0.1], np.float32))]
    other = [np.log(np.array([0.25, 0.5, 0.25], np.float32)) + 3, np.log(np.array([0.1, 0.8, 0.1], np.float32))]
    found = compare(other, exact, [0, 1])
    assert found.perplexity == pytest.approx(math.exp(-(math.log(0.25) + math.log(0.8)) / 2))
    assert found.kl_mean == pytest.approx(
        (0.5 * math.log(2) + 0.25 * math.log(0.5)) / 2
    )  # of exact from other: q log q/p
    assert found.turned == 1
    assert found.logit_error == pytest.approx(3 + math.log(2))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["row", "exact row"])
def test_what_is_no_number_is_never_a_small_error(bad: float, where: str) -> None:
    good = [np.zeros(3, np.float32)] * 3
    spoiled = [good[0], np.array([0, bad, 0], np.float32), good[0]]
    pair = (spoiled, good) if where == "row" else (good, spoiled)
    found = compare(*pair, [0, 0, 0])
    assert (found.tokens, found.not_finite) == (3, 1)
    assert {found.perplexity, found.kl_mean, found.kl_p99, found.logit_error} == {math.inf}
    assert compare(good, good, [0, 0, 0]).not_finite == 0


def test_what_is_no_number_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"kv_dtype": "int8", "read_fraction": 0.5, "tokens": 8, "not_finite": 0}
    assert not report_not_finite({"rows": [row]})
    assert report_not_finite({"rows": [row, {**row, "not_finite": 3}]})
    assert "KV int8, 0.5 read: 3 of 8 predictions" in capsys.readouterr().err


def test_log_softmax_of_large_logits() -> None:
    np.testing.assert_allclose(np.exp(log_softmax(np.array([1e4, 1e4], np.float32))), [0.5, 0.5])


# --- needles -----------------------------------------------------------------------------------------------------


def test_a_needle_lies_where_it_should() -> None:
    document = tuple(b"abcdefghij" * 20)
    needle = hide(Characters(), document, 100, 0.4, seed=1)
    text = text_of(needle.haystack)
    assert text.index("The pass key is") == 40 + 2
    assert text.replace(text[40 : len(text) - 60], "") == "abcdefghij" * 10
    assert text.count(needle.key) == 2
    assert len(needle.key) == 4
    assert needle.key not in text_of(needle.question)
    assert text_of(needle.question).endswith("above?\n\nThe pass key is")


def test_keys_are_seeded() -> None:
    document = tuple(b"a" * 100)
    keys = [hide(Characters(), document, 50, depth, seed=seed).key for seed in (0, 0, 1) for depth in DEPTHS]
    assert keys[:3] == keys[3:6] != keys[6:]
    assert len(set(keys[:3])) == 3


def test_a_chat_template_goes_around() -> None:
    needle = hide(Characters(("<user>", "</user><model>")), tuple(b"a" * 100), 50, 0.5, seed=0)
    assert text_of(needle.haystack).startswith("<user>aaaa")
    assert text_of(needle.question) == "\n\nWhat is the pass key in the text above?</user><model> The pass key is"


# --- settings ----------------------------------------------------------------------------------------------------


def test_the_exact_row_comes_first_and_each_row_once() -> None:
    config = AccuracyConfig(kv_dtypes=("int8", "same"), read_fractions=(0.5, 1.0, 0.5))
    assert config.rows() == (("same", 1.0), ("int8", 0.5), ("int8", 1.0), ("same", 0.5))


def test_a_prefix_is_read_whole_whatever_the_row_before_read() -> None:
    read: list[float] = []
    path: Any = SimpleNamespace(read_fraction=1.0, open=lambda: 1, fork=lambda _: 2, close_sequence=lambda _: None)
    engine: Any = SimpleNamespace(prefill=lambda *_: read.append(path.read_fraction))
    pool: Any = None
    measured = _Measuring(path, engine, pool, [1.0, 0.25])
    for _ in range(2):
        assert [path.read_fraction for _ in measured._forks((1,))] == [1.0, 0.25]
    assert read == [1.0, 1.0]


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_dtypes": ("int4",)},
        {"kv_dtypes": ()},
        {"read_fractions": (0.5, 0.0)},
        {"read_fractions": (1.5,)},
        {"scored": 4096},
        {"scored": 0},
        {"needles": (-1,)},
    ],
)
def test_settings_that_cannot_work(changes: dict[str, Any]) -> None:
    AccuracyConfig().check()
    with pytest.raises(UsageError):
        AccuracyConfig(**changes).check()


# --- a small model -----------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every model that is loaded be a tiny one with a tokenizer."""
    pytest.importorskip("torch", reason="needs the torch extra")
    from dualpath.engine import load

    loaded = dataclasses.replace(load.load_model(SHAPE), tokenizer=Characters())
    monkeypatch.setattr(load, "load_model", lambda *_, **__: loaded)


SMALL = AccuracyConfig(context=300, scored=6, needles=(80,), hot_bytes=24 << 10, window_bytes=1 << 20, block_tokens=16)


@pytest.mark.torch
def test_rows_over_a_small_model(tiny: None) -> None:
    config = dataclasses.replace(SMALL, kv_dtypes=("same", "int8"), read_fractions=(1.0, 0.25))
    result = run_accuracy(config, view=Quiet())
    exact, part, kept, both = result["rows"]
    assert [(row["kv_dtype"], row["read_fraction"]) for row in result["rows"]] == [
        ("same", 1.0), ("same", 0.25), ("int8", 1.0), ("int8", 0.25),
    ]  # fmt: skip
    assert (exact["perplexity_ratio"], exact["kl_mean"], exact["logit_error"], exact["turned"]) == (1.0, 0.0, 0.0, 0)
    for row in (exact, kept):
        assert row["far_blocks_read"] == row["far_blocks"] > 0
    for row in (part, both):
        assert 0.25 <= row["far_blocks_read"] / row["far_blocks"] < 0.4
    assert 0 < kept["logit_error"] < part["logit_error"]
    assert kept["kv_bytes_per_token"] < exact["kv_bytes_per_token"]
    for row in result["rows"]:
        assert row["not_finite"] == 0
        assert row["needles"] == len(row["answers"]) == len(DEPTHS)
        assert row["wire_bytes_per_token"] > 0
    assert json.loads(json.dumps(result)) == result


@pytest.mark.torch
def test_the_table_of_the_command(tiny: None, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["bench", "accuracy", "--read-fraction", "0.5", "--context", "300", "--scored", "4", "--needles", "0",
         "--hot", "128KiB", "--block-tokens", "16"]
    )  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    assert "perplexity" in out
    assert "0 of 0" in out
    assert [line.split()[:2] for line in out.splitlines() if line.strip().startswith("same")] == [
        ["same", "1"], ["same", "0.5"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--read-fraction", "half"], "--read-fraction is 'half'"),
        (["--read-fraction", "2"], "a fraction of 2"),
        (["--kv-dtype", "int4"], "int4"),
        (["--needles", "many"], "--needles is 'many'"),
        (["--threads", "9999"], "cannot use 9999 threads"),
        (["--pool", "nonsense"], "not a pool node: 'nonsense'"),
    ],
)
def test_bad_input_of_the_command(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "accuracy", *words]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert "hint:" in err


def test_the_command_has_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "accuracy", "--help"]) == 0
    assert "\n      dualpath bench accuracy --read-fraction" in capsys.readouterr().out


# --- dualpath run --read-fraction --------------------------------------------------------------------------------


@pytest.mark.torch
def test_a_run_counts_what_was_read(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--model", SHAPE, "--context", "400", "--new-tokens", "6", "--hot", "32KiB", "--window", "256KiB"]
    assert main([*words, "--block-tokens", "16", "--read-fraction", "0.25", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["settings"]["read_fraction"] == 0.25
    hf, local, fetched, sharded, reduced = result["schemes"]
    assert [row["scheme"] for row in result["schemes"]] == ["hf", "local", "fetch", "sharded", "reduce"]
    assert hf["identical"]
    assert local["identical"]
    assert (hf["read_fraction"], local["read_fraction"], reduced["read_fraction"]) == (1.0, 1.0, 0.25)
    assert (hf["far_read"], local["far_read"]) == (None, None)
    assert reduced["max_logit_error"] > local["max_logit_error"]
    for row in (fetched, sharded, reduced):
        assert 0.25 <= row["far_read"] <= 0.33
    assert sharded["max_logit_error"] == pytest.approx(reduced["max_logit_error"], abs=1e-3)  # the same choice
    assert 0 < fetched["wire_bytes_per_token"] < 0.5 * result["expected"]["fetch_wire_bytes_per_token"]
    assert reduced["far_blocks_read_per_token"] == pytest.approx(reduced["far_read"] * reduced["far_blocks_per_token"])
    assert FAR_READ in columns(result)
    result["settings"]["read_fraction"] = 1.0
    assert FAR_READ not in columns(result)


@pytest.mark.torch
def test_the_table_of_a_partial_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--model", SHAPE, "--context", "400", "--new-tokens", "3", "--hot", "32KiB", "--window", "256KiB"]
    assert main([*words, "--block-tokens", "16", "--read-fraction", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "a step reads 50% of far blocks" in out
    assert "far read" in out


def test_changed_tokens_are_no_failure() -> None:
    rows = [
        {"scheme": name, "identical": name != "reduce", "max_logit_error": 0.5, "read_fraction": 1.0, "tokens": [1]}
        for name in ("hf", "local", "reduce")
    ]
    rows[2]["read_fraction"] = 0.5
    result = {"reference": rows[0], "schemes": rows, "ok": True, "settings": {"read_fraction": 0.5}}
    assert verdict(result).startswith("Reading 50% of far blocks changed tokens against hf in reduce (logit error")
    result["settings"] = {"read_fraction": 0.5, "kv_dtype": "int8"}
    assert verdict(result).startswith("Keeping KV in int8 and reading 50% of far blocks changed tokens against hf")


@pytest.mark.parametrize("schemes", [("single",), ("auto", "reduce"), ("local",), ("hf", "mapped", "reduce")])
def test_schemes_that_read_everything_refuse_a_fraction(schemes: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"use for --read-fraction 0\.5"):
        ExperimentConfig(schemes=schemes, read_fraction=0.5).check()
    ExperimentConfig(schemes=schemes, read_fraction=1.0).check()


def test_without_names_those_that_apply_are_run() -> None:
    assert ExperimentConfig(read_fraction=0.5).rows() == ("hf", "local", "fetch", "sharded", "reduce")
    assert ExperimentConfig(read_fraction=0.5, fill="random").rows()[0] == "local"
    with pytest.raises(UsageError, match="fraction"):
        ExperimentConfig(read_fraction=0.0).check()
    with pytest.raises(UsageError, match="traced"):
        ExperimentConfig(read_fraction=0.5, trace_prefetch=Path("trace.jsonl")).check()


def test_a_load_has_no_use_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--concurrency", "2", "--read-fraction", "0.5"]) == 2
    assert "--read-fraction does not go with --concurrency" in capsys.readouterr().err
