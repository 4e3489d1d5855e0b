"""Two steps of two paths that pass through a model as one: its weights are read once for both.

Prefill and decode are separate links: each path has a hot region, a window, a prefetch policy and a writer of its own,
so that a prompt's KV never takes the room of a decode's. Only the model's pass is shared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dualpath.path import Step


class JoinedStep:
    """`attend` as of one `path.Step`, over the rows of all `steps`, in order. They stay their owners' to end."""

    def __init__(self, *steps: Step) -> None:
        self._steps = steps
        self._ends = np.cumsum([step.rows for step in steps]).tolist()
        self.rows = self._ends[-1]

    def attend(
        self,
        layer: int,
        q: NDArray[np.float32],
        k: NDArray[np.generic],
        v: NDArray[np.generic] | None,
        *,
        scale: float,
        softcap: float = 0.0,
        sinks: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """See `path.Step.attend`: each step is given its rows, in order."""
        parts, start = [], 0
        for step, end in zip(self._steps, self._ends, strict=True):
            rows = slice(start, end)
            parts.append(
                step.attend(
                    layer, q[rows], k[rows], None if v is None else v[rows], scale=scale, softcap=softcap, sinks=sinks
                )
            )
            start = end
        return np.concatenate(parts)
