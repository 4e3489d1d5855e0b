"""`dualpath run` and `dualpath generate` as a user starts them: small models, real node processes."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dualpath.bench.settings import ExperimentConfig
from dualpath.cli import main

SHAPE = "shape:layers=2,query_heads=4,kv_heads=2,head_dim=16,hidden=64,vocab=128"
FIELDS = (
    "scheme", "identical", "max_logit_error", "ttft_s", "tpot_ms_p50", "tpot_ms_p99", "tokens_per_s", "cpu_percent",
    "wire_bytes_per_token", "stall_ms_per_token", "wasted_bytes", "peak_local_kv_bytes",
)  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One run of all schemes, and its report."""
    pytest.importorskip("torch", reason="needs the torch extra")
    page = tmp_path_factory.mktemp("report") / "out.html"
    out, standard = io.StringIO(), sys.stdout
    sys.stdout = out
    try:
        code = main(
            ["run", "--model", SHAPE, "--context", "400", "--new-tokens", "6", "--hot", "32KiB", "--window", "64KiB",
             "--json", "--report", str(page)]
        )  # fmt: skip
    finally:
        sys.stdout = standard
    return SimpleNamespace(code=code, result=json.loads(out.getvalue()), page=page.read_text())


@pytest.mark.torch
def test_every_scheme_gives_the_same_output(outcome: Any) -> None:
    assert outcome.code == 0
    assert [row["scheme"] for row in outcome.result["schemes"]] == list(ExperimentConfig().rows())
    for row in outcome.result["schemes"]:
        assert set(FIELDS) <= set(row)
        assert row["identical"], row["scheme"]
        assert row["max_logit_error"] < 1e-3
        assert len(row["tpot_ms"]) == 5


@pytest.mark.torch
def test_what_is_local_and_what_is_on_the_wire(outcome: Any) -> None:
    rows = {row["scheme"]: row for row in outcome.result["schemes"]}
    kv = 400 * outcome.result["expected"]["kv_bytes_per_token"]
    assert rows["hf"]["wire_bytes_per_token"] == rows["local"]["wire_bytes_per_token"] == 0
    for scheme in ("baseline", "fetch", "sharded", "reduce"):
        assert 0 < rows[scheme]["peak_local_kv_bytes"] <= (32 + 64) << 10
        assert rows[scheme]["wire_bytes_per_token"] > 0
    assert rows["fetch"]["wire_bytes_per_token"] > kv * 0.8
    assert rows["reduce"]["wire_bytes_per_token"] < kv * 0.1


@pytest.mark.torch
def test_quantised_kv_halves_the_bytes_and_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """In bf16, so that the ratio is that of the wire: what does not shrink is a header of each layer block."""
    wire, size = {}, ["--context", "2048", "--block-tokens", "256", "--new-tokens", "4", "--hot", "64KiB"]
    for kept in ("same", "int8"):
        words = ["--fill", "random", "--scheme", "baseline", "--dtype", "bfloat16", "--kv-dtype", kept, *size]
        code, out, _ = run(capsys, "run", "--model", SHAPE, *words, "--json")
        result = json.loads(out)
        assert code == 0
        assert result["settings"]["kv_dtype"] == kept
        assert result["schemes"][0]["identical"]  # the reference, local, keeps its KV in the same way
        wire[kept] = (result["expected"]["kv_bytes_per_token"], result["schemes"][0]["wire_bytes_per_token"])
    assert 0.5 < wire["int8"][0] / wire["same"][0] < 0.51
    assert wire["int8"][1] / wire["same"][1] < 0.53


@pytest.mark.torch
def test_the_report_is_written(outcome: Any) -> None:
    assert outcome.page.startswith("<!doctype html>")
    assert all(scheme in outcome.page for scheme in ExperimentConfig().rows())


@pytest.mark.torch
def test_the_table_names_units_and_explains_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "run", "--model", SHAPE, "--context", "64", "--new-tokens", "3", "--scheme", "hf,local"
    )  # fmt: skip
    assert code == 0
    assert "TPOT P50 ms" in out
    assert "Same tokens as hf in every scheme" in out
    assert "time per output token, median" in out
    assert "hf: prefill" in err
    assert "blocks of 256 tokens" in out


@pytest.mark.torch
def test_random_kv_is_compared_with_local(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "run", "--model", SHAPE, "--fill", "random", "--context", "3000", "--samples", "6", "--interleave", "2",
        "--hot", "64KiB", "--window", "64KiB", "--scheme", "fetch,reduce", "--json",
    )  # fmt: skip
    result = json.loads(out)
    assert code == 0
    assert result["reference"]["scheme"] == "local"
    assert [row["scheme"] for row in result["schemes"]] == ["fetch", "reduce"]
    for row in result["schemes"]:
        assert row["fill"] == "random"
        assert row["ttft_s"] is None
        assert row["identical"]
        assert len(row["tpot_ms"]) == 6


