"""Same host: calls over a Unix socket, and the node's memory mapped into the reader, read-only.

Theory of operation. The node's arena and its table of generations are memfds. `Map` fetches descriptors of both over
the socket (SCM_RIGHTS); they were opened for reading only, and are sealed against shrinking, which the client checks
before it maps them, so that no node can make a reader fault. From then on reading needs no message: look at the slot's
generation, copy the slot (or compute on it in place), look at the generation again. A slot that was reused meanwhile
has another one, so a stale read is `LOST`, never data. A mapping is believed while its connection lives.

Reads are copied by threads of the peer's own, in the order of the calls. Everything else is `peer` over a Unix socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dualpath.errors import PeerError, ProtocolError, UnreachableError, UsageError
from dualpath.transport.base import OnItems, Service, Ticket
from dualpath.transport.dial import Unix
from dualpath.transport.mapping import Mapping
from dualpath.transport.peer import StreamPeer
from dualpath.transport.reads import NO_THREAD
from dualpath.transport.receiver import PIECE_BYTES
from dualpath.transport.requests import ReadRequest, check_transfer, lose, split
from dualpath.transport.server import StreamServer
from dualpath.transport.ticket import ReadTicket
from dualpath.wire.frames import Limits
from dualpath.wire.messages import Lane, Map, Mapped, Outcome, SlotRef

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_F_GET_SEALS = 1034
_SEALS = 0x2 | 0x4  # F_SEAL_SHRINK, F_SEAL_GROW
_GENERATION_BYTES = 8
MAX_PATH_BYTES = 107  # sockaddr_un


class MappedPeer(StreamPeer):
    """A node on this host, by the path of its socket. `copiers` is the number of threads that copy for `read`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: bytes | None = None,
        tenant: str = "default",
        connect_timeout_s: float = 2.0,
        copiers: int = 1,
    ) -> None:
        super().__init__(Unix(os.fspath(path)), key=key, tenant=tenant, connect_timeout_s=connect_timeout_s)
        self._mappings: dict[int, Mapping] = {}
        self._mapping_lock = threading.Lock()
        self._jobs: queue.SimpleQueue[ReadRequest | None] = queue.SimpleQueue()
        self._copiers = [
            threading.Thread(target=self._copy, name=f"mapped-copy-{n}", daemon=True) for n in range(copiers)
        ]

    def mapping(self, slot_bytes: int) -> Mapping:
        """Return the arena for slots of this size and its generations: the same object until the node restarts.

        Bytes must be judged by the generations of the mapping that they were read from. Raises `PeerError` if the node
        is gone or passes no memory.
        """
        return self._mapping(slot_bytes, time.monotonic() + 10.0)

    def view(self, ref: SlotRef, slot_bytes: int) -> tuple[NDArray[np.uint8], int] | None:
        """Return the arena (1-D uint8, read-only) and the slot's offset in bytes, or `None` if `ref` is stale.

        The bytes may be used in place; ask `current` afterwards whether they were still the slot's. See `mapping`.
        """
        mapping = self.mapping(slot_bytes)
        return (mapping.data, ref.slot * slot_bytes) if mapping.current(ref) else None

    def current(self, ref: SlotRef, slot_bytes: int) -> bool:
        """Whether the slot still holds what `ref` names, in the memory that `view` last returned."""
        mapping = self._mappings.get(slot_bytes)
        return mapping is not None and mapping.current(ref)

    def read(
        self,
        refs: Sequence[SlotRef],
        destinations: Sequence[memoryview],
        *,
        slot_bytes: int,
        lane: Lane = Lane.PREFETCH,
        timeout_s: float = 10.0,
        on_items: OnItems | None = None,
    ) -> Ticket:
        """Start copying slots into `destinations`. The lane makes no difference: no network is involved."""
        targets = check_transfer(refs, destinations, slot_bytes, writable=True)
        ticket = ReadTicket(len(refs), time.monotonic() + timeout_s, on_items)
        self._requests += 1
        if refs:
            requests = split(ticket, refs, targets, slot_bytes)
            ticket.hold(len(requests))
            ticket.abort = ticket.settle_all
            ticket.ended = self._watchdog.forget
            try:
                self._watchdog.watch(ticket)
                self._submit(requests)
            except RuntimeError:
                lose(requests, UnreachableError(f"{self._node}: {NO_THREAD}", node=self._node))
        return ticket

    def _submit(self, requests: Sequence[ReadRequest]) -> None:
        """Have the copiers take these. Raises `RuntimeError` if not all of them run: next time, perhaps."""
        with self._mapping_lock:
            closed = self._closed
            if not closed:
                for thread in self._copiers:
                    if thread.ident is None:
                        thread.start()
                for request in requests:
                    self._jobs.put(request)
        if closed:
            lose(requests, UnreachableError(f"{self._node}: this peer is closed", node=self._node))

    def close(self) -> None:
        """Close the connection, end the threads, forget the mappings (memory goes with the last array over it)."""
        with self._mapping_lock:
            self._closed = True
        super().close()
        running = [thread for thread in self._copiers if thread.ident is not None]
        for _ in running:
            self._jobs.put(None)
        for thread in running:
            if thread is not threading.current_thread():
                thread.join()
        self._mappings.clear()

    # --- copying -------------------------------------------------------------------------------------------------

    def _copy(self) -> None:
        while (request := self._jobs.get()) is not None:
            try:
                if request.ticket.listened:
                    self._copy_in_pieces(request)
                elif request.ticket.settled:  # cancelled, or too late
                    request.let_go()
                else:
                    request.finish(self._copy_whole(request), None)
            except PeerError as error:
                lose([request], error)

    def _copy_whole(self, request: ReadRequest) -> list[Outcome]:
        """Copy out of the mapping that there is, and only then ask whether it may be believed: a connection that lives
        now has lived all the while. Asking lets other threads run, and after the copy none has a reason to."""
        mapping = self._mappings.get(request.slot_bytes)
        if mapping is not None:
            outcomes = mapping.copy(request.refs, request.destinations)
            if mapping.connection.usable():
                return outcomes
        return self._mapping(request.slot_bytes, request.ticket.deadline).copy(request.refs, request.destinations)

    def _copy_in_pieces(self, request: ReadRequest) -> None:
        """Somebody wants to hear of items as they come."""
        mapping = self._mapping(request.slot_bytes, request.ticket.deadline)
        step = max(1, PIECE_BYTES // request.slot_bytes)
        for start in range(0, len(request.refs), step):
            if request.ticket.settled:
                break
            end = start + step
            outcomes = mapping.copy(request.refs[start:end], request.destinations[start:end])
            request.ticket.settle_some(request.first + start, outcomes, None)
        request.let_go()

    # --- mapping -------------------------------------------------------------------------------------------------

    def _mapping(self, slot_bytes: int, deadline: float) -> Mapping:
        """Return the mapping for slots of this size, a new one if the node has been restarted."""
        mapping = self._mappings.get(slot_bytes)
        if mapping is not None and mapping.connection.usable():
            return mapping
        connection = self._caller(Lane.PREFETCH, deadline)
        call = connection.start(Map(slot_bytes), (), deadline)
        reply, _ = call.result()
        descriptors = call.take_descriptors()
        try:
            if (
                not isinstance(reply, Mapped)
                or len(descriptors) != 2
                or reply.slot_bytes != slot_bytes
                or reply.slots < 1
            ):
                raise ProtocolError(f"{self._node}: {type(reply).__name__} is no answer to Map", node=self._node)
            import numpy as np

            data = self._map(descriptors[0], reply.slots * slot_bytes)
            table = self._map(descriptors[1], reply.slots * _GENERATION_BYTES)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        mapping = Mapping(
            np.frombuffer(data, np.uint8, reply.slots * slot_bytes),
            np.frombuffer(table, np.dtype("<u8"), reply.slots),
            reply.slots,
            slot_bytes,
            connection,
        )
        return self._keep(mapping)

    def _keep(self, mapping: Mapping) -> Mapping:
        """Remember a mapping, unless another thread has made one over the same connection: that one is kept."""
        with self._mapping_lock:
            other = self._mappings.get(mapping.slot_bytes)
            if other is not None and other.connection is mapping.connection:
                return other
            self._mappings[mapping.slot_bytes] = mapping
            return mapping

    def _map(self, descriptor: int, size: int) -> mmap.mmap:
        """Map `size` bytes of a sealed memfd to read."""
        try:
            seals = fcntl.fcntl(descriptor, _F_GET_SEALS)
            if seals & _SEALS != _SEALS:
                raise ProtocolError(f"{self._node}: its memory is not sealed against shrinking", node=self._node)
            if os.fstat(descriptor).st_size < size:
                raise ProtocolError(f"{self._node}: its memory is smaller than it says", node=self._node)
            return mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise ProtocolError(f"{self._node}: cannot map its memory: {error}", node=self._node) from error


class MappedServer(StreamServer):
    """Serves `service` at a Unix socket that only this user can open (mode 0600)."""

    def __init__(
        self,
        service: Service,
        path: str | os.PathLike[str],
        *,
        node_id: str,
        key: bytes | None = None,
        limits: Limits | None = None,
        max_connections: int = 256,
        stall_timeout_s: float = 30.0,
    ) -> None:
        super().__init__(
            service,
            node_id=node_id,
            key=key,
            limits=limits,
            max_connections=max_connections,
            stall_timeout_s=stall_timeout_s,
        )
        self._path = Path(path)

    @property
    def address(self) -> str:
        """The path that clients connect to."""
        return str(self._path)

    def _listen(self) -> list[socket.socket]:
        if len(os.fsencode(self._path)) > MAX_PATH_BYTES:
            raise UsageError(
                f"socket path is longer than {MAX_PATH_BYTES} bytes: {self._path}", hint="choose a shorter one"
            )
        folder = self._path.parent
        if not folder.is_dir():
            raise UsageError(f"no such folder: {folder}", hint=f"make it, for this user only: mkdir -m 700 {folder}")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._remove_stale()
            listener.bind(str(self._path))
            self._path.chmod(0o600)  # before `listen`: nobody can have connected yet
            listener.listen(128)
        except OSError as error:
            listener.close()
            raise UsageError(f"cannot listen at {self._path}: {error}", hint="choose another path") from error
        except BaseException:
            listener.close()
            raise
        return [listener]

    def _remove_stale(self) -> None:
        """Remove the socket of a node that died. Raises `UsageError` if somebody still answers there."""
        if not self._path.is_socket():
            return
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(self._path))
            except ConnectionRefusedError:
                self._path.unlink()
                return
        raise UsageError(f"another node listens at {self._path}", hint="stop it, or choose another path")

    def close(self) -> None:
        """Remove the socket, then stop serving: once nobody listens here, another node may take the path."""
        if any(listener.fileno() >= 0 for listener in self._listeners):
            with contextlib.suppress(OSError):
                self._path.unlink()
        super().close()
