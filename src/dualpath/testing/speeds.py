"""Speeds for scheme `auto` that no step can change, so that a test decides which split is made."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dualpath.cost.balance import NodeRates, Rates, Speed
from dualpath.path.balancer import Balancer
from dualpath.path.rates import LiveRates

if TYPE_CHECKING:
    from dualpath.cost.balance import Split
    from dualpath.path import DualPath
    from dualpath.path.choice import Form
    from dualpath.path.rates import StepSeen


def fetch_everything(nodes: int) -> Rates:
    """Return rates by which nodes cannot compute."""
    return Rates(Speed(1e3), math.inf, (NodeRates(Speed(0.0), math.inf, 0.0),) * nodes)


def reduce_everything(nodes: int) -> Rates:
    """Return rates by which nothing can be fetched."""
    return Rates(Speed(1e3), 0.0, (NodeRates(Speed(1e3), 0.0, 0.0),) * nodes)


def fetch_half(nodes: int) -> Rates:
    """Return rates by which this host attends as fast as all nodes together, all so slowly that nothing else counts."""
    return Rates(Speed(1e3 * nodes), math.inf, (NodeRates(Speed(1e3), math.inf, 0.0),) * nodes)


class FixedSpeeds(LiveRates):
    """`Speeds` that measure everything and go by `fixed`."""

    def __init__(self, fixed: Rates) -> None:
        super().__init__(copy_share=0.0)
        self._fixed = fixed

    def rates(self, seen: StepSeen) -> Rates:
        """Return what they were made with."""
        return self._fixed


class ForcedBalancer(Balancer):
    """Believes the model, and does not look around."""

    def _learn(self, now_s: float, form: Form, measured_s: float | None, model: Split) -> None:
        """Made-up speeds cannot be compared with steps."""

    def _probe(self, now_s: float, seen: StepSeen) -> None:
        """There is nothing to find out."""


def force(path: DualPath, rates: Rates) -> Balancer:
    """Make a path of scheme `auto` decide by `rates`, from the second decode step on."""
    assert path.auto is not None
    balancer = path.auto.balancer = ForcedBalancer(FixedSpeeds(rates), len(rates.nodes))
    return balancer
