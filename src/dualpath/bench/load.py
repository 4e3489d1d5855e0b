"""Many sequences decoding at once, over one way of I/O or another: what a server's users would see.

Every variant serves the same requests: `concurrency` sequences whose prefix is in the pool already (or, cold, is
computed first), all arriving at once, decoding in one batch per step, while control messages go to the nodes at a set
rate. Variants take turns in rounds, so that a machine that drifts hits all of them alike.

    time to first token   from arrival to the first token of a request: finding its prefix, reading what is kept hot,
                          and one step; cold: its prefill too
    time per token        of every step after it, as every sequence in it sees it
    control               round trips of `Ping`, on the lane that the variant gives to control messages

With `prefill_every_s`, each variant has a second turn in every round, in which prompts arrive while it decodes: see
`load_bursts`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dualpath.attention.dispatch import check_threads
from dualpath.bench import machine
from dualpath.bench.control import control_messages
from dualpath.bench.load_bursts import Bursts, BurstSettings
from dualpath.bench.load_room import check_room
from dualpath.bench.load_rows import BESIDE, Served, add_quiet, load_row
from dualpath.bench.nodes import require_nodes
from dualpath.bench.prompt import greedy, random_ids
from dualpath.errors import UsageError
from dualpath.kv.layout import kv_dtype_called
from dualpath.transport.rails import MAX_RAILS
from dualpath.wire.messages import Lane

if TYPE_CHECKING:
    from dualpath.bench.experiment import View
    from dualpath.engine.load import LoadedModel
    from dualpath.kv import KVLayout
    from dualpath.pool.client import Pool


@dataclass(frozen=True)
class Variant:
    """One way of I/O: a scheme, and which parts of the dual path it has."""

    scheme: str
    rails: int = MAX_RAILS
    ahead: bool = True
    one_lane: bool = False


VARIANTS = {
    "baseline": Variant("baseline", rails=1, one_lane=True),
    "single": Variant("single", rails=1, one_lane=True),
    "dual": Variant("sharded"),
    "dual-prefetch": Variant("sharded", ahead=False),
    "dual-lanes": Variant("sharded", one_lane=True),
    "dual-rail": Variant("sharded", rails=1),
    "dual+reduce": Variant("reduce"),
}
"""`baseline`: copies, one NIC, one connection. `single`: without the copies. `dual`: everything but near-data
reduction; `dual-X`: without one part; `dual+reduce`: with reduction."""


@dataclass(frozen=True)
class LoadConfig:
    """Settings of a load; sizes in bytes. `hot_bytes` and `window_bytes` are for all sequences together.

    `cold`: prefixes are not in the pool, and their prefill counts. `control_per_s`: pings to each node, in all.
    `rounds`: how often each variant has its turn; `new_tokens` are decoded in each. `prefill_every_s` (0: never): each
    variant has another turn, in which a cold prompt of `prefill_tokens` arrives so often; its chunks may prolong a step
    by `prefill_share` of itself.
    """

    model: str = "smollm2-135m"
    dtype: str = "float32"
    kv_dtype: str = "same"
    variants: tuple[str, ...] = tuple(VARIANTS)
    context: int = 8000
    new_tokens: int = 64
    concurrency: int = 4
    hot_bytes: int = 16 << 20
    window_bytes: int = 64 << 20
    block_tokens: int = 0
    nodes: int = 1
    pool: str = ""
    key: bytes | None = None
    nics: tuple[str, ...] = ()
    threads: int = 0
    seed: int = 0
    deadline_s: float = 30.0
    cold: bool = False
    control_per_s: float = 100.0
    rounds: int = 3
    prefill_every_s: float = 0.0
    prefill_tokens: int = 2048
    prefill_share: float = 0.25

    @property
    def turns(self) -> tuple[tuple[str, str, BurstSettings | None], ...]:
        """Row, variant, and the prompts that arrive meanwhile, of every turn of a round."""
        if not self.prefill_every_s:
            return tuple((name, name, None) for name in self.variants)
        bursts = BurstSettings(self.prefill_every_s, self.prefill_tokens, self.prefill_share)
        return tuple(turn for name in self.variants for turn in ((name, name, None), (f"{name}{BESIDE}", name, bursts)))

    def check(self) -> None:
        """Raise `UsageError` for values that cannot work."""
        kv_dtype_called(self.kv_dtype)
        unknown = [name for name in self.variants if name not in VARIANTS]
        if unknown:
            raise UsageError(f"unknown variant {unknown[0]!r}", hint=f"one or more of {','.join(VARIANTS)}")
        if min(self.concurrency, self.rounds, self.nodes) < 1 or self.new_tokens < 2:
            raise UsageError("a load needs a sequence, a round, a node and two new tokens at least")
        check_threads(self.threads)
        if not 0 <= self.control_per_s <= 10_000:
            raise UsageError(f"cannot send {self.control_per_s} control messages a second", hint="0 to 10000")
        if not 0 <= self.prefill_every_s < 1e6 or self.prefill_tokens < 1 or not 0 < self.prefill_share <= 100:
            raise UsageError(
                "prompts come every so many seconds, have a token at least, and prolong a step by more than nothing"
            )


def run_load(config: LoadConfig, *, view: View) -> dict[str, Any]:
    """Run all variants and return the result, ready for JSON. Raises a `DualPathError` for whatever goes wrong."""
    config.check()
    require_nodes(config.pool, key=config.key, deadline_s=config.deadline_s, nics=config.nics)
    from dualpath.engine.load import kv_layout, load_model, use_threads

    with view.progress(f"loading {config.model}") as bar:
        loaded = load_model(config.model, dtype=config.dtype, progress=bar.note)
    use_threads(config.threads)
    loaded = dataclasses.replace(loaded, max_context=sys.maxsize)  # random KV: positions beyond the limit are fine
    layout = kv_layout(
        loaded,
        hot_bytes=config.hot_bytes,
        block_tokens=config.block_tokens,
        kv_dtype=kv_dtype_called(config.kv_dtype),
    )
    whole = config.context // layout.block_tokens * layout.block_tokens
    if not whole:
        raise UsageError(
            f"a context of {config.context} tokens is less than a block of {layout.block_tokens}",
            hint="a longer --context, or a smaller --block-tokens",
        )
    check_room(config, layout, machine.available_bytes())
    vocabulary = int(loaded.config.vocab_size)
    prompts = [random_ids(vocabulary, whole + 1, config.seed + n) for n in range(config.concurrency)]
    served: dict[str, list[Served]] = {row: [] for row, _, _ in config.turns}
    with _nodes(config, layout) as (spec, key), _prefixes(config, layout, spec, key, prompts, view) as tenant:
        steps = config.rounds * len(config.turns) * config.new_tokens
        with view.progress("serving", total=steps, unit="steps") as bar:
            for _ in range(config.rounds):
                for row, name, bursts in config.turns:
                    bar.note(row)
                    path = _Serving(config, VARIANTS[name], bursts, loaded, layout, spec, key, tenant)
                    served[row].append(path.serve(prompts, bar.advance))
    first = served[config.variants[0]]
    rows = [load_row(name, rounds, first, config.concurrency) for name, rounds in served.items()]
    add_quiet(rows)
    return {
        "variants": rows,
        "settings": {**_plain(config), "block_tokens": layout.block_tokens, "context": whole},
        "kv_bytes_per_sequence": whole * layout.bytes_per_token,
        "machine": machine.describe(),
    }


def _plain(config: LoadConfig) -> dict[str, Any]:
    found = dataclasses.asdict(config)
    del found["key"]
    return {**found, "pool": config.pool or "child processes"}


@contextlib.contextmanager
def _nodes(config: LoadConfig, layout: KVLayout) -> Iterator[tuple[str, bytes | str | None]]:
    """Yield where the nodes are and their key; start some here if none are named."""
    if config.pool:
        yield config.pool, config.key
        return
    from dualpath.pool.local import LocalNodes

    blocks = -(-(config.context + config.rounds * config.new_tokens) // layout.block_tokens) + 2
    prompt = 2 * (config.prefill_tokens // layout.block_tokens + 1) if config.prefill_every_s else 0
    capacity = (blocks * config.concurrency * 3 + prompt) * layout.block_bytes + (64 << 20)
    threads = max(1, (os.cpu_count() or 1) // config.nodes)
    with LocalNodes(config.nodes, capacity=capacity, threads=threads, sockets=False) as nodes:
        yield nodes.spec, nodes.key


@contextlib.contextmanager
def _prefixes(
    config: LoadConfig,
    layout: KVLayout,
    spec: str,
    key: bytes | str | None,
    prompts: Sequence[Sequence[int]],
    view: View,
) -> Iterator[str]:
    """Put every prompt's KV (seeded, random) into the pool; yield the tenant that has it. Cold: only name a tenant."""
    from dualpath.path import DualPath, PathConfig, Scheme
    from dualpath.pool.client import connect

    tenant = f"load-{os.getpid()}-{os.urandom(4).hex()}"
    if config.cold:
        yield tenant
        return
    settings = PathConfig(
        Scheme.SHARDED, 2 * layout.open.block_bytes, config.window_bytes, deadline_s=config.deadline_s
    )
    with (
        connect(spec, key=key, tenant=tenant, timeout_s=config.deadline_s, nics=config.nics) as pool,
        DualPath(layout, settings, pool) as path,
    ):
        total = sum(len(prompt) - 1 for prompt in prompts)
        with view.progress("prefixes into the pool", total=total, unit="tokens") as bar:
            for number, prompt in enumerate(prompts):
                path.fill_random(path.open(), prompt[:-1], config.seed + number)
                bar.advance(len(prompt) - 1)
        yield tenant  # the path pins the blocks as long as it is open


