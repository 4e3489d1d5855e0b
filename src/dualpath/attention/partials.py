"""Merging partials, and finishing a state. Always in token order: floating-point addition is not associative."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dualpath.attention.base import Partial, State
from dualpath.attention.fallback import fold_triple
from dualpath.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]


def finish(state: State, sinks: Float32 | None = None) -> tuple[Float32, Float32]:
    """Return `(out, lse)`, float32 `[rows, query_heads, value_dim]` and `[rows, query_heads]`.

    Rows without keys are `(0, -inf)`. `sinks` (float32 `[query_heads]`) are logits without a value, seen by every row:
    one more partial `(0, sink)`. Give them once per row over all partials of it, not once per
    partial. `state` is left as it is.
    """
    import numpy as np

    high, total, acc = state.max, state.exp_sum, state.acc
    if sinks is not None:
        if sinks.shape != high.shape[1:]:
            raise UsageError(f"sinks have shape {sinks.shape}, expected {high.shape[1:]}")
        top = np.maximum(high, sinks[None].astype(np.float32))
        safe = np.where(np.isneginf(top), np.float32(0), top)
        keep = np.exp(high - safe)
        total = total * keep + np.exp(sinks[None].astype(np.float32) - safe)
        acc = acc * keep[..., None]
        high = top
    some = total > 0
    divisor = np.where(some, total, np.float32(1))
    lse: Float32 = np.where(some, high + np.log(divisor), np.float32(-np.inf)).astype(np.float32, copy=False)
    return (acc / divisor[..., None]).astype(np.float32, copy=False), lse


def fold(state: State, partial: Partial) -> None:
    """Fold `(out, lse)` of later keys into `state`: it counts as one block with max `lse`, exp-sum 1 and acc `out`.

    Empty entries `(0, -inf)` change nothing, whatever their `out` holds.
    """
    import numpy as np

    out: Float32 = partial[0]
    lse: Float32 = partial[1]
    if lse.shape != state.max.shape or out.shape != state.acc.shape:
        raise UsageError(
            f"partial has shapes {out.shape} and {lse.shape}, the state {state.acc.shape} and {state.max.shape}"
        )
    seen: NDArray[np.bool_] = np.asarray(~np.isneginf(lse))
    acc = np.where(seen[..., None], out, np.float32(0)).astype(np.float32, copy=False)
    fold_triple(state, slice(None), lse, seen.astype(np.float32), acc)


def combine(states: Sequence[State]) -> State:
    """Return the state over the keys of all `states`, of equal shapes and in token order, at once; they are left as
    they are. A partial `(out, lse)` is the state with max `lse`, exp-sum 1 and acc `out`.
    """
    import numpy as np

    if not states:
        raise UsageError("nothing to combine", hint="an empty state is (-inf, 0, 0), of the rows' shape")
    top = states[0].max
    for state in states[1:]:
        top = np.maximum(top, state.max)
    safe = np.where(np.isneginf(top), np.float32(0), top)
    weight = np.exp(states[0].max - safe)
    exp_sum, acc = states[0].exp_sum * weight, states[0].acc * weight[..., None]
    for state in states[1:]:
        weight = np.exp(state.max - safe)
        exp_sum += state.exp_sum * weight
        acc += state.acc * weight[..., None]
    return State(top, exp_sum, acc)


def merge(partials: Iterable[Partial]) -> tuple[Float32, Float32]:
    """Return `(out, lse)` over the keys of all `partials`, which must come in token order and have the same shapes.

    One partial comes back unchanged. None at all is an error: their shape would be unknown.
    """
    items = list(partials)
    if not items:
        raise UsageError("nothing to merge", hint="an empty partial is (0, -inf), of the rows' shape")
    if len(items) == 1:
        return items[0]
    state = State.empty(*items[0][0].shape)
    for partial in items:
        fold(state, partial)
    return finish(state)
