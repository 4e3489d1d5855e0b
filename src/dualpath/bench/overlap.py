"""Whether fetching hides behind compute: TPOT with remote KV against the larger of compute and bytes ÷ link.

Elsewhere than around bytes ÷ link = compute the answer says nothing: with little to fetch any way is good enough, with
much the link alone counts. So: how long a token takes with all its KV in hand is measured first; then as much KV is
left at the nodes as the wanted link brings in about that time, and the link's rate is set so that each ratio holds.
All schemes, all-local among them, take turns at every ratio, and the bound is of the same turns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dualpath.bench import machine
from dualpath.bench.emulated import EmulatedPool, emulated_pool
from dualpath.bench.experiment import advancing
from dualpath.bench.random_kv import RandomKV, RandomKVConfig, load_random_kv, settings_of
from dualpath.bench.rows import percentile
from dualpath.bench.turns import Contender, Turn, summary, take_turns
from dualpath.errors import UsageError
from dualpath.host.lab.build import require_root

if TYPE_CHECKING:
    from dualpath.bench.experiment import View

ASKED = 1.25
"""TPOT over the larger of compute and bytes ÷ link is to be at most this."""
LOCAL = "local"
REMOTE = ("fetch", "sharded", "fetch-prefetch", "sharded-prefetch")
"""Rows by name; `-prefetch` is the scheme without it."""
_COMPUTE_TURNS = 2


@dataclass(frozen=True, kw_only=True)
class OverlapConfig(RandomKVConfig):
    """Settings. `link_bits_per_s`: about the link's rate at ratio 1, which decides how much KV is left at the nodes.

    `ratios`: of bytes ÷ link to compute. `nodes`: behind one link; `sharded` uses all of them.
    """

    context: int = 4096
    link_bits_per_s: int = 2_000_000_000
    ratios: tuple[float, ...] = (0.7, 1.0, 1.4)
    nodes: int = 2

    def check(self) -> None:
        """Raise `UsageError` for values that cannot work."""
        super().check()
        self.check_context(self.context)
        if not self.ratios or min(self.ratios) <= 0:
            raise UsageError("ratios must be above 0", hint="--ratio 0.7,1,1.4")
        if self.nodes < 1:
            raise UsageError("there must be a node at least")


def run_overlap(config: OverlapConfig, *, view: View) -> dict[str, Any]:
    """Measure all ratios and return the result, ready for JSON. Raises a `DualPathError` for whatever goes wrong."""
    config.check()
    require_root()
    subject = load_random_kv(config, view=view)
    subject.check_room(config.context, copies=1 + 2 * len(REMOTE))
    capacity = subject.bytes(config.context) * (len(REMOTE) + 1) + (64 << 20)
    with emulated_pool(links=1, nodes=config.nodes, capacity_bytes=capacity, deadline_s=config.deadline_s) as hosts:
        far_bytes, measured = _measure(config, subject, hosts, view)
    rows = [row for one in measured for row in one["schemes"]]
    return {
        "ratios": measured,
        "ok": not subject.fp32 or all(row["identical"] for row in rows),
        "asked_over_bound": ASKED,
        "worst_over_bound": max(row["over_bound"] for row in rows if row["prefetch"]),
        "settings": settings_of(config),
        "kv_bytes": subject.bytes(config.context),
        "far_bytes": far_bytes,
        "machine": machine.describe(),
    }


def far_blocks(compute_s: float, link_bits_per_s: float, block_bytes: int, blocks: int) -> int:
    """Return how many of `blocks` to leave at the nodes, so that the link brings them in about `compute_s`."""
    return max(1, min(blocks - 1, round(link_bits_per_s / 8 * compute_s / block_bytes)))


def overlap_rows(
    ratio: float, far_bytes: int, rate_bits_per_s: float, contenders: Sequence[Contender]
) -> dict[str, Any]:
    """Return what one ratio has shown. The first contender has all KV in hand: its median is the compute. Pure."""
    local = contenders[0]
    compute_s, transfer_s = percentile(local.measured.step_s, 0.5), 8 * far_bytes / rate_bits_per_s
    bound_ms = 1e3 * max(compute_s, transfer_s)
    rows = []
    for one in contenders[1:]:
        found = summary(one)
        over = found["tpot_ms_p50"] / bound_ms
        rows.append({**found, "prefetch": not one.name.endswith("-prefetch"), "over_bound": over})
    return {
        "ratio": ratio,
        "measured_ratio": transfer_s / compute_s,
        "link_bits_per_s": rate_bits_per_s,
        "compute_ms": 1e3 * compute_s,
        "transfer_ms": 1e3 * transfer_s,
        "bound_ms": bound_ms,
        "local": summary(local),
        "schemes": rows,
    }


def _measure(
    config: OverlapConfig, subject: RandomKV, hosts: EmulatedPool, view: View
) -> tuple[int, list[dict[str, Any]]]:
    """Return the bytes that are remote, and what each ratio has shown."""
    turn, size = subject.turn, subject.layout.block_bytes
    with contextlib.ExitStack() as stack:

        def contender(name: str, nodes: Any = None, far: int = 0) -> Contender:
            with view.progress(f"{name}: random KV", total=config.context, unit="tokens") as bar:
                return subject.contender(
                    stack, name, config.context, nodes=nodes, far_blocks=far, on_progress=advancing(bar)
                )

        local = contender(LOCAL)
        _compute_s(local, turn, view)
        least_s = min(local.measured.step_s)  # a moment in which others had the machine must not decide what is far
        far = far_blocks(least_s, config.link_bits_per_s, size, subject.blocks(config.context))
        contenders = [local, *(contender(name, hosts.nodes, far) for name in REMOTE)]
        measured = []
        for ratio in config.ratios:
            rate = 8 * far * size / (ratio * _compute_s(local, turn, view))
            hosts.set_rate(rate)
            for one in contenders:
                one.restart()
            rounds = turn.rounds(config.samples)
            steps = rounds * len(turn.ids) * len(contenders)
            with view.progress(f"bytes ÷ link = {ratio:g} x compute", total=steps, unit="tokens") as bar:
                for _ in range(rounds):
                    take_turns(contenders, turn, bar.advance)
            measured.append(overlap_rows(ratio, far * size, rate, contenders))
        return far * size, measured


def _compute_s(local: Contender, turn: Turn, view: View) -> float:
    """Return how long a token takes now with all its KV in hand."""
    local.restart()
    with view.progress("compute with all KV in hand", total=_COMPUTE_TURNS * len(turn.ids), unit="tokens") as bar:
        for _ in range(_COMPUTE_TURNS):
            take_turns([local], turn, bar.advance)
    return percentile(local.measured.step_s, 0.5)
