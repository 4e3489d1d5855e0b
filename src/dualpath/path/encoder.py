"""Quantising the blocks that a step fills, layer by layer, as their last tokens arrive.

    open slot (the model's dtype) ──attention of this layer──▶ encode ──▶ sealed slot, if the block stays local
                                                                     └─▶ window slot, for as long as it is written

A block without a sealed slot of its own is *homeless*: it only goes to a node. Nothing is quantised in place, so that a
step that is aborted leaves the open tail as it was. Where sealed blocks are not quantised, an encoder passes them on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dualpath.attention import encode_block
from dualpath.path.arena import Budget

if TYPE_CHECKING:
    from dualpath.kv.layout import KVLayout
    from dualpath.path.growth import Fill, Growth
    from dualpath.path.plan import GroupPlan


class Encoder:
    """Encodes `fills`, the blocks that one step fills; none where sealed blocks are not quantised."""

    def __init__(self, growths: Sequence[Growth], layout: KVLayout) -> None:
        self._layout = layout
        self.fills: list[Fill] = []
        if layout.kv_dtype:
            self.fills = [fill for growth in growths for fill in growth.full(layout.block_tokens)]
        self.homeless = sum(not fill.kept for fill in self.fills)

    @contextlib.contextmanager
    def encoded(self, plan: GroupPlan, layer: int, sources: list[memoryview]) -> Iterator[list[memoryview]]:
        """Yield what is to be stored of `sources`, the open layer blocks of `fills`; valid until the context ends."""
        if not self.fills:
            yield sources
            return
        borrowed = plan.slots.allocate(Budget.WINDOW, self.homeless)
        try:
            free = iter(borrowed.tolist())
            slots = [int(fill.kept[plan.index][layer]) if fill.kept else next(free) for fill in self.fills]
            stored = [plan.slots.bytes_of(slot) for slot in slots]
            for source, into in zip(sources, stored, strict=True):
                encode_block(
                    np.frombuffer(source, np.uint8), self._layout.dtype,
                    np.frombuffer(into, np.uint8), plan.geometry, plan.geometry.block_tokens,
                )  # fmt: skip
            yield stored
        finally:
            plan.slots.free(Budget.WINDOW, borrowed)
