"""How a read is cut into requests, and what becomes of the items of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dualpath.errors import PeerError
from dualpath.transport.ticket import ReadTicket
from dualpath.wire.messages import Outcome, SlotRef

REQUEST_BYTES = 4 << 20
REQUEST_ITEMS = 16


@dataclass(eq=False)
class ReadRequest:
    """Items `[first, first + len(refs))` of a ticket, asked for in one frame."""

    ticket: ReadTicket
    first: int
    refs: list[SlotRef]
    destinations: Sequence[memoryview]
    slot_bytes: int
    number: int = 0  # in the order of submission to the lane

    @property
    def bytes(self) -> int:
        """The payload bytes of a reply in which everything is `OK`."""
        return len(self.refs) * self.slot_bytes

    def settle_all(self, outcome: Outcome, error: PeerError | None) -> None:
        """Give every item without an outcome this one."""
        self.ticket.settle_some(self.first, [outcome] * len(self.refs), error)

    def let_go(self) -> None:
        """Nothing will be written to the destinations any more."""
        self.destinations = ()
        self.ticket.release()


def split(
    ticket: ReadTicket, refs: Sequence[SlotRef], destinations: Sequence[memoryview], slot_bytes: int
) -> list[ReadRequest]:
    """Cut a read into requests."""
    step = max(1, min(REQUEST_ITEMS, REQUEST_BYTES // slot_bytes))
    return [
        ReadRequest(ticket, first, list(refs[first : first + step]), destinations[first : first + step], slot_bytes)
        for first in range(0, len(refs), step)
    ]
