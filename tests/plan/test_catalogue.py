"""Every entry of the catalogue loads and has a source, and parameters agree with the published totals."""

from __future__ import annotations

import pytest

from dualpath.plan.catalogue import entry, names
from dualpath.plan.hardware import load_gpu, load_nic
from dualpath.plan.model import load_model

# Parameters in billions as the model cards and reports state them, without layers that predict further tokens.
PUBLISHED = {
    "Llama-2-7B": 6.74,
    "Llama-2-13B": 13.02,
    "Llama-2-70B": 68.98,
    "Llama-3.1-8B": 8.03,
    "Llama-3.1-70B": 70.6,
    "Llama-3.1-405B": 405.9,
    "Llama-3.2-1B": 1.24,
    "Llama-3.2-3B": 3.21,
    "Llama-4-Scout": 107.8,  # 109 with the vision tower
    "Llama-4-Maverick": 400.7,
    "Qwen2.5-7B": 7.61,
    "Qwen2.5-14B": 14.7,
    "Qwen2.5-32B": 32.5,
    "Qwen2.5-72B": 72.7,
    "Qwen3-8B": 8.2,
    "Qwen3-32B": 32.8,
    "Qwen3-30B-A3B": 30.5,
    "Qwen3-235B-A22B": 235,
    "Qwen3-Coder-480B-A35B": 480,
    "Qwen3-Next-80B-A3B": 80,
    "Qwen3.5-27B": 27,
    "Qwen3.5-35B-A3B": 35,
    "Qwen3.5-397B-A17B": 397,
    "Mistral-7B-v0.1": 7.24,
    "Mistral-Small-24B": 23.6,
    "Mistral-Large-2407": 123,
    "Mixtral-8x7B": 46.7,
    "Mixtral-8x22B": 141,
    "Gemma-2-9B": 9.24,
    "Gemma-2-27B": 27.2,
    "Gemma-3-12B": 11.8,  # 12.2 with the vision tower
    "Gemma-3-27B": 27.0,  # 27.4 with the vision tower
    "GPT-OSS-20B": 20.9,
    "GPT-OSS-120B": 116.8,
    "DeepSeek-V2-Lite": 15.7,
    "DeepSeek-V2": 236,
    "DeepSeek-V3": 671,
    "DeepSeek-R1": 671,
    "DeepSeek-V3.2": 671,
    "Kimi-K2": 1026,
    "Kimi-Linear-48B-A3B": 49.1,
    "GLM-4.5": 355,
    "GLM-4.5-Air": 106,
    "GLM-4.6": 355,
    "GLM-5": 744,
    "MiniMax-Text-01": 456,
    "MiniMax-M2": 229,
    "Phi-3.5-mini": 3.82,
    "Phi-3-medium-128k": 14.0,
    "Phi-4": 14.7,
    "Phi-4-mini": 3.84,
    "SmolLM2-135M": 0.1345,
    "Jamba-1.5-Mini": 51.6,
    "Jamba-1.5-Large": 398,
    "Nemotron-Nano-9B-v2": 8.89,
    "Nemotron-H-56B": 56.3,
    "Nemotron-3-Nano-30B-A3B": 31.6,
    "Granite-4.0-H-Small": 32.2,
    "Granite-4.0-H-Tiny": 6.94,
    "Falcon-H1-7B": 7.59,
    "Falcon-H1-34B": 33.6,
}

# Per token, in billions, as the reports state them; some leave the embeddings out, hence the wider tolerance.
ACTIVE = {
    "Llama-4-Scout": 17,
    "Qwen3-235B-A22B": 22,
    "Qwen3-30B-A3B": 3.3,
    "Mixtral-8x7B": 12.9,
    "DeepSeek-V2": 21,
    "DeepSeek-V3": 37,
    "Kimi-K2": 32,
    "GLM-4.5": 32,
    "Jamba-1.5-Large": 94,
    "Nemotron-3-Nano-30B-A3B": 3.6,
    "Granite-4.0-H-Small": 9,
    "Qwen3.5-397B-A17B": 17,
}


def test_every_model_is_held_to_a_published_total() -> None:
    assert set(names("models")) == set(PUBLISHED)


@pytest.mark.parametrize("name", names("models"))
def test_parameters(name: str) -> None:
    model = load_model(name)
    assert model.parameters == pytest.approx(PUBLISHED[name] * 1e9, rel=0.02)
    assert model.active_parameters <= model.parameters
    assert (model.active_parameters < model.parameters) == (model.experts is not None)
    assert model.name == name
    assert model.source.startswith("https://huggingface.co/")
    assert model.max_context >= 4096


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters(name: str) -> None:
    assert load_model(name).active_parameters == pytest.approx(ACTIVE[name] * 1e9, rel=0.06)


@pytest.mark.parametrize("name", names("gpus"))
def test_gpus(name: str) -> None:
    gpu = load_gpu(name.upper())
    assert gpu.name == name
    assert gpu.source.startswith("https://")
    assert 20e9 < gpu.memory_bytes < 300e9
    assert 100e9 < gpu.memory_bytes_per_s < 10e12
    assert 100e12 < gpu.bf16_flop_per_s < 3e15
    assert gpu.pcie_bytes_per_s > 30e9
    if gpu.price_usd:
        assert gpu.price_basis.startswith("assumption: ")
        assert gpu.price_date


@pytest.mark.parametrize("name", names("nics"))
def test_nics(name: str) -> None:
    nic = load_nic(name)
    assert nic.name == name
    assert nic.source
    assert 0 < nic.bytes_per_s <= nic.ports * nic.bits_per_s / 8


def test_an_entry_is_not_shared() -> None:
    entry("gpus", "h200")[1]["memory_bytes"] = 0
    assert load_gpu("h200").memory_bytes > 0
