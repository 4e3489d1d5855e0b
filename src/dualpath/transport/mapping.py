"""A node's arena in this process's memory, and the table that says what is in its slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dualpath.attention.copying import copy_blocks
from dualpath.transport.calls import CallConnection
from dualpath.wire.messages import Outcome, SlotRef

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Mapping:
    """A node's arena for slots of one size, in this process's memory. `data` is the whole arena, read-only."""

    data: NDArray[np.uint8]
    generations: NDArray[np.uint64]
    slots: int
    slot_bytes: int
    connection: CallConnection

    @cached_property
    def _now(self) -> memoryview:
        return memoryview(self.generations)  # one number out of it costs a fifth of what it costs out of an array

    def current(self, ref: SlotRef) -> bool:
        """Whether `ref` still names what it named."""
        return 0 <= ref.slot < self.slots and int(self.generations[ref.slot]) == ref.generation

    def stale(self, slots: NDArray[np.int64], generations: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Return the indices of the slots whose generation is another one by now, all looked at in one go."""
        import numpy as np

        if len(slots) and slots.max() >= self.slots:
            return np.flatnonzero((slots >= self.slots) | (self.generations.take(slots, mode="clip") != generations))
        return np.flatnonzero(self.generations[slots] != generations)

    def copy(self, refs: Sequence[SlotRef], destinations: Sequence[memoryview]) -> list[Outcome]:
        """Copy slots out, into flat bytes of a slot each; `LOST` are those that are, or were meanwhile, no longer what
        their `refs` name."""
        size, now = self.slot_bytes, self._now
        slots, wanted = [ref.slot for ref in refs], [ref.generation for ref in refs]
        if (
            min(slots, default=0) >= 0
            and max(slots, default=0) < self.slots
            and [now[slot] for slot in slots] == wanted
        ):
            copy_blocks(self.data, [slot * size for slot in slots], destinations, size)
            if [now[slot] for slot in slots] == wanted:  # as nearly always
                return [Outcome.OK] * len(refs)
            good = [True] * len(refs)
        else:
            good = [self.current(ref) for ref in refs]
            offsets = [slot * size for slot, ok in zip(slots, good, strict=True) if ok]
            copy_blocks(self.data, offsets, [place for place, ok in zip(destinations, good, strict=True) if ok], size)
        return [Outcome.OK if ok and self.current(ref) else Outcome.LOST for ref, ok in zip(refs, good, strict=True)]
