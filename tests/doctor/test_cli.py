"""`dualpath doctor` as it is typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dualpath import cli
from dualpath.cli import doctor_watch
from dualpath.doctor import collect as collecting
from dualpath.doctor.archive import read_archive, write_archive
from dualpath.doctor.recording import Output, Recording
from dualpath.doctor.watch import Rates

from .hosts import roce_host
from .test_archive import RAW

Outcome = tuple[int, str, str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def run_line(*words: str | Path) -> Outcome:
        code = cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_line


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """This machine is a RoCE host with MTU 1500; the list has the arguments of each collection."""
    calls: list[dict[str, object]] = []

    def collect(**options: object) -> Recording:
        calls.append(options)
        return roce_host("decode-1", mtu=1500)

    monkeypatch.setattr(collecting, "collect", collect)
    return calls


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    one, other = tmp_path / "decode-1.tar.gz", tmp_path / "pool-1.tar.gz"
    write_archive(roce_host("decode-1"), one)
    write_archive(roce_host("pool-1", mtu=1500, gids=((3, "::ffff:10.0.0.2", "v2", "eth2"),)), other)
    return one, other


def test_this_machine_is_examined(run: Callable[..., Outcome], live: list[dict[str, object]]) -> None:
    code, out, err = run("doctor")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0].startswith("warning   ")
    assert any("MTU 1500" in line and "→ ip link set dev eth2 mtu 9000" in line for line in lines)
    assert lines[-2].startswith("decode-1: ")
    assert lines[-1].startswith("not root: ")
    assert live == [{"peer": "", "seconds": 1.0}]


def test_a_healthy_machine_is_0(run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "collect", lambda **_options: Recording("plain", root=True))
    code, out, _ = run("doctor")
    assert code == 0
    assert out.splitlines()[-1].startswith("plain: ")
    assert "not root" not in out


def test_json_is_one_object(run: Callable[..., Outcome], live: list[dict[str, object]]) -> None:
    code, out, err = run("doctor", "--json", "--seconds", "0", "--peer", "10.0.0.2")
    found = json.loads(out)
    assert (code, err, found["hosts"], found["ok"]) == (1, "", ["decode-1"], False)
    assert found["without_root"] == ["decode-1"]
    assert set(found["findings"][0]) == {
        "level",
        "symptom",
        "cause",
        "fix",
        "evidence",
        "subject",
        "check",
        "host",
    }
    assert live == [{"peer": "10.0.0.2", "seconds": 0.0}]


def test_collected_hosts_are_checked_in_pairs(run: Callable[..., Outcome], two: tuple[Path, Path]) -> None:
    code, out, _ = run("doctor", "check", *two)
    assert code == 1
    assert out.startswith("critical  pair-mtu")
    assert "decode-1, pool-1: MTU differs" in out
    assert "2 hosts: 1 critical" in out


def test_verbose_shows_the_evidence(run: Callable[..., Outcome], two: tuple[Path, Path]) -> None:
    _, out, _ = run("doctor", "check", "-v", *two)
    assert "          cause: RDMA connects, then the larger packets are dropped" in out
    assert "          pool-1 /sys/class/net/eth2/mtu: 1500" in out


def test_collect_writes_what_check_reads(
    run: Callable[..., Outcome], live: list[dict[str, object]], tmp_path: Path
) -> None:
    path = tmp_path / "host.tar.gz"
    code, out, err = run("doctor", "collect", "-o", path)
    assert (code, out) == (0, "")
    assert f"{path}: " in err
    assert read_archive(path) == roce_host("decode-1", mtu=1500)
    assert live == [{"peer": "", "seconds": 1.0, "patience_s": 10.0}]


def test_redacted_hosts_have_other_names_and_one_salt_gives_the_same(
    run: Callable[..., Outcome], live: list[dict[str, object]], tmp_path: Path
) -> None:
    a, b, c = (tmp_path / f"{name}.tar.gz" for name in "abc")
    assert run("doctor", "collect", "-o", a, "--redact", "--salt", "x")[0] == 0
    assert run("doctor", "collect", "-o", b, "--redact", "--salt", "x")[0] == 0
    assert run("doctor", "collect", "-o", c, "--redact")[0] == 0
    assert read_archive(a) == read_archive(b) != read_archive(c)
    assert "decode-1" not in repr(read_archive(a))
    assert len(live) == 3


def test_measurements_go_to_the_host_that_they_were_made_on(
    run: Callable[..., Outcome], two: tuple[Path, Path], tmp_path: Path
) -> None:
    raw = tmp_path / "raw.json"
    row = msgspec.structs.replace(RAW.rows[0], bits_per_s=1e9, nominal_bits_per_s=1e11)
    raw.write_bytes(msgspec.json.encode(msgspec.structs.replace(RAW, local_host="pool-1", rows=(row,))))
    _, out, _ = run("doctor", "check", *two, "--raw", raw, "--json")
    (found,) = [one for one in json.loads(out)["findings"] if one["check"] == "peak-bandwidth"]
    assert found["host"] == "pool-1"


def test_latency_gives_advice(run: Callable[..., Outcome], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    row = {"scheme": "fetch", "tpot_ms_p50": 50, "tpot_ms_p99": 90, "tokens_per_s": 20, "stall_ms_per_token": 20}
    path.write_text(json.dumps({"schemes": [row], "settings": {"window_bytes": 1 << 20, "pool": "a:1"}}))
    code, out, _ = run("doctor", "latency", path, "--budget-ms", "80", "-v")
    assert code == 1
    assert "fetch: decode P99 90 ms, over 80 ms" in out
    assert "cause: the prefetch window is too small" in out
    assert run("doctor", "latency", path, "--budget-ms", "100")[0] == 0


def test_the_checks_are_listed(run: Callable[..., Outcome]) -> None:
    code, out, _ = run("doctor", "list", "--json")
    assert code == 0
    kinds = {row["check"]: row["of"] for row in json.loads(out)["checks"]}
    assert kinds["pair-gid"] == "pair"
    assert "pair-gid" in run("doctor", "list")[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["doctor", "check"], "Missing argument"),
        (["doctor", "check", "none.tar.gz"], "cannot read none.tar.gz"),
        (["doctor", "collect"], "Missing option"),
        (["doctor", "collect", "-o", "x.tar.gz", "--salt", "x"], "--salt without --redact"),
        (["doctor", "latency", "none.json"], "cannot read none.json"),
        (["doctor", "--raw", "none.json"], "cannot read none.json"),
        (["doctor", "--json", "list"], "--json stands before list"),
        (["doctor", "cure"], "No such command 'cure'"),
        (["doctor", "--peer", "-f"], "not an address"),
    ],
)
def test_usage_errors_are_one_line_and_a_hint(words: list[str], says: str, run: Callable[..., Outcome]) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert len(lines) == 2, err
    assert says in lines[0]
    assert lines[1].startswith("hint: ")


def test_files_that_hold_something_else_are_named(run: Callable[..., Outcome], tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[1]")
    for words in (["doctor", "latency", path], ["doctor", "--raw", path], ["doctor", "check", path]):
        code, _, err = run(*words)
        assert code == 2
        assert str(path) in err
    path.write_text("{}")
    assert "has no schemes" in run("doctor", "latency", path)[2]


@pytest.mark.parametrize("name", ["collect", "check", "latency", "list"])
def test_every_command_has_help_with_an_example(name: str, run: Callable[..., Outcome]) -> None:
    code, out, _ = run("doctor", name, "--help")
    assert code == 0
    assert f"      dualpath doctor {name}" in out.partition("Examples:")[2]


RATES = Rates("eth2", 4e9, 1e9, 0.04, True, 10.0, 0.0, 1.0, 0.0, 0.0)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A machine with one NIC; the list has how long was slept."""
    slept: list[float] = []
    sample = type("Sample", (), {"counters": {"eth2": {}}})()
    monkeypatch.setattr(doctor_watch, "sample", lambda _tree, _run: sample)
    monkeypatch.setattr(doctor_watch, "rates", lambda _before, _after: [RATES])
    monkeypatch.setattr(doctor_watch.time, "sleep", slept.append)
    return slept


