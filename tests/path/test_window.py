"""How far ahead to fetch, within which budget, and that what was decided can be decided again."""

from __future__ import annotations

import io
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.errors import UsageError
from dualpath.host.memory import headroom_bytes, limit_bytes
from dualpath.host.tree import RecordedTree
from dualpath.path.arena import Budget, LocalArena
from dualpath.path.prefetch import Item, Prefetcher
from dualpath.path.pressure import RESERVE_BYTES, budget_bytes
from dualpath.path.trace import TracedPrefetcher, replay
from dualpath.path.window import DECODE, PREFILL, Window
from dualpath.transport.base import Lane

MIB = 1 << 20


def told(window: Window, *, period_s: float, used: int, fetch_s: float, times: int = 400) -> Window:
    for _ in range(times):
        window.computed(period_s, used)
        window.arrived(fetch_s)
    return window


def test_the_formula() -> None:
    window = told(Window(DECODE), period_s=0.002, used=4 * MIB, fetch_s=0.004)
    assert window.fetch_s == pytest.approx(0.004)  # no deviation left
    # (2 ms + 4 ms) x 4 MiB / 2 ms = 12 MiB, in whole blocks
    assert window.bytes(64 * MIB, MIB) in (12 * MIB, 13 * MIB)
    assert window.bytes(5 * MIB, MIB) == 5 * MIB
    assert window.bytes(0, MIB) == MIB


def test_before_anything_is_known_the_budget_is_used() -> None:
    window = Window(DECODE)
    assert window.bytes(64 * MIB, MIB) == 64 * MIB
    window.arrived(0.01)
    assert window.bytes(64 * MIB, MIB) == 64 * MIB


def test_jitter_widens_it() -> None:
    steady = told(Window(DECODE), period_s=0.002, used=MIB, fetch_s=0.005)
    noise = random.Random(1)
    jittery = Window(DECODE)
    for _ in range(400):
        jittery.computed(0.002, MIB)
        jittery.arrived(noise.choice((0.001, 0.001, 0.001, 0.017)))  # the same mean
    assert jittery.bytes(1 << 40, MIB) > 2 * steady.bytes(1 << 40, MIB)


@given(st.floats(0, 10), st.integers(0, 1 << 40), st.floats(0, 100), st.integers(0, 1 << 40), st.integers(1, 1 << 30))
def test_it_stays_within_its_bounds(period_s: float, used: int, fetch_s: float, budget: int, block: int) -> None:
    window = told(Window(PREFILL), period_s=period_s, used=used, fetch_s=fetch_s, times=3)
    assert block <= window.bytes(budget, block) <= max(block, budget)


def test_prefill_yields_to_decode() -> None:
    assert Lane.REALTIME < DECODE.lane < PREFILL.lane


def test_the_budget_shrinks_with_the_memory_that_is_left() -> None:
    assert budget_bytes(64 * MIB, 10 * MIB, None) == 64 * MIB
    assert budget_bytes(64 * MIB, 10 * MIB, 10 * RESERVE_BYTES) == 64 * MIB
    assert budget_bytes(64 * MIB, 10 * MIB, RESERVE_BYTES + 4 * MIB) == 14 * MIB
    assert budget_bytes(64 * MIB, 10 * MIB, RESERVE_BYTES - 4 * MIB) == 6 * MIB
    assert budget_bytes(64 * MIB, 10 * MIB, 0) == 0


def test_headroom_is_the_least_that_anything_allows() -> None:
    files = {"/proc/meminfo": "MemTotal: 8000 kB\nMemAvailable:    4000 kB\n", "/proc/self/cgroup": "0::/a/b\n"}
    assert headroom_bytes(RecordedTree(files, {})) == 4000 * 1024
    group = "/sys/fs/cgroup/a"
    files |= {f"{group}/memory.max": "3000000\n", f"{group}/memory.current": "2500000\n"}
    assert headroom_bytes(RecordedTree(files, {})) == 500_000
    files[f"{group}/memory.stat"] = "anon 1\ninactive_file 70000\n"
    assert headroom_bytes(RecordedTree(files, {})) == 570_000
    files |= {f"{group}/b/memory.max": "max\n", f"{group}/b/memory.current": "5\n"}
    assert headroom_bytes(RecordedTree(files, {})) == 570_000
    assert headroom_bytes(RecordedTree({}, {})) is None
    assert headroom_bytes(RecordedTree({"/proc/meminfo": "MemAvailable:\n", "/proc/self/cgroup": "x"}, {})) is None
    assert headroom_bytes() is not None


