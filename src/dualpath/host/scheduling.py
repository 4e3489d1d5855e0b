"""The scheduling policy of threads that carry real-time messages: on a full host they get a core at once.

A lane has its place on the wire (`host.lanes`) and in a node (`transport.turns`); this is its place on the cores. A
thread that was woken by a small message otherwise waits for whoever computes there, often for longer than the message
took. Under `realtime()` it has the policy SCHED_RR (sched(7)), at the lowest of its priorities; what it computes for a
request is bulk again, and goes under `ordinary()`.

Linux lets a process do so that has CAP_SYS_NICE, as root has, or a limit RLIMIT_RTPRIO of 1 or more (`ulimit -r 1`,
`LimitRTPRIO=1` of systemd). Where it is refused, or `DUALPATH_SCHED=ordinary` is set, threads stay as they are, and
nothing but their latency changes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator

_log = logging.getLogger(__name__)
VARIABLE = "DUALPATH_SCHED"


class _Thread(threading.local):
    realtime = False


_thread = _Thread()


@contextlib.contextmanager
def realtime() -> Iterator[bool]:
    """Run the calling thread ahead of ordinary ones until the block is left; yield whether it does.

    A thread with a policy of its own keeps it. Threads and processes that it starts meanwhile are ordinary.
    """
    changed = not _thread.realtime and _is_ordinary() and _set(realtime=True)
    try:
        yield _thread.realtime
    finally:
        if changed:
            _set(realtime=False)


@contextlib.contextmanager
def ordinary() -> Iterator[None]:
    """Within `realtime()`: be an ordinary thread until the block is left."""
    changed = _thread.realtime and _set(realtime=False)
    try:
        yield
    finally:
        if changed:
            _set(realtime=True)


def _is_ordinary() -> bool:
    if not hasattr(os, "sched_getscheduler") or os.environ.get(VARIABLE) == "ordinary":
        return False
    try:
        return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER
    except OSError:  # a C library without it (musl), or a filter of system calls
        return False


def _set(*, realtime: bool) -> bool:
    """Change the calling thread's policy; return whether that was allowed."""
    policy = os.SCHED_RR if realtime else os.SCHED_OTHER
    try:
        os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, os.sched_param(1 if realtime else 0))
    except OSError as error:
        _log.debug("no real-time scheduling: %s", error)
        return False
    _thread.realtime = realtime
    return True
