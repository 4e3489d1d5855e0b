"""What the raw bench moves: reads of a lane, real-time calls, and writes, each a `raw_clock.Flow`.

Theory of operation. A flow has a place in memory for each of its operations under way. Blocks are random bytes. What
landed last in each place is compared byte by byte with what was asked for, outside the clock.
"""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dualpath.bench.raw_clock import Wait
from dualpath.errors import HostError, PeerError, PoolFullError, ProtocolError, UnreachableError
from dualpath.pool.node import PoolNode
from dualpath.transport.base import Ticket
from dualpath.transport.peer import WRITE_BYTES
from dualpath.units import format_bytes
from dualpath.wire.messages import BlockKey, Lane, Outcome, Outcomes, PrepareItem, Read, SlotRef, Write

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEPTH = 2
"""Operations under way; each carries half of the blocks in flight."""
CALLS = 8
"""Real-time calls under way, of one block each."""
REGION_BYTES = 32 << 20
"""What is stored at the node for each size, so that it does not come out of a processor's cache."""
_LEAST_BLOCKS, _MOST_BLOCKS = 4, 2048
_IN_FLIGHT_BYTES = 8 << 20
_LEAST_IN_FLIGHT, _MOST_IN_FLIGHT = 4, 512
_WRITE_CHUNK = 4 << 20


