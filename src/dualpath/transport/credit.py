"""How much a connection may have asked for: what its rail brings within a set time, measured live. Pure.

A rail pulls a frame's worth whenever a reply has come, with one more frame in flight behind it. Frames are sized by
what the rail delivers, so that a slow rail holds no more than a slow rail's share of the coming blocks, and whoever
needs one of them does not wait long:

    frame = clamp(rate x FRAME_S, one slot, REQUEST_BYTES)      rate: bytes/s while something was in flight, smoothed
"""

from __future__ import annotations

from dualpath.transport.requests import REQUEST_BYTES

FRAME_S = 0.01
FIRST_FRAME_BYTES = 1 << 20
_WEIGHT = 0.25
_SHORTEST_S = 1e-6


class Credit:
    """The rate of one connection, and the frame that suits it."""

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None

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