class _Serving:
    """One turn of one variant: a pool connection, a path and an engine of its own."""

    def __init__(
        self,
        config: LoadConfig,
        variant: Variant,
        bursts: BurstSettings | None,
        loaded: LoadedModel,
        layout: KVLayout,
        spec: str,
        key: bytes | str | None,
        tenant: str,
    ) -> None:
        from dualpath.path import PathConfig, Scheme

        self._config, self._variant, self._loaded, self._layout = config, variant, loaded, layout
        self._spec, self._key, self._tenant, self._bursts = spec, key, tenant, bursts
        self._hot_each = config.hot_bytes // config.concurrency - layout.open.block_bytes  # a block is for the tail
        self._settings = PathConfig(
            Scheme(variant.scheme),
            config.hot_bytes,
            config.window_bytes,
            config.threads,
            config.deadline_s,
            ahead=variant.ahead,
            one_lane=variant.one_lane,
        )

    def serve(self, prompts: Sequence[Sequence[int]], advance: Any) -> Served:
        """Serve every prompt at once and return what was measured."""
        from dualpath.engine.engine import Engine
        from dualpath.path import DualPath
        from dualpath.pool.client import connect

        config = self._config
        lane = Lane.BULK if self._variant.one_lane else Lane.REALTIME
        with (
            connect(
                self._spec,
                key=self._key,
                tenant=self._tenant,
                timeout_s=config.deadline_s,
                nics=config.nics,
                max_rails=self._variant.rails,
            ) as pool,
            DualPath(self._layout, self._settings, pool) as path,
            Engine(self._loaded, path) as engine,
            self._arriving(pool) as bursts,
            control_messages(pool.nodes, config.control_per_s, lane=lane) as control,
        ):
            gc.collect()
            cpu_s, nodes_s = machine.cpu_seconds(), _node_seconds(pool)
            began = time.perf_counter()
            sequences = [path.open() for _ in prompts]
            batch = [(one, self._first(engine, one, prompt)) for one, prompt in zip(sequences, prompts, strict=True)]
            following = [greedy(row) for row in engine.step(batch).numpy()]
            ttft_s = time.perf_counter() - began
            advance()
            before, wire = path.metrics.snapshot(), _wire(pool)
            out, step_s = [following], []
            for _ in range(config.new_tokens - 1):
                started = time.perf_counter()
                batch = [(s, [token]) for s, token in zip(sequences, following, strict=True)]
                logits = engine.step(batch) if bursts is None else bursts.step(engine, batch)
                following = [greedy(row) for row in logits.numpy()]
                step_s.append(time.perf_counter() - started)
                out.append(following)
                advance()
            wall_s = time.perf_counter() - began
            cpu_s, nodes_s = machine.cpu_seconds() - cpu_s, _node_seconds(pool) - nodes_s
            stall_s = path.metrics.stall_s - before.stall_s
            wire = _wire(pool) - wire
            rails_used = [rail.bytes_received for node in pool.nodes for rail in getattr(node.peer, "rails", ())]
            for sequence in sequences:
                path.close_sequence(sequence)
            path.reader.end()
            served = Served(
                ttft_s=ttft_s,
                step_s=step_s,
                wall_s=wall_s,
                cpu_s=cpu_s + (nodes_s if config.pool else 0.0),  # nodes started here are children already
                wire_bytes=wire,
                stall_s=stall_s,
                wasted_bytes=path.metrics.wasted_bytes,
                peak_local_kv_bytes=path.metrics.peak_local_bytes,
                control_s=(),
                control_failed=0,
                tokens=out,
                rail_bytes=rails_used,
                prefill_tokens=0 if bursts is None else bursts.tokens,
                prefill_s=() if bursts is None else tuple(bursts.took_s),
            )
        # only now has every control message had its answer: those that wait longest are under way at the end
        return dataclasses.replace(served, control_s=tuple(control.seconds), control_failed=control.failed)

    def _arriving(self, pool: Pool) -> contextlib.AbstractContextManager[Bursts | None]:
        """Return the prompts that arrive in this turn."""
        if self._bursts is None:
            return contextlib.nullcontext()
        vocabulary, seed = int(self._loaded.config.vocab_size), self._config.seed + self._config.concurrency
        return Bursts(self._bursts, self._layout, self._settings, pool, vocabulary=vocabulary, seed=seed)

    def _first(self, engine: Any, sequence: Any, prompt: Sequence[int]) -> list[int]:
        """Bring a sequence to where one more step gives its first token; return the tokens of that step."""
        if self._config.cold:
            engine.prefill(sequence, list(prompt[:-1]))
        elif engine.path.attach(sequence, prompt[:-1], hot_bytes=self._hot_each) != len(prompt) - 1:
            raise UsageError("the pool lost a prefix during the load", hint="start nodes with more --capacity")
        return [prompt[-1]]


def _node_seconds(pool: Pool) -> float:
    return sum(node.stats().get("cpu_seconds_total", 0.0) for node in pool.nodes)


def _wire(pool: Pool) -> int:
    return sum(node.counters.tx_bytes + node.counters.rx_bytes for node in pool.nodes)