def blocks_in_flight(block_bytes: int) -> int:
    """Return how many blocks of this size are kept in flight: 8 MiB of them, at least 4 and at most 512."""
    return min(_MOST_IN_FLIGHT, max(_LEAST_IN_FLIGHT, _IN_FLIGHT_BYTES // block_bytes))


def stored_blocks(block_bytes: int) -> int:
    """Return how many blocks of this size lie at the node to be read."""
    return min(_MOST_BLOCKS, max(_LEAST_BLOCKS, REGION_BYTES // block_bytes))


def room_needed(block_bytes: int, in_flight: int) -> int:
    """Return the bytes that a node must have free: the blocks to be read, and those being written by one flow."""
    return block_bytes * (stored_blocks(block_bytes) + DEPTH * write_group(block_bytes, in_flight))


def write_group(block_bytes: int, in_flight: int) -> int:
    """Return how many blocks one write carries: no more bytes than the transport itself puts into one."""
    return max(1, min(in_flight // DEPTH, WRITE_BYTES // block_bytes))


@dataclass(frozen=True)
class Stored:
    """Blocks that lie sealed at a node, and the bytes that they hold: `data` is uint8 `[blocks, block_bytes]`."""

    refs: Sequence[SlotRef]
    data: NDArray[np.uint8]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return int(self.data.shape[1])


@contextlib.contextmanager
def stored(node: PoolNode, block_bytes: int) -> Iterator[Stored]:
    """Write random blocks of this size to a node and seal them; drop them when the block is left.

    Raises `PoolFullError` if the node has no room, and any other `PeerError`.
    """
    import numpy as np

    count = stored_blocks(block_bytes)
    data = np.frombuffer(np.random.default_rng(block_bytes).bytes(count * block_bytes), np.uint8)
    data = data.reshape(count, block_bytes)
    with _prepared(node, block_bytes, count) as (key, refs):
        step = max(1, _WRITE_CHUNK // block_bytes)
        for first in range(0, count, step):
            part = refs[first : first + step]
            outcomes = node.write(part, _blocks(data[first : first + step]), block_bytes, timeout_s=node.timeout_s)
            _all_ok(outcomes, len(part), node.name, "taken")
        _all_ok(node.commit([key]), 1, node.name, "sealed")
        yield Stored(refs, data)


@contextlib.contextmanager
def _prepared(node: PoolNode, block_bytes: int, count: int) -> Iterator[tuple[BlockKey, list[SlotRef]]]:
    """Reserve `count` slots under a key of their own; whether sealed or not, give them back at the end."""
    key = BlockKey(secrets.token_bytes(16), 0)
    (refs,) = node.prepare([PrepareItem(key, count, block_bytes, 1)])
    try:
        yield key, refs
    finally:
        node.abort([key])
        node.drop([key])


def check_room(node: PoolNode, wanted: int) -> None:
    """Raise `PoolFullError` unless the node has `wanted` bytes free, evicting nothing that somebody may want."""
    stats = node.stats()
    free = int(stats["capacity_bytes"] - stats["used_bytes"])
    if free < wanted:
        raise PoolFullError(
            f"{node.name}: the bench writes {format_bytes(wanted)}, and {format_bytes(free)} of "
            f"{format_bytes(stats['capacity_bytes'])} are free",
            node=node.name,
            hint="give the node more --capacity, measure smaller blocks, or use a node that holds less",
        )


class ReadFlow:
    """Reads of a lane, straight into memory that is used in turn.

    `operations` reads of `in_flight / DEPTH` blocks are under way. Several rails want more than `DEPTH`: the next read
    starts when the oldest has ended, and a slow rail must not make a fast one wait for that.
    """

    def __init__(self, node: PoolNode, blocks: Stored, lane: Lane, in_flight: int, *, operations: int = DEPTH) -> None:
        import numpy as np

        self.block_bytes, self.depth = blocks.block_bytes, operations
        self.group = max(1, in_flight // DEPTH)
        self._node, self._blocks, self._lane = node, blocks, lane
        self._memory = np.full((self.depth * self.group, self.block_bytes), 255, np.uint8)
        self._views = _blocks(self._memory)
        self._landed: dict[int, int] = {}
        self._noise = random.Random(self.block_bytes)  # noqa: S311 seeded on purpose

    def start(self, number: int, count: int) -> Wait:
        """Read `count` random blocks."""
        place = number % self.depth * self.group
        chosen = self._noise.choices(range(len(self._blocks.refs)), k=count)
        self._landed.update(zip(range(place, place + count), chosen, strict=True))
        node = self._node
        ticket = node.read(
            [self._blocks.refs[block] for block in chosen],
            self._views[place : place + count],
            self.block_bytes,
            lane=self._lane,
            timeout_s=node.timeout_s,
        )
        return lambda: _finish(node, ticket)

    def verify(self) -> None:
        """Compare what landed last in each place."""
        for place, block in self._landed.items():
            _compare(self._memory[place], self._blocks.data[block])


class CallFlow:
    """Blocks as the payload of calls, on the connection that a lane's small requests use.

    As it stands, single blocks in lane REALTIME: the way of shipped queries and partials.
    """

    def __init__(
        self, node: PoolNode, blocks: Stored, *, lane: Lane = Lane.REALTIME, group: int = 1, operations: int = CALLS
    ) -> None:
        import numpy as np

        self.block_bytes, self.depth, self.group = blocks.block_bytes, operations, group
        self._node, self._blocks, self._lane = node, blocks, lane
        self._memory = np.full((self.depth * self.group, self.block_bytes), 255, np.uint8)
        self._landed: dict[int, int] = {}
        self._noise = random.Random(self.block_bytes)  # noqa: S311 seeded on purpose

    def start(self, number: int, count: int) -> Wait:
        """Ask for `count` random blocks."""
        place = number % self.depth * self.group
        chosen = self._noise.choices(range(len(self._blocks.refs)), k=count)
        self._landed.update(zip(range(place, place + count), chosen, strict=True))
        node, size = self._node, self.block_bytes
        request = Read(size, [self._blocks.refs[block] for block in chosen])
        into = memoryview(self._memory[place : place + count].reshape(-1).data)
        pending = node.peer.start(request, lane=self._lane, timeout_s=node.timeout_s, into=into)

        def wait() -> None:
            reply, payload = pending.result()
            _all_ok(reply.outcomes if isinstance(reply, Outcomes) else (), count, node.name, "sent")
            if payload.nbytes != size * count:
                raise ProtocolError(f"{node.name} answered {payload.nbytes} bytes, not {size * count}", node=node.name)

        return wait

    def verify(self) -> None:
        """Compare what landed last in each place."""
        for place, block in self._landed.items():
            _compare(self._memory[place], self._blocks.data[block])


class WriteFlow:
    """Writes in lane BULK into prepared slots, over and over; `verify` seals them and reads them back."""

    def __init__(self, node: PoolNode, key: BlockKey, refs: Sequence[SlotRef], blocks: Stored, group: int) -> None:
        self.block_bytes, self.depth, self.group = blocks.block_bytes, DEPTH, group
        self._node, self._key, self._refs, self._blocks = node, key, refs, blocks
        self._sources = _blocks(blocks.data)
        self._written: dict[int, int] = {}
        self._noise = random.Random(self.block_bytes)  # noqa: S311 seeded on purpose

    def start(self, number: int, count: int) -> Wait:
        """Write `count` random blocks."""
        return self._start(number % self.depth * self.group, count)

    def _start(self, place: int, count: int) -> Wait:
        chosen = self._noise.choices(range(len(self._sources)), k=count)
        self._written.update(zip(range(place, place + count), chosen, strict=True))
        node = self._node
        request = Write(self.block_bytes, list(self._refs[place : place + count]))
        payload = [self._sources[block] for block in chosen]
        pending = node.peer.start(request, payload, lane=Lane.BULK, timeout_s=node.timeout_s)

        def wait() -> None:
            reply, _ = pending.result()
            _all_ok(reply.outcomes if isinstance(reply, Outcomes) else (), count, node.name, "taken")

        return wait

    def verify(self) -> None:
        """Write what was left out, seal all, read it back and compare."""
        import numpy as np

        for place in range(len(self._refs)):
            if place not in self._written:
                self._start(place, 1)()
        node, back = self._node, np.full((len(self._refs), self.block_bytes), 255, np.uint8)
        _all_ok(node.commit([self._key]), 1, node.name, "sealed")
        ticket = node.read(self._refs, _blocks(back), self.block_bytes, lane=Lane.BULK, timeout_s=node.timeout_s)
        _finish(node, ticket)
        for place, block in self._written.items():
            _compare(back[place], self._blocks.data[block])


@contextlib.contextmanager
def write_flow(node: PoolNode, blocks: Stored, in_flight: int) -> Iterator[WriteFlow]:
    """Reserve the slots of a `WriteFlow`, and give them back at the end."""
    group = write_group(blocks.block_bytes, in_flight)
    with _prepared(node, blocks.block_bytes, DEPTH * group) as (key, refs):
        yield WriteFlow(node, key, refs, blocks, group)


# --- inside ----------------------------------------------------------------------------------------------------------


def _blocks(rows: NDArray[np.uint8]) -> list[memoryview]:
    return [memoryview(row.data) for row in rows]


def _finish(node: PoolNode, ticket: Ticket) -> None:
    """Wait until a read has ended and let go of its memory. Raises a `PeerError` unless all of it came."""
    outcomes = ticket.wait()
    if any(outcome is not Outcome.OK for outcome in outcomes):
        raise ticket.error or _lost(node.name, "sent")
    ticket.wait_drained(node.timeout_s)


def _all_ok(outcomes: Sequence[Outcome], wanted: int, node: str, verb: str) -> None:
    if len(outcomes) != wanted or any(outcome is not Outcome.OK for outcome in outcomes):
        raise _lost(node, verb)


def _lost(node: str, verb: str) -> PeerError:
    return UnreachableError(
        f"{node}: blocks were not {verb}", node=node, hint="has the node been stopped, or is it full?"
    )


def _compare(landed: NDArray[np.uint8], sent: NDArray[np.uint8]) -> None:
    if (landed != sent).any():
        raise HostError(
            "a block did not arrive as it was sent",
            hint="the measurement is void: memory, a NIC or the transport spoils data",
        )
