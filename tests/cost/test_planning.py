"""The planner's formulas against figures worked out by hand, and their bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.cost import compute, deductions, kv, money, prefill_decode, tpot
from dualpath.cost.balance import NodeRates, Rates, Speed, StepLoad
from dualpath.cost.tpot import Scheme
from dualpath.errors import UsageError
from dualpath.kv import KVLayout, codecs
from dualpath.kv.layout import KV_DTYPES, LayerGroup, LayerKind


def group(
    kind: LayerKind = LayerKind.FULL, layers: int = 2, window: int = 0, kv_heads: int = 8, head_dim: int = 128
) -> LayerGroup:
    return LayerGroup(
        kind=kind, layers=tuple(range(layers)), query_heads=32, kv_heads=kv_heads, head_dim=head_dim,
        value_dim=head_dim, window=window,
    )  # fmt: skip


def shape(*groups: LayerGroup, dtype: str = "bfloat16", **more: int) -> kv.KVShape:
    return kv.KVShape(groups=groups, dtype=dtype, **more)


def test_a_layer_by_attention_and_dtype() -> None:
    assert kv.layer_bytes(group(), 1, "bfloat16") == 2 * 8 * 128 * 2
    assert kv.layer_bytes(group(kv_heads=32), 1, "float32") == 2 * 32 * 128 * 4
    assert kv.layer_bytes(group(LayerKind.LATENT, kv_heads=1), 1, "bfloat16") == 128 * 2


def test_quantised_kv_is_a_byte_and_scales_for_each_channel_of_each_block() -> None:
    assert kv.layer_bytes(group(), 256, "int8") == 2 * 8 * (256 + 2) * 128
    assert kv.layer_bytes(group(), 257, "fp8") == 2 * 8 * (257 + 2 * 2) * 128
    assert kv.bytes_per_token(shape(group(), dtype="int8")) == pytest.approx(2 * 2 * 8 * 128 * (1 + 2 / 256))


@given(
    kind=st.sampled_from(LayerKind), kv_heads=st.integers(1, 9), width=st.integers(1, 200),
    block_tokens=st.integers(1, 70), blocks=st.integers(1, 3), dtype=st.sampled_from(kv.DTYPES),
)  # fmt: skip
def test_whole_blocks_take_what_the_codec_makes_of_them(
    kind: LayerKind, kv_heads: int, width: int, block_tokens: int, blocks: int, dtype: str
) -> None:
    one = group(kind, kv_heads=kv_heads, head_dim=width)
    layer_block = tuple(block_tokens if size == -1 else size for size in one.layer_block_shape)
    stored = codecs.encode(np.ones(layer_block, np.float32), KV_DTYPES.get(dtype, dtype))
    assert kv.layer_bytes(one, blocks * block_tokens, dtype, block_tokens=block_tokens) == blocks * stored.size
    layout = KVLayout((one,), "float32", block_tokens, kv_dtype=KV_DTYPES.get(dtype, dtype))
    assert math.ceil(kv.bytes_per_token(shape(one, dtype=dtype, block_tokens=block_tokens))) == layout.bytes_per_token


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="fp3"):
        kv.layer_bytes(group(), 1, "fp3")


def test_sliding_layers_keep_their_window_and_recurrent_state_does_not_grow() -> None:
    hybrid = shape(group(), group(LayerKind.SLIDING, layers=3, window=100), state_bytes=777)
    row = 2 * 8 * 128 * 2
    assert kv.held_bytes(hybrid, 1000) == row * (2 * 1000 + 3 * 100) + 777
    assert kv.held_bytes(hybrid, 50) == row * 5 * 50 + 777


def test_sparse_attention_reads_the_index_of_all_and_the_kv_of_a_few() -> None:
    sparse = shape(group(), index_bytes_per_token=100, index_top_k=64)
    row = 2 * 8 * 128 * 2
    assert kv.read_bytes(sparse, 1000) == 2 * row * 64 + 100 * 1000
    assert kv.held_bytes(sparse, 1000) == 2 * row * 1000 + 100 * 1000
    assert kv.read_bytes(sparse, 10) == kv.held_bytes(sparse, 10)


def test_queries_and_partials() -> None:
    assert kv.query_bytes(shape(group())) == 2 * 32 * 128 * 4
    assert kv.partial_bytes(shape(group())) == 2 * 32 * 129 * 4
    assert kv.attention_flop(shape(group()), 10) == 2 * 2 * 32 * 256 * 10


def test_a_prompt_sees_half_of_itself_and_expands_latent_layers() -> None:
    assert kv.prompt_attention_flop(shape(group()), 1000) == 1000 * 2 * 2 * 32 * 256 * 500
    latent = group(LayerKind.LATENT, kv_heads=1)
    mixed = shape(group(layers=1), latent, expanded_dim=80)
    assert kv.prompt_attention_flop(mixed, 1000) == 1000 * 500 * 2 * 32 * (1 * 256 + 2 * 80)
    assert kv.attention_flop(mixed, 10) == kv.attention_flop(shape(group(layers=1), latent), 10)


def test_experts_woken_by_a_batch() -> None:
    assert compute.expected_experts(8, 2, 1) == pytest.approx(2)
    assert compute.expected_experts(8, 2, 2) == pytest.approx(3.5)  # 8 x (1 - 0.75^2)
    assert compute.weights_read_bytes(100, 0.25, count=8, active=2, tokens=1) == pytest.approx(25)
    assert compute.weights_read_bytes(100, 0.25, count=8, active=2, tokens=10**6) == pytest.approx(100)


def test_a_step_outside_attention_is_bound_by_weights_or_arithmetic() -> None:
    assert compute.outside_attention_s(16e9, 4e12, compute.linear_flop(8e9, 1), 1e15) == pytest.approx(0.004)
    assert compute.outside_attention_s(16e9, 4e12, compute.linear_flop(8e9, 1000), 1e15) == pytest.approx(0.016)


def test_chunks_read_earlier_chunks_again() -> None:
    assert compute.reread_in_chunks_bytes(400, 4096, 1024) == 600  # 100 + 200 + 300
    assert compute.reread_in_chunks_bytes(400, 1000, 1024) == 0


def test_deductions() -> None:
    assert deductions.activation_bytes(1000, 4096) == 34 * 1000 * 4096
    assert deductions.kv_room_bytes(100, weights=60, activations=5, buffers=10, window=5) == 20
    one = deductions.all_to_all_bytes_per_token(layers=58, active=8, hidden_size=7168, hosts=1)
    four = deductions.all_to_all_bytes_per_token(layers=58, active=8, hidden_size=7168, hosts=4)
    assert (one, four) == (0, 58 * 8 * 7168 * 3 * 0.75)
    assert (deductions.left_bytes_per_s(50, 20), deductions.left_bytes_per_s(50, 60)) == (30, 0)


def test_money() -> None:
    assert money.per_hour(35_064, 4) == pytest.approx(1)  # 4 x 8,766 hours
    assert money.per_million_tokens(3.6, 1000) == pytest.approx(1)


def test_a_ratio_that_cannot_be() -> None:
    assert not prefill_decode.ratio_bounds(
        gpus=8, storage_nics=4, memory_bytes_per_s=500e9, storage_bytes_per_s=200e9
    ).possible


def rates(nodes: int, **node: float) -> Rates:
    one = {"rail_bytes_per_s": 50e9, "round_trip_s": 16e-6, "reply_s_per_row": 1e-6} | node
    return Rates(local=Speed(3e12), receiver_bytes_per_s=100e9, nodes=(NodeRates(near=Speed(300e9), **one),) * nodes)


LOAD = StepLoad(outside_s=0.005, layers=10, hot_bytes=3e9, remote_bytes=tpot.spread(1e9, 4))


def test_schemes_by_hand() -> None:
    four = rates(4)
    assert tpot.tpot(Scheme.ALL_LOCAL, LOAD, four).seconds == pytest.approx(0.005 + 10 * 4e9 / 3e12)
    assert tpot.tpot(Scheme.FETCH, LOAD, four).seconds == pytest.approx(10 * 1e9 / 50e9)
    assert tpot.tpot(Scheme.SHARDED, LOAD, four).seconds == pytest.approx(10 * 1e9 / 100e9)
    near = 10 * (17e-6 + 0.25e9 / 300e9)
    local = 10 * 3e9 / 3e12
    assert tpot.tpot(Scheme.REDUCE, LOAD, four).seconds == pytest.approx(0.005 + max(near, local))
    tiers = tpot.tpot(Scheme.TIERS, LOAD, four, tier_bytes_per_s=25e9)
    assert (tiers.seconds, tiers.bottleneck) == (pytest.approx(0.4), tpot.TIER_WORDS)


def test_every_bottleneck_has_words() -> None:
    assert tpot.tpot(Scheme.FETCH, LOAD, rates(4)).bottleneck == "a sender's link"
    assert tpot.tpot(Scheme.SHARDED, LOAD, rates(4)).bottleneck == "the receiver's links"
    assert tpot.tpot(Scheme.REDUCE, LOAD, rates(4, round_trip_s=0.01)).bottleneck == "round trips to the nodes"


def test_partials_share_the_receivers_links() -> None:
    few, many = (
        tpot.exchange_s(node_bytes=2e6, nodes=nodes, sender_bytes_per_s=50e9, receiver_bytes_per_s=100e9)
        for nodes in (1, 10)
    )
    assert (few, many) == (2e6 / 50e9, 2e6 / 10e9)


speeds = st.floats(1e6, 1e13)


@given(
    remote=st.lists(st.floats(0, 1e12), min_size=1, max_size=5),
    hot=st.floats(0, 1e12), outside=st.floats(0, 10), near=speeds, rail=speeds, receiver=speeds, local=speeds,
    trip=st.floats(0, 0.1), layers=st.integers(1, 100),
)  # fmt: skip
def test_auto_is_never_slower_than_a_corner_nor_faster_than_the_work_itself(
    remote: list[float], hot: float, outside: float, near: float, rail: float, receiver: float, local: float,
    trip: float, layers: int,
) -> None:  # fmt: skip
    load = StepLoad(outside_s=outside, layers=layers, hot_bytes=hot, remote_bytes=tuple(remote))
    node = NodeRates(near=Speed(near), rail_bytes_per_s=rail, round_trip_s=trip)
    has = Rates(local=Speed(local), receiver_bytes_per_s=receiver, nodes=(node,) * len(remote))
    auto = tpot.tpot(Scheme.AUTO, load, has).seconds
    for scheme in (Scheme.FETCH, Scheme.SHARDED, Scheme.REDUCE):
        assert auto <= tpot.tpot(scheme, load, has).seconds * (1 + 1e-9)
    assert auto >= (outside + layers * hot / local) * (1 - 1e-9)


@given(context=st.integers(1, 1 << 20), more=st.integers(0, 1 << 20), top=st.sampled_from([0, 64, 2048]))
def test_bytes_grow_with_the_context_and_what_is_read_is_held(context: int, more: int, top: int) -> None:
    for dtype in kv.DTYPES:
        hybrid = shape(group(), group(LayerKind.SLIDING, window=100), dtype=dtype, index_top_k=top)
        assert kv.read_bytes(hybrid, context) <= kv.held_bytes(hybrid, context)
        assert kv.held_bytes(hybrid, context) <= kv.held_bytes(hybrid, context + more)


def test_nothing_remote_is_one_scheme() -> None:
    alone = StepLoad(outside_s=0.005, layers=10, hot_bytes=3e9, remote_bytes=())
    none = Rates(local=Speed(3e12), receiver_bytes_per_s=1e9)
    assert len({tpot.tpot(scheme, alone, none, tier_bytes_per_s=1e9).seconds for scheme in Scheme}) == 1
    assert tpot.spread(0, 4) == ()
    assert math.fsum(tpot.spread(10, 4)) == 10
