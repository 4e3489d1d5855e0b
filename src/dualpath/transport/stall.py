"""Watches rails: one on which nothing moves, while another one works, hands its requests over.

Theory of operation. A NIC that goes down, or a cable that is pulled, gives no error for seconds: nothing comes in any
more. The kernel knows when data last came (`tcp_info`), so a connection with requests in flight and nothing heard for
`STALL_S` is stalled. If every rail is, the node itself is silent: then there is nobody to hand over to, and the reads'
own deadlines decide. The thread sleeps whenever nothing is in flight.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from dualpath.transport.reads import ReadLane

STALL_S = 0.4
PERIOD_S = 0.1

_log = logging.getLogger(__name__)


class StallWatch:
    """One thread for all lanes of a peer that has several rails."""

    def __init__(self, node: str, lanes: Sequence[ReadLane]) -> None:
        self._node = node
        self._lanes = lanes
        self._busy = threading.Event()
        self._busy.set()  # what made the connection that told of the rails may be under way
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rail-watch", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something was asked for."""
        if not self._busy.is_set():
            self._busy.set()

    def close(self) -> None:
        """End the thread."""
        self._end.set()
        self._busy.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._busy.wait()
            self._busy.clear()
            if self._end.is_set():  # asked after clearing: what `close` sets meanwhile is not lost
                return
            busy = True
            while busy and not self._end.wait(PERIOD_S):
                busy = sum(map(self._look, self._lanes)) > 0

    def _look(self, lane: ReadLane) -> bool:
        """Hand over what is stalled in a lane. Return whether anything is in flight or queued there."""
        with lane.lock:
            stalled = [reader for reader in lane.readers if reader.stalled(STALL_S)]
            works = {id(r.dialer) for r in lane.readers if r.connected and r not in stalled}
            ended = [(reader.dialer, reader.give_up()) for reader in stalled if works - {id(reader.dialer)}]
            busy = bool(lane.queue) or any(reader.in_flight for reader in lane.readers)
        for dialer, stream in ended:
            _log.warning("%s: nothing moves on rail %s; its reads go to others", self._node, dialer.rail)
            stream.shutdown()
        return busy
