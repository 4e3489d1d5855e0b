"""What scheme `auto` has chosen, and how it says so."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dualpath.cost.balance import Rates, Split
from dualpath.units import format_bits_per_s, format_bytes_per_s


class Form(enum.StrEnum):
    """How a step uses remote KV."""

    BYPASS = "bypass"
    """There is none: Path B stays out of the way."""
    REDUCE = "reduce"
    """All of it is reduced near the data."""
    FETCH = "fetch"
    """All of it is fetched."""
    MIXED = "mixed"
    """Some of it is fetched, the rest reduced."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`shares[i]` of node i's blocks are fetched, the rest is reduced.

    `rates` are those that it was made by, `split` what the model expects of it; `None` while not all of them were seen.
    `corners_s`: what the model expects of reducing all and of fetching all. `used`: nodes that hold blocks of the step.
    """

    form: Form
    shares: tuple[float, ...]
    used: tuple[bool, ...] = ()
    rates: Rates | None = None
    split: Split | None = None
    corners_s: tuple[float, float] = (0.0, 0.0)

    def sentence(self, names: Sequence[str]) -> str:
        """Return the choice and what it rests on, in one sentence."""
        if self.form is Form.BYPASS:
            return "all KV that a step reads is local: Path B is not used"
        if self.rates is None or self.split is None:
            return "reducing everything near the data: not every speed has been measured yet"
        nodes = []
        for i, rates in enumerate(self.rates.nodes):
            if self.used[i]:
                verb = f"fetching {100 * self.shares[i]:.0f} % from" if self.shares[i] else "reducing all at"
                rail, near = format_bits_per_s(8 * rates.rail_bytes_per_s), format_bytes_per_s(rates.near.bytes_per_s)
                nodes.append(f"{verb} node {names[i]}: NIC {rail}, near-data {near}")
        where = "" if self.split.node is None else f" of node {names[self.split.node]}"
        return (
            f"{'; '.join(nodes)}, local {format_bytes_per_s(self.rates.local.bytes_per_s)}. Expected: "
            f"{self.split.step_s * 1e3:.3g} ms a step, mostly {self.split.bottleneck}{where}; "
            f"reducing all {self.corners_s[0] * 1e3:.3g} ms, fetching all {self.corners_s[1] * 1e3:.3g} ms"
        )

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Return it ready for JSON. Rates that were never seen are left out."""
        found: dict[str, Any] = {"form": self.form.value, "sentence": self.sentence(names)}
        if self.rates is None or self.split is None:
            return found
        nodes = [
            {
                "node": names[i],
                "fetched_share": self.shares[i],
                "rail_bytes_per_s": rates.rail_bytes_per_s,
                "near_bytes_per_s": rates.near.bytes_per_s,
                "round_trip_s": rates.round_trip_s,
            }
            for i, rates in enumerate(self.rates.nodes)
            if self.used[i]
        ]
        return {
            **found,
            "nodes": nodes,
            "local_bytes_per_s": self.rates.local.bytes_per_s,
            "receiver_bytes_per_s": self.rates.receiver_bytes_per_s,
            "copy_s_per_byte": self.rates.copy_s_per_byte,
            "expected_step_s": self.split.step_s,
            "bottleneck": self.split.bottleneck.value,
            "reduce_all_s": self.corners_s[0],
            "fetch_all_s": self.corners_s[1],
        }
