"""The prefetch policy: whatever the schedule does, compute gets every block in order within the window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualpath.path.prefetch import Item, Prefetcher


def schedule(keys: list[int], size: int = 10) -> list[Item[None]]:
    return [Item(key, size, None) for key in keys]


def test_keeps_the_window_full_and_wraps_into_the_next_step() -> None:
    policy: Prefetcher[None] = Prefetcher(30)
    items = schedule([1, 2, 3, 4])
    assert policy.begin(items, wrap=True) == []
    assert [item.key for item in policy.pump()] == [1, 2, 3]
    for used, fetched in ((1, [4]), (2, [1]), (3, [2]), (4, [3])):
        policy.let_go(used)
        assert [item.key for item in policy.pump()] == fetched
    assert policy.begin(items, wrap=True) == []
    assert set(policy.held) == {1, 2, 3}


def test_without_wrap_nothing_is_fetched_beyond_the_step() -> None:
    policy: Prefetcher[None] = Prefetcher(100)
    policy.begin(schedule([1, 2]), wrap=False)
    assert [item.key for item in policy.pump()] == [1, 2]
    policy.let_go(1)
    assert policy.pump() == []


def test_a_longer_schedule_keeps_what_it_still_wants() -> None:
    policy: Prefetcher[None] = Prefetcher(30)
    policy.begin(schedule([1, 2, 11, 12]), wrap=True)
    policy.pump()
    assert policy.begin(schedule([1, 2, 3, 11, 12, 13]), wrap=True) == []
    assert policy.pump() == []  # 1, 2 and 11 fill the window; 3 waits for room
    assert policy.need(schedule([3])[0]) == (True, schedule([11]))
    policy.let_go(1)
    assert [item.key for item in policy.pump()] == [11]


def test_items_no_longer_wanted_are_let_go() -> None:
    policy: Prefetcher[None] = Prefetcher(30)
    policy.begin(schedule([1, 2, 3]), wrap=True)
    policy.pump()
    assert [item.key for item in policy.begin(schedule([3, 4]), wrap=True)] == [1, 2]
    assert [item.key for item in policy.pump()] == [
        4,
    ]
    assert {item.key for item in policy.end()} == {3, 4}
    assert policy.held_bytes == 0


def test_shrinking_drops_what_is_needed_last_and_fetches_it_again_later() -> None:
    policy: Prefetcher[None] = Prefetcher(40)
    policy.begin(schedule([1, 2, 3, 4]), wrap=False)
    policy.pump()
    assert [item.key for item in policy.shrink(20)] == [4, 3]
    assert policy.pump() == []
    policy.let_go(1)
    assert [item.key for item in policy.pump()] == [3]


@given(
    capacity=st.integers(1, 60),
    steps=st.lists(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 20)), max_size=14), min_size=1, max_size=5),
    wrap=st.booleans(),
)
def test_every_block_arrives_in_order_within_the_window(
    capacity: int, steps: list[list[tuple[int, int]]], wrap: bool
) -> None:
    policy: Prefetcher[None] = Prefetcher(capacity)
    sizes: dict[int, int] = {}
    fetched = used = dropped = 0
    for step in steps:
        keys = list(dict(step))
        items = [Item(key, sizes.setdefault(key, dict(step)[key]), None) for key in keys]
        dropped += len(policy.begin(items, wrap=wrap))
        fetched += len(policy.pump())
        for item in items:
            again, gone = policy.need(item)
            fetched, dropped = fetched + again, dropped + len(gone)
            assert item.key in policy.held
            assert policy.held_bytes <= max(capacity, max(held.bytes for held in policy.held.values()))
            policy.let_go(item.key)
            used += 1
            fetched += len(policy.pump())
    dropped += len(policy.end())
    assert fetched == used + dropped
    assert policy.held_bytes == 0
