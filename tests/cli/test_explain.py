"""`dualpath explain` as a user starts it: a small model, real node processes."""

from __future__ import annotations

import json

import pytest

from dualpath import cli

SHAPE = "shape:layers=2,query_heads=4,kv_heads=2,head_dim=16,hidden=64,vocab=128"


@pytest.mark.torch
@pytest.mark.parametrize("kept", ["same", "int8"])
def test_partials_are_right_over_kv_as_it_is_kept(kept: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs the torch extra")
    code = cli.main(["explain", "--model", SHAPE, "--context", "200", "--hot", "16KiB", "--kv-dtype", kept, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, len(found["layers"])) == (0, 2)
    for layer in found["layers"]:
        assert layer["out_error"] < 1e-5  # against float64 over the same codes and scales
        assert sum(partial["tokens"] for partial in layer["partials"]) == 201
        assert len(layer["partials"]) == 3  # two nodes, and here


def test_a_dtype_that_does_not_exist_is_refused_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--model", "no-such-model", "--kv-dtype", "int4"]) == 2
    assert capsys.readouterr().err.startswith("error: KV cannot be kept as 'int4'")
