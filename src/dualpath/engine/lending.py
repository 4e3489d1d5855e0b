"""Models lent to caches and engines: they compute dualpath attention meanwhile, and what they did before afterwards.

Several may have the same model at once, and end in any order.
"""

from __future__ import annotations

import weakref
from typing import Any

NAME = "dualpath"
"""What the attention function is called in transformers."""

_lent: weakref.WeakKeyDictionary[Any, tuple[str, int]] = weakref.WeakKeyDictionary()
"""Models that compute dualpath attention now: what they did before, and for how many caches and engines."""


def borrow(model: Any) -> None:
    """Let a model compute dualpath attention until as many `give_back` have followed."""
    before, count = _lent.get(model, (model.config._attn_implementation, 0))
    _lent[model] = (before, count + 1)
    use(model)


def use(model: Any) -> None:
    """Set a borrowed model to dualpath attention, if somebody else has set it to another one meanwhile."""
    if model.config._attn_implementation != NAME:
        model.set_attn_implementation(NAME)


def give_back(model: Any) -> None:
    """The last who borrowed it leaves the model as the first found it."""
    before, count = _lent.pop(model)
    if count > 1:
        _lent[model] = (before, count - 1)
    elif model.config._attn_implementation == NAME:
        model.set_attn_implementation(before)
