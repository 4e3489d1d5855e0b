"""The values of a sweep: `context=8K..1M`, by doubling."""

from __future__ import annotations

from dualpath.errors import UsageError
from dualpath.plan.model import ModelSpec
from dualpath.plan.quantities import parse_tokens

NAMES = ("context", "concurrency")


def parse_sweep(text: str, model: ModelSpec, *, beyond: bool = True) -> tuple[str, tuple[int, ...]]:
    """Return the name and the values from first to last, doubled each time, the last one included.

    Contexts beyond the model's maximum are an error (`beyond`), or left out. Raises `UsageError`.
    """
    name, _, span = text.partition("=")
    first_text, dots, last_text = span.partition("..")
    if name not in NAMES or not dots:
        raise UsageError(f"not a sweep: {text!r}", hint="write context=8K..1M or concurrency=1..64")
    first, last = parse_tokens(first_text), parse_tokens(last_text)
    if not 0 < first <= last:
        raise UsageError(f"a sweep from {first} to {last}?", hint="from 1 or more, upwards")
    if name == "context" and model.max_context and last > model.max_context:
        if beyond:
            raise UsageError(
                f"a context of {last:,} tokens, where {model.name} has at most {model.max_context:,}?",
                hint=f"sweep up to {model.max_context}",
            )
        last = model.max_context
        first = min(first, last)
    values = [first]
    while values[-1] < last:
        values.append(min(values[-1] * 2, last))
    return name, tuple(values)
