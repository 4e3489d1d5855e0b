"""Computing one sealed block's KV anew from its source tokens over the KV before it, as a lost block needs."""

from __future__ import annotations

from dualpath.engine.engine import Engine
from dualpath.errors import UsageError
from dualpath.path import SequenceId


def recompute_block(engine: Engine, sequence: SequenceId, index: int) -> dict[int, bytes]:
    """Return the KV of sealed block `index` as it would be stored, per layer: `{layer: layer block bytes}`.

    Needs the source tokens and all blocks before it; the block itself, and those after it, may be lost. Nothing is
    changed, locally or at a node. Bitwise equal to what was stored if the block was computed in one chunk of its own;
    otherwise equal within rounding, since the shapes of the matrix products differ. Raises `UsageError` if tokens are
    not known, `BlockLostError` if a block before it is lost, `CapacityError` if the hot region has no room for it.
    """
    path = engine.path
    block = path.block(sequence, index)
    tokens = path.tokens(sequence)[block.position : block.end]
    if len(tokens) != block.length:
        raise UsageError("the source tokens of this block are not known")
    captured: dict[int, bytes] = {}
    child = path.fork(sequence, blocks=index)
    try:
        batch = [(child, tokens)]
        step = path.begin(batch, store=False)
        step.capture = lambda layer, _fill, data: captured.__setitem__(layer, bytes(data))
        try:
            engine.forward(step, batch)
        finally:
            step.abort()
    finally:
        path.close_sequence(child)
    return captured
