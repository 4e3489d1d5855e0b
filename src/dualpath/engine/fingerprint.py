"""A name for a model that differs whenever its KV would, for content-addressed blocks."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

_CHOSEN = frozenset({"active_adapter", "active_adapters"})
_ADAPTER = (*sorted(_CHOSEN), "disable_adapters", "merged_adapters", "scaling")


def fingerprint(model: Any, config: Any, dtype: str) -> str:
    """Return 32 hex digits over config, dtype, `adapter_state` and, for each weight, a checksum and a sample."""
    import torch

    ignored = ("_name_or_path", "transformers_version", "architectures")
    known = {key: value for key, value in config.to_dict().items() if key not in ignored}
    digest = hashlib.blake2b(json.dumps([known, dtype], sort_keys=True, default=str).encode(), digest_size=16)
    for name, weight in sorted(model.named_parameters()):
        raw = weight.detach().contiguous().view(-1).view(torch.uint8)
        words = raw[: raw.numel() // 8 * 8].view(torch.int64)
        digest.update(f"{name} {tuple(weight.shape)} {int(words.sum())}".encode())
        digest.update(raw[:: max(1, raw.numel() // 4096)].numpy().tobytes())
    digest.update("".join(adapter_state(model)).encode())
    return digest.hexdigest()


def adapter_state(model: Any) -> list[str]:
    """Return for each module with adapters which are active, merged or disabled, and their scaling; `[]` without any.

    Told by attributes, named as in PEFT's `BaseTunerLayer`: the parameters are the same whichever adapter is active.
    """
    found = []
    for module in model.modules():
        if _may_choose(module.__class__) or not _CHOSEN.isdisjoint(vars(module)):
            said = {name: _plain(getattr(module, name, None)) for name in _ADAPTER}
            said = {name: value for name, value in said.items() if not (value is None or callable(value))}
            if "disable_adapters" in said:  # a layer: PEFT tells it by hooks if each row has an adapter of its own
                said["hooks"] = len(module._forward_pre_hooks)
            if said:  # not so for models of transformers, which have methods of these names
                found.append(repr(said))
    return found


@functools.cache  # a cache asks at every pass of its model
def _may_choose(kind: type) -> bool:
    return any(hasattr(kind, name) for name in _CHOSEN)


def _plain(value: Any) -> Any:
    """Return numbers for tensors of one element, whose `repr` is rounded, and mappings in order."""
    if isinstance(value, Mapping):
        return sorted((key, _plain(each)) for key, each in value.items())
    return value.tolist() if hasattr(value, "tolist") else value
