"""Many sequences at once: every variant gives the same tokens, and rows are what was measured."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
from collections.abc import Iterator

import pytest

from dualpath.bench import foreign, load
from dualpath.bench.control import Control
from dualpath.bench.foreign import bursts, send_bursts
from dualpath.bench.load import VARIANTS, LoadConfig
from dualpath.bench.load_room import check_room
from dualpath.bench.load_rows import Served, add_quiet, load_row
from dualpath.cli import main
from dualpath.errors import CapacityError, UsageError
from dualpath.kv import KVLayout


def served(**changes: object) -> Served:
    values: dict[str, object] = {
        "ttft_s": 0.5, "step_s": [0.1] * 99 + [1.0], "wall_s": 10.0, "cpu_s": 5.0, "wire_bytes": 1010, "stall_s": 1.0,
        "wasted_bytes": 3, "peak_local_kv_bytes": 7, "control_s": [0.001, 0.003], "control_failed": 1,
        "tokens": [[1, 2]], "rail_bytes": [5, 6],
    }  # fmt: skip
    return Served(**{**values, **changes})  # type: ignore[arg-type]  # any field


def test_a_row_is_over_all_rounds() -> None:
    row = load_row("dual", [served(), served(peak_local_kv_bytes=9)], [served(), served()], concurrency=4)
    assert row["requests_per_s"] == pytest.approx(8 / 20)
    assert row["tokens_per_s"] == pytest.approx(4 * 200 / (2 * 10.9))
    assert row["tpot_ms_mean"] == pytest.approx(109)
    assert row["tpot_ms_p50"] == pytest.approx(100)
    assert row["tpot_ms_p99"] > 100
    assert row["tpot_samples"] == 800
    assert row["cpu_s_per_request"] == pytest.approx(10 / 8)
    assert row["stall_ms_per_step"] == pytest.approx(10)
    assert row["wire_bytes_per_step"] == pytest.approx(2020 / 200)
    assert (row["wasted_bytes"], row["peak_local_kv_bytes"], row["control_failed"]) == (6, 9, 2)
    assert row["rail_bytes"] == [10, 12]
    assert row["control_ms_p50"] == pytest.approx(2)
    assert row["identical"]


def test_other_tokens_are_noticed() -> None:
    assert not load_row("x", [served(tokens=[[1, 3]])], [served()], concurrency=1)["identical"]


def test_no_control_messages() -> None:
    assert load_row("x", [served(control_s=[])], [served()], concurrency=1)["control_ms_p99"] is None


@pytest.mark.parametrize(
    "changes",
    [
        {"variants": ("nonsense",)},
        {"concurrency": 0},
        {"rounds": 0},
        {"new_tokens": 1},
        {"control_per_s": 1e9},
        {"prefill_every_s": -1.0},
        {"prefill_tokens": 0},
        {"prefill_share": 0.0},
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        LoadConfig(**changes).check()  # type: ignore[arg-type]  # any field


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--concurrency 2 --scheme reduce", "--scheme does not go with --concurrency"),
        ("--concurrency 2 --trace-prefetch t.jsonl", "--trace-prefetch does not go with --concurrency"),
        ("--concurrency 2 --rails 1", "--rails does not go with --concurrency"),
        ("--variant dual", "--variant goes with --concurrency"),
        ("--prefill-every 2", "--prefill-every goes with --concurrency"),
        ("--cold", "--cold goes with --concurrency"),
        ("--concurrency 2 --variant nonsense", "unknown variant 'nonsense'"),
    ],
)
def test_options_without_effect_are_refused(words: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words.split()]) == 2
    assert problem in capsys.readouterr().err


def test_bursts_are_those_of_the_seed() -> None:
    one, same, other = (bursts(seed, gap_s=0.2, length_s=0.03) for seed in (1, 1, 2))
    drawn = [one() for _ in range(2000)]
    assert drawn == [same() for _ in range(2000)]
    assert drawn != [other() for _ in range(2000)]
    assert sum(burst.gap_s for burst in drawn) / 2000 == pytest.approx(0.2, rel=0.1)
    assert sum(burst.length_s for burst in drawn) / 2000 == pytest.approx(0.03, rel=0.1)


class CountingClock:
    """Time passes by asking for it, a millisecond each time, and by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_bursts_go_out_with_nobody_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "time", CountingClock())
    assert send_bursts("127.0.0.1", seed=1, gap_s=0.001, length_s=0.01, seconds=0.05) > 0
    with pytest.raises(UsageError):
        send_bursts("127.0.0.1", seed=1, gap_s=0.0, length_s=0.01, seconds=0.05)
    with pytest.raises((UsageError, socket.gaierror)):
        send_bursts("fe80::1", seed=1, gap_s=0.1, length_s=0.01, seconds=0.05)


def test_too_little_memory_is_said_before_anything_is_filled() -> None:
    layout = KVLayout.from_config(
        {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1},
        dtype="float32", block_tokens=16,
    )  # fmt: skip
    config = LoadConfig(context=1 << 20, concurrency=4)  # 512 bytes a token
    with pytest.raises(CapacityError, match="at nodes on this machine"):
        check_room(config, layout, 2 << 30)
    check_room(config, layout, 3 << 30)
    check_room(dataclasses.replace(config, pool="10.0.0.2:7700"), layout, 1 << 30)
    with pytest.raises(CapacityError):
        check_room(dataclasses.replace(config, pool="10.0.0.2:7700", hot_bytes=2 << 30), layout, 1 << 30)


