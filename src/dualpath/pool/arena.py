"""Arenas: the memory of a node, one per (tenant, slot size).

    data          [0 .. slots) x slot_bytes      sparse: pages exist once a slot has been written
    generations   [0 .. slots) x uint64          what a reader compares with its reference after it has used a slot

An `Arena` is private memory, on huge pages where the host allows: attention near the data reads those faster. A node
that lets clients on its host map its memory uses a `SharedArena`: two memfds, mapped shared and sealed against growing
and shrinking, so that a process that maps one can never be surprised by SIGBUS; most hosts give those small pages only.

Tenants never share an arena: mapping one shows nobody else's KV. An arena knows nothing of blocks, leases or free slots
(see `store`); it is bytes with a shape.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import MutableSequence
from typing import TYPE_CHECKING, cast

from dualpath.errors import HostError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GENERATION_BYTES = 8
_F_ADD_SEALS = 1033
_SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_HUGE_PAGE = 2 << 20
_MAP_NORESERVE = 0x4000


class Arena:
    """`slots` equal slots of `slot_bytes` in private memory. `close` unmaps once no view of it is left."""

    _give_back = mmap.MADV_DONTNEED

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._data_map, self._table_map = self._map(max(1, slots * slot_bytes), max(1, slots) * GENERATION_BYTES)
        self.data = memoryview(self._data_map)
        self.generations = cast("MutableSequence[int]", memoryview(self._table_map).cast("Q"))
        self._array: NDArray[np.uint8] | None = None
        self._closed = False

    def _map(self, data_bytes: int, table_bytes: int) -> tuple[mmap.mmap, mmap.mmap]:
        """Return the two mappings. Raises `HostError`."""
        return _private(data_bytes), _private(table_bytes)

    def view(self, slot: int) -> memoryview:
        """Return slot `slot` as a writable view of `slot_bytes` bytes."""
        start = slot * self.slot_bytes
        return self.data[start : start + self.slot_bytes]

    @property
    def array(self) -> NDArray[np.uint8]:
        """Return the data as a 1-D uint8 array (no copy)."""
        if self._array is None:
            import numpy as np

            self._array = np.frombuffer(self.data, np.uint8)
        return self._array

    def discard(self, slot: int) -> None:
        """Give the physical pages that lie wholly inside `slot` back to the host; they read as zero afterwards.

        That may break up huge pages, so it is for when other memory of the node needs the room.
        """
        start = -(-slot * self.slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (slot + 1) * self.slot_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > start:
            with contextlib.suppress(OSError):
                self._data_map.madvise(self._give_back, start, stop - start)

    def close(self) -> None:
        """Unmap, unless somebody still looks at the memory. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._array = None
        with contextlib.suppress(BufferError):  # views are left: the mapping goes when they do
            self.data.release()
            cast("memoryview", self.generations).release()
            self._data_map.close()
            self._table_map.close()


class SharedArena(Arena):
    """An arena that other processes on this host can map, by descriptor."""

    _give_back = mmap.MADV_REMOVE  # MADV_DONTNEED would leave the pages in the memfd

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self._fds: tuple[int, ...] = ()
        self._readers: tuple[int, ...] = ()
        super().__init__(slots, slot_bytes)

    def _map(self, data_bytes: int, table_bytes: int) -> tuple[mmap.mmap, mmap.mmap]:
        data_fd, data = _shared("dualpath-arena", data_bytes)
        try:
            table_fd, table = _shared("dualpath-generations", table_bytes)
        except HostError:
            data.close()
            os.close(data_fd)
            raise
        self._fds = (data_fd, table_fd)
        return data, table

    def descriptors(self) -> tuple[int, ...]:
        """Return descriptors of data and generations by which another process can map them, to read only."""
        if not self._readers:
            self._readers = tuple(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC) for fd in self._fds)
        return self._readers

    def close(self) -> None:
        """Close the descriptors, and unmap as an `Arena` does. Idempotent."""
        super().close()
        for fd in (*self._fds, *self._readers):
            os.close(fd)
        self._fds, self._readers = (), ()


def _private(size: int) -> mmap.mmap:
    """Return private memory of `size` bytes, of which pages exist once they are written."""
    try:
        mapping = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except OSError as error:
        raise HostError(f"cannot map {size} bytes of memory: {error}", hint="lower --capacity") from error
    _prefer_huge_pages(mapping, size)
    return mapping


def _shared(name: str, size: int) -> tuple[int, mmap.mmap]:
    """Return a sealed memfd of `size` bytes and its shared mapping."""
    try:
        fd = os.memfd_create(name[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise HostError(f"cannot create shared memory: {error}", hint="memfd_create needs Linux 3.17") from error
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
        os.fchmod(fd, 0o400)  # or else any user who is passed a read-only descriptor could open it anew for writing
        mapping = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        os.close(fd)
        raise HostError(f"cannot map {size} bytes of shared memory: {error}", hint="lower --capacity") from error
    _prefer_huge_pages(mapping, size)
    return fd, mapping


def _prefer_huge_pages(mapping: mmap.mmap, size: int) -> None:
    if size >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # best effort: the host may not allow them
            mapping.madvise(mmap.MADV_HUGEPAGE)
