"""When scheme `auto` decides, when it tries something else, and when it leaves things as they are. Pure.

    three steps: reduce all ─▶ two probes ─▶ settled ─▶ every 16 steps, or when load or rates have moved by 10 %: decide
                                              ▲  │
                                              └──┴─ now and then a probe, which lasts one step

*Deciding* compares the best split with the two corners. A corner within 3 % of the best is preferred, since it has less
that can vary; what is in force is preferred over anything less than 3 % better, since fetched blocks that change are
fetched in vain. The model's times are corrected by how earlier steps of the same form compared with theirs.

*Probing.* What is not used shows no speed. A probe does for one step what a corner does that is not in force, of two
the one that was not seen for longer, which also shows how far the model is off there. Where that is expected to take
more than twice as long, or more than the budget allows, it fetches (or reduces) one block of each node of which nothing
else is; on a fast rail it fetches as many as take long enough to show how fast. What probes have cost beyond an
ordinary step never exceeds 2 % of all time, but for the first two.

The very first step is not learned from: views are made in it, and nothing is warm. Time is decode time, the sum of
all steps so far: what happens between them ages nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dualpath.cost.balance import Rates, Split, StepLoad, balance_blocks, fetch_all, reduce_all, split_at
from dualpath.path.choice import Choice, Form
from dualpath.path.rates import LONG_READ_S, Median, Speeds, StepSeen

_EVERY = 16
_SOON = 4  # after a change, to see whether it was for the better
_MOVED = 0.10
_WORTH = 0.03
_PROBE_SHARE = 0.02
_STALE_S = 5.0
_WARM_UP = 3
_FIRST_PROBES = 2  # whatever they cost: one to have the connections made, one to see how fast they are
_REMEMBER_S = 60.0


@dataclass(slots=True)
class Probing:
    """What probes have cost so far, beyond ordinary steps, and when the last one was. `now`: the next step is one;
    `soon`: the one after it is. `some_s`: what the last one of single blocks has cost."""

    clock_s: float = 0.0
    spent_s: float = 0.0
    some_s: float = 0.0
    last_at_s: float = -math.inf
    now: bool = False
    soon: bool = False
    count: int = 0

    def affords(self, cost_s: float) -> bool:
        """Whether a probe that costs this much beyond an ordinary step stays within the budget."""
        return self.spent_s + cost_s <= _PROBE_SHARE * self.clock_s


class Balancer:
    """Decides after each step what the next one does: `choice`. `settled` is that without probes."""

    def __init__(self, speeds: Speeds, nodes: int) -> None:
        self.speeds = speeds
        self.probing = Probing()
        self.settled = self.choice = Choice(Form.REDUCE, (0.0,) * nodes)
        self._steps_s = Median()
        self._bias: dict[Form, Median] = {}
        self._until = 0
        self._warm = 0
        self._decided_for: StepLoad | None = None

    @property
    def repeats(self) -> bool:
        """Whether the step after the next one will most likely fetch what the next one does."""
        return any(self.settled.shares) and not self.probing.soon

    def prompt(self, seen: StepSeen) -> None:
        """A step was committed that had too many query rows to reduce."""
        self.speeds.saw(self.probing.clock_s, seen)

    def after(self, seen: StepSeen) -> None:
        """A step was committed that did what `choice` says."""
        self.probing.clock_s += seen.step_s
        now_s = self.probing.clock_s
        if not any(node.blocks for node in seen.nodes):
            self.settled = self.choice = Choice(Form.BYPASS, (0.0,) * len(seen.nodes))
            self.probing.now = self.probing.soon = False
            self._decided_for, self._warm = None, 0
            return
        self._warm += 1
        if self._warm == 1:
            self.settled = self.choice = Choice(Form.REDUCE, self.settled.shares)
            return
        self.speeds.saw(now_s, seen)
        load = self._load(seen)
        if self.probing.now:
            self._probed(now_s, seen, load)
        else:
            self._steps_s.add(now_s, seen.step_s)
            self._until -= 1
        if self._due(seen, load):
            self._decide(now_s, seen, load)
        self.choice = self._probe(now_s, seen) or self.settled

    # --- deciding ----------------------------------------------------------------------------------------------

    def _due(self, seen: StepSeen, load: StepLoad) -> bool:
        if self._decided_for is None:
            return True
        if _moved(load, self._decided_for):
            self._steps_s = Median()  # what was measured of another load says nothing of this one
            return True
        return self._until <= 0 or (self._until % _SOON == 0 and self._rates_moved(seen))

    def _load(self, seen: StepSeen) -> StepLoad:
        remote = tuple(node.blocks * seen.block_bytes for node in seen.nodes)
        return StepLoad(self.speeds.outside_s(seen), seen.layers, seen.hot_bytes, remote, seen.query_rows)

    def _decide(self, now_s: float, seen: StepSeen, load: StepLoad) -> None:
        rates = self.speeds.rates(seen)
        if rates is None:
            return
        counts = [round(share * node.blocks) for share, node in zip(self.settled.shares, seen.nodes, strict=True)]
        current = split_at(load, rates, tuple(count * seen.block_bytes for count in counts))
        self._learn(now_s, self.settled.form, self._steps_s.value(), current)
        corners = reduce_all(load, rates), fetch_all(load, rates)
        best = balance_blocks(load, rates, seen.block_bytes)
        chosen = self._prefer(now_s, load, current, corners, best)
        changed = chosen.fetched_bytes != current.fetched_bytes
        self._decided_for, self._until = load, _SOON if changed else _EVERY
        if changed:
            self._steps_s = Median()
        pairs = zip(chosen.fetched_bytes, load.remote_bytes, strict=True)
        self.settled = Choice(
            _form(load, chosen),
            tuple(taken / remote if remote else 0.0 for taken, remote in pairs),
            tuple(remote > 0 for remote in load.remote_bytes),
            rates,
            chosen,
            (corners[0].step_s, corners[1].step_s),
        )

    def _rates_moved(self, seen: StepSeen) -> bool:
        rates = self.speeds.rates(seen)
        return rates is not None and (self.settled.rates is None or _differ(rates, self.settled.rates))

    def _learn(self, now_s: float, form: Form, measured_s: float | None, model: Split) -> None:
        """Note how steps of a form compared with what the model says of them."""
        if measured_s is not None and 0 < model.step_s < math.inf:
            self._bias.setdefault(form, Median(5)).add(now_s, measured_s / model.step_s)

    def _prefer(self, now_s: float, load: StepLoad, current: Split, corners: Sequence[Split], best: Split) -> Split:
        """Return what to do: what is in force, unless something else is noticeably better; a corner rather than a mixed
        split that gains hardly anything."""
        own = self._bias_of(now_s, self.settled.form) or 1.0

        def expected_s(split: Split) -> float:  # of a form that was not tried the model errs as it does of this one
            return split.step_s * (self._bias_of(now_s, _form(load, split)) or own)

        corner = min(corners, key=expected_s)
        least_s = min(expected_s(split) for split in (current, corner, best))
        mixed = _form(load, current) is Form.MIXED
        if mixed and expected_s(corner) <= expected_s(current) * (1 + _WORTH / 2):
            current = corner
        close = (split for split in (current, corner, best) if expected_s(split) <= least_s * (1 + _WORTH))
        return next(close)

    def _age_s(self, now_s: float, form: Form) -> float:
        """Return for how long steps of a form were not compared with the model."""
        return self._bias[form].age_s(now_s) if form in self._bias else math.inf

    def _bias_of(self, now_s: float, form: Form) -> float | None:
        bias = self._bias.get(form)
        return None if bias is None or bias.age_s(now_s) > _REMEMBER_S else bias.value()

    # --- probing -----------------------------------------------------------------------------------------------

    def _probed(self, now_s: float, seen: StepSeen, load: StepLoad) -> None:
        """Charge a probe, and learn from that of a corner how such steps compare with the model."""
        probing, ordinary_s, rates = self.probing, self._steps_s.value(), self.speeds.rates(seen)
        cost_s = 0.0 if ordinary_s is None else max(0.0, seen.step_s - ordinary_s)
        probing.now, probing.spent_s, probing.last_at_s = False, probing.spent_s + cost_s, now_s
        if self.choice.form is Form.MIXED:
            probing.some_s = cost_s
        elif rates is not None:
            corner = fetch_all if self.choice.form is Form.FETCH else reduce_all
            self._learn(now_s, self.choice.form, seen.step_s, corner(load, rates))
            self._until = 0

    def _probe(self, now_s: float, seen: StepSeen) -> Choice | None:
        """Return what to try in the next step, if something should be tried and may."""
        if any(self.settled.shares):
            return self._probe_while_fetching(now_s, seen)
        self.probing.soon = False
        if self._warm < _WARM_UP:
            return None
        used = [node.blocks > 0 for node in seen.nodes]
        age_s = max(self.speeds.rail_age_s(now_s, i) for i, held in enumerate(used) if held)
        stale, probing = age_s > _STALE_S, self.probing
        extra_s = self._extra_s(now_s, Form.FETCH)
        untried = self._bias_of(now_s, Form.FETCH) is None
        if (stale or untried) and extra_s <= self._settled_s and probing.affords(extra_s):
            return self._start(Choice(Form.FETCH, tuple(float(held) for held in used)))
        first = age_s == math.inf and probing.count < _FIRST_PROBES
        counts = self._some_blocks(seen)
        some_s = max(probing.some_s, 2 * LONG_READ_S if max(counts) > 1 else 0.0)
        if first or (stale and probing.affords(some_s)):
            some = (count / node.blocks if count else 0.0 for count, node in zip(counts, seen.nodes, strict=True))
            return self._start(Choice(Form.MIXED, tuple(some)))
        return None

    def _some_blocks(self, seen: StepSeen) -> list[int]:
        """Return how many blocks of each node a probe fetches: one, or what is in flight for twice `LONG_READ_S`.

        While a rate is known from short reads only it is too low, and so is this; the next probe knows better.
        """
        rates, block_bytes = self.speeds.rates(seen), seen.block_bytes * seen.layers
        rails = [node.rail_bytes_per_s for node in rates.nodes] if rates is not None else [0.0] * len(seen.nodes)
        return [
            min(node.blocks, max(1, math.ceil(min(node.blocks, 2 * LONG_READ_S * rail / block_bytes))))
            for node, rail in zip(seen.nodes, rails, strict=True)
        ]

    def _probe_while_fetching(self, now_s: float, seen: StepSeen) -> Choice | None:
        """As `_probe`, while something is fetched: one step ahead, so that nothing is prefetched for the probe."""
        probing = self.probing
        due = probing.soon or now_s - probing.last_at_s > _STALE_S
        probe = self._affordable(now_s, seen) if due else None
        probing.soon = probe is not None and not probing.soon
        return None if probe is None or probing.soon else self._start(probe)

    def _affordable(self, now_s: float, seen: StepSeen) -> Choice | None:
        """Return a probe that may be made while something is fetched, if there is one."""
        probing, shares = self.probing, self.settled.shares
        for corner in sorted(
            {Form.REDUCE, Form.FETCH} - {self.settled.form}, key=lambda form: -self._age_s(now_s, form)
        ):
            extra_s = self._extra_s(now_s, corner)
            if extra_s <= self._settled_s and probing.affords(extra_s):
                share = float(corner is Form.FETCH)
                return Choice(corner, tuple(share if node.blocks else 0.0 for node in seen.nodes))
        some = tuple(_one_block_less(share, node.blocks) for share, node in zip(shares, seen.nodes, strict=True))
        return Choice(Form.MIXED, some) if some != shares and probing.affords(probing.some_s) else None

    @property
    def _settled_s(self) -> float:
        """Return the model's time of a step as settled; infinity while there is none."""
        return math.inf if self.settled.split is None else self.settled.split.step_s

    def _extra_s(self, now_s: float, corner: Form) -> float:
        """Return what a step of this corner is expected to take longer than one as settled."""
        if self.settled.split is None:
            return math.inf
        own = self._bias_of(now_s, self.settled.form) or 1.0
        corner_s = self.settled.corners_s[corner is Form.FETCH] * (self._bias_of(now_s, corner) or own)
        return max(0.0, corner_s - self.settled.split.step_s * own)

    def _start(self, probe: Choice) -> Choice:
        self.probing.now, self.probing.count = True, self.probing.count + 1
        return probe


