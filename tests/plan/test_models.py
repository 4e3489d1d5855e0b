"""KV bytes per token and states of public models, by hand from the numbers of their config.json; what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.errors import UnknownModelError, UsageError
from dualpath.kv.layout import LayerKind
from dualpath.plan.catalogue import entry, names
from dualpath.plan.model import ModelSpec, bare, bare_latent, from_config, load_config, load_model

KIB = 1024

# Layers that attend x (K and V) x kv heads x head width x 2 bytes; latent attention keeps one row of 512 + 64.
BYTES_PER_TOKEN = {
    "Llama-2-7B": 32 * 2 * 32 * 128 * 2,
    "Llama-2-70B": 80 * 2 * 8 * 128 * 2,
    "Llama-3.1-8B": 32 * 2 * 8 * 128 * 2,
    "Llama-3.1-405B": 126 * 2 * 8 * 128 * 2,
    "Llama-4-Scout": 48 * 2 * 8 * 128 * 2,
    "Qwen2.5-7B": 28 * 2 * 4 * 128 * 2,
    "Qwen3-235B-A22B": 94 * 2 * 4 * 128 * 2,
    "Qwen3-Next-80B-A3B": 12 * 2 * 2 * 256 * 2,
    "Qwen3.5-397B-A17B": 15 * 2 * 2 * 256 * 2,
    "Mistral-7B-v0.1": 32 * 2 * 8 * 128 * 2,
    "Mixtral-8x22B": 56 * 2 * 8 * 128 * 2,
    "Gemma-2-27B": 46 * 2 * 16 * 128 * 2,
    "Gemma-3-27B": 62 * 2 * 16 * 128 * 2,
    "GPT-OSS-120B": 36 * 2 * 8 * 64 * 2,
    "DeepSeek-V2-Lite": 27 * (512 + 64) * 2,
    "DeepSeek-V3": 61 * (512 + 64) * 2,
    "Kimi-K2": 61 * (512 + 64) * 2,
    "Kimi-Linear-48B-A3B": 7 * (512 + 64) * 2,
    "GLM-4.5": 92 * 2 * 8 * 128 * 2,
    "MiniMax-Text-01": 10 * 2 * 8 * 128 * 2,
    "MiniMax-M2": 62 * 2 * 8 * 128 * 2,
    "Phi-4": 40 * 2 * 10 * 128 * 2,
    "SmolLM2-135M": 30 * 2 * 3 * 64 * 2,
    "Jamba-1.5-Large": 9 * 2 * 8 * 128 * 2,
    "Nemotron-H-56B": 10 * 2 * 8 * 128 * 2,
    "Granite-4.0-H-Small": 4 * 2 * 8 * 128 * 2,
    "Falcon-H1-34B": 72 * 2 * 4 * 128 * 2,
}

# Recurrent layers x (state in fp32 + convolution's window in two bytes).
STATE_BYTES = {
    # 32 value heads of 128 x 128; q and k of 16 heads, v of 32, over 4 tokens
    "Qwen3-Next-80B-A3B": 36 * (32 * 128 * 128 * 4 + (2 * 16 + 32) * 128 * 4 * 2),
    "Kimi-Linear-48B-A3B": 20 * (32 * 128 * 128 * 4 + 3 * 32 * 128 * 4 * 2),
    # inner width 2 x 8192, 16 states each
    "Jamba-1.5-Large": 63 * (16384 * 16 * 4 + 16384 * 4 * 2),
    # 128 heads of 64 with 128 states; x, and B and C of one group
    "Granite-4.0-H-Small": 36 * (128 * 64 * 128 * 4 + (128 * 64 + 2 * 128) * 4 * 2),
    # 64 heads of 128 x 128, kept in bfloat16 as the code does
    "MiniMax-Text-01": 70 * 64 * 128 * 128 * 2,
    "Llama-3.1-8B": 0,
}


def bytes_per_token(model: ModelSpec) -> int:
    return sum(len(group.layers) * group.layer_block_bytes(1, model.kv_dtype) for group in model.groups)


def windows(model: ModelSpec) -> dict[tuple[str, int], int]:
    return {(group.kind.value, group.window): len(group.layers) for group in model.groups}


@pytest.mark.parametrize("name", BYTES_PER_TOKEN)
def test_kv_bytes_per_token(name: str) -> None:
    assert bytes_per_token(load_model(name)) == BYTES_PER_TOKEN[name]


@pytest.mark.parametrize("name", STATE_BYTES)
def test_state_bytes_per_sequence(name: str) -> None:
    assert load_model(name).state_bytes == STATE_BYTES[name]


def test_the_known_answers() -> None:
    shape = bare(layers=32, kv_heads=32, head_dim=128, dtype="float16")
    assert bytes_per_token(shape) == 512 * KIB
    assert bytes_per_token(shape) * 128 * KIB == 64 * 2**30
    assert bytes_per_token(load_model("DeepSeek-V3")) == 61 * 1152
    assert 1.125 * KIB == 1152
    # 60 layers x 0.75 KB x 10^6 tokens: 45 GB, the illustration of compressed KV
    latent = bare_latent(layers=60, latent_dim=311, rope_dim=64, query_heads=1)
    assert bytes_per_token(latent) * 10**6 == 45e9


def test_sliding_layers() -> None:
    assert windows(load_model("Gemma-3-27B")) == {("sliding", 1024): 52, ("full", 0): 10}
    assert windows(load_model("Gemma-2-9B")) == {("sliding", 4096): 21, ("full", 0): 21}
    assert windows(load_model("GPT-OSS-20B")) == {("sliding", 128): 12, ("full", 0): 12}
    assert windows(load_model("Mistral-7B-v0.1")) == {("sliding", 4096): 32}


def test_a_chunked_layer_keeps_at_most_its_chunk() -> None:
    assert windows(load_model("Llama-4-Maverick")) == {("sliding", 8192): 36, ("full", 0): 12}


def test_hybrids_attend_where_their_configs_say() -> None:
    def attending(name: str) -> tuple[int, ...]:
        (group,) = load_model(name).groups
        return group.layers

    assert attending("Qwen3-Next-80B-A3B") == tuple(range(3, 48, 4))
    assert attending("Kimi-Linear-48B-A3B") == (3, 7, 11, 15, 19, 23, 26)
    assert attending("Jamba-1.5-Mini") == (4, 12, 20, 28)
    assert attending("MiniMax-Text-01") == tuple(range(7, 80, 8))
    assert attending("Nemotron-Nano-9B-v2") == (14, 21, 30, 39)
    assert attending("Granite-4.0-H-Tiny") == (5, 15, 25, 35)
    assert attending("Falcon-H1-7B") == tuple(range(44))
    assert load_model("Kimi-Linear-48B-A3B").groups[0].kind is LayerKind.LATENT


def test_an_indexer_keeps_an_fp8_key_and_its_scale_in_every_layer() -> None:
    model = load_model("DeepSeek-V3.2")
    assert model.index_bytes_per_token == 61 * (128 + 4)
    assert model.index_top_k == 2048
    assert load_model("DeepSeek-V3").index_bytes_per_token == load_model("DeepSeek-V3").index_top_k == 0


def test_layers_that_share_a_selection_keep_no_index() -> None:
    config = entry("models", "GLM-5")[1]["config"]
    every = from_config(config, name="x", source="test")
    fourth = from_config({**config, "index_topk_freq": 4, "index_skip_topk_offset": 3}, name="x", source="test")
    listed = from_config({**config, "index_topk_pattern": "FFF" + "SSSF" * 18 + "SSS"}, name="x", source="test")
    assert every.index_bytes_per_token == 78 * 132
    assert fourth.index_bytes_per_token == listed.index_bytes_per_token == (3 + 18) * 132


def test_experts() -> None:
    experts = load_model("DeepSeek-V3").experts
    assert experts is not None
    assert (experts.count, experts.active, experts.layers, experts.shared) == (256, 8, 58, 1)
    maverick = load_model("Llama-4-Maverick").experts
    assert maverick is not None
    assert (maverick.count, maverick.layers, maverick.shared) == (128, 24, 1)
    assert load_model("Qwen3-8B").experts is None


def test_weights_as_published() -> None:
    assert load_model("Llama-3.1-8B").weight_bytes == pytest.approx(16.06e9, rel=0.002)  # bfloat16
    assert load_model("GPT-OSS-120B").weight_bytes == pytest.approx(65.25e9, rel=0.01)  # mxfp4 experts
    assert load_model("Granite-4.0-H-Small").weight_bytes == pytest.approx(59.99 * 2**30, rel=0.002)
    fp8 = load_model("DeepSeek-V3")
    assert fp8.weight_bytes == fp8.parameters + 2 * 129280 * 7168  # a byte each, but for embedding and head


LLAMA: dict[str, Any] = {**entry("models", "Llama-3.1-8B")[1]["config"]}


def test_a_folder_and_its_index_of_shards(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": {"quant_method": "odd"}}))
    with pytest.raises(UsageError, match="'odd'"):
        load_model(str(folder))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 5_000}}))
    model = load_model(str(folder))
    assert (model.name, model.weight_bytes, model.source) == ("my-llama", 5_000, str(folder / "config.json"))
    assert load_model(str(folder / "config.json")).groups == load_model("llama-3.1-8b").groups


@pytest.mark.parametrize("text", ["[1]", "not json", "", "[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}"])
def test_a_file_that_is_no_config(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"not a config\.json"):
        load_model(str(path))


@pytest.mark.parametrize("path", ["nowhere.json", "./nowhere", "/nowhere/config.json", ".", "x/" + "a" * 300 + ".json"])
def test_a_path_that_holds_no_config_is_not_taken_for_a_name(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for load in (load_model, load_config):
        with pytest.raises(UsageError, match="no such file") as caught:
            load(path)
        assert "config.json" in caught.value.hint


def test_a_config_is_a_path_whatever_it_is_called() -> None:
    with pytest.raises(UsageError, match="no such file: Phi-4"):
        load_config("Phi-4")


def test_a_hub_id_is_a_name() -> None:
    assert load_model("meta-llama/llama-3.1-8b") == load_model("Llama-3.1-8B")
    with pytest.raises(UnknownModelError) as caught:
        load_model("Qwen/Qwen2.5-7B-Instruct")
    assert "Qwen2.5-7B" in caught.value.hint


def test_an_unknown_name_gets_close_matches() -> None:
    with pytest.raises(UnknownModelError) as caught:
        load_model("llama3.1-8b")
    assert "Llama-3.1-8B" in caught.value.hint


REFUSED = {
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers|no layers"),
    "3 kv heads for 8 q heads": ({"num_attention_heads": 8, "num_key_value_heads": 3}, "8 query heads cannot share 3"),
    "no vocabulary": ({"vocab_size": 0}, "vocab_size is 0"),
    "a width that is a word": ({"intermediate_size": "wide"}, "intermediate_size is 'wide'"),
    "no width": ({"intermediate_size": None}, "does not say intermediate_size"),
    "more parameters than there are": ({"hidden_size": 10**30}, "parameters"),
    "heads of a million million": ({"head_dim": 10**12}, "parameters"),
    "a million layers": ({"num_hidden_layers": 1_000_000}, "1000000 layers"),
    "an architecture that is not known": ({"model_type": "rwkv7"}, "'rwkv7' is not known"),
    "weights in a format that is not known": ({"quantization_config": {"quant_method": "exl3"}}, "'exl3'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused(case: str) -> None:
    change, says = REFUSED[case]
    with pytest.raises(UsageError, match=says):
        from_config({**LLAMA, **change}, name="x", source="test")


def test_hybrids_that_make_no_sense_are_refused() -> None:
    config = dict(entry("models", "Qwen3-Next-80B-A3B")[1]["config"])
    for change, says in (
        ({"num_key_value_heads": 3}, "16 query heads cannot share 3"),
        ({"layer_types": ["linear_attention"] * 48}, "no layer of this model attends"),
        ({"layer_types": ["full_attention"] * 7}, "lists 7 layers"),
        ({"layer_types": ["mystery"] * 48}, "'mystery'"),
        ({"num_experts_per_tok": 513}, "513 of 512 experts"),
    ):
        with pytest.raises(UsageError, match=says):
            from_config({**config, **change}, name="x", source="test")


def test_a_bare_shape_that_cannot_be_is_refused() -> None:
    for shape, says in (
        ({"layers": 0, "kv_heads": 8, "head_dim": 128}, "0 layers"),
        ({"layers": 32, "kv_heads": 3, "query_heads": 8, "head_dim": 128}, "8 query heads cannot share 3"),
        ({"layers": 32, "kv_heads": 8, "head_dim": 128, "window": -1}, "window of -1"),
        ({"layers": 10**9, "kv_heads": 8, "head_dim": 128}, "1000000000 layers"),
    ):
        with pytest.raises(UsageError, match=says):
            bare(**shape)
    with pytest.raises(UsageError, match="unknown dtype 'int3'"):
        bare(layers=1, kv_heads=1, head_dim=1, dtype="int3")


def test_the_engine_goes_on_refusing_what_only_the_planner_knows() -> None:
    from dualpath.kv import KVLayout

    for name in ("Qwen3-Next-80B-A3B", "Jamba-1.5-Mini", "Llama-4-Scout", "DeepSeek-V3.2", "Kimi-Linear-48B-A3B"):
        with pytest.raises(UnknownModelError):
            KVLayout.from_config(entry("models", name)[1]["config"], dtype="bfloat16")


JUNK = st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=3) | st.lists(st.just(1))


@given(data=st.data())
def test_a_config_with_junk_in_it_is_a_usage_error_or_a_model(data: st.DataObject) -> None:
    config = dict(entry("models", data.draw(st.sampled_from(names("models"))))[1]["config"])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        config[key] = data.draw(JUNK)
    try:
        model = from_config(config, name="junk", source="test")
    except UsageError:
        return
    assert model.groups
    assert model.parameters > 0


def test_the_room_is_light() -> None:
    code = (
        "import sys; from dualpath.plan.model import load_model; load_model('GPT-OSS-20B');"
        "from dualpath.plan.hardware import load_gpu; load_gpu('H200');"
        "print([m for m in ('numpy', 'torch', 'transformers', 'typer', 'asyncio') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
