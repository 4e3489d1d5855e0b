from __future__ import annotations

import threading

import pytest

from dualpath.directory import MemoryDirectory, NodeInfo
from dualpath.directory.base import Change
from dualpath.testing.directory import DirectoryConformance
from dualpath.testing.node import FakeClock


class TestMemoryDirectory(DirectoryConformance):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def directory(self, clock: FakeClock) -> MemoryDirectory:
        return MemoryDirectory(clock)


def test_changes_are_told_in_order_whoever_makes_them() -> None:
    directory = MemoryDirectory(FakeClock())
    heard: list[Change] = []
    directory.watch(heard.append)

    def join(prefix: str) -> None:
        for number in range(50):
            directory.join(NodeInfo(f"{prefix}{number}", "", b""), 5.0)

    threads = [threading.Thread(target=join, args=(prefix,)) for prefix in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(heard) == 100
    for prefix in "ab":
        names = [change.info.node for change in heard if change.info.node.startswith(prefix)]
        assert names == [f"{prefix}{number}" for number in range(50)]


def test_a_watcher_that_fails_is_heard_of_and_the_next_change_is_told() -> None:
    directory = MemoryDirectory(FakeClock())
    heard: list[Change] = []

    def broken(change: Change) -> None:
        raise RuntimeError("broken watcher")

    stop = directory.watch(broken)
    directory.watch(heard.append)
    with pytest.raises(RuntimeError, match="broken watcher"):
        directory.join(NodeInfo("a", "", b""), 5.0)
    stop()
    directory.join(NodeInfo("b", "", b""), 5.0)
    assert [node.node for node in directory.nodes()] == ["a", "b"]
    assert heard[-1].info.node == "b"
