"""What the kernel knows of a TCP connection (`struct tcp_info`, include/uapi/linux/tcp.h). One system call, no cost."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_LAST_DATA_RECEIVED = struct.Struct("<I")  # milliseconds, at 52
_RTT = struct.Struct("<I")  # microseconds, smoothed, at 68
_MIN_RTT = struct.Struct("<I")  # microseconds, at 148
_SIZE = 152


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """A snapshot of one connection."""

    quiet_s: float
    """Since data last came in."""
    rtt_s: float
    """Smoothed round trip of what this end sends: queues in the way of either direction are in it."""
    min_rtt_s: float
    """Smallest round trip lately: what the path takes with empty queues."""


def tcp_info(sock: socket.socket) -> TcpInfo | None:
    """Return what the kernel knows of `sock`; `None` if it is no TCP connection, or closed."""
    try:
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return None
    if len(raw) < _SIZE:
        return None
    min_rtt = _MIN_RTT.unpack_from(raw, 148)[0]
    rtt = _RTT.unpack_from(raw, 68)[0]
    return TcpInfo(
        quiet_s=_LAST_DATA_RECEIVED.unpack_from(raw, 52)[0] / 1e3,
        rtt_s=rtt / 1e6,
        min_rtt_s=(rtt if min_rtt == 0xFFFFFFFF else min(min_rtt, rtt)) / 1e6,
    )
