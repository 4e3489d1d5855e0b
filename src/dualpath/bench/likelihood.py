"""How far predictions are from those of exact attention over unchanged KV, on the same text. Pure.

Every token of the text is fed whatever was predicted (teacher forcing), so that all steps of all rows compare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dualpath.bench.rows import percentile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Likelihood:
    """What a row says of a text, and how far it is from the exact row.

    `perplexity`: exp of the mean negative log likelihood of the tokens that came. `kl_mean`, `kl_p99`: Kullback-Leibler
    divergence of the prediction from the exact one, in nats, over the steps. `turned`: steps whose most likely token is
    another. `logit_error`: largest difference of a logit.

    `not_finite`: steps in which a logit, of this row or of the exact one, is no finite number. Then nothing can be
    said, and all but counts is infinite: it must never pass for a small error.
    """

    tokens: int
    perplexity: float
    kl_mean: float
    kl_p99: float
    turned: int
    logit_error: float
    not_finite: int = 0


def compare(logits: Sequence[Logits], exact: Sequence[Logits], targets: Sequence[int]) -> Likelihood:
    """Return the likelihood of `targets`: `logits[i]` and `exact[i]`, float32 `[vocab]`, predict `targets[i]`."""
    import numpy as np

    losses, divergences, turned, worst, not_finite = [], [], 0, 0.0, 0
    for one, other, target in zip(logits, exact, targets, strict=True):
        turned += int(one.argmax() != other.argmax())
        if not (np.isfinite(one).all() and np.isfinite(other).all()):
            not_finite += 1
            continue
        p, q = log_softmax(one), log_softmax(other)
        losses.append(-float(p[target]))
        divergences.append(max(0.0, float(np.sum(np.exp(q) * (q - p)))))
        worst = max(worst, float(np.max(np.abs(one - other))))
    steps = len(targets)
    if not_finite:
        return Likelihood(steps, math.inf, math.inf, math.inf, turned, math.inf, not_finite)
    return Likelihood(
        tokens=steps,
        perplexity=math.exp(sum(losses) / steps),
        kl_mean=sum(divergences) / steps,
        kl_p99=percentile(divergences, 0.99),
        turned=turned,
        logit_error=worst,
    )


def log_softmax(logits: Logits) -> NDArray[np.float64]:
    """Return log probabilities, float64 `[vocab]`."""
    import numpy as np

    wide = logits.astype(np.float64)
    wide -= wide.max()
    found: NDArray[np.float64] = wide - np.log(np.exp(wide).sum())
    return found
