"""Results go to stdout, everything else to stderr."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
import typer

from dualpath.bench.spread import Spread
from dualpath.cli import output
from dualpath.cli.rounds import print_ratios
from dualpath.errors import HostError, UsageError


class Row(msgspec.Struct):
    scheme: str
    tpot_ms: float


@dataclasses.dataclass
class Point:
    x: int


def test_json_is_one_object_without_nan(capsys: pytest.CaptureFixture[str]) -> None:
    value = {
        "rows": [Row("fetch", float("nan")), Point(3)],
        "lse": -np.inf,
        "mean": np.float32(0.5),
        "count": np.int64(7),
        "values": np.arange(3),
        "path": Path("a"),
    }
    output.emit(True, value, lambda _: pytest.fail("rendered"))
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out) == {
        "rows": [{"scheme": "fetch", "tpot_ms": None}, {"x": 3}],
        "lse": None,
        "mean": 0.5,
        "count": 7,
        "values": [0, 1, 2],
        "path": "a",
    }


def test_without_json_the_value_is_rendered(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit(False, 7, lambda value: print(f"seven is {value}"))
    assert capsys.readouterr().out == "seven is 7\n"


def test_a_table_goes_to_stdout_with_every_column_whole(capsys: pytest.CaptureFixture[str]) -> None:
    output.table("", ["scheme", "x" * 150], [["fetch", 1.23456], ["reduce", 23456.7], ["hf", None]])
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "x" * 150 in captured.out
    assert "1.23 " in captured.out
    assert "23,457" in captured.out
    assert "hf " in captured.out
    assert "\x1b" not in captured.out


class Log:
    """A clock that is moved by hand, and the lines written so far."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.lines: list[str] = []

    def start(self, total: float | None) -> output.PlainProgress:
        return output.PlainProgress(
            "prefill", total=total, unit="tokens", write=self.lines.append, clock=lambda: self.now_s
        )


def test_plain_progress_prints_a_line_every_few_seconds() -> None:
    log = Log()
    bar = log.start(total=4096)
    for _ in range(16):
        log.now_s += 1.0
        bar.advance(256)
    bar.close(completed=True)
    assert log.lines == [
        "prefill …",
        "prefill: 1280/4096 tokens",
        "prefill: 2560/4096 tokens",
        "prefill: 3840/4096 tokens",
        "prefill: done in 16.0 s",
    ]


def test_plain_progress_prints_each_stage_at_once_where_nothing_is_counted() -> None:
    log = Log()
    bar = output.PlainProgress("loading m", total=None, unit="", write=log.lines.append, clock=lambda: log.now_s)
    for stage in ("converting", "converting", "reading weights"):
        bar.note(stage)
    bar.close(completed=True)
    assert log.lines == [
        "loading m …",
        "loading m: converting",
        "loading m: reading weights",
        "loading m: done in 0.0 s",
    ]


def test_plain_progress_shows_the_latest_note_and_where_it_stopped() -> None:
    log = Log()
    bar = log.start(total=None)
    bar.note("slow")
    bar.note("fast")
    log.now_s = 6.0
    bar.advance(10)
    bar.close(completed=False)
    assert log.lines[1:] == ["prefill: 10 tokens, fast", "prefill: stopped after 6.0 s at 10 tokens"]


def test_progress_without_a_terminal_writes_to_stderr_only(capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> None:
        with output.progress("load", total=2) as bar:
            bar.advance()
            raise KeyError

    with pytest.raises(KeyError):
        load()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0] == "load …"
    assert "stopped" in captured.err.splitlines()[1]


def test_progress_on_a_terminal_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with output.progress("load", total=2, unit="layers") as bar:
        bar.advance()
        bar.note("half way")
    assert capsys.readouterr().out == ""


def test_a_bar_that_counts_nothing_shows_no_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with output.progress("loading m") as bar:
        bar.note("reading weights")
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "reading weights" in shown
    assert " 0 " not in shown


def test_complaints_on_a_terminal_follow_no_color(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    output.complain("went wrong", hint="fix it")
    assert "\x1b[3" not in capsys.readouterr().err  # no colour; bold is not one


def test_sizes_parse_and_print_as_people_write_them() -> None:
    assert output.byte_size("16MiB") == 16 << 20
    assert str(output.byte_size("16MiB")) == "16 MiB"
    assert output.byte_size(output.ByteSize(7)) == 7
    with pytest.raises(typer.BadParameter, match="binary"):
        output.byte_size("64M")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7700", ("127.0.0.1", 7700)),
        (":7700", ("127.0.0.1", 7700)),
        ("7700", ("127.0.0.1", 7700)),
        ("[::1]:0", ("::1", 0)),
        ("node-a:1", ("node-a", 1)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert output.host_port(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:port", "host:70000", "host:-1"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(UsageError):
        output.host_port(text)


def test_a_report_is_refused_where_none_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    output.check_report(page)
    output.write_report(page, "<p>ü</p>")
    output.check_report(page)
    assert page.read_text(encoding="utf-8") == "<p>ü</p>"
    assert capsys.readouterr() == ("", f"report: {page}\n")
    for place, words in ((tmp_path, "cannot write"), (tmp_path / "no" / "x.html", "no such folder")):
        with pytest.raises(UsageError, match=words):
            output.check_report(place)


def test_a_full_disk_under_a_report_is_the_hosts_fault() -> None:
    with pytest.raises(HostError, match="No space left"):
        output.write_report(Path("/dev/full"), "page")


def test_columns_are_those_of_the_terminal_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert output.terminal_columns() is None
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert output.terminal_columns() == 60


def test_ratios_are_a_line_each_and_the_median_has_the_digits_of_the_range(capsys: pytest.CaptureFixture[str]) -> None:
    print_ratios(
        {"all / first": Spread(1.99849, 1.9, 2.00049), "P99": None, "P99 / idle": Spread(1234.5, 0.01234, 1e5)}
    )
    assert capsys.readouterr().out.splitlines() == [
        "all / first: 2  (1.9 to 2 by round)",
        "P99 / idle: 1,234  (0.0123 to 100,000 by round)",
    ]
