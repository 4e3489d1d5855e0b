"""The embedded backend: the state machine behind a lock, with a clock, for one process. Nothing outlives it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from dualpath.directory.base import Change, NodeInfo, SequenceInfo, Watch
from dualpath.directory.state import DirectoryState
from dualpath.wire.messages import BlockKey


class MemoryDirectory:
    """A `Directory` in this process. Leases lapse when somebody next asks or writes; there is no thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._state = DirectoryState()
        self._untold: deque[Change] = deque()
        self._watchers: dict[object, Watch] = {}

    def join(self, info: NodeInfo, ttl_s: float) -> None:
        """See `Directory.join`."""
        self._event(lambda state, now: state.join(now, info, ttl_s))

    def leave(self, node: str) -> None:
        """See `Directory.leave`."""
        self._event(lambda state, _: state.leave(node))

    def nodes(self) -> list[NodeInfo]:
        """See `Directory.nodes`."""
        self._event(_nothing)
        with self._lock:
            return self._state.nodes()

    def add_blocks(self, tenant: str, keys: Iterable[BlockKey], node: str) -> None:
        """See `Directory.add_blocks`."""
        self._event(lambda state, _: state.add_blocks(tenant, keys, node))

    def remove_blocks(self, tenant: str, keys: Iterable[BlockKey], node: str) -> None:
        """See `Directory.remove_blocks`."""
        self._event(lambda state, _: state.remove_blocks(tenant, keys, node))

    def locate(self, tenant: str, keys: Sequence[BlockKey]) -> list[list[str]]:
        """See `Directory.locate`."""
        self._event(_nothing)
        with self._lock:
            return self._state.locate(tenant, keys)

    def claim(self, sequence: str, owner: str, ttl_s: float) -> SequenceInfo:
        """See `Directory.claim`."""
        claimed: list[SequenceInfo] = []

        def claim(state: DirectoryState, now: float) -> list[Change]:
            info, changes = state.claim(now, sequence, owner, ttl_s)
            claimed.append(info)
            return changes

        self._event(claim)
        return claimed[0]

    def renew(self, sequence: str, epoch: int, ttl_s: float) -> None:
        """See `Directory.renew`."""
        self._event(lambda state, now: state.renew(now, sequence, epoch, ttl_s))

    def publish(self, sequence: str, epoch: int, tokens: int, pointer: bytes) -> None:
        """See `Directory.publish`."""
        self._event(lambda state, _: state.publish(sequence, epoch, tokens, pointer))

    def hand_over(self, sequence: str, epoch: int) -> None:
        """See `Directory.hand_over`."""
        self._event(lambda state, now: state.hand_over(now, sequence, epoch))

    def end(self, sequence: str, epoch: int) -> None:
        """See `Directory.end`."""
        self._event(lambda state, _: state.end(sequence, epoch))

    def sequence(self, sequence: str) -> SequenceInfo | None:
        """See `Directory.sequence`."""
        with self._lock:
            return self._state.sequence(sequence)

    def watch(self, watcher: Watch) -> Callable[[], None]:
        """See `Directory.watch`."""
        token = object()
        with self._telling:
            self._watchers[token] = watcher

        def stop() -> None:
            with self._telling:
                self._watchers.pop(token, None)

        return stop

    def _event(self, event: Callable[[DirectoryState, float], list[Change]]) -> None:
        try:
            with self._lock:
                now = self._clock()
                self._untold.extend(self._state.tick(now))
                self._untold.extend(event(self._state, now))
        finally:
            self._tell()

    def _tell(self) -> None:
        """Tell watchers, in order. One thread tells at a time; what comes up meanwhile, the same thread tells."""
        while self._untold:
            with self._telling:
                while self._untold:
                    change = self._untold.popleft()
                    for watcher in list(self._watchers.values()):
                        watcher(change)


def _nothing(_state: DirectoryState, _now: float) -> list[Change]:
    return []
