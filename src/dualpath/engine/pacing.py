"""How many tokens of a prompt may ride along with a decode step, so that those who decode hardly notice. Pure.

    tokens = budget / cost,   budget = share x what a step takes without a prompt,   cost = what a prompt's token adds

Both are lower quartiles of the last steps: whatever else holds up a step only ever prolongs it. One step in a few
carries nothing, so that what a step takes alone stays known while prompts queue. What a chunk adds has a part that does
not depend on its size (the prompt's own attention calls); dividing all of it by the tokens makes the size settle where
the whole addition meets the budget. Chunked prefill beside decode: Agrawal et al., Sarathi-Serve, 2024, arXiv
2403.02310.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

REMEMBERED = 12
"""Steps of each kind that count."""
QUIET_FIRST = 4
"""So many steps without a prompt are seen before one may ride along, …"""
QUIET_EVERY = 6
"""… and then one in so many carries nothing."""
FIRST_TOKENS = 4
"""Of the first chunk."""
GROWTH = 1.25
"""A chunk is at most so many times the largest of the last ones, and a token more."""


class Pacer:
    """Decides for one batch that decodes. `share`: what a step may take longer, as a share of what it takes alone."""

    def __init__(self, share: float, most_tokens: int) -> None:
        self._share, self._most = share, most_tokens
        self._quiet_s: deque[float] = deque(maxlen=REMEMBERED)
        self._chunks: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)  # tokens, and what the whole step took
        self._since_quiet = 0

    def tokens(self) -> int:
        """Return how many tokens of a prompt the next step may carry: 0 while too little is known, and now and then."""
        if len(self._quiet_s) < QUIET_FIRST or self._since_quiet >= QUIET_EVERY - 1:
            return 0
        if not self._chunks:
            return min(FIRST_TOKENS, self._most)
        quiet_s = _lower_quartile(self._quiet_s)
        cost_s = _lower_quartile((step_s - quiet_s) / tokens for tokens, step_s in self._chunks)
        most = min(self._most, int(GROWTH * max(tokens for tokens, _ in self._chunks)) + 1)
        fits = int(self._share * quiet_s / cost_s) if cost_s > 0 else most
        return max(1, min(fits, most))

    def stepped(self, step_s: float, tokens: int) -> None:
        """A step has taken so long, with so many tokens of a prompt in it."""
        if tokens:
            self._chunks.append((tokens, step_s))
            self._since_quiet += 1
        else:
            self._quiet_s.append(step_s)
            self._since_quiet = 0


def _lower_quartile(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 4]
