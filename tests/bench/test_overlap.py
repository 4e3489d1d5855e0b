"""`dualpath bench overlap`: its arithmetic, what it refuses, and a short run on emulated hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.bench.test_turns import contender
from tests.host.conftest import needs_namespaces

from dualpath.bench.emulated import lab_of, take_down_leftovers
from dualpath.bench.overlap import REMOTE, OverlapConfig, far_blocks, overlap_rows
from dualpath.cli import main
from dualpath.host.lab import lab
from dualpath.host.lab.build import labs

SHAPE = "shape:layers=2,query_heads=4,kv_heads=2,head_dim=16,hidden=64,vocab=128"
SMALL = ["--model", SHAPE, "--block-tokens", "16", "--samples", "2"]


def test_what_is_left_at_the_nodes_is_what_the_link_brings_in_a_token() -> None:
    assert far_blocks(0.1, 2e9, 1 << 20, 100) == 24
    assert far_blocks(0.1, 1e6, 1 << 20, 100) == 1
    assert far_blocks(10.0, 2e9, 1 << 20, 100) == 99


@pytest.mark.parametrize(("rate", "bound_ms", "ratio"), [(8e6, 200.0, 2.0), (32e6, 100.0, 0.5)])
def test_the_bound_is_the_larger_of_compute_and_link(rate: float, bound_ms: float, ratio: float) -> None:
    local, fetch, without = (contender(name, []) for name in ("local", "fetch", "fetch-prefetch"))
    local.measured.step_s += [0.1, 0.1, 0.9]
    fetch.measured.step_s += [0.25]
    without.measured.step_s += [0.3]
    found = overlap_rows(ratio, 200_000, rate, [local, fetch, without])
    assert found["bound_ms"] == pytest.approx(bound_ms)
    assert found["measured_ratio"] == pytest.approx(ratio)
    assert [row["prefetch"] for row in found["schemes"]] == [True, False]
    assert [row["over_bound"] for row in found["schemes"]] == pytest.approx([250 / bound_ms, 300 / bound_ms])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ratios": ()}, "ratios"),
        ({"ratios": (0.0,)}, "ratios"),
        ({"nodes": 0}, "a node"),
        ({"samples": 0}, "samples"),
        ({"block_tokens": 8}, "too small"),
        ({"context": 500}, "two blocks"),
        ({"threads": 9999}, "cannot use 9999 threads"),
        ({"deadline_s": 0.0}, "not a deadline"),
    ],
)
def test_misuse(changes: dict[str, Any], says: str) -> None:
    from dualpath.errors import UsageError

    with pytest.raises(UsageError, match=says):
        OverlapConfig(**changes).check()


def test_without_root_it_says_so_before_anything_slow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["bench", "overlap"]) == 1
    err = capsys.readouterr().err
    assert "needs root" in err
    assert "loading" not in err


def own_labs() -> list[str]:
    return [name for name in labs() if name.startswith(f"bench-{os.getpid()}")]


@pytest.mark.torch
def test_a_short_run(capsys: pytest.CaptureFixture[str]) -> None:
    needs_namespaces()
    before = os.stat("/proc/thread-self/ns/net").st_ino
    code = main(["bench", "overlap", *SMALL, "--context", "512", "--link", "100Mbit", "--ratio", "0.7,1.4", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [one["ratio"] for one in result["ratios"]] == [0.7, 1.4]
    assert 0 < result["far_bytes"] < result["kv_bytes"]
    for one in result["ratios"]:
        assert [row["scheme"] for row in one["schemes"]] == list(REMOTE)
        assert one["bound_ms"] == max(one["compute_ms"], one["transfer_ms"])
        for row in one["schemes"]:
            assert row["identical"]
            assert row["wire_bytes_per_token"] > 0
            assert row["samples"] == 2
    assert own_labs() == []
    assert os.stat("/proc/thread-self/ns/net").st_ino == before


@pytest.mark.torch
def test_an_interrupt_leaves_no_process_and_no_namespace() -> None:
    needs_namespaces()
    psutil = pytest.importorskip("psutil", reason="needs psutil")
    words = [
        sys.executable,
        "-m",
        "dualpath",
        "bench",
        "overlap",
        "--model",
        SHAPE,
        "--context",
        "512",
        "--block-tokens",
        "16",
    ]
    words += ["--samples", "1000000"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "bytes ÷ link" in line:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2
    process.send_signal(signal.SIGINT)
    err = process.stderr.read()
    assert process.wait(timeout=60) == 130
    process.stderr.close()
    assert "Traceback" not in err
    assert psutil.wait_procs(children, timeout=60)[1] == []
    assert f"bench-{process.pid}" not in labs()


def test_the_lab_of_a_bench_that_was_killed_is_taken_down_and_no_other(ended_process: Callable[[], int]) -> None:
    needs_namespaces()
    left = f"bench-{ended_process()}"
    from dualpath.host.lab.build import down, up

    up(lab_of(left, 1))
    try:
        with lab(lab_of(f"bench-{os.getpid()}", 1)):
            take_down_leftovers()
            assert left not in labs()
            assert own_labs()
    finally:
        down(left)


@pytest.fixture
def ended_process() -> Callable[[], int]:
    def pid() -> int:
        with subprocess.Popen(["true"]) as process:
            return process.pid

    return pid
