"""What the prefetcher was told and what it decided, as JSON lines; and the same decisions made again from them.

    {"event": "open", "capacity": 67108864}
    {"event": "begin", "schedule": [[key, bytes], …] or null (the same as before), "wrap": true, "unwanted": [key, …]}
    {"event": "capacity", "bytes": n}              {"event": "pump", "fetch": [key, …]}
    {"event": "need", "key": k, "fetch": true, "dropped": [key, …]}
    {"event": "let_go", "key": k}                  {"event": "shrink", "bytes": n, "dropped": [key, …]}

`at` is the time in seconds since the trace began. Keys are those of `path.prefetch.Item`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, TypeVar

from dualpath.errors import UsageError
from dualpath.path.prefetch import Item, Prefetcher

T = TypeVar("T")


class TracedPrefetcher(Prefetcher[T]):
    """A prefetcher that writes down what it is told and what it answers."""

    def __init__(self, capacity: int, file: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(capacity)
        self._file, self._clock, self._began = file, clock, clock()
        self._within = 0
        self._told_capacity = capacity
        self._write("open", capacity=capacity)

    def begin(self, schedule: Sequence[Item[T]], *, wrap: bool) -> list[Item[T]]:
        """As `Prefetcher.begin`."""
        same = schedule is self._schedule
        with self._quiet():
            unwanted = super().begin(schedule, wrap=wrap)
        told = None if same else [[item.key, item.bytes] for item in schedule]
        self._write("begin", schedule=told, wrap=wrap, unwanted=_keys(unwanted))
        return unwanted

    def pump(self) -> list[Item[T]]:
        """As `Prefetcher.pump`."""
        self._tell_capacity()
        items = super().pump()
        self._write("pump", fetch=_keys(items))
        return items

    def need(self, item: Item[T]) -> tuple[bool, list[Item[T]]]:
        """As `Prefetcher.need`."""
        self._tell_capacity()
        with self._quiet():
            fetch, dropped = super().need(item)
        self._write("need", key=item.key, fetch=fetch, dropped=_keys(dropped))
        return fetch, dropped

    def let_go(self, key: int) -> Item[T]:
        """As `Prefetcher.let_go`."""
        item = super().let_go(key)
        if not self._within:
            self._write("let_go", key=key)
        return item

    def shrink(self, capacity: int) -> list[Item[T]]:
        """As `Prefetcher.shrink`."""
        with self._quiet():
            dropped = super().shrink(capacity)
        self._told_capacity = capacity
        self._write("shrink", bytes=capacity, dropped=_keys(dropped))
        return dropped

    def _tell_capacity(self) -> None:
        if self.capacity != self._told_capacity:
            self._told_capacity = self.capacity
            self._write("capacity", bytes=self.capacity)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """What is let go of on the way to an answer is part of that answer."""
        self._within += 1
        try:
            yield
        finally:
            self._within -= 1

    def _write(self, event: str, **fields: object) -> None:
        self._file.write(json.dumps({"at": round(self._clock() - self._began, 6), "event": event, **fields}) + "\n")


@dataclass(frozen=True)
class Replayed:
    """What came of a trace when it was played again."""

    events: int
    fetched: int
    """Layer blocks asked for ahead of need."""
    late: int
    """Layer blocks asked for only when compute needed them."""
    dropped: int
    """Layer blocks let go of unused."""
    most_bytes: int
    """The most held at once."""
    first_difference: str
    """The first event that was decided otherwise than in the trace, in words; empty if there is none."""


def replay(lines: Iterable[str]) -> Replayed:
    """Play a trace again and compare decision by decision. Raises `UsageError` for what is no trace."""
    game: _Game | None = None
    for number, line in enumerate(lines, 1):
        try:
            told = json.loads(line)
            if told["event"] == "open":
                game = _Game(Prefetcher(int(told["capacity"])), game)
            elif game is None:
                raise UsageError("a trace begins with the event `open`")
            else:
                game.play(number, told)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError, UsageError) as error:
            raise UsageError(f"line {number} is no line of a prefetch trace: {error}") from error
    if game is None:
        raise UsageError("the trace is empty")
    return Replayed(game.events, game.fetched, game.late, game.dropped, game.most_bytes, game.difference)


class _Game:
    """A prefetcher that is told again what a trace says that another one was told."""

    def __init__(self, policy: Prefetcher[None], before: _Game | None) -> None:
        """`before` was played before in the same trace: its counts go on."""
        self._policy = policy
        self._schedule: list[Item[None]] = []
        self._known: dict[int, Item[None]] = {}
        self.events = self.fetched = self.late = self.dropped = self.most_bytes = 0
        self.difference = ""
        if before is not None:
            self.events, self.fetched, self.late = before.events, before.fetched, before.late
            self.dropped, self.most_bytes, self.difference = before.dropped, before.most_bytes, before.difference

    def play(self, number: int, told: dict[str, Any]) -> None:
        """Play one line, and note whether the answer is the trace's."""
        play = {
            "begin": self._begin, "capacity": self._capacity, "pump": self._pump, "need": self._need,
            "let_go": self._let_go, "shrink": self._shrink,
        }[told["event"]]  # fmt: skip
        answer = play(told)
        self.events += 1
        self.most_bytes = max(self.most_bytes, self._policy.held_bytes)
        if not self.difference and any(told[name] != value for name, value in answer.items()):
            self.difference = f"line {number}: {told['event']} was {told}, is {answer}"

    def _begin(self, told: dict[str, Any]) -> dict[str, object]:
        if told["schedule"] is not None:
            self._schedule = [Item(int(key), int(size), None) for key, size in told["schedule"]]
            self._known.update((item.key, item) for item in self._schedule)
        unwanted = self._policy.begin(self._schedule, wrap=bool(told["wrap"]))
        self.dropped += len(unwanted)
        return {"unwanted": _keys(unwanted)}

    def _capacity(self, told: dict[str, Any]) -> dict[str, object]:
        self._policy.capacity = int(told["bytes"])
        return {}

    def _pump(self, told: dict[str, Any]) -> dict[str, object]:
        items = self._policy.pump()
        self.fetched += len(items)
        return {"fetch": _keys(items)}

    def _need(self, told: dict[str, Any]) -> dict[str, object]:
        fetch, dropped = self._policy.need(self._known[told["key"]])
        self.late += fetch
        self.dropped += len(dropped)
        return {"fetch": fetch, "dropped": _keys(dropped)}

    def _let_go(self, told: dict[str, Any]) -> dict[str, object]:
        self._policy.let_go(told["key"])
        return {}

    def _shrink(self, told: dict[str, Any]) -> dict[str, object]:
        dropped = self._policy.shrink(int(told["bytes"]))
        self.dropped += len(dropped)
        return {"dropped": _keys(dropped)}


def _keys(items: Iterable[Item[Any]]) -> list[int]:
    return [item.key for item in items]
