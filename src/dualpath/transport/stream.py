"""Frames over one connected stream socket, TCP or Unix: gather on the way out, scatter on the way in.

Theory of operation. The socket stays blocking. Without a deadline a receive is one `recvmsg_into` with `MSG_WAITALL`
straight into where the bytes belong: the kernel fills it and wakes the thread once. With a deadline each step polls
first, but for large payloads, where the kernel is told how long to wait. The head of a frame is read ahead into a small
buffer, so a small frame costs one system call; what was read beyond the head (at most `READ_AHEAD` bytes) is copied,
everything else lands directly.

Another thread ends a blocked stream with `shutdown()`; only the owner calls `close()`, so that a descriptor is never
reused under somebody's feet. One thread at a time may send and one receive; the caller sees to that.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

from dualpath.errors import TruncatedError
from dualpath.transport.timeouts import DeadlinePassed, limit_receive
from dualpath.wire.frames import Head, HeadParser, Limits, encode
from dualpath.wire.messages import Message

READ_AHEAD = 16 << 10
IOV_MAX = 512  # the kernel takes 1024
PIECE_BYTES = 2 << 20  # handed to the kernel at once: half as much costs a tenth more over loopback, more gains nothing
MAX_DESCRIPTORS = 4
NAP_S = 0.25  # the longest that a receive with a deadline sleeps before it looks at the clock again
YIELD_S = 0.01  # a sender that cannot send looks again after this, while another thread receives
_LARGE = 256 << 10  # from here on, waking up for every few segments costs more than setting a timeout
_VIEW, _FLAT = {memoryview}, {(1, "B", True)}  # bytes of another kind cannot be assigned to these
_SHAPE = attrgetter("ndim", "format", "c_contiguous")
_WAITALL, _DONTWAIT = int(socket.MSG_WAITALL), int(socket.MSG_DONTWAIT)


def size_of(buffers: Sequence[Any]) -> int:
    """Return the total bytes of `buffers`."""
    return sum(memoryview(buffer).nbytes for buffer in buffers)


def room(count: int) -> memoryview:
    """Return memory for `count` bytes of a peer's, with anything in it.

    Many bytes are not there before they are written: what a peer only says that it will send takes neither memory nor
    time.
    """
    if count < _LARGE:
        return memoryview(bytearray(count))
    import numpy as np

    return memoryview(np.empty(count, np.uint8))


def are_flat(buffers: Sequence[Any]) -> bool:
    """Whether all are flat, contiguous bytes already: views to which such bytes can be assigned. Without a loop."""
    return set(map(type, buffers)) <= _VIEW and set(map(_SHAPE, buffers)) <= _FLAT


def byte_views(buffers: Sequence[Any]) -> list[memoryview]:
    """Return the buffers as flat bytes."""
    if are_flat(buffers):
        return list(buffers)
    return [_flat(buffer) for buffer in buffers]


def _flat(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _advance(views: list[memoryview], start: int, count: int) -> int:
    """Drop `count` bytes, and then empty views, from `views[start:]`; return the new start. The first may be cut."""
    ends = list(accumulate(map(len, views[start : start + IOV_MAX])))
    whole = bisect_right(ends, count)
    start += whole
    rest = count - ends[whole - 1] if whole else count
    if rest:
        views[start] = views[start][rest:]
    return start


def _piece(views: list[memoryview], start: int) -> list[memoryview]:
    """Return what to hand to the kernel next of `views[start:]`: about `PIECE_BYTES`, cut within large views only."""
    piece = views[start : start + IOV_MAX]
    enough = bisect_left(list(accumulate(map(len, piece))), PIECE_BYTES) + 1
    del piece[enough:]
    if len(piece[-1]) > PIECE_BYTES:
        piece[-1] = piece[-1][:PIECE_BYTES]
    return piece


class Stream:
    """A connected socket that carries frames. Counts the bytes it handed to and got from the kernel."""

    def __init__(self, sock: socket.socket, limits: Limits | None = None) -> None:
        self.sock = sock
        self.sent = 0
        self.received = 0
        self.descriptors: deque[int] = deque()
        self.parser = HeadParser(limits)
        self.takes_descriptors = False
        self.torn = False
        """Whether a deadline passed within a payload that was being sent: nothing can follow."""
        self._rest = memoryview(b"")  # of a head within which a deadline passed: goes out before the next frame
        self._view = memoryview(bytearray(READ_AHEAD))
        self._from = self._to = 0  # ahead[from:to) has been received and not consumed
        self._in_payload = False
        self._naps = False
        self._timeout_s = 0.0

    def wait_in_kernel(self) -> None:
        """From now on a receive of a head, of which each has a deadline, waits within its own system call. Where
        answers are short, a `poll` before each is a good part of their cost."""
        self._naps = True

    @property
    def has_input(self) -> bool:
        """Whether a receive would find something at once: bytes, or the end of the stream. Never blocks."""
        return self._from < self._to or bool(self._ready(select.POLLIN, 0.0))

    @property
    def in_frame(self) -> bool:
        """Whether the receiving side stands within a frame, so that giving up means closing."""
        return self._in_payload or self.parser.in_frame

    @property
    def in_payload(self) -> bool:
        """Whether it stands within a payload: what has come of that is not kept, unlike the beginning of a head."""
        return self._in_payload

    # --- sending -------------------------------------------------------------------------------------------------

    def send_frame(
        self,
        request_id: int,
        message: Message,
        payload: Sequence[Any] = (),
        *,
        deadline: float | None = None,
        while_full: Callable[[float], bool] | None = None,
        descriptors: Sequence[int] = (),
        turn: Callable[[], None] | None = None,
    ) -> None:
        """Send a whole frame. With a `deadline` (monotonic) raise `DeadlinePassed` when it passes.

        `while_full` is called with the deadline, instead of waiting, when the socket is full and there is something to
        read; it returns whether it read anything. The frame goes out in pieces of about `PIECE_BYTES`; `turn`, if
        given, is called before each. Raises `OSError` when the connection is gone. After an error a part may be sent;
        after `DeadlinePassed` another frame may still follow, unless the stream is `torn`.
        """
        views = byte_views(payload)
        left = sum(map(len, views))
        head = encode(request_id, message, left)
        if not left and not descriptors and deadline is None:  # nearly always true of a request
            try:
                self.sock.sendall(head)
            except BlockingIOError:
                raise TimeoutError("the peer takes no data") from None
            self.sent += len(head)
            return
        if self._rest:
            self._send_rest(deadline, while_full)
        ancillary: list[tuple[int, int, Any]] = []
        if descriptors:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        before = self.sent
        try:
            self._send([memoryview(head), *views], len(head) + left, ancillary, deadline, while_full, turn)
        except DeadlinePassed:
            if self.sent > before:
                self._rest = memoryview(head)[self.sent - before :]
                self.torn = left > 0  # the caller may reuse its payload's memory
            raise

    def _send_rest(self, deadline: float | None, while_full: Callable[[float], bool] | None) -> None:
        before = self.sent
        try:
            self._send([self._rest], len(self._rest), [], deadline, while_full, None)
        finally:
            self._rest = self._rest[self.sent - before :]

    def _send(
        self,
        views: list[memoryview],
        left: int,
        ancillary: list[tuple[int, int, Any]],
        deadline: float | None,
        while_full: Callable[[float], bool] | None,
        turn: Callable[[], None] | None,
    ) -> None:
        """Send `views`, of `left` bytes together. Adds to `sent` what the kernel took, whatever happens."""
        start, flags = 0, _DONTWAIT if deadline is not None else 0
        while left:
            if turn is not None:
                turn()
            try:
                count = self.sock.sendmsg(_piece(views, start), ancillary, flags)
            except BlockingIOError:
                if deadline is None:
                    raise TimeoutError("the peer takes no data") from None
                self._wait_writable(deadline, while_full)
                continue
            ancillary = []
            self.sent += count
            left -= count
            if left:
                start = _advance(views, start, count)

    def _wait_writable(self, deadline: float, while_full: Callable[[float], bool] | None) -> None:
        """Return when sending may go on, perhaps; raise `DeadlinePassed` once the deadline has passed."""
        if while_full is None:
            self._poll(select.POLLOUT, deadline)
            return
        events = self._poll(select.POLLIN | select.POLLOUT, deadline)
        if events & select.POLLIN and not events & select.POLLOUT and not while_full(deadline):
            self._ready(select.POLLOUT, min(YIELD_S, deadline - time.monotonic()))  # somebody else is reading

    def _poll(self, wanted: int, deadline: float) -> int:
        """Wait for one of the events `wanted` (poll(2)); raise `DeadlinePassed` once the deadline has passed."""
        remaining = deadline - time.monotonic()
        ready = self._ready(wanted, remaining) if remaining > 0 else 0
        if not ready and time.monotonic() >= deadline:
            raise DeadlinePassed("deadline passed")
        return ready

    def _ready(self, wanted: int, timeout_s: float) -> int:
        """Return which events `wanted` there are, after `timeout_s` at the latest; 0 is none."""
        poller = select.poll()
        poller.register(self.sock.fileno(), wanted)
        ready = poller.poll(max(0.0, timeout_s) * 1000)
        return ready[0][1] if ready else 0

    # --- receiving -----------------------------------------------------------------------------------------------

    def recv_head(self, deadline: float | None = None) -> Head | None:
        """Return the next frame's head, or `None` at an orderly end of stream between frames.

        Raises `ProtocolError` for malformed or truncated input, `DeadlinePassed`, and `OSError`.
        """
        while True:
            if self._from < self._to:
                taken, head = self.parser.feed(self._view[self._from : self._to])
                self._from += taken
                if head is not None:
                    self._in_payload = head.payload_bytes > 0
                    return head
            count = self._recv_ahead(deadline)
            if count == 0:
                self.parser.eof()
                return None
            self._from, self._to = 0, count

    def _recv_ahead(self, deadline: float | None) -> int:
        if deadline is None:
            return self._recv_now()
        while True:
            if self._naps and deadline - time.monotonic() > NAP_S:
                self._set_timeout(NAP_S)
            else:
                self._poll(select.POLLIN, deadline)
            try:
                return self._recv_now()
            except BlockingIOError:
                continue  # the nap is over: is there time for another one?

    def _recv_now(self) -> int:
        if not self.takes_descriptors:
            count = self.sock.recv_into(self._view)
        else:
            space = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
            count, ancillary, _, _ = self.sock.recvmsg_into([self._view], space, socket.MSG_CMSG_CLOEXEC)
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    numbers = array.array("i")
                    numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                    self.descriptors.extend(numbers)
        self.received += count
        return count

    def recv_into(self, buffers: Sequence[Any], deadline: float | None = None) -> None:
        """Fill `buffers` with payload bytes. Together the calls after a head must take its whole payload."""
        views, start = byte_views(buffers), 0
        left = sum(map(len, views))
        while left and self._from < self._to:
            count = min(len(views[start]), self._to - self._from)
            views[start][:count] = self._view[self._from : self._from + count]
            self._from += count
            left -= count
            start = _advance(views, start, count)
        large = deadline is not None and left >= _LARGE
        flags = _WAITALL if deadline is None or large else _DONTWAIT
        while left:
            if large and deadline is not None:
                self._let_kernel_wait(deadline)
            elif deadline is not None:
                self._poll(select.POLLIN, deadline)
            try:
                count = self.sock.recvmsg_into(views[start : start + IOV_MAX], 0, flags)[0]
            except BlockingIOError:
                if deadline is None:
                    raise TimeoutError("the peer stopped in the middle of a frame") from None
                continue
            if count == 0:
                raise TruncatedError("truncated frame: the stream ended within a payload")
            self.received += count
            left -= count
            if left:
                start = _advance(views, start, count)

    def _let_kernel_wait(self, deadline: float) -> None:
        """Bound the next blocking receive; it returns early, with what there is, when the time is up."""
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise DeadlinePassed("deadline passed")
        self._set_timeout(remaining)

    def _set_timeout(self, timeout_s: float) -> None:
        if timeout_s != self._timeout_s:
            limit_receive(self.sock, timeout_s)
            self._timeout_s = timeout_s

    def payload_done(self) -> None:
        """The payload of the last head has been taken completely."""
        self._in_payload = False

    def recv_payload(self, count: int, deadline: float | None = None) -> memoryview:
        """Return a whole payload of `count` bytes in a buffer of its own."""
        if count <= self._to - self._from:  # it came with the head, as a small one does
            payload = memoryview(bytearray(self._view[self._from : self._from + count]))
            self._from += count
            self._in_payload = False
            return payload
        payload = room(count)
        if count:
            self.recv_into([payload], deadline)
        self.payload_done()
        return payload

    def discard(self, count: int, deadline: float | None = None) -> None:
        """Receive a payload of `count` bytes and forget it."""
        scratch = memoryview(bytearray(min(count, 1 << 20)))
        while count:
            part = scratch[: min(count, len(scratch))]
            self.recv_into([part], deadline)
            count -= len(part)
        self.payload_done()

    # --- life ----------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self.sock.fileno() < 0

    def alive(self) -> bool:
        """Whether the peer still holds its end, as far as the kernel knows. Never blocks."""
        try:
            poller = select.poll()
            poller.register(self.sock.fileno(), select.POLLIN)
            if not poller.poll(0):
                return True  # nothing to read, not even an end; asked without the cost of an exception
            return self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except (OSError, ValueError):  # `ValueError`: closed
            return False

    def shutdown(self) -> None:
        """End both directions: a thread blocked in this stream returns at once. Safe from any thread."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def linger_close(self) -> None:
        """Close so that what was sent last still arrives, although the peer's input was not all read."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
            self.sock.settimeout(0.2)
            for _ in range(64):
                if not self.sock.recv(65536):
                    break
        self.close()

    def close(self) -> None:
        """Release the socket, and descriptors that nobody took."""
        self.sock.close()
        while self.descriptors:
            os.close(self.descriptors.popleft())
