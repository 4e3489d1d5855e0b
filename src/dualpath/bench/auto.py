"""Scheme `auto` against the best fixed scheme, over combinations of link speed, nodes, context and hot region.

Each node is a host of its own behind a link of its own, so that two nodes are two links. The decoders of a combination
take turns. A scheme that fetches everything takes at least bytes ÷ links a token: where that alone is more than
`HOPELESS` times what the others take it is not run, and the table says "at least".
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dualpath.bench import machine
from dualpath.bench.emulated import EmulatedPool, emulated_pool
from dualpath.bench.random_kv import RandomKV, RandomKVConfig, load_random_kv, settings_of
from dualpath.bench.rows import percentile
from dualpath.bench.turns import Contender, summary, take_turns
from dualpath.errors import UsageError
from dualpath.host.lab.build import require_root

if TYPE_CHECKING:
    from dualpath.bench.experiment import View
    from dualpath.kv import KVLayout

ASKED = 1.15
"""TPOT of `auto` over that of the best fixed scheme is to be at most this."""
AUTO, REDUCE = "auto", "reduce"
WARM_UP_STEPS = 96
"""Unmeasured steps of `auto` in each combination: time for the three steps in which it only reduces, the first looks at
the links, a whole step that fetches (for which 2 % of the time so far must be enough), and for looking back at what it
chose then."""
HOPELESS = 2.0
MOST_NODES = 8


@dataclass(frozen=True)
class Combination:
    """One line of the table. `hot_share`: of the context's KV, what stays local."""

    link_bits_per_s: int
    nodes: int
    context: int
    hot_share: float

    def fetching(self) -> tuple[str, ...]:
        """Return the fixed schemes that fetch: with one node both are one."""
        return ("fetch", "sharded") if self.nodes > 1 else ("fetch",)

    def far_blocks(self, layout: KVLayout) -> int:
        """Return how many blocks are left at the nodes: at least one."""
        blocks = self.context // layout.block_tokens
        return max(1, blocks - round(self.hot_share * blocks))

    def transfer_s(self, scheme: str, layout: KVLayout) -> float:
        """Return the least time in which `scheme` can bring all of it."""
        links = self.nodes if scheme == "sharded" else 1
        return 8 * self.far_blocks(layout) * layout.block_bytes / links / self.link_bits_per_s


@dataclass(frozen=True, kw_only=True)
class AutoConfig(RandomKVConfig):
    """Settings: all combinations of `links_bits_per_s`, `nodes`, `contexts` and `hot_shares` are run, or the first
    `combinations` of them where that is not 0."""

    block_tokens: int = 128
    samples: int = 24
    links_bits_per_s: tuple[int, ...] = (200_000_000, 1_000_000_000, 4_000_000_000)
    nodes: tuple[int, ...] = (1, 2)
    contexts: tuple[int, ...] = (1024, 4096)
    hot_shares: tuple[float, ...] = (0.2, 0.7)
    combinations: int = 0

    def check(self) -> None:
        """Raise `UsageError` for values that cannot work."""
        super().check()
        if not self.chosen():
            raise UsageError("there is no combination to run", hint="name links, nodes, contexts and hot shares")
        for one in self.chosen():
            self.check_context(one.context)
            if not 1 <= one.nodes <= MOST_NODES:
                raise UsageError(f"{one.nodes} nodes are not for one machine", hint=f"1 to {MOST_NODES}")
            if not 0 <= one.hot_share < 1:
                raise UsageError(f"hot share {one.hot_share:g}", hint="from 0 to below 1: all local is no choice")

    def chosen(self) -> list[Combination]:
        """Return the combinations, those of as many nodes together."""
        product = itertools.product(self.nodes, self.contexts, self.hot_shares, self.links_bits_per_s)
        every = [Combination(link, nodes, context, hot) for nodes, context, hot, link in product]
        return every[: self.combinations or None]


