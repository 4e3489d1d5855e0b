"""Merging partials, and finishing a state. Always in token order: floating-point addition is not associative."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dualpath.attention import fallback, kernels
from dualpath.attention.base import Partial, State
from dualpath.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]


def finish(state: State, sinks: Float32 | None = None) -> tuple[Float32, Float32]:
    """Return `(out, lse)`, float32 `[rows, query_heads, value_dim]` and `[rows, query_heads]`.

    Rows without keys are `(0, -inf)`. `sinks` (float32 `[query_heads]`) are logits without a value, seen by every row:
    one more partial `(0, sink)`. Give them once per row over all partials of it, not once per
    partial. `state`, C-contiguous, is left as it is. Raises `UsageError` for shapes that do not fit.
    """
    import numpy as np

    _check_sinks(sinks, state.max)
    if kernels.chosen() == "python":
        return fallback.finish(state, sinks)
    out, lse = np.empty(state.acc.shape, np.float32), np.empty(state.max.shape, np.float32)
    if sinks is not None:
        sinks = np.ascontiguousarray(sinks, np.float32)
    try:
        kernels.native().finish(state.max, state.exp_sum, state.acc, sinks, out, lse)
    except (ValueError, TypeError) as error:
        raise UsageError(f"finish: {str(error).splitlines()[0]}") from error
    return out, lse


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
    fallback.fold_triple(state, slice(None), lse, seen.astype(np.float32), acc)


def combine(parts: Sequence[State | Partial]) -> State:
    """Return the state over the keys of all `parts`, of equal shapes and in token order, at once; they are left as
    they are. A partial `(out, lse)` counts as the state with max `lse`, exp-sum 1 and acc `out`. Arrays must be
    C-contiguous. Raises `UsageError` for none at all, and for shapes that differ.
    """
    import numpy as np

    _check_parts(parts)
    if kernels.chosen() == "python":
        return fallback.combine([part if isinstance(part, State) else _state_of(part) for part in parts])
    triples = _triples(parts)
    shape, wide = triples[0][0].shape, triples[0][2].shape
    whole = State(np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty(wide, np.float32))
    _combine(triples, whole.max, whole.exp_sum, whole.acc, None)
    return whole


def join(parts: Sequence[State | Partial], sinks: Float32 | None = None) -> tuple[Float32, Float32]:
    """Return `finish(combine(parts), sinks)`, made in one step."""
    import numpy as np

    if kernels.chosen() == "python":
        return finish(combine(parts), sinks)
    _check_parts(parts)
    triples = _triples(parts)
    _check_sinks(sinks, triples[0][0])
    out, lse = np.empty(triples[0][2].shape, np.float32), np.empty(triples[0][0].shape, np.float32)
    _combine(triples, lse, None, out, sinks)
    return out, lse


def _check_parts(parts: Sequence[State | Partial]) -> None:
    if not parts:
        raise UsageError("nothing to combine", hint="an empty state is (-inf, 0, 0), of the rows' shape")


def _check_sinks(sinks: Float32 | None, high: Float32) -> None:
    if sinks is not None and sinks.shape != high.shape[1:]:
        raise UsageError(f"sinks have shape {sinks.shape}, expected {high.shape[1:]}")


def _triples(parts: Sequence[State | Partial]) -> list[tuple[Float32, Float32 | None, Float32]]:
    """Return the parts as the native module takes them: max, exp-sum (`None`: all 1), acc."""
    return [(p.max, p.exp_sum, p.acc) if isinstance(p, State) else (p[1], None, p[0]) for p in parts]


def _combine(
    triples: list[tuple[Float32, Float32 | None, Float32]],
    high: Float32,
    exp_sum: Float32 | None,
    acc: Float32,
    sinks: Float32 | None,
) -> None:
    import numpy as np

    if sinks is not None:
        sinks = np.ascontiguousarray(sinks, np.float32)
    try:
        kernels.native().combine(triples, high, exp_sum, acc, sinks)
    except (ValueError, TypeError) as error:
        raise UsageError(f"combine: {str(error).splitlines()[0]}") from error


def _state_of(partial: Partial) -> State:
    import numpy as np

    return State(partial[1], np.ones_like(partial[1]), partial[0])


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
