"""The cost model against figures worked out by hand."""

from __future__ import annotations

import pytest

from dualpath.cost import (
    block_tokens_that_fit,
    expected_fetch_tpot_s,
    fetch_bytes_per_token,
    kv_bytes,
    reduce_bytes_per_token,
)
from dualpath.kv import KVLayout

MiB = 1 << 20
LLAMA_7B = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3,
}  # fmt: skip
SLIDING = {
    "model_type": "mistral", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "sliding_window": 100,
}  # fmt: skip


def layout(config: dict[str, object], dtype: str = "float16", block_tokens: int = 256) -> KVLayout:
    return KVLayout.from_config(config, dtype=dtype, block_tokens=block_tokens)


def test_128_ki_tokens_of_a_7b_take_64_gib() -> None:
    assert kv_bytes(layout(LLAMA_7B), 128 * 1024) == 64 << 30


def test_a_sliding_layer_reads_its_window_only() -> None:
    one_token = 2 * 2 * 64 * 2
    assert kv_bytes(layout(SLIDING), 60) == 60 * one_token
    assert kv_bytes(layout(SLIDING), 5000) == 100 * one_token


@pytest.mark.parametrize(
    ("bytes_per_token", "hot", "tokens"),
    [
        (46080, 16 * MiB, 256),  # 11.25 MiB a block
        (46080, 11 * MiB, 128),
        (512 << 10, 16 * MiB, 32),
        (512 << 10, MiB, 16),  # not even the smallest fits
        (1, 1 << 40, 256),
    ],
)
def test_block_tokens(bytes_per_token: int, hot: int, tokens: int) -> None:
    assert block_tokens_that_fit(bytes_per_token, hot) == tokens


def test_all_sealed_blocks_are_fetched_when_hot_holds_only_the_tail() -> None:
    smol = layout(SMOLLM2, "float32")
    assert fetch_bytes_per_token(smol, 4096, 16 * MiB) == 4096 * 46080
    assert fetch_bytes_per_token(smol, 4096 + 255, 16 * MiB) == 4096 * 46080


def test_a_larger_hot_region_keeps_the_latest_blocks() -> None:
    smol = layout(SMOLLM2, "float32")
    three_blocks = 3 * 256 * 46080
    assert fetch_bytes_per_token(smol, 4096, three_blocks) == (4096 - 512) * 46080


def test_nothing_is_fetched_when_it_all_fits() -> None:
    assert fetch_bytes_per_token(layout(SMOLLM2), 1000, 1 << 30) == 0


def test_shipped_queries_do_not_grow_with_the_context() -> None:
    assert reduce_bytes_per_token(layout(SMOLLM2), 2) == 2 * 30 * 9 * (64 + 64 + 1) * 4


def test_on_loopback_bytes_add_to_compute_and_on_a_nic_they_hide() -> None:
    assert expected_fetch_tpot_s(0.05, 2e8, 4e9, overlapped=False) == pytest.approx(0.1)
    assert expected_fetch_tpot_s(0.06, 2e8, 4e9, overlapped=True) == pytest.approx(0.06)
