"""`dualpath plan` on the command line: one JSON object, questions as usage errors, a page, no heavy import."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualpath import cli

Outcome = tuple[int, str, str]
MODEL = ("plan", "--model", "llama-3.1-8b")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def run_line(*words: str) -> Outcome:
        code = cli.main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_line


def test_a_model_is_enough(run: Callable[..., Outcome]) -> None:
    code, out, err = run(*MODEL, "--context", "128K")
    assert (code, err) == (0, "")
    assert out.startswith("Llama-3.1-8B: 131,072 tokens x 8 sequences")


def test_json_is_one_object_in_base_units(run: Callable[..., Outcome]) -> None:
    code, out, _ = run(*MODEL, "--sweep", "context=8K..32K", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["kv"]["bytes_per_token"] == 131_072
    assert found["kv"]["sequence_bytes"] == 16 << 30
    assert found["verdict"]["ruling"] in ("not needed", "worth it", "will not meet the target")
    assert [row["scheme"] for row in found["schemes"]] == ["all-local", "tiers", "fetch", "sharded", "reduce", "auto"]
    assert [point["value"] for point in found["sweep"]["points"]] == [8192, 16_384, 32_768]
    assert {row["origin"] for row in found["inputs"]} == {"given", "default", "nominal"} - {"given"}


@pytest.mark.parametrize(("words", "bytes_per_token"), [((), 131_072), (("same",), 131_072), (("int8",), 66_048)])
def test_quantised_kv_is_counted_with_its_scales(
    words: tuple[str, ...], bytes_per_token: int, run: Callable[..., Outcome]
) -> None:
    _, out, _ = run(*MODEL, *(f"--kv-dtype={word}" for word in words), "--json")
    assert (
        json.loads(out)["kv"]["bytes_per_token"] == bytes_per_token
    )  # 32 layers x 8 heads x K and V x 128 x (1 + 2/256)


def test_a_bare_shape(run: Callable[..., Outcome]) -> None:
    shape = "plan --layers 32 --kv-heads 32 --head-dim 128 --dtype float16 --context 131072 --concurrency 1 --json"
    code, out, _ = run(*shape.split())
    assert code == 0
    assert json.loads(out)["kv"]["total_bytes"] == 64 << 30


@pytest.mark.parametrize(
    "words",
    [
        "--layers 0 --kv-heads 3 --head-dim 64",
        "--layers 2 --kv-heads 3 --query-heads 8 --head-dim 64",
        "--model llama-3.1-8b --nic 400GB/s",
        "--model llama-3.1-8b --target 0",
        "--model llama-3.1-8b --context 1M",
        "--model llama-3.1-8b --hot 100GiB",
        "--model llama-3.1-8b --file nowhere.toml",
        "--model llama-3.1-8b --raw raw.json",
        "--model llama-3.1-8b --report /nowhere/at/all.html",
        "--model no-such-model",
        "--check nowhere.json --nic 1G --round-trip 1ms",
        "--check nowhere.json",
        "",
    ],
)
def test_nonsense_is_a_usage_error_with_a_hint(words: str, run: Callable[..., Outcome]) -> None:
    code, out, err = run("plan", *words.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "\nhint: " in err


def test_a_file_a_page_and_flags_before_the_file(tmp_path: Path, run: Callable[..., Outcome]) -> None:
    (tmp_path / "plan.toml").write_text(
        '[model]\nname = "llama-3.1-8b"\n[workload]\ncontext = "64K"\nconcurrency = 2\n'
    )
    page = tmp_path / "plan.html"
    code, out, err = run("plan", "--file", str(tmp_path / "plan.toml"), "--concurrency", "3", "--report", str(page))
    assert code == 0
    assert "65,536 tokens x 3 sequences" in out
    assert str(page) in err
    assert page.read_text().startswith("<!doctype html>")


def measured_run(fetch_ms: float) -> dict[str, Any]:
    row = {"attend_ms_per_token": 18.0, "tokens_per_s": 12.5}
    return {
        "schemes": [{"scheme": "fetch", "tpot_ms_p50": fetch_ms, **row}],
        "reference": {"scheme": "local", "tpot_ms_p50": 80.0, **row},
        "model": {"layers": 30},
        "prompt": {"tokens": 4096},
        "settings": {"nodes": 2, "pool": "10.0.0.2:7480,10.0.0.3:7480"},
        "expected": {
            "kv_bytes": 180_000_000,
            "fetch_wire_bytes_per_token": 170_000_000,
            "reduce_wire_bytes_per_token": 280_000,
        },
    }


@pytest.mark.parametrize(("fetch_ms", "code"), [(1400.0, 0), (1000.0, 1)])
def test_check_fails_beyond_a_fifth(tmp_path: Path, run: Callable[..., Outcome], fetch_ms: float, code: int) -> None:
    (tmp_path / "run.json").write_text(json.dumps(measured_run(fetch_ms)))
    line = ("plan", "--check", str(tmp_path / "run.json"), "--nic", "1G", "--round-trip", "200us")
    found, out, _ = run(*line)
    assert found == code
    assert "largest error" in out
    found, out, _ = run(*line, "--json")
    assert found == code
    assert json.loads(out)["ok"] is (code == 0)


def test_planning_imports_nothing_heavy() -> None:
    code = (
        "import sys; from dualpath.cli import main; main(['plan', '--model', 'llama-3.1-8b']);"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stderr.split()).isdisjoint({"torch", "transformers", "numpy", "rich"})


def test_the_guides_example_is_what_is_printed(run: Callable[..., Outcome]) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "plan.md").read_text()
    words, printed = guide.split("## An example\n\n`dualpath ", 1)[1].split("`:\n\n```\n", 1)
    _, out, _ = run(*words.split())
    assert out.startswith(printed.split("\n```", 1)[0])
