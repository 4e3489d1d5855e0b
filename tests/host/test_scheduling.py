"""Real-time threads run ahead of others where that is allowed, and only while they carry messages."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dualpath.bench.control import control_messages
from dualpath.host.scheduling import VARIABLE, ordinary, realtime
from dualpath.pool.client import connect
from dualpath.transport.base import Reply
from dualpath.transport.tcp import TcpServer
from dualpath.wire.messages import Done, Lane, Ping

ASK = f"import os; print(os.sched_getscheduler(0) & ~{os.SCHED_RESET_ON_FORK})"


def policy() -> int:
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK


def in_a_thread(ask: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result(30)


def allowed() -> bool:
    def ask() -> bool:
        with realtime() as found:
            return found

    return bool(in_a_thread(ask))


EXPECTED = os.SCHED_RR if allowed() else os.SCHED_OTHER  # where it is refused, every thread stays as it was


def test_ahead_within_the_block_and_what_it_starts_is_not() -> None:
    def ask() -> list[int]:
        found = [policy()]
        with realtime() as ahead:
            assert ahead is (EXPECTED == os.SCHED_RR)
            found += [policy(), in_a_thread(policy), int(subprocess.check_output([sys.executable, "-c", ASK]))]
            with ordinary():
                found.append(policy())
            with realtime():
                found.append(policy())
            found.append(policy())
        with ordinary():
            found.append(policy())
        return [*found, policy()]

    other = os.SCHED_OTHER
    assert in_a_thread(ask) == [other, EXPECTED, other, other, other, EXPECTED, EXPECTED, other, other]


def test_what_raises_within_ends_it_too() -> None:
    def ask() -> int:
        with pytest.raises(ZeroDivisionError), realtime():
            _ = 1 / 0
        return policy()

    assert in_a_thread(ask) == os.SCHED_OTHER


def test_a_policy_of_ones_own_is_kept() -> None:
    def ask() -> list[int]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        with realtime() as ahead:
            found = [policy()]
            with ordinary():
                found.append(policy())
        return [*found, policy(), int(ahead)]

    assert in_a_thread(ask) == [os.SCHED_BATCH] * 3 + [0]


@pytest.mark.parametrize("why", ["refused", "switched off", "another system", "another C library"])
def test_where_it_cannot_be_threads_stay_as_they_are(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if why == "refused":
        monkeypatch.setattr(os, "sched_setscheduler", refuse)
    elif why == "another C library":
        monkeypatch.setattr(os, "sched_getscheduler", refuse)
    elif why == "switched off":
        monkeypatch.setenv(VARIABLE, "ordinary")
    else:
        monkeypatch.delattr(os, "sched_getscheduler")

    def ask() -> bool:
        with realtime() as ahead, ordinary():
            return ahead

    assert not in_a_thread(ask)
    monkeypatch.undo()
    assert in_a_thread(policy) == os.SCHED_OTHER


class Asked:
    """A service that notes the policy of the thread that asks it."""

    def __init__(self) -> None:
        self.found: dict[Lane, int] = {}

    def handle(self, session: Any, message: Any, payload: memoryview) -> Any:
        self.found[session.lane] = policy()
        return Reply(Done())

    def sink(self, session: Any, message: Any, payload_bytes: int) -> None:
        return None

    def closed(self, session: Any) -> None:
        return None


def test_a_node_answers_its_realtime_lane_ahead_of_the_others() -> None:
    service = Asked()
    with TcpServer(service, node_id="n") as server, connect(f"tcp://127.0.0.1:{server.port}") as pool:
        for lane in Lane:
            pool.nodes[0].peer.call(Ping(), lane=lane)
    assert service.found == {Lane.REALTIME: EXPECTED, Lane.PREFETCH: os.SCHED_OTHER, Lane.BULK: os.SCHED_OTHER}


def test_the_senders_of_realtime_messages_are_ahead_too() -> None:
    with TcpServer(Asked(), node_id="n") as server, connect(f"tcp://127.0.0.1:{server.port}") as pool:
        with control_messages(pool.nodes, 1000.0) as ahead:
            pass
        with control_messages(pool.nodes, 1000.0, lane=Lane.BULK) as behind:
            pass
    assert (ahead.realtime, behind.realtime) == (EXPECTED == os.SCHED_RR, False)
