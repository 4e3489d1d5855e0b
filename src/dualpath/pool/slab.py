"""Slabs: which slots of an arena are taken, and which free ones have pages; one per tenant and slot size. Pure.

    taken     allocated to a block
    warm      free; their pages still exist, so they are used first
    cold      free; their pages were given back, or were never touched (every slot from `_fresh` on)

`generations[slot]` starts at `first_generation` with the first use and grows by one each time the slot is freed, so
that a reference (slot, generation) never becomes valid again. A node starts at a number of its own, so that it takes no
reference of another node, or of the process that ran here before it, for one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from typing import Protocol

from dualpath.wire.messages import SlotRef


class Memory(Protocol):
    """What a slab asks of an arena."""

    slots: int
    slot_bytes: int
    generations: MutableSequence[int]

    def discard(self, slot: int) -> None:
        """Give the pages of a free slot back."""


MakeMemory = Callable[[str, int, int], Memory]
"""`(tenant, slots, slot_bytes)` to memory."""


class Slab:
    """The slots of one tenant's arena of one slot size."""

    def __init__(self, tenant: str, memory: Memory, first_generation: int) -> None:
        self.tenant = tenant
        self.memory = memory
        self._first_generation = first_generation
        self.slot_bytes = memory.slot_bytes
        self.taken = 0
        self._warm: list[int] = []
        self._cold: list[int] = []
        self._fresh = 0

    @property
    def warm(self) -> int:
        """Return the number of free slots whose pages exist."""
        return len(self._warm)

    def take(self) -> int:
        """Return a free slot, now taken. The caller has checked the capacity, which bounds the slots of every slab."""
        if self._warm:
            slot = self._warm.pop()
        elif self._cold:
            slot = self._cold.pop()
        else:
            slot = self._fresh
            self._fresh += 1
            self.memory.generations[slot] = self._first_generation
        self.taken += 1
        return slot

    def give(self, slot: int) -> None:
        """Free a slot. From now on references to it are stale."""
        self.memory.generations[slot] += 1
        self.taken -= 1
        self._warm.append(slot)

    def chill(self, most: int) -> int:
        """Give back the pages of up to `most` warm slots, oldest first; return how many there were."""
        slots, self._warm = self._warm[:most], self._warm[most:]
        for slot in slots:
            self.memory.discard(slot)
        self._cold.extend(slots)
        return len(slots)

    def ref(self, slot: int) -> SlotRef:
        """Return the reference by which clients name `slot` as it is now."""
        return SlotRef(slot, self.memory.generations[slot])

    def matches(self, ref: SlotRef) -> bool:
        """Whether `ref` names a slot's present generation."""
        return 0 <= ref.slot < self._fresh and self.memory.generations[ref.slot] == ref.generation


class Slabs:
    """All slabs of a node."""

    def __init__(self, capacity: int, make_memory: MakeMemory, first_generation: int) -> None:
        self._capacity = capacity
        self._first_generation = first_generation
        self._make_memory = make_memory
        self._slabs: dict[tuple[str, int], Slab] = {}

    def __len__(self) -> int:
        return len(self._slabs)

    def count(self, tenant: str) -> int:
        """Return how many of them are the tenant's."""
        return sum(owner == tenant for owner, _ in self._slabs)

    @property
    def taken(self) -> int:
        """Return the number of slots taken in all."""
        return sum(slab.taken for slab in self._slabs.values())

    def find(self, tenant: str, slot_bytes: int) -> Slab | None:
        """Return the slab if there is one."""
        return self._slabs.get((tenant, slot_bytes))

    def open(self, tenant: str, slot_bytes: int) -> Slab:
        """Return the slab, a new one if need be: as many slots as fit into the whole capacity."""
        slab = self.find(tenant, slot_bytes)
        if slab is None:
            memory = self._make_memory(tenant, self._capacity // slot_bytes, slot_bytes)
            slab = Slab(tenant, memory, self._first_generation)
            self._slabs[tenant, slot_bytes] = slab
        return slab

    def make_pages(self, slab: Slab, slots: int, used: int) -> None:
        """Before `slots` of `slab` are taken: give back other slabs' warm pages, so that all pages fit the capacity."""
        new = max(0, slots - slab.warm) * slab.slot_bytes
        excess = used + sum(s.warm * s.slot_bytes for s in self._slabs.values()) + new - self._capacity
        for other in self._slabs.values():
            if excess > 0 and other is not slab:
                excess -= other.chill(-(-excess // other.slot_bytes)) * other.slot_bytes
