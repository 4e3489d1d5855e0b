"""Leases by themselves."""

from __future__ import annotations

from dualpath.pool.leases import Leases


def test_a_lease_that_is_moved_very_often_takes_no_more_room_and_lapses_at_its_last_end() -> None:
    leases = Leases()
    kept, moved = (leases.grant("tenant", (), end) for end in (5.0, 7.0))
    for step in range(20_000):
        assert leases.move(moved, "tenant", 100.0 + step % 7)
    assert len(leases._ends) < 2000
    assert len(leases) == 2
    for now, left in ((4.9, 2), (5.0, 1), (99.9, 1), (100.0 + 19_999 % 7, 0)):
        assert list(leases.lapse(now)) == []
        assert len(leases) == left
    assert not leases.move(kept, "tenant", 200.0)
