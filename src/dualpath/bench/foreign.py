"""Foreign traffic on a NIC that others use too: seeded bursts of datagrams, as fast as the link takes them.

Nobody needs to listen at the other end: what matters is the queue in front of the link. Datagrams are unmarked (DSCP
0), so that a NIC which tells lanes apart sends them last.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from dualpath.errors import UsageError

PORT = 9  # discard (RFC 863)
DATAGRAM_BYTES = 8000
QUEUED_BYTES = 4 << 20
"""What may stand in the queue of the NIC: a flow's share of a FIFO is its share of what is queued."""
_BATCH = 16
_SO_SNDBUFFORCE = 32  # Linux; `socket` has no name for it


@dataclass(frozen=True)
class Burst:
    """One burst: silence before it, and how long it lasts, in seconds."""

    gap_s: float
    length_s: float


def bursts(seed: int, *, gap_s: float, length_s: float) -> Callable[[], Burst]:
    """Return what draws bursts, exponentially distributed around these means: the same for the same seed."""
    draw = random.Random(seed)  # noqa: S311 - not for secrets

    def following() -> Burst:
        return Burst(draw.expovariate(1 / gap_s), draw.expovariate(1 / length_s))

    return following


def send_bursts(host: str, *, seed: int, gap_s: float, length_s: float, seconds: float) -> int:
    """Send bursts to `host` for `seconds`; return the bytes handed to the kernel. Raises `UsageError`."""
    if min(gap_s, length_s, seconds) <= 0:
        raise UsageError("gap, length and duration must be more than 0 seconds")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    draw, data, sent = bursts(seed, gap_s=gap_s, length_s=length_s), bytes(DATAGRAM_BYTES), 0
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            _allow_queue(sock)
            sock.connect((host, PORT))
        except OSError as error:
            raise UsageError(f"cannot send to {host}: {error}", hint="name an address of the other host") from error
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            burst = draw()
            time.sleep(min(burst.gap_s, end - now))
            stop = min(end, time.monotonic() + burst.length_s)
            while time.monotonic() < stop:
                sent += _send(sock, data)
    return sent


def _allow_queue(sock: socket.socket) -> None:
    """Let `QUEUED_BYTES` wait; without the right to, as much as the system lets everybody have."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, QUEUED_BYTES)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, QUEUED_BYTES)


def _send(sock: socket.socket, data: bytes) -> int:
    """Send a few datagrams; the socket's buffer makes the sender wait for the link."""
    count = 0
    for _ in range(_BATCH):
        try:
            count += sock.send(data)
        except ConnectionRefusedError:  # somebody told us that nobody listens: as it should be
            continue
        except OSError:  # the queue is full, or the NIC is down: the burst goes on
            time.sleep(0.0005)
    return count
