"""The bench runs and states what it promises. Its figures are nobody's test."""

from __future__ import annotations

import importlib.util

import pytest

from dualpath.bench.attention import run_attention_bench
from dualpath.errors import UsageError


@pytest.fixture(autouse=True)
def _without_torch(monkeypatch):
    """PyTorch's rows take seconds to import; what they compute is PyTorch's business."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "torch" else find(name, *a))


def test_rows():
    said: list[str] = []
    result = run_attention_bench(tokens=512, dtypes=("bf16",), threads=2, repeat=2, prefill=False, progress=said.append)
    assert {row["kernel"] for row in result["rows"]} >= {"python"}
    for row in result["rows"]:
        assert row["dtype"] == "bfloat16"
        assert row["context"] == 512
        assert row["gbps"] > 0
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    assert said == ["decode, bfloat16, 512 tokens"]
    assert "cpu" in result["machine"]


def test_quantised_rows_compare_with_bf16():
    result = run_attention_bench(tokens=512, dtypes=("int8", "fp8"), threads=1, repeat=2, prefill=False)
    assert {row["dtype"] for row in result["rows"]} == {"int8", "float8_e4m3"}
    for row in result["rows"]:
        assert ("over_bf16" in row) == (row["kernel"] == "native")


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(UsageError, match="multiple"):
        run_attention_bench(tokens=1000)
    with pytest.raises(UsageError, match="int3"):
        run_attention_bench(dtypes=("int3",))
