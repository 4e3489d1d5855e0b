"""How long the kernel lets one call on a blocking socket wait, before it returns early (socket(7), `SO_RCVTIMEO`);
and what says that it was the caller's own time that ran out."""

from __future__ import annotations

import math
import socket
import struct

_TIMEVAL = struct.Struct("@ll")  # seconds, microseconds


class DeadlinePassed(TimeoutError):
    """A deadline of ours has passed. A bare `TimeoutError` may be the kernel's `ETIMEDOUT`: the connection is gone."""


def limit_receive(sock: socket.socket, timeout_s: float) -> None:
    """Let a receive wait `timeout_s` seconds."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(timeout_s))


def limit_send(sock: socket.socket, timeout_s: float) -> None:
    """Let a send wait `timeout_s` seconds."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))


def _timeval(timeout_s: float) -> bytes:
    """Return a `struct timeval`, rounded up to a microsecond: to the kernel, zero means for ever."""
    return _TIMEVAL.pack(*divmod(max(1, math.ceil(timeout_s * 1e6)), 1_000_000))
