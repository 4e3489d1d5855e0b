"""The planner's known answers, each worked out by hand from the figures in the comment beside it."""

from __future__ import annotations

import pytest

from dualpath.cost import bandwidth, kv, prefill_decode, window
from dualpath.plan.inputs import shape_of
from dualpath.plan.model import bare, bare_latent

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
GB, TB = 1e9, 1e12
LLAMA_7B = shape_of(bare(layers=32, kv_heads=32, head_dim=128, dtype="float16"), "float16", 256)


def mla(layers: int, width: int) -> kv.KVShape:
    """Return latent attention of `width` 16-bit elements a token and layer."""
    latent = width - 64
    return shape_of(bare_latent(layers=layers, latent_dim=latent, rope_dim=64, query_heads=128), "bfloat16", 256)


def test_32_layers_of_32_heads_of_128_in_fp16_take_512_kib_a_token() -> None:
    assert kv.bytes_per_token(LLAMA_7B) == 512 * KiB  # 32 x 2 x 32 x 128 x 2


def test_128_ki_tokens_of_it_take_64_gib() -> None:
    assert kv.held_bytes(LLAMA_7B, 131_072) == 64 * GiB


def test_64_decimal_gigabytes_in_10_s() -> None:
    rate = bandwidth.needed_bytes_per_s(64e9, 10)
    assert rate == pytest.approx(6.4 * GB)
    assert bandwidth.bits_per_s(rate) == pytest.approx(51.2e9)


def test_64_binary_gigabytes_in_10_s() -> None:
    rate = bandwidth.needed_bytes_per_s(64 * GiB, 10)
    assert rate / GB == pytest.approx(6.87, abs=0.005)
    assert bandwidth.bits_per_s(rate) / 1e9 == pytest.approx(55.0, abs=0.05)


def test_new_kv_at_20_tokens_a_second_is_10_mib_a_second() -> None:
    assert bandwidth.new_kv_bytes_per_s(kv.bytes_per_token(LLAMA_7B), 20) == 10 * MiB


def test_reading_all_kv_at_20_tokens_a_second_is_another_matter() -> None:
    read = kv.read_bytes(LLAMA_7B, 131_072)
    assert bandwidth.reread_bytes_per_s(read, 20) / TB == pytest.approx(1.37, abs=0.005)


def test_a_million_tokens_of_60_latent_layers_of_750_bytes_take_45_gb() -> None:
    shape = mla(60, 375)  # 375 x 2 bytes = 0.75 KB
    assert kv.held_bytes(shape, 10**6) == 45e9
    assert bandwidth.reread_bytes_per_s(kv.read_bytes(shape, 10**6), 50) == pytest.approx(2.25 * TB)


@pytest.mark.parametrize(("factor", "total"), [(3, 135e9), (5, 225e9)])
def test_uncompressed_it_is_three_to_five_times_that(factor: int, total: float) -> None:
    assert factor * kv.held_bytes(mla(60, 375), 10**6) == total


def test_deepseek_v3_takes_1_125_kib_a_layer() -> None:
    assert kv.bytes_per_token(mla(1, 576)) == 1.125 * KiB


def test_400_gbit_are_50_gb_and_800_are_100() -> None:
    assert bandwidth.bytes_per_s(400e9) == 50 * GB
    assert bandwidth.bytes_per_s(800e9) == 100 * GB


def test_ten_senders_of_100_gb_bring_45_gb_in_45_ms_over_twice_the_budget() -> None:
    joined = bandwidth.joined_bytes_per_s([100 * GB] * 10, float("inf"))
    assert joined == TB
    seconds = bandwidth.transfer_s(45 * GB, joined)
    assert seconds == pytest.approx(0.045)
    assert seconds / (1 / 50) == pytest.approx(2.25)


def test_reading_10_to_20_gb_a_step_is_at_best_just_inside_it() -> None:
    assert bandwidth.transfer_s(10 * GB, TB) == pytest.approx(0.010)
    assert bandwidth.transfer_s(20 * GB, TB) == pytest.approx(0.020)


def test_one_receiver_of_100_gb_needs_450_ms_however_many_send() -> None:
    joined = bandwidth.joined_bytes_per_s([100 * GB] * 10, 100 * GB)
    assert bandwidth.transfer_s(45 * GB, joined) == pytest.approx(0.450)


def test_x4_of_generation_3_tops_out_at_3_9_gb() -> None:
    assert bandwidth.pcie_bytes_per_s(3, 4) / GB == pytest.approx(3.94, abs=0.005)


def test_prefill_to_decode_ratio_of_the_paper() -> None:
    found = prefill_decode.ratio_bounds(gpus=8, storage_nics=1, memory_bytes_per_s=500e9, storage_bytes_per_s=50e9)
    assert found.lowest == pytest.approx(1 / 7)
    assert found.highest == pytest.approx(7 / 2)
    assert found.possible


def test_the_window_covers_a_period_and_a_round_trip_within_its_budget() -> None:
    period, rtt, drain, block = 0.010, 0.002, 1e9, 1e6  # 12 ms at 1 GB/s: 12 MB, 12 blocks
    wanted = {"compute_period_s": period, "rtt_s": rtt, "drain_bytes_per_s": drain, "layer_block_bytes": block}
    assert window.window_blocks(**wanted, budget_bytes=1e9) == 12
    assert window.window_blocks(**wanted, budget_bytes=5.5e6) == 5
    assert window.window_blocks(**wanted, budget_bytes=0) == 1
    assert window.window_blocks(**wanted | {"rtt_s": float("inf")}, budget_bytes=5.5e6) == 5
