"""How far ahead to fetch: the window, from what has been seen of compute and of arrivals. Pure; times are arguments.

    lead    = compute period + fetch time          period: of one layer, which is what a fetch hides behind
    window  = clamp(lead x drain rate, one layer block, budget)
    drain rate = bytes that compute uses per second in which it does not wait for them

The fetch time is that of a block from asking to arrival, so it holds the round trip and what stands in front of it. It
is estimated as TCP estimates a round trip (RFC 6298): smoothed mean plus four times the smoothed deviation, so that a
burst on a shared link does not catch compute waiting. On a link slower than compute it grows with the window, and the
window with it, up to the budget: then all that is allowed is in flight, as it should be.

Decode and prefill have a policy each. A decode step waits for every block of its context, so it reads on the lane below
its own messages. A prompt's chunk computes long on each block, writes in bursts, and nobody waits for its next token:
it reads on the lane below that, so that a node serves it when decoding pauses.
"""

from __future__ import annotations

from dataclasses import dataclass

from dualpath.wire.messages import Lane

_MEAN_WEIGHT, _DEVIATION_WEIGHT = 1 / 8, 1 / 4  # RFC 6298
_PERIOD_WEIGHT = 1 / 16


@dataclass(frozen=True, slots=True)
class PrefetchPolicy:
    """How blocks of one kind of step are read ahead."""

    lane: Lane
    read_items: int
    """Layer blocks asked for at once, at most."""
    lead_periods: float
    """Compute periods in a lead: 1 hides a fetch behind the layer before it."""


DECODE = PrefetchPolicy(Lane.PREFETCH, read_items=64, lead_periods=1.0)
PROMPT_ROWS = 32
"""A step with more query rows than this computes a prompt, not the next tokens."""
PREFILL = PrefetchPolicy(Lane.BULK, read_items=64, lead_periods=1.0)


class Window:
    """The estimates of one kind of step."""

    def __init__(self, policy: PrefetchPolicy) -> None:
        self.policy = policy
        self.period_s: float | None = None
        self.bytes_per_layer: float = 0.0
        self._fetch_s: float | None = None
        self._deviation_s = 0.0

    @property
    def fetch_s(self) -> float | None:
        """Return how long a fetch takes, with a margin; `None` before the first."""
        return None if self._fetch_s is None else self._fetch_s + 4 * self._deviation_s

    def computed(self, period_s: float, used_bytes: int) -> None:
        """A layer took `period_s` from the last one's end to its own, waiting left out, and used `used_bytes`."""
        if self.period_s is None:
            self.period_s, self.bytes_per_layer = period_s, float(used_bytes)
            return
        self.period_s += _PERIOD_WEIGHT * (period_s - self.period_s)
        self.bytes_per_layer += _PERIOD_WEIGHT * (used_bytes - self.bytes_per_layer)

    def arrived(self, fetch_s: float) -> None:
        """A block has come, `fetch_s` after it was asked for."""
        if self._fetch_s is None:
            self._fetch_s, self._deviation_s = fetch_s, fetch_s / 2
            return
        self._deviation_s += _DEVIATION_WEIGHT * (abs(fetch_s - self._fetch_s) - self._deviation_s)
        self._fetch_s += _MEAN_WEIGHT * (fetch_s - self._fetch_s)

    def bytes(self, budget: int, block_bytes: int) -> int:
        """Return the window in bytes: at least one block of `block_bytes`, at most `budget`. Unknown: the budget."""
        fetch_s = self.fetch_s
        if fetch_s is None or not self.period_s:
            return max(block_bytes, budget)
        lead_s = self.policy.lead_periods * self.period_s + fetch_s
        wanted = min(float(budget), lead_s * self.bytes_per_layer / self.period_s)
        blocks = -(-int(wanted) // block_bytes)
        return max(block_bytes, min(budget, blocks * block_bytes))