def test_the_limit_is_the_least_that_anything_sets() -> None:
    files = {"/proc/meminfo": "MemTotal: 8000 kB\nMemAvailable:    4000 kB\n", "/proc/self/cgroup": "0::/a/b\n"}
    assert limit_bytes(RecordedTree(files, {})) == 8000 * 1024
    files |= {"/sys/fs/cgroup/a/memory.max": "3000000\n", "/sys/fs/cgroup/a/b/memory.max": "max\n"}
    assert limit_bytes(RecordedTree(files, {})) == 3_000_000
    assert limit_bytes(RecordedTree({}, {})) is None


def test_trimmed_slots_are_zero_and_slots_in_use_are_kept() -> None:
    arena = LocalArena(1 << 20, 1 << 20)
    slots = arena.slots(3 * 4096)
    (kept,), (freed,) = slots.take(Budget.HOT, 1), slots.take(Budget.WINDOW, 1)
    slots.bytes_of(kept)[:] = b"\1" * (3 * 4096)
    slots.bytes_of(freed)[:] = b"\2" * (3 * 4096)
    slots.give(Budget.WINDOW, [freed])
    arena.trim()
    assert bytes(slots.bytes_of(kept)) == b"\1" * (3 * 4096)
    assert bytes(slots.bytes_of(freed)) == bytes(3 * 4096)


# --- traces --------------------------------------------------------------------------------------------------------


def play(policy: Prefetcher[None], seed: int) -> None:
    """A few steps of consumption with all that can happen in between."""
    noise = random.Random(seed)
    for _ in range(6):
        schedule = [Item(key, noise.choice((10, 20)), None) for key in range(noise.randrange(8))]
        for _ in range(2):
            policy.begin(schedule, wrap=noise.random() < 0.7)
            policy.pump()
            for item in schedule:
                if noise.random() < 0.2:
                    policy.shrink(noise.randrange(80))
                if noise.random() < 0.2:
                    policy.capacity = noise.randrange(80)
                if noise.random() < 0.3 or item.key not in policy.held:
                    policy.need(item)
                policy.let_go(item.key)
                policy.pump()
    policy.end()


def trace_of(seed: int) -> list[str]:
    file = io.StringIO()
    play(TracedPrefetcher(60, file, clock=iter(range(10_000_000)).__next__), seed)
    return file.getvalue().splitlines()


@given(st.integers(0, 1 << 30))
def test_a_trace_is_decided_the_same_again(seed: int) -> None:
    lines = trace_of(seed)
    again = replay(lines)
    assert again.first_difference == ""
    assert again.events == len(lines) - 1
    assert replay([*lines, *lines]).events == 2 * again.events


def test_tracing_changes_nothing() -> None:
    plain: Prefetcher[None] = Prefetcher(60)
    traced: Prefetcher[None] = TracedPrefetcher(60, io.StringIO())
    play(plain, 5)
    play(traced, 5)
    assert (plain.held, plain.held_bytes, plain.capacity) == (traced.held, traced.held_bytes, traced.capacity)


def test_another_decision_is_noticed() -> None:
    lines = trace_of(3)
    at = next(n for n, line in enumerate(lines) if json.loads(line).get("fetch") not in (None, [], True, False))
    changed = json.loads(lines[at])
    changed["fetch"] = changed["fetch"][:-1]
    lines[at] = json.dumps(changed)
    assert replay(lines).first_difference.startswith(f"line {at + 1}: pump")


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["x"],
        ["{}"],
        ["[]"],
        ["[" * 100_000],
        ['{"event": "open", "capacity": 1e400}'],
        ['{"event": "pump", "fetch": []}'],
        ['{"event": "open"}'],
        ['{"event": "open", "capacity": 5}', '{"event": "need", "key": 7, "fetch": true, "dropped": []}'],
        ['{"event": "open", "capacity": 5}', '{"event": "let_go", "key": 7}'],
        ['{"event": "open", "capacity": 5}', '{"event": "nonsense"}'],
        ['{"event": "open", "capacity": 5}', '{"event": "begin", "schedule": [[1]], "wrap": true, "unwanted": []}'],
    ],
)
def test_what_is_no_trace_is_a_clear_error(lines: list[str]) -> None:
    with pytest.raises(UsageError, match="trace"):
        replay(lines)
