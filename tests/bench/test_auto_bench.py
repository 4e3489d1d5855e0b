"""`dualpath bench auto`: its combinations, its line, and a short run on emulated hosts."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tests.bench.test_turns import contender
from tests.host.conftest import needs_namespaces

from dualpath.bench.auto import AutoConfig, Combination, auto_row
from dualpath.cli import main
from dualpath.errors import UsageError

SHAPE = "shape:layers=2,query_heads=4,kv_heads=2,head_dim=16,hidden=64,vocab=128"
LAYOUT: Any = SimpleNamespace(block_tokens=16, block_bytes=1_000_000)


def test_at_least_twelve_combinations_which_vary_in_all_four() -> None:
    chosen = AutoConfig().chosen()
    assert len(chosen) == len(set(chosen)) >= 12
    for field in ("link_bits_per_s", "nodes", "context", "hot_share"):
        assert len({getattr(one, field) for one in chosen}) > 1
    assert [one.nodes for one in chosen] == sorted(one.nodes for one in chosen)
    assert AutoConfig(combinations=5).chosen() == chosen[:5]


def test_what_is_far_and_what_its_bytes_take() -> None:
    two = Combination(8_000_000, 2, 160, 0.7)
    assert two.far_blocks(LAYOUT) == 3
    assert two.transfer_s("fetch", LAYOUT) == 3.0
    assert two.transfer_s("sharded", LAYOUT) == 1.5
    assert Combination(8_000_000, 1, 160, 0.99).far_blocks(LAYOUT) == 1
    assert Combination(8_000_000, 1, 160, 0.0).fetching() == ("fetch",)


def test_auto_is_held_against_the_best_fixed_scheme() -> None:
    measured = {"reduce": 0.2, "auto": 0.11, "fetch": 0.1}
    some = [contender(name, []) for name in measured]
    for one in some:
        one.measured.step_s += [measured[one.name]] * 3
    row = auto_row(Combination(8_000_000, 1, 160, 0.7), LAYOUT, some, {"form": "fetch"})
    assert row["best"] == "fetch"
    assert row["auto_over_best"] == pytest.approx(1.1)
    assert row["at_least_ms"] == {"fetch": 3000.0}
    assert row["identical"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nodes": ()}, "no combination"),
        ({"nodes": (0,)}, "0 nodes"),
        ({"hot_shares": (1.0,)}, "hot share 1"),
        ({"contexts": (64,)}, "two blocks"),
        ({"window_bytes": 0}, "window"),
    ],
)
def test_misuse(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        AutoConfig(**changes).check()


def test_what_is_no_number_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "auto", "--nodes", "one"]) == 2
    assert main(["bench", "auto", "--nodes", "1.5"]) == 2
    assert main(["bench", "auto", "--context", "inf"]) == 2
    assert main(["bench", "overlap", "--ratio", "nan"]) == 2
    assert "--nodes" in capsys.readouterr().err


@pytest.mark.torch
def test_a_short_run(capsys: pytest.CaptureFixture[str]) -> None:
    needs_namespaces()
    words = ["--model", SHAPE, "--block-tokens", "16", "--samples", "2", "--context", "256", "--hot", "0.5"]
    code = main(["bench", "auto", *words, "--link", "1Mbit,1Gbit", "--nodes", "2", "--combinations", "2", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert code == 0
    slow, quick = result["combinations"]
    assert set(slow["schemes"]) == {"reduce", "auto"}  # the link alone rules out fetching
    assert {"reduce", "auto"} <= set(quick["schemes"])
    assert set(quick["at_least_ms"]) == {"fetch", "sharded"}
    ratios = [row["auto_over_best"] for row in result["combinations"]]
    assert result["worst_auto_over_best"] == max(ratios)
    assert all(row["identical"] for row in result["combinations"])