def test_watching_prints_a_table_each_round(run: Callable[..., Outcome], watched: list[float]) -> None:
    code, out, _ = run("doctor", "--watch", "--count", "2", "--seconds", "5")
    assert (code, watched) == (0, [5.0, 5.0])
    assert out.count("eth2") == 2
    assert "4.0% idle" in out


def test_watching_as_json_is_a_line_each_round(run: Callable[..., Outcome], watched: list[float]) -> None:
    code, out, _ = run("doctor", "--watch", "--count", "3", "--json")
    assert (code, len(watched)) == (0, 3)
    assert [json.loads(line)["nics"][0]["nic"] for line in out.splitlines()] == ["eth2"] * 3


def test_ctrl_c_ends_watching_well(
    run: Callable[..., Outcome], watched: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor_watch.time, "sleep", interrupt)
    assert run("doctor", "--watch") == (0, "", "")


def test_a_machine_without_nics_has_nothing_to_watch(
    run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_watch, "sample", lambda _tree, _run: type("Sample", (), {"counters": {}})())
    code, out, err = run("doctor", "--watch")
    assert (code, out) == (0, "")
    assert "nothing to watch" in err


def test_this_very_machine_in_one_go(run: Callable[..., Outcome], tmp_path: Path) -> None:
    """Nothing faked: collect, write, read, judge."""
    path = tmp_path / "here.tar.gz"
    assert run("doctor", "collect", "-o", path, "--seconds", "0", "--redact")[0] == 0
    code, out, err = run("doctor", "check", path, "--json")
    assert code in (0, 1)
    assert err == ""
    assert not [one for one in json.loads(out)["findings"] if " failed: " in one["symptom"]]
    assert isinstance(read_archive(path).commands.get("ip -d -j link", Output("")), Output)
