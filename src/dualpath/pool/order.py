"""In which order an owner made its requests: they may come by several connections, one of which may have stalled.

Requests that take or give up blocks are numbered by their owner, upwards. One that comes after what overtook it must
not undo that:

    drop 7   ─────── stalls ──────────▶ late: the owner has wanted the block since (8), it stays pinned
    commit 8 ──▶ pinned

    prepare 7 ────── stalls ──────────▶ late: the owner has given the block up since (8), nothing is reserved for it
    abort 8  ──▶ given up
"""

from __future__ import annotations

from dualpath.wire.messages import BlockKey

UNORDERED = 0
"""The serial of a request that takes effect whenever it comes."""
MOST_REMEMBERED = 16_384


class GivenUp:
    """Blocks that an owner gave up lately, each with the serial of the newest request that did. Pure."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._serials: dict[BlockKey, int] = {}  # the longest ago first

    def note(self, key: BlockKey, serial: int) -> None:
        """Request `serial` gave up `key`. What was given up longest ago is forgotten beyond `most`."""
        if serial == UNORDERED:
            return
        self._serials[key] = max(serial, self._serials.pop(key, UNORDERED))
        if len(self._serials) > self._most:
            del self._serials[next(iter(self._serials))]

    def since(self, key: BlockKey, serial: int) -> bool:
        """Whether a request made after `serial` gave up `key`."""
        return overtaken(serial, self._serials.get(key, UNORDERED))


def overtaken(serial: int, newest: int) -> bool:
    """Whether request `serial` was made before request `newest`."""
    return serial != UNORDERED and serial < newest
