"""Copying blocks out of an arena, beside other threads of the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dualpath.attention import kernels
from dualpath.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def copy_blocks(
    source: NDArray[np.uint8], offsets: Sequence[int], destinations: Sequence[memoryview], block_bytes: int
) -> None:
    """Copy the `block_bytes` bytes at each of `offsets` of `source` (1-D) to the destination of the same index.

    `destinations` are flat, writable bytes, `block_bytes` each, that overlap neither `source` nor each other. The
    interpreter lock is released once for all blocks: between two of them this thread need not win it back. Raises
    `UsageError`, having copied nothing, for a block or a destination that does not fit.
    """
    if kernels.chosen() == "python":
        _copy(source, offsets, destinations, block_bytes)
        return
    try:
        kernels.native().copy_blocks(source, offsets, destinations, block_bytes)
    except (ValueError, TypeError) as error:
        raise UsageError(f"copy_blocks: {str(error).splitlines()[0]}") from error


def _copy(
    source: NDArray[np.uint8], offsets: Sequence[int], destinations: Sequence[memoryview], block_bytes: int
) -> None:
    import numpy as np

    if len(offsets) != len(destinations):
        raise UsageError("copy_blocks: offsets and destinations must be as many")
    if block_bytes < 0 or any(not 0 <= offset <= len(source) - block_bytes for offset in offsets):
        raise UsageError("copy_blocks: a block is not within the source")
    if any(place.nbytes != block_bytes or place.readonly for place in destinations):
        raise UsageError(f"copy_blocks: each destination must be {block_bytes} writable bytes")
    for offset, place in zip(offsets, destinations, strict=True):
        np.copyto(np.frombuffer(place, np.uint8), source[offset : offset + block_bytes])
