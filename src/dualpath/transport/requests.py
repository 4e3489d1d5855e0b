"""What a transfer is asked with, how a read is cut into requests, how small ones share a frame, and what becomes of the
items of one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from dualpath.errors import PeerError, UsageError
from dualpath.transport.stream import are_flat
from dualpath.transport.ticket import ReadTicket
from dualpath.wire.messages import Outcome, SlotRef

if TYPE_CHECKING:
    from dualpath.transport.dial import Dialer

REQUEST_BYTES = 8 << 20  # between megabytes all code runs in a cold cache: few frames, rather than many
REQUEST_ITEMS = 64
_READONLY = attrgetter("readonly")


@dataclass(eq=False, slots=True)
class ReadRequest:
    """Items `[first, first + len(refs))` of a ticket, asked for in one frame."""

    ticket: ReadTicket
    first: int
    refs: list[SlotRef]
    destinations: Sequence[memoryview]
    slot_bytes: int
    number: int = 0  # in the order of submission to the lane
    ended_on: tuple[Dialer, ...] = ()  # the rails of connections that ended with it, each as often as that happened

    def settle_all(self, outcome: Outcome, error: PeerError | None) -> None:
        """Give every item without an outcome this one."""
        self.ticket.settle_some(self.first, [outcome] * len(self.refs), error)

    def finish(self, outcomes: Sequence[Outcome], error: PeerError | None) -> None:
        """Give the items without an outcome theirs; nothing will be written to the destinations any more."""
        self.destinations = ()
        self.ticket.finish(self.first, outcomes, error)

    def let_go(self) -> None:
        """Nothing will be written to the destinations any more."""
        self.destinations = ()
        self.ticket.release()

    def cut(self, items: int) -> ReadRequest:
        """Split off the first `items` items as a request of their own; this one keeps the rest."""
        head = replace(self, refs=self.refs[:items], destinations=self.destinations[:items])
        self.ticket.hold_another()
        self.first += items
        self.refs, self.destinations = self.refs[items:], self.destinations[items:]
        return head

    def skip_settled(self) -> None:
        """Leave out the first items that have an outcome: their destinations may be in use by now."""
        known = self.ticket.outcomes[self.first : self.first + len(self.refs)]
        skip = next((n for n, outcome in enumerate(known) if outcome is None), len(known))
        self.first += skip
        self.refs, self.destinations = self.refs[skip:], self.destinations[skip:]


class Batch:
    """Requests that share a frame: together at most `REQUEST_ITEMS` and `REQUEST_BYTES`, or one alone."""

    __slots__ = ("bytes", "listened", "parts", "refs", "slot_bytes", "unsent")

    def __init__(self, parts: list[ReadRequest]) -> None:
        self.parts = parts
        self.slot_bytes = parts[0].slot_bytes
        self.refs = parts[0].refs if len(parts) == 1 else [ref for part in parts for ref in part.refs]
        self.bytes = len(self.refs) * self.slot_bytes  # of a reply in which everything is `OK`
        self.unsent = False  # whether sending it failed
        self.listened = any(part.ticket.listened for part in parts)

    @staticmethod
    def pop(queue: deque[ReadRequest], most_bytes: int) -> Batch:
        """Take from the queue what fits into a frame of `most_bytes`, at least one slot: the first request, or the
        beginning of it, and those after it."""
        first = queue.popleft()
        most = max(1, min(REQUEST_ITEMS, most_bytes // first.slot_bytes))
        if len(first.refs) > most:
            queue.appendleft(first)
            return Batch([first.cut(most)])
        parts, items = [first], len(first.refs)
        if first.ended_on:  # alone: if it is what ends connections, no other request goes with it
            return Batch(parts)
        while (
            queue
            and not queue[0].ended_on
            and queue[0].slot_bytes == first.slot_bytes
            and items + len(queue[0].refs) <= most
        ):
            items += len(queue[0].refs)
            parts.append(queue.popleft())
        return Batch(parts)

    def destinations(self, outcomes: Sequence[Outcome]) -> Sequence[memoryview]:
        """Return where the bytes of the `OK` items go."""
        parts = self.parts
        every = parts[0].destinations if len(parts) == 1 else [d for part in parts for d in part.destinations]
        if any(outcomes):  # `OK` is 0
            return [place for place, outcome in zip(every, outcomes, strict=True) if not outcome]
        return every

    def settle(self, start: int, outcomes: Sequence[Outcome]) -> None:
        """Report the items from `start` on, counted over all parts."""
        end = start + len(outcomes)
        at = 0
        for part in self.parts:
            low, high = max(at, start), min(at + len(part.refs), end)
            if low < high:
                part.ticket.settle_some(part.first + low - at, outcomes[low - start : high - start], None)
            at += len(part.refs)

    def finish(self, outcomes: Sequence[Outcome], error: PeerError | None) -> None:
        """The reply has been received: report what has not been, and let go of all destinations."""
        if len(self.parts) == 1:
            self.parts[0].finish(outcomes, error)
            return
        at = 0
        for part in self.parts:
            part.finish(outcomes[at : at + len(part.refs)], error)
            at += len(part.refs)


def split(
    ticket: ReadTicket, refs: Sequence[SlotRef], destinations: Sequence[memoryview], slot_bytes: int
) -> list[ReadRequest]:
    """Cut a read into requests."""
    step = max(1, min(REQUEST_ITEMS, REQUEST_BYTES // slot_bytes))
    if len(refs) <= step:
        return [ReadRequest(ticket, 0, list(refs), destinations, slot_bytes)]
    return [
        ReadRequest(ticket, first, list(refs[first : first + step]), destinations[first : first + step], slot_bytes)
        for first in range(0, len(refs), step)
    ]


def lose(requests: Sequence[ReadRequest], error: PeerError) -> None:
    """End requests that are not in flight: their items are `LOST` because of `error`, their destinations let go of."""
    for request in requests:
        request.settle_all(Outcome.LOST, error)
        request.let_go()


def check_transfer(
    refs: Sequence[SlotRef], buffers: Sequence[memoryview], slot_bytes: int, *, writable: bool
) -> list[memoryview]:
    """Return the buffers as flat bytes. Raises `UsageError` unless there is one of `slot_bytes` for each reference."""
    if slot_bytes <= 0:
        raise UsageError(f"slot_bytes must be positive, got {slot_bytes}")
    if len(refs) != len(buffers):
        raise UsageError(f"{len(refs)} references and {len(buffers)} buffers")
    if (  # asked of all at once, without a loop: this runs in a cold cache
        are_flat(buffers) and set(map(len, buffers)) == {slot_bytes} and not (writable and any(map(_READONLY, buffers)))
    ):
        return list(buffers)
    views = []
    for index, buffer in enumerate(buffers):
        view = buffer if type(buffer) is memoryview else memoryview(buffer)
        if view.nbytes != slot_bytes or not view.c_contiguous or (writable and view.readonly):
            kind = "writable, " if writable else ""
            raise UsageError(
                f"buffer {index} has {view.nbytes} bytes, not {slot_bytes}, or is not {kind}C-contiguous memory"
            )
        views.append(view if are_flat([view]) else view.cast("B"))
    return views
