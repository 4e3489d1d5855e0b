"""Requests that only let go of things at a node: their callers wait for moments, and what was not answered is owed.

    send ──▶ answered within the caller's patience
      └────▶ owed ──▶ sent in order, by a thread there is for just as long ──▶ answered
               ▲               │
               └── no answer ──┘    again with the next such request, or sign of life of the node (`heard`)

A node keeps a client's blocks for as long as it has a connection, so what is forgotten here stays there. The wait may
be a long one: behind a burst of writes on the same connection, or for a node that is stopped.

Only for requests that may be sent twice and late: `wire.Drop` and `wire.Abort` say when they were made, `wire.DropView`
names what never comes again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque

from dualpath.errors import DeadlineError, PeerError, UnreachableError
from dualpath.transport.base import Peer
from dualpath.wire.messages import Lane, Message

MOST_OWED = 1024
"""How many requests are owed to a node that is away; with more, the oldest are forgotten."""
_CLOSE_S = 1.0
_log = logging.getLogger(__name__)


class LettingGo:
    """Sends such requests to one node over one lane. Raises nothing; any thread may call it.

    `timeout_s` is what one that is owed has for being sent and answered.
    """

    def __init__(self, peer: Peer, lane: Lane, *, timeout_s: float) -> None:
        self._peer, self._lane, self._timeout_s = peer, lane, timeout_s
        self._owed: deque[Message] = deque(maxlen=MOST_OWED)
        self._lock = threading.Lock()  # taken by itself: an interrupt as a condition is entered would leave it taken
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._closed = False

    def send(self, message: Message, *, patience_s: float, patience_behind_s: float) -> None:
        """Send a request and wait `patience_s` for the answer, `patience_behind_s` if earlier ones are owed still."""
        with self._lock:
            behind = bool(self._owed)
            if behind:
                self._owed.append(message)
        if not behind and not self._answered(message, patience_s):
            with self._lock:
                self._owed.append(message)
        self.heard()
        if behind:
            with self._lock:
                self._changed.wait_for(lambda: self._thread is None, patience_behind_s)

    def heard(self) -> None:
        """The node may answer by now: send what is owed, and do not wait for it."""
        if not self._owed:
            return
        with self._lock, contextlib.suppress(RuntimeError):  # no threads any more: this process ends, the node knows
            if self._owed and self._thread is None and not self._closed:
                thread = threading.Thread(target=self._send_owed, name="letting go", daemon=True)
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """Forget what is owed. The peer is closed already, so that nothing is waited for. Idempotent."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_S)

    def _send_owed(self) -> None:
        while True:
            message = self._owed[0]
            answered = self._answered(message, self._timeout_s)
            with self._lock:
                if answered and self._owed[0] is message:  # else it was the oldest of too many
                    self._owed.popleft()
                if not answered or not self._owed or self._closed:
                    self._thread = None
                    self._changed.notify_all()
                    return

    def _answered(self, message: Message, timeout_s: float) -> bool:
        """Send it; a refusal is an answer too."""
        try:
            self._peer.call(message, lane=self._lane, timeout_s=timeout_s)
        except (DeadlineError, UnreachableError) as error:
            _log.debug("%s: %s was not answered: %s", self._peer.node, type(message).__name__, error)
            return False
        except PeerError as error:
            _log.debug("%s: %s was refused: %s", self._peer.node, type(message).__name__, error)
        return True
