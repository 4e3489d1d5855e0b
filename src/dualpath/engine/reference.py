"""Plain transformers, untouched: the outside reference that every other way of decoding is held against."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from dualpath.engine.load import LoadedModel


class PlainModel:
    """One sequence decoded by an unmodified model with its stock cache, all local.

    The model may be shared with an `Engine`, which has its attention function on it: so it is put back first.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        from transformers import DynamicCache

        self._model = loaded.model
        self._attention = loaded.attention
        self._cache: Any = DynamicCache(config=loaded.config)
        parameters = inspect.signature(loaded.model.forward).parameters
        self._keyword = "cache" if "cache" in parameters else "past_key_values"

    def prefill(self, ids: Sequence[int], *, on_progress: Callable[[int, int], None] | None = None) -> Any:
        """Run the whole prompt in one forward pass; return the last token's logits, float32 `[vocab]`."""
        logits = self._forward(ids)
        if on_progress is not None:
            on_progress(len(ids), len(ids))
        return logits

    def decode(self, token: int) -> Any:
        """Append `token`; return the logits of what follows it, float32 `[vocab]`."""
        return self._forward([token])

    @property
    def kv_bytes(self) -> int:
        """Return the bytes that the cache holds now."""
        kept = [part for layer in self._cache.layers for part in (layer.keys, layer.values)]
        return sum(part.numel() * part.element_size() for part in kept if part is not None)

    def _forward(self, ids: Sequence[int]) -> Any:
        import torch

        if self._model.config._attn_implementation != self._attention:
            self._model.set_attn_implementation(self._attention)
        with torch.inference_mode():
            out = self._model(
                torch.tensor([list(ids)]), use_cache=True, logits_to_keep=1, **{self._keyword: self._cache}
            )
            return out.logits[0, -1].float()
