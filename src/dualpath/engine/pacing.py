"""How many tokens of a prompt may ride along with a decode step, so that those who decode hardly notice. Pure.

    tokens = budget / cost,   budget = share x what a step takes without a prompt,   cost = what a prompt's token adds

Both are medians of the last steps, so that one that was held up by something else changes nothing. What a chunk adds
has a part that does not depend on its size (the prompt's own attention calls); dividing all of it by the tokens makes
the size settle where the whole addition meets the budget. Chunked prefill beside decode: Agrawal et al., Sarathi-Serve,
2024, arXiv 2403.02310.
"""

from __future__ import annotations

import statistics
from collections import deque

REMEMBERED = 15
"""Steps of each kind that count."""
QUIET_FIRST = 3
"""So many steps without a prompt are seen before one may ride along."""
FIRST_TOKENS = 4
"""Of the first chunk; none is more than twice as large as the largest before it."""


class Pacer:
    """Decides for one batch that decodes. `share`: what a step may take longer, as a share of what it takes alone."""

    def __init__(self, share: float, most_tokens: int) -> None:
        self._share, self._most = share, most_tokens
        self._quiet_s: deque[float] = deque(maxlen=REMEMBERED)
        self._cost_s: deque[float] = deque(maxlen=REMEMBERED)
        self._largest = 0

    def tokens(self) -> int:
        """Return how many tokens of a prompt the next step may carry: 0 while too little is known, else at least 1."""
        if len(self._quiet_s) < QUIET_FIRST:
            return 0
        if not self._cost_s:
            return min(FIRST_TOKENS, self._most)
        budget_s = self._share * statistics.median(self._quiet_s)
        cost_s = statistics.median(self._cost_s)
        fits = int(budget_s / cost_s) if cost_s > 0 else self._most
        return max(1, min(fits, 2 * self._largest, self._most))

    def stepped(self, step_s: float, tokens: int) -> None:
        """A step has taken so long, with so many tokens of a prompt in it."""
        if not tokens:
            self._quiet_s.append(step_s)
        elif self._quiet_s:
            self._cost_s.append(max(0.0, step_s - statistics.median(self._quiet_s)) / tokens)
            self._largest = max(self._largest, tokens)
