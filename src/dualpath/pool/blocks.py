"""What a store keeps: blocks, and the owners and connections that need them. Plain records; `store` has the rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dualpath.pool.order import UNORDERED, GivenUp
from dualpath.pool.slab import Slab
from dualpath.wire.messages import BlockKey, Geometry, SlotRef

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(eq=False)
class Block:
    """One block at this node: its slots in layer order, and all that keeps it.

    `bounds`: those of its keys, by layer, as far as somebody has asked for them (see `attention.bounds`), with the
    geometry that was asked for: the latest, as memory for any number of them is not in the capacity.
    """

    tenant: str
    key: BlockKey
    tokens: int
    slab: Slab
    slots: tuple[int, ...]
    unwritten: set[int]
    sealed: bool = False
    doomed: bool = False
    holds: int = 0
    leases: int = 0
    pins: set[Owner] = field(default_factory=set)
    prepared_by: Owner | None = None
    prepared_at: int = UNORDERED  # serial of the newest request that wanted it while it is prepared
    bounds: dict[int, tuple[Geometry, NDArray[np.float32]]] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Return the bytes that it occupies."""
        return len(self.slots) * self.slab.slot_bytes

    def refs(self) -> list[SlotRef]:
        """Return its slots as clients name them."""
        return [self.slab.ref(slot) for slot in self.slots]


@dataclass(eq=False)
class Owner:
    """A client, over all its connections. What it has prepared is aborted when the last of them closes: a request that
    is made again over another one finds it. Its pins lapse at `pins_end` if it has no connection then."""

    tenant: str
    name: bytes
    connections: int = 0
    pins_end: float = 0.0
    prepared: set[Block] = field(default_factory=set)
    pinned: dict[Block, int] = field(default_factory=dict)
    """Serial of the newest request that wanted it; in the order of pinning, so that eviction is too."""
    given_up: GivenUp = field(default_factory=GivenUp)


@dataclass(eq=False)
class Connection:
    """One connection of an owner."""

    owner: Owner
