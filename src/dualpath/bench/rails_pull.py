"""One NIC of several is pulled while blocks are read over all of them: how long readers wait, and when it is back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from dualpath.bench.rails import OPERATIONS, Pulled, Run, rail_bytes
from dualpath.bench.raw_clock import Flow, Wait, linger, pumping
from dualpath.host.pulling import pulled

_LOOK_S = 0.005
"""How often it is looked whether the NIC brings anything again."""


class Timed:
    """A flow that notes when each of its operations has ended, in the order in which they were started."""

    def __init__(self, flow: Flow) -> None:
        self.depth, self.group, self.block_bytes = flow.depth, flow.group, flow.block_bytes
        self._flow = flow
        self.ended: list[float] = []

    def start(self, number: int, count: int) -> Wait:
        """Start the operation."""
        wait = self._flow.start(number, count)

        def timed() -> None:
            wait()
            self.ended.append(time.monotonic())

        return timed

    def verify(self) -> None:
        """Compare what has landed."""
        self._flow.verify()


def pull_nic(run: Run, nic: str) -> Pulled:
    """Read over all NICs, take `nic` down, and up again, so many seconds each; go on until it is back, and then.

    `nic` is up when this returns or raises.
    """
    settings = run.settings
    nics = max(run.pools, key=len)
    pool, _ = run.pools[nics]
    in_flight = OPERATIONS * len(nics) * settings.group
    flows = [Timed(flow) for flow in run.flows(nics, group=1, operations=in_flight)]
    with pumping(flows, pool.close) as under_way:
        began = time.monotonic()
        linger(under_way, settings.seconds)
        down = time.monotonic()
        with pulled(nic):
            linger(under_way, settings.seconds)
            before = rail_bytes(pool)[nic]
        up = time.monotonic()
        while rail_bytes(pool)[nic] == before and time.monotonic() < up + settings.timeout_s:
            linger(under_way, _LOOK_S)
        back = time.monotonic()
        rejoined = rail_bytes(pool)[nic] != before
        linger(under_way, settings.seconds)
        end = time.monotonic()
    for one, flow in zip(under_way, flows, strict=True):
        one.result()
        flow.verify()
    stamps = [flow.ended for flow in flows]
    size = 8 * settings.block_bytes
    return Pulled(
        before_bits_per_s=size * per_s(stamps, began, down),
        down_bits_per_s=size * per_s(stamps, down, up),
        after_bits_per_s=size * per_s(stamps, back, end) if rejoined else None,
        longest_gap_before_s=longest_gap(stamps, began, down),
        longest_gap_s=longest_gap(stamps, down, end),
        rejoined_s=back - up if rejoined else None,
    )


def per_s(stamps: Sequence[Sequence[float]], begin: float, end: float) -> float:
    """Return how many operations ended in `[begin, end)`, per second of it."""
    return sum(begin <= at < end for one in stamps for at in one) / (end - begin)


def longest_gap(stamps: Sequence[Sequence[float]], begin: float, end: float) -> float:
    """Return the longest time within `[begin, end]` in which some flow ended no operation, in seconds."""
    longest = 0.0
    for one in stamps:
        within = [begin, *(at for at in one if begin <= at <= end), end]
        longest = max(longest, *(later - earlier for earlier, later in itertools.pairwise(within)))
    return longest