@pytest.mark.torch
def test_auto_explains_its_choice(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--model", SHAPE, "--context", "400", "--new-tokens", "8", "--hot", "32KiB", "--window", "64KiB"]
    code, out, _ = run(capsys, *words, "--scheme", "auto", "--explain")
    assert code == 0
    said = next(line for line in out.splitlines() if line.startswith("auto: "))
    for words_ in ("NIC ", "bit/s, near-data ", "B/s, local ", "reducing all ", "fetching all "):
        assert words_ in said
    code, out, _ = run(capsys, *words, "--scheme", "auto", "--json")
    row = json.loads(out)["schemes"][0]
    assert row["identical"]
    assert row["choice"]["sentence"].count("near-data") == 2
    assert {"form", "nodes", "local_bytes_per_s", "bottleneck", "probes"} <= set(row["choice"])


@pytest.mark.torch
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--model", "nope"], 2, "no model 'nope'"),
        (["--scheme", "magic"], 2, "unknown scheme 'magic'"),
        (["--explain"], 2, "no choice to explain"),
        (["--model", "shape:context=100", "--context", "90"], 2, "context 90 + 64 new tokens"),
        (["--model", "shape:", "--context", "9", "--pool", "127.0.0.1:1"], 1, "127.0.0.1:1"),
        (["--report", "/no/such/folder/x.html"], 2, "no such folder"),
        (["--report", "/proc"], 2, "cannot write to /proc"),
        (["--hot", "64M"], 2, "64M"),
        (["--hot", "0"], 2, "must be at least 1"),
        (["--nodes", "1000"], 2, "--nodes"),
        (["--deadline", "inf"], 2, "--deadline"),
        (["--pool", "nonsense"], 2, "not a pool node: 'nonsense'"),
        (["--pool", "127.0.0.1:1,127.0.0.1:1"], 2, "named twice"),
        (["--model", "shape:hidden=1000000000"], 2, "cannot make"),
        (["--model", "shape:", "--prompt-file", __file__], 2, "no tokenizer"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, says: str
) -> None:
    found, out, err = run(capsys, "run", *words)
    assert found == code
    assert out == ""
    errors = [line for line in err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert says in errors[0]
    assert "hint:" in err
    assert "Traceback" not in err


@pytest.mark.torch
def test_an_interrupt_leaves_nothing_running() -> None:
    psutil = pytest.importorskip("psutil", reason="needs psutil")
    words = [sys.executable, "-m", "dualpath", "run", "--model", SHAPE, "--fill", "random", "--context", "20000"]
    words += ["--samples", "100000", "--scheme", "reduce"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert process.stderr is not None
    for line in process.stderr:
        if "decode" in line:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.send_signal(signal.SIGINT)
    err = process.stderr.read()
    assert process.wait(timeout=60) == 130
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(children, timeout=60)
    process.stderr.close()
    assert alive == []


# --- generate ----------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_generate_streams_text_and_reports_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "generate", "--chat", "--prompt", "What is the capital of France?")
    assert code == 0
    assert out == "The capital of France is Paris.\n"
    assert "local: 37 tokens read" in err


@pytest.mark.model
def test_generate_with_a_pool_says_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from dualpath.bench.nodes import open_nodes

    file = tmp_path / "prompt.txt"
    file.write_text("One, two, three, four. " * 40)
    words = ["generate", "--prompt-file", str(file), "--new-tokens", "4", "--hot", "12MiB", "--json"]
    _, alone, _ = run(capsys, *words)
    with open_nodes(ExperimentConfig(), 1 << 30) as nodes:
        code, remote, _ = run(capsys, *words, "--pool", nodes.spec)
    assert code == 0
    first, second = json.loads(alone), json.loads(remote)
    assert second["scheme"] == "reduce"
    assert second["tokens"] == first["tokens"]
    assert second["text"] == first["text"]
    assert second["sent_bytes"] > 0
    assert first["sent_bytes"] == 0


@pytest.mark.torch
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give one prompt"),
        (["--prompt", "a", "--prompt-file", "b"], "give one prompt"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "a", "--scheme", "reduce"], "needs a pool"),
        (["--prompt", "a", "--scheme", "magic"], "unknown scheme"),
        (["--prompt", "a", "--explain"], "no choice to explain"),
        (["--prompt", "a", "--scheme", "mapped", "--pool", "127.0.0.1:1"], "on this host"),
        (["--prompt", "a", "--pool", "127.0.0.1"], "not a pool node"),
        (["--prompt", "a", "--model", "shape:"], "no tokenizer"),
    ],
)
def test_generate_refuses_what_cannot_work(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    code, out, err = run(capsys, "generate", *words)
    assert code == 2
    assert out == ""
    assert says in err
    assert "hint: " in err


def test_generate_reads_a_prompt_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    from dualpath.cli.generate import read_prompt

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("héllo".encode())))
    assert read_prompt(None, "-") == "héllo"
