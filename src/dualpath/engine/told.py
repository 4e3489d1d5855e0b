"""What a forward pass is told of its tokens: their ids and positions, and whether ids say all there is to know."""

from __future__ import annotations

from typing import Any

import torch

from dualpath.errors import UsageError

# What a model may be given beside its tokens without its KV being of more than these: images, say, are more.
_OF_TEXT = frozenset(("input_ids", "attention_mask", "position_ids", "cache_position", "labels", "logits_to_keep"))


class Told:
    """Noted before a forward pass, and taken once by the cache that it fills."""

    def __init__(self) -> None:
        self._ids: torch.Tensor | None = None
        self._positions: torch.Tensor | None = None

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the arguments of a model's `forward`. Raises `UsageError` if its caller does not count on the cache.

        `generate()` then passes all tokens again at each step, which a cache would take for further ones.
        """
        if kwargs.get("use_cache") is False:
            raise UsageError(
                "a cache was passed together with use_cache=False",
                hint="leave one of them out, or set model.generation_config.use_cache = True",
            )
        more = any(name not in _OF_TEXT and isinstance(value, torch.Tensor | list) for name, value in kwargs.items())
        self._ids = None if more else kwargs.get("input_ids", args[0] if args else None)
        self._positions = kwargs.get("position_ids", args[2] if len(args) > 2 else None)

    def take(self, batch: int, tokens: int, *, columns: int) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return the ids `[batch, tokens]` of this pass, if known, and the positions `[…, batch, tokens]` they get.

        `columns` counts the tokens of a row that came before, padding included.
        """
        ids, positions = self._ids, self._positions
        self._ids = self._positions = None
        if positions is None:  # what models do then: padding counts
            positions = torch.arange(columns, columns + tokens)
        known = ids is not None and ids.shape == (batch, tokens)
        return ids if known else None, positions.expand(*positions.shape[:-2], batch, tokens)
