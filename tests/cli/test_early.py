"""Files to read or write, and nodes: what is wrong with them is said at once, before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualpath import cli

READS = (
    ("generate", "--prompt-file"),
    ("run", "--prompt-file"),
    ("explain", "--prompt-file"),
    ("bench", "accuracy", "--prompt-file"),
    ("pool", "--key-file"),
    ("bench", "raw", "--pool", "127.0.0.1:1", "--key-file"),
    ("doctor", "latency"),
    ("doctor", "check"),
    ("plan", "--file"),
    ("replay",),
)
WRITES = (("run", "--report"), ("run", "--trace-prefetch"), ("doctor", "collect", "-o"), ("plan", "--report"))


POOLS = (("generate", "--prompt", "x"), ("run",), ("run", "--concurrency", "2"), ("bench", "accuracy"))


def refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command line that is refused says: two lines, and nothing before them."""
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    error, hint = err.splitlines()
    assert hint.startswith("hint: ")
    return error


@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_what_cannot_be_read(words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    assert refused((*words, str(nothing)), capsys) == f"error: cannot read {nothing}: No such file or directory"
    assert refused((*words, str(tmp_path)), capsys) == f"error: cannot read {tmp_path}: Is a directory"


@pytest.mark.parametrize("words", WRITES, ids=" ".join)
def test_what_cannot_be_written(words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    assert refused((*words, str(nothing / "file")), capsys) == f"error: no such folder: {nothing}"
    assert refused((*words, str(tmp_path)), capsys) == f"error: cannot write to {tmp_path}"


@pytest.mark.torch
@pytest.mark.parametrize("words", POOLS, ids=" ".join)
def test_a_node_that_is_not_there_is_said_before_a_model_is_loaded(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main((*words, "--pool", "127.0.0.1:1")) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: no pool node at tcp://127.0.0.1:1: cannot connect")
