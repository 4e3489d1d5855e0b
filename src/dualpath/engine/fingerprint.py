"""A name for a model that differs whenever its KV would, for content-addressed blocks."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def fingerprint(model: Any, config: Any, dtype: str) -> str:
    """Return 32 hex digits over config, dtype and, for each weight, its checksum and a sample of its bytes."""
    import torch

    ignored = ("_name_or_path", "transformers_version", "architectures")
    known = {key: value for key, value in config.to_dict().items() if key not in ignored}
    digest = hashlib.blake2b(json.dumps([known, dtype], sort_keys=True, default=str).encode(), digest_size=16)
    for name, weight in sorted(model.named_parameters()):
        raw = weight.detach().contiguous().view(-1).view(torch.uint8)
        words = raw[: raw.numel() // 8 * 8].view(torch.int64)
        digest.update(f"{name} {tuple(weight.shape)} {int(words.sum())}".encode())
        digest.update(raw[:: max(1, raw.numel() // 4096)].numpy().tobytes())
    return digest.hexdigest()
