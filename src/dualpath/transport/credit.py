"""How much of a rail a connection that reads may fill: its requests and its bytes on the way, measured live. Pure.

*Requests.* A rail pulls a frame's worth whenever a reply has come, with one more frame in flight behind it. Frames are
sized by what the rail delivers, so that a slow rail holds no more than a slow rail's share of the coming blocks, and
whoever needs one of them does not wait long:

    frame = clamp(rate x FRAME_S, one slot, REQUEST_BYTES)      rate: bytes/s while something was in flight, smoothed

*Bytes on the way.* What a sender has on the way stands in the queue of the narrowest link, where everything else waits
behind it. The receiver bounds it by the window that it offers. The round trip tells when to: its smallest value is the
path itself, what it has grown by is the queue (the same measure as in TCP Vegas, Brakmo and Peterson 1995).

    queue > QUEUE_S      window = rate x (smallest round trip + QUEUE_S)
    queue < QUEUE_S/2    window doubles, up to none at all: a link that does not queue is not to be held back, whatever
                         keeps the rate low (a busy processor, a slow node)
"""

from __future__ import annotations

from dualpath.transport.requests import REQUEST_BYTES

FRAME_S = 0.01
FIRST_FRAME_BYTES = 1 << 20
QUEUE_S = 0.001
SMALLEST_WINDOW_BYTES = 32 << 10
LARGEST_WINDOW_BYTES = 16 << 20
"""A window of this size is no bound."""
_WEIGHT = 0.25
_SHORTEST_S = 1e-6


class Credit:
    """The rate of one connection, the frame that suits it, and the window that it offers."""

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None
        self.window_bytes = LARGEST_WINDOW_BYTES

    def answered(self, payload_bytes: int, busy_s: float) -> None:
        """A reply of `payload_bytes` has come, `busy_s` after the one before it (or after it was asked for)."""
        if payload_bytes <= 0:
            return
        rate = payload_bytes / max(busy_s, _SHORTEST_S)
        self.bytes_per_s = rate if self.bytes_per_s is None else self.bytes_per_s + _WEIGHT * (rate - self.bytes_per_s)

    @property
    def frame_bytes(self) -> int:
        """Return how many bytes the next request may ask for (whoever asks takes one slot at least)."""
        if self.bytes_per_s is None:
            return FIRST_FRAME_BYTES
        return min(REQUEST_BYTES, int(self.bytes_per_s * FRAME_S))

    def round_trip(self, rtt_s: float, min_rtt_s: float) -> int | None:
        """The round trip is `rtt_s` now, and was `min_rtt_s` at the least. Return the window to offer if it changes."""
        if self.bytes_per_s is None:
            return None
        queue_s, before = rtt_s - min_rtt_s, self.window_bytes
        if queue_s > QUEUE_S:
            fitting = int(self.bytes_per_s * (min_rtt_s + QUEUE_S))
            self.window_bytes = max(SMALLEST_WINDOW_BYTES, min(before, fitting))
        elif queue_s < QUEUE_S / 2:
            self.window_bytes = min(LARGEST_WINDOW_BYTES, before * 2)
        return self.window_bytes if self.window_bytes != before else None

    def connected(self) -> None:
        """A new connection: no window has been set on it yet."""
        self.window_bytes = LARGEST_WINDOW_BYTES
