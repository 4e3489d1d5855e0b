"""A node in one piece of shared memory: the smallest `Service` that a transport can be tested and measured with."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
from collections.abc import Sequence

from dualpath.errors import UsageError
from dualpath.transport.base import Reply, Session
from dualpath.wire.messages import (
    Done,
    Failure,
    FailureCode,
    Map,
    Mapped,
    Message,
    Outcome,
    Outcomes,
    Ping,
    Read,
    SlotRef,
    Stats,
    StatsReply,
    Write,
)


class MemoryService:
    """`slots` slots of `slot_bytes`, each with a generation. `Ping` with a payload is echoed; `Stats` counts calls.

    `gate`, while cleared, holds every request back: a node that is alive and does not answer.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._data, self.descriptors = _sealed(slots * slot_bytes)
        self._table, table = _sealed(slots * 8)
        self.descriptors += table
        self.memory = memoryview(self._data)
        self.generations = memoryview(self._table).cast("Q")
        for slot in range(slots):
            self.generations[slot] = 1
        self.gate = threading.Event()
        self.gate.set()
        self.handled = 0
        self.released = 0
        self.read_bytes = 0
        self.open_sessions: list[Session] = []
        self._lock = threading.Lock()

    def slot(self, slot: int) -> memoryview:
        """Return the bytes of one slot."""
        return self.memory[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def holds(self, ref: SlotRef, slot_bytes: int) -> bool:
        """Whether `ref` still names what it named."""
        return slot_bytes == self.slot_bytes and ref.slot < self.slots and self.generations[ref.slot] == ref.generation

    def sink(self, session: Session, message: Message, payload_bytes: int) -> Sequence[memoryview] | None:
        """Writes go straight into their slots."""
        if not isinstance(message, Write):
            return None
        if payload_bytes != len(message.refs) * message.slot_bytes:
            raise UsageError("payload and references do not match")
        if not all(self.holds(ref, message.slot_bytes) for ref in message.refs):
            return None  # received aside, and reported by `handle`
        return [self.slot(ref.slot) for ref in message.refs]

    def handle(self, session: Session, message: Message, payload: memoryview) -> Reply:
        """Answer `Ping`, `Read`, `Write` and `Stats`."""
        if not self.gate.is_set():
            self.gate.wait()
        with self._lock:
            self.handled += 1
            if not any(known is session for known in self.open_sessions):
                self.open_sessions.append(session)
        if isinstance(message, Ping):
            return Reply(Done(), [payload] if payload.nbytes else (), release=self._release)
        if isinstance(message, Read):
            return self._read(message)
        if isinstance(message, Write):
            return Reply(Outcomes(self._write(message, payload)))
        if isinstance(message, Map) and message.slot_bytes == self.slot_bytes:
            return Reply(Mapped(self.slots, self.slot_bytes), descriptors=self.descriptors)
        if isinstance(message, Stats):
            return Reply(StatsReply({"handled": float(self.handled), "read_bytes": float(self.read_bytes)}))
        return Reply(Failure(FailureCode.INVALID, f"no {type(message).__name__} here"))

    def _read(self, message: Read) -> Reply:
        size, slots, now, memory = message.slot_bytes, self.slots, self.generations, self.memory
        if size != self.slot_bytes:
            return Reply(Outcomes([Outcome.LOST] * len(message.refs)), release=self._release)
        kept = [ref.slot for ref in message.refs if ref.slot < slots and now[ref.slot] == ref.generation]
        parts = [memory[slot * size : (slot + 1) * size] for slot in kept]
        with self._lock:
            self.read_bytes += len(parts) * size
        if len(kept) == len(message.refs):
            return Reply(Outcomes([Outcome.OK] * len(kept)), parts, release=self._release)
        outcomes = [Outcome.OK if self.holds(ref, size) else Outcome.LOST for ref in message.refs]
        return Reply(Outcomes(outcomes), parts, release=self._release)

    def _write(self, message: Write, payload: memoryview) -> list[Outcome]:
        outcomes = []
        for index, ref in enumerate(message.refs):
            ok = self.holds(ref, message.slot_bytes)
            if ok and payload.nbytes:
                self.slot(ref.slot)[:] = payload[index * self.slot_bytes : (index + 1) * self.slot_bytes]
            outcomes.append(Outcome.OK if ok else Outcome.LOST)
        return outcomes

    def _release(self) -> None:
        with self._lock:
            self.released += 1

    def closed(self, session: Session) -> None:
        """Forget the session."""
        with self._lock:
            if session in self.open_sessions:
                self.open_sessions.remove(session)

    def close(self) -> None:
        """Give the memory back."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()
        with contextlib.suppress(BufferError):  # a reader still holds a view
            self.generations.release()
            self.memory.release()
            self._data.close()
            self._table.close()


def _sealed(size: int) -> tuple[mmap.mmap, tuple[int, ...]]:
    """Return a sealed memfd's writable mapping, and a descriptor that can only read it."""
    fd = os.memfd_create("dualpath-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, 1033, 0x2 | 0x4)  # F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW
        return mmap.mmap(fd, size), (os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC),)
    finally:
        os.close(fd)
