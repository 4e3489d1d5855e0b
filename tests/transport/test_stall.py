"""The watch over rails ends when it is told to, whatever its thread is about to do then."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from dualpath.testing.transport_case import PATIENCE_S
from dualpath.transport import stall
from dualpath.transport.stall import StallWatch


@pytest.mark.parametrize("nth", range(5))
def test_it_may_be_closed_at_any_moment(nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `close` sets is set just before the thread's operation `nth` on an event."""
    events: list[threading.Event] = []
    taken = 0

    class Stepped(threading.Event):
        def __init__(self) -> None:
            super().__init__()
            events.append(self)

        def step(self) -> None:
            nonlocal taken
            if threading.current_thread().name != "rail-watch":
                return
            if taken == nth:
                busy, end = events
                end.set()
                busy.set()
            taken += 1

        def wait(self, timeout: float | None = None) -> bool:
            self.step()
            return super().wait(timeout)

        def clear(self) -> None:
            self.step()
            super().clear()

        def is_set(self) -> bool:
            was = super().is_set()
            self.step()  # it may change as soon as it was asked
            return was

    monkeypatch.setattr(stall, "threading", SimpleNamespace(Event=Stepped, Thread=threading.Thread))
    monkeypatch.setattr(stall, "PERIOD_S", 0.001)
    watch = StallWatch("n", [])
    watch.wake()
    watch._thread.join(PATIENCE_S)
    assert not watch._thread.is_alive()