def _one_block_less(share: float, blocks: int) -> float:
    """Return the share that leaves a node one block to reduce, where it had none."""
    return (blocks - 1) / blocks if blocks and round(share * blocks) == blocks else share


def _form(load: StepLoad, split: Split) -> Form:
    if not any(split.fetched_bytes):
        return Form.REDUCE
    return Form.FETCH if split.fetched_bytes == load.remote_bytes else Form.MIXED


def _moved(load: StepLoad, before: StepLoad) -> bool:
    """Whether rows, or KV here or at a node, differ by a tenth."""
    if load.query_rows != before.query_rows or load.layers != before.layers:
        return True
    pairs = zip((load.hot_bytes, *load.remote_bytes), (before.hot_bytes, *before.remote_bytes), strict=True)
    return any(abs(a - b) > _MOVED * max(a, b) for a, b in pairs)


def _differ(rates: Rates, before: Rates) -> bool:
    """Whether a rate differs by a tenth."""
    return any(abs(a - b) > _MOVED * max(a, b) for a, b in zip(_numbers(rates), _numbers(before), strict=True))


def _numbers(rates: Rates) -> list[float]:
    found = [rates.local.bytes_per_s, rates.receiver_bytes_per_s]
    for node in rates.nodes:
        found += [node.near.bytes_per_s, node.rail_bytes_per_s, node.round_trip_s]
    return found
