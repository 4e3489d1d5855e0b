"""From raw measurements of a scheme to its row: pure functions, no clock, no torch.

The reference's tokens and logits are kept step by step; every other scheme is compared with them while its own
tokens still agree, since after the first difference the two decode different texts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Logits = NDArray[np.float32]


@dataclass
class Measured:
    """What was measured of one scheme. Counters (`wire_bytes`, ...) cover the decode steps only.

    `step_s` has one entry per decode step. `ttft_s` is `None` where there was no prefill. `choice`: what scheme `auto`
    chose last and by which speeds. `far_blocks`: layer blocks that nodes were to attend to or to choose from,
    `far_blocks_read`: of those, read, where a share of `read_fraction` was asked for.
    """

    scheme: str
    ttft_s: float | None = None
    step_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0
    wire_bytes: int = 0
    stall_s: float = 0.0
    attend_s: float = 0.0
    wasted_bytes: int = 0
    peak_local_kv_bytes: int = 0
    choice: dict[str, Any] | None = None
    read_fraction: float = 1.0
    far_blocks: int = 0
    far_blocks_read: int = 0


@dataclass
class Reference:
    """Tokens and logits of the reference scheme by step. Step 0 is the prefill's, where there was one."""

    scheme: str
    tokens: list[int] = field(default_factory=list)
    logits: list[Logits | None] = field(default_factory=list)

    def add(self, token: int, logits: Logits) -> None:
        """Append one step."""
        self.tokens.append(token)
        self.logits.append(logits)

    def forget(self, before: int) -> None:
        """Drop the logits of steps that every scheme has been compared with already."""
        for step in range(before - 1, -1, -1):
            if self.logits[step] is None:
                break
            self.logits[step] = None


class Comparison:
    """Compares one scheme with the reference, step by step."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._steps = 0
        self.identical = True
        self.max_logit_error = 0.0

    def add(self, token: int, logits: Logits) -> None:
        """Compare the next step. The logits count as long as all tokens before this step agreed."""
        step, self._steps = self._steps, self._steps + 1
        other = self._reference.logits[step]
        if self.identical and other is not None:
            self.max_logit_error = max(self.max_logit_error, _distance(logits, other))
        if token != self._reference.tokens[step]:
            self.identical = False


def _distance(a: Logits, b: Logits) -> float:
    """Return the largest absolute difference. NaN counts as infinite: it must never pass for a small error."""
    import numpy as np

    found = float(np.max(np.abs(a - b), initial=0.0))
    return math.inf if math.isnan(found) else found


def percentile(values: Sequence[float], share: float) -> float:
    """Return the `share` (0..1) quantile of `values` by linear interpolation; NaN for none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def row(measured: Measured, comparison: Comparison | None) -> dict[str, Any]:
    """Return the row of one scheme, as it stands in the JSON. `comparison` is `None` for the reference itself."""
    steps = len(measured.step_s)
    total_s = sum(measured.step_s)
    per_step = 1 / steps if steps else math.nan
    choice = {} if measured.choice is None else {"choice": measured.choice}
    return {
        "scheme": measured.scheme,
        "identical": comparison.identical if comparison else True,
        "max_logit_error": comparison.max_logit_error if comparison else 0.0,
        "ttft_s": measured.ttft_s,
        "tpot_ms_p50": percentile(measured.step_s, 0.5) * 1e3,
        "tpot_ms_p99": percentile(measured.step_s, 0.99) * 1e3,
        "tokens_per_s": steps / total_s if total_s else math.nan,
        "cpu_percent": 100 * measured.cpu_s / measured.wall_s if measured.wall_s else math.nan,
        "wire_bytes_per_token": measured.wire_bytes * per_step,
        "stall_ms_per_token": measured.stall_s * 1e3 * per_step,
        "attend_ms_per_token": measured.attend_s * 1e3 * per_step,
        "wasted_bytes": measured.wasted_bytes,
        "peak_local_kv_bytes": measured.peak_local_kv_bytes,
        "read_fraction": measured.read_fraction,
        "far_read": measured.far_blocks_read / measured.far_blocks if measured.far_blocks else None,
        "far_blocks_per_token": measured.far_blocks * per_step,
        "far_blocks_read_per_token": measured.far_blocks_read * per_step,
        "tpot_ms": [round(step_s * 1e3, 3) for step_s in measured.step_s],
        "tokens": measured.tokens,
        **choice,
    }