def test_a_hot_region_without_room_for_every_open_block() -> None:
    layout = KVLayout.from_config(
        {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1},
        dtype="float32", block_tokens=16,
    )  # fmt: skip
    check_room(LoadConfig(hot_bytes=3 * layout.block_bytes, concurrency=3), layout, 1 << 30)
    with pytest.raises(CapacityError, match="3 sequences take 24 KiB") as caught:
        check_room(LoadConfig(hot_bytes=3 * layout.block_bytes - 1, concurrency=3), layout, 1 << 30)
    assert "--hot 48KiB" in caught.value.hint


@pytest.mark.torch
def test_a_load_that_does_not_fit_starts_no_node(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualpath.bench.machine.available_bytes", lambda: 1 << 20)
    assert main(["run", "--model", "shape:layers=1", "--concurrency", "2", "--context", "4096"]) == 2
    assert "of free memory" in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.parametrize("extra", [(), ("--cold",), ("--kv-dtype", "int8")])
def test_every_variant_serves_the_same_tokens(capsys: pytest.CaptureFixture[str], extra: tuple[str, ...]) -> None:
    shape = "shape:layers=2,query_heads=4,kv_heads=2,head_dim=16,vocab=64"
    words = ["--model", shape, "--context", "200", "--new-tokens", "5", "--hot", "64KiB", "--block-tokens", "16"]
    words += ["--concurrency", "3", "--rounds", "1", "--nodes", "2", "--control-rate", "50", *extra, "--json"]
    assert main(["run", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["variant"]: row for row in found["variants"]}
    assert list(rows) == list(VARIANTS)
    assert all(row["identical"] for row in rows.values())
    assert all(row["control_failed"] == 0 for row in rows.values())
    assert rows["dual-prefetch"]["wasted_bytes"] == 0
    assert rows["dual+reduce"]["wire_bytes_per_step"] < rows["dual"]["wire_bytes_per_step"] or extra
    assert found["settings"]["context"] == 192


@pytest.mark.torch
def test_control_messages_that_are_under_way_at_the_end_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def late(*_: object, **__: object) -> Iterator[Control]:
        control = Control([0.001], 1)
        yield control
        control.seconds.append(7.0)
        control.failed += 1

    monkeypatch.setattr(load, "control_messages", late)
    shape = "shape:layers=2,query_heads=4,kv_heads=2,head_dim=16,vocab=64"
    words = ["--model", shape, "--context", "64", "--new-tokens", "2", "--hot", "64KiB", "--block-tokens", "16"]
    assert main(["run", *words, "--concurrency", "1", "--rounds", "1", "--variant", "dual", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["variants"]
    assert (row["control_ms_p50"], row["control_failed"]) == (pytest.approx(3500.5), 2)


def test_a_row_beside_prompts_is_held_against_the_quiet_one() -> None:
    quiet = load_row("dual", [served()], [served()], concurrency=1)
    slower = served(step_s=[0.12] * 99 + [1.3], prefill_tokens=250, prefill_s=(3.0,))
    beside = load_row("dual+prefill", [slower], [served()], concurrency=1)
    add_quiet([quiet, beside])
    assert "over_quiet" not in quiet
    assert beside["over_quiet"]["tpot_ms_p50"] == pytest.approx(1.2)
    assert beside["over_quiet"]["tpot_ms_mean"] == pytest.approx((99 * 0.12 + 1.3) / 10.9)
    assert (beside["prefills"], quiet["prefills"]) == (1, 0)
    assert beside["prefill_tokens_per_s"] == pytest.approx(250 / (99 * 0.12 + 1.3))


def test_each_variant_has_a_quiet_turn_and_one_beside_prompts() -> None:
    config = LoadConfig(variants=("dual", "dual+reduce"), prefill_every_s=2.0, prefill_tokens=100)
    assert [(row, name) for row, name, _ in config.turns] == [
        ("dual", "dual"),
        ("dual+prefill", "dual"),
        ("dual+reduce", "dual+reduce"),
        ("dual+reduce+prefill", "dual+reduce"),
    ]
    assert [bursts is None for _, _, bursts in config.turns] == [True, False, True, False]
    assert all(bursts is None for _, _, bursts in LoadConfig().turns)


@pytest.mark.torch
def test_prompts_arrive_while_sequences_decode(capsys: pytest.CaptureFixture[str]) -> None:
    shape = "shape:layers=2,query_heads=4,kv_heads=2,head_dim=16,vocab=64"
    words = ["--model", shape, "--context", "200", "--new-tokens", "24", "--hot", "64KiB", "--block-tokens", "16"]
    words += ["--concurrency", "2", "--rounds", "1", "--variant", "dual,dual+reduce", "--prefill-every", "0.001"]
    assert main(["run", *words, "--prefill-tokens", "10", "--json"]) == 0
    rows = {row["variant"]: row for row in json.loads(capsys.readouterr().out)["variants"]}
    assert list(rows) == ["dual", "dual+prefill", "dual+reduce", "dual+reduce+prefill"]
    for name, row in rows.items():
        assert row["identical"]
        assert ("over_quiet" in row) == (row["prefills"] > 0) == name.endswith("+prefill")