def run_auto(config: AutoConfig, *, view: View) -> dict[str, Any]:
    """Run all combinations and return the result, ready for JSON. Raises a `DualPathError` for whatever goes wrong."""
    config.check()
    require_root()
    subject = load_random_kv(config, view=view)
    chosen, rows = config.chosen(), []
    largest = max(one.context for one in chosen)
    subject.check_room(largest, copies=2 * 4)
    capacity = subject.bytes(largest) * 5 + (64 << 20)
    with view.progress("combinations", total=len(chosen), unit="done") as bar:
        for nodes, some in itertools.groupby(chosen, key=lambda one: one.nodes):
            with emulated_pool(
                links=nodes, nodes=nodes, capacity_bytes=capacity, deadline_s=config.deadline_s
            ) as hosts:
                for one in some:
                    rows.append(_run(subject, one, hosts, bar.note))
                    bar.advance()
    ratios = [row["auto_over_best"] for row in rows]
    return {
        "combinations": rows,
        "worst_auto_over_best": max(ratios),
        "median_auto_over_best": statistics.median(ratios),
        "asked_auto_over_best": ASKED,
        "ok": not subject.fp32 or all(row["identical"] for row in rows),
        "settings": {**settings_of(config), "warm_up_steps": WARM_UP_STEPS},
        "machine": machine.describe(),
    }


def auto_row(
    one: Combination, layout: KVLayout, contenders: Iterable[Contender], choice: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the line of one combination out of what was measured. Pure."""
    found = {each.name: each for each in contenders}
    schemes = {name: summary(each) for name, each in found.items()}
    fixed = {name: row["tpot_ms_p50"] for name, row in schemes.items() if name != AUTO}
    best = min(fixed, key=lambda name: fixed[name])
    return {
        **dataclasses.asdict(one),
        "far_bytes": one.far_blocks(layout) * layout.block_bytes,
        "schemes": schemes,
        "at_least_ms": {name: 1e3 * one.transfer_s(name, layout) for name in one.fetching()},
        "best": best,
        "auto_over_best": schemes[AUTO]["tpot_ms_p50"] / fixed[best],
        "identical": all(each.identical for each in found.values()),
        "choice": choice,
    }


def _run(subject: RandomKV, one: Combination, hosts: EmulatedPool, note: Callable[[str], None]) -> dict[str, Any]:
    """Run one combination; `note` is told what is under way. The decoders have their KV before links get their rate."""
    turn, far = subject.turn, one.far_blocks(subject.layout)
    with contextlib.ExitStack() as stack:
        hosts.open_up()
        contenders = []
        for name in (REDUCE, AUTO, *one.fetching()):
            note(f"{name}: random KV")
            contenders.append(
                subject.contender(
                    stack, name, one.context, nodes=hosts.nodes, far_blocks=far, on_progress=lambda _done, _total: None
                )
            )
        hosts.set_rate(one.link_bits_per_s)
        note("warm-up")
        take_turns(contenders[:2], turn, lambda: None)
        for _ in range(-(-WARM_UP_STEPS // len(turn.lead + turn.ids)) - 1):
            take_turns(contenders[1:2], turn, lambda: None)
        running = contenders[:2] + _hopeful(one, subject.layout, contenders[:2], contenders[2:])
        for each in running:
            each.restart()
        note(", ".join(each.name for each in running))
        for _ in range(turn.rounds(subject.config.samples)):
            take_turns(running, turn, lambda: None)
        return auto_row(one, subject.layout, running, contenders[1].decoder.choice())


def _hopeful(
    one: Combination, layout: KVLayout, measured: Sequence[Contender], fetching: Sequence[Contender]
) -> list[Contender]:
    """Return those that fetch everything and may be about as fast as those that were measured already."""
    least_s = min(percentile(each.measured.step_s, 0.5) for each in measured)
    return [each for each in fetching if one.transfer_s(each.name, layout) <= HOPELESS * least_s]
