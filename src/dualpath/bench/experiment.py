"""The experiment: one prompt, one model, every scheme; the same output, and what each way costs.

Every scheme decodes the same prompt (or starts from the same random KV) in the same loop. Schemes run one after
another, or alternate in rounds so that a machine that drifts hits all of them alike. What is measured: the time of
each decode step up to its logits, CPU time of all processes, bytes on the wire, stalls; comparing the outputs is
outside of the measured time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dualpath.bench import machine
from dualpath.bench.decoders import Counters, Decoder, PathDecoder, PlainDecoder
from dualpath.bench.nodes import Nodes, open_nodes, require_nodes
from dualpath.bench.prompt import Prompt, check_context, greedy, prompt_of, random_ids
from dualpath.bench.rows import Comparison, Measured, Reference, row
from dualpath.bench.settings import FOLD_ALIKE, HF, LOCAL, ExperimentConfig, check_memory, node_capacity
from dualpath.cost import fetch_bytes_per_token, kv_bytes, reduce_bytes_per_token
from dualpath.kv.layout import kv_dtype_called

if TYPE_CHECKING:
    from dualpath.bench.rows import Logits
    from dualpath.engine.load import LoadedModel
    from dualpath.kv import KVLayout

WARM_UP_STEPS = 2
"""Unmeasured steps after random KV; after a prompt everything is warm."""


class Bar(Protocol):
    """Long work under way."""

    def advance(self, count: float = 1) -> None:
        """Report that `count` more units are done."""

    def note(self, text: str) -> None:
        """Show a few words beside the bar."""


class View(Protocol):
    """Where the experiment shows what it does."""

    def say(self, text: str) -> None:
        """Show one line."""

    def progress(self, title: str, *, total: float | None = None, unit: str = "") -> AbstractContextManager[Bar]:
        """Show long work until the block is left."""


@dataclass
class Run:
    """One scheme under way."""

    scheme: str
    decoder: Decoder
    measured: Measured
    comparison: Comparison | None
    next_token: int = 0
    step: int = 0
    start: Counters = field(default_factory=Counters)


def run_experiment(config: ExperimentConfig, *, view: View) -> dict[str, Any]:
    """Run the experiment and return its result, ready for JSON; `schemes` holds the rows.

    Raises a `DualPathError` for whatever goes wrong. Nodes that were started are stopped in any case.
    """
    config.check()
    require_nodes(config.pool, key=config.key, deadline_s=config.deadline_s, nics=config.nics)
    from dualpath.engine.load import load_model

    with view.progress(f"loading {config.model}") as bar:
        loaded = load_model(config.model, dtype=config.dtype, progress=bar.note)
    return run_on_model(config, loaded, view=view)


def run_on_model(config: ExperimentConfig, loaded: LoadedModel, *, view: View) -> dict[str, Any]:
    """Run the experiment on a model that is loaded already."""
    from dualpath.engine.load import kv_layout, use_threads

    use_threads(config.threads)
    if config.random:  # only bytes are measured: positions beyond the model's limit are fine
        loaded = dataclasses.replace(loaded, max_context=sys.maxsize)
    layout = kv_layout(
        loaded,
        hot_bytes=config.hot_bytes,
        block_tokens=config.block_tokens,
        kv_dtype=kv_dtype_called(config.kv_dtype),
    )
    prompt = _prompt(config, loaded)
    check_memory(config, layout, machine.available_bytes())
    with open_nodes(config, node_capacity(config, layout)) as nodes:
        measured = measure(config, prompt, _decoder_maker(config, loaded, layout, nodes), view=view)
    return _result(config, loaded, layout, prompt, measured)


def measure(
    config: ExperimentConfig, prompt: Prompt, make: Callable[[str], Decoder], *, view: View
) -> dict[str, tuple[Measured, Comparison | None]]:
    """Run every scheme of `config.order()` with a decoder from `make`, which is closed in any case.

    `prompt.ids` are the prompt's tokens, or with random KV the tokens to feed (`WARM_UP_STEPS` first).
    """
    reference = Reference(config.reference)
    measured: dict[str, tuple[Measured, Comparison | None]] = {}
    order = config.order()
    for group in [order] if config.interleave else [(scheme,) for scheme in order]:
        measured.update(_run_group(config, group, prompt, reference, make, view))
    return measured


def _prompt(config: ExperimentConfig, loaded: LoadedModel) -> Prompt:
    if config.random:
        ids = random_ids(int(loaded.config.vocab_size), config.new_tokens + WARM_UP_STEPS, config.seed)
        return Prompt(f"random KV, seed {config.seed}", ids)
    most = max(1, loaded.max_context - config.new_tokens)
    hint = f"use --context {most} or less, or --fill random to measure I/O only"
    check_context(config.context, config.new_tokens, loaded.max_context, model=loaded.name, hint=hint)
    return prompt_of(loaded, config.prompt_file, config.context, offset=config.offset, seed=config.seed)


def _decoder_maker(
    config: ExperimentConfig, loaded: LoadedModel, layout: KVLayout, nodes: Nodes
) -> Callable[[str], Decoder]:
    def make(scheme: str) -> Decoder:
        if scheme == HF:
            return PlainDecoder(loaded)
        from dualpath.path import PathConfig, Scheme

        settings = PathConfig(
            scheme=Scheme(scheme),
            hot_bytes=config.hot_bytes,
            window_bytes=config.window_bytes,
            threads=config.threads,
            deadline_s=config.deadline_s,
            trace="" if config.trace_prefetch is None else str(config.trace_prefetch),
            read_fraction=config.fraction_of(scheme),
        )
        return PathDecoder(loaded, layout, settings, None if scheme == LOCAL else nodes.connector(scheme))

    return make


def _run_group(
    config: ExperimentConfig,
    schemes: Sequence[str],
    prompt: Prompt,
    reference: Reference,
    make: Callable[[str], Decoder],
    view: View,
) -> dict[str, tuple[Measured, Comparison | None]]:
    """Run schemes that are alive together, in rounds; one alone is a single round."""
    with contextlib.ExitStack() as stack:
        runs = []
        for scheme in schemes:
            decoder = make(scheme)
            stack.callback(decoder.close)
            comparison = None if scheme == reference.scheme else Comparison(reference)
            measured = Measured(scheme, read_fraction=config.fraction_of(scheme))
            run = Run(scheme, decoder, measured, comparison)
            _prepare(run, config, prompt, reference, view)
            runs.append(run)
        _decode_all(runs, config, prompt, reference, view)
        for run in runs:
            _settle(run)
        return {run.scheme: (run.measured, run.comparison) for run in runs}


def _prepare(run: Run, config: ExperimentConfig, prompt: Prompt, reference: Reference, view: View) -> None:
    """Prefill, or fill with random KV and warm up."""
    if config.random:
        with view.progress(f"{run.scheme}: random KV", total=config.context, unit="tokens") as bar:
            run.decoder.fill(config.context, config.seed, advancing(bar))
        for token in prompt.ids[:WARM_UP_STEPS]:
            run.decoder.decode(token)
    else:
        with view.progress(f"{run.scheme}: prefill", total=config.context, unit="tokens") as bar:
            started_s = time.perf_counter()
            logits = run.decoder.prefill(prompt.ids, advancing(bar))
            token = greedy(logits)
            run.measured.ttft_s = time.perf_counter() - started_s
        _record(run, reference, token, logits)
    gc.collect()
    run.start = run.decoder.counters()


def advancing(bar: Bar) -> Callable[[int, int], None]:
    """Return what moves `bar` to where the work is by now: it is told `(done, total)`."""
    done = 0

    def on_progress(now: int, _total: int) -> None:
        nonlocal done
        bar.advance(now - done)
        done = now

    return on_progress


def _decode_all(
    runs: Sequence[Run], config: ExperimentConfig, prompt: Prompt, reference: Reference, view: View
) -> None:
    """Decode until every run has its tokens: the first new token came from the prompt, if there was one."""
    steps = config.new_tokens if config.random else config.new_tokens - 1
    turn = config.interleave or steps
    names = ", ".join(run.scheme for run in runs)
    with view.progress(f"{names}: decode", total=steps * len(runs), unit="tokens") as bar:
        for first in range(0, steps, max(1, turn)):
            for run in runs:
                _decode(run, min(turn, steps - first), config, prompt, reference, bar)
            if len(runs) > 1:
                reference.forget(before=min(run.step for run in runs))


def _decode(run: Run, steps: int, config: ExperimentConfig, prompt: Prompt, reference: Reference, bar: Bar) -> None:
    """Decode `steps` tokens of one run and measure them."""
    measured = run.measured
    cpu_s, wall_s = machine.cpu_seconds(), time.perf_counter()
    for _ in range(steps):
        token = prompt.ids[WARM_UP_STEPS + run.step] if config.random else run.next_token
        started_s = time.perf_counter()
        logits = run.decoder.decode(token)
        following = greedy(logits)
        measured.step_s.append(time.perf_counter() - started_s)
        _record(run, reference, following, logits)
        bar.advance()
    measured.cpu_s += machine.cpu_seconds() - cpu_s
    measured.wall_s += time.perf_counter() - wall_s


def _record(run: Run, reference: Reference, token: int, logits: Logits) -> None:
    """Take the outcome of a step: compare it, or make it what others are compared with."""
    if run.comparison is None:
        reference.add(token, logits.copy())
    else:
        run.comparison.add(token, logits)
    run.measured.tokens.append(token)
    run.next_token = token
    run.step += 1


def _settle(run: Run) -> None:
    """Take the counters of the decode steps; what was prefetched in vain is known once the sequence has ended."""
    decoded = run.decoder.counters()
    run.measured.choice = run.decoder.choice()
    run.decoder.end()
    ended = run.decoder.counters()
    measured = run.measured
    measured.wire_bytes = decoded.wire_bytes - run.start.wire_bytes
    measured.stall_s = decoded.stall_s - run.start.stall_s
    measured.attend_s = decoded.attend_s - run.start.attend_s
    measured.wasted_bytes = ended.wasted_bytes - run.start.wasted_bytes
    measured.peak_local_kv_bytes = ended.peak_local_kv_bytes
    measured.far_blocks = decoded.far_blocks - run.start.far_blocks
    measured.far_blocks_read = decoded.far_blocks_read - run.start.far_blocks_read


def _result(
    config: ExperimentConfig,
    loaded: LoadedModel,
    layout: KVLayout,
    prompt: Prompt,
    measured: dict[str, tuple[Measured, Comparison | None]],
) -> dict[str, Any]:
    rows = {scheme: row(*found) for scheme, found in measured.items()}
    if config.random:
        rows = {scheme: {**found, "fill": "random"} for scheme, found in rows.items()}
    text = "" if loaded.tokenizer is None or config.random else _decoded(loaded, rows[config.reference])
    middle = config.context + config.new_tokens // 2
    nodes = config.nodes if not config.pool else len(config.pool.split(","))
    return {
        "schemes": [rows[scheme] for scheme in config.rows()],
        "reference": rows[config.reference],
        "ok": outcome_is_right(config, [rows[scheme] for scheme in config.rows()]),
        "model": {
            "name": loaded.name,
            "type": str(loaded.config.model_type),
            "dtype": loaded.dtype,
            "layers": layout.layers,
            "max_context": loaded.max_context,
            "fingerprint": loaded.fingerprint,
        },
        "prompt": {"source": prompt.source, "fill": config.fill, "tokens": config.context, "output": text},
        "settings": {
            "new_tokens": config.new_tokens,
            "hot_bytes": config.hot_bytes,
            "window_bytes": config.window_bytes,
            "block_tokens": layout.block_tokens,
            "kv_dtype": config.kv_dtype,
            "read_fraction": config.read_fraction,
            "nodes": nodes,
            "pool": config.pool or "child processes",
            "threads": config.threads,
            "interleave": config.interleave,
            "max_rails": config.max_rails,
            "seed": config.seed,
        },
        "expected": {
            "kv_bytes_per_token": layout.bytes_per_token,
            "kv_bytes": kv_bytes(layout, middle),
            "fetch_wire_bytes_per_token": fetch_bytes_per_token(layout, middle, config.hot_bytes),
            "reduce_wire_bytes_per_token": reduce_bytes_per_token(layout, nodes),
        },
        "machine": machine.describe(),
    }


def outcome_is_right(config: ExperimentConfig, rows: list[dict[str, Any]]) -> bool:
    """Whether the outputs are as they must be: in float32 identical to the reference's. In other dtypes two correct
    merges may differ; where KV is quantised the reference's is not, and schemes that fold alike must agree. What reads
    a part only is held to nothing."""
    rows = [row for row in rows if row.get("read_fraction", 1.0) == 1.0]
    if config.dtype != "float32":
        return True
    if config.kv_dtype == "same":
        return all(row["identical"] for row in rows)
    return len({tuple(row["tokens"]) for row in rows if row["scheme"] in FOLD_ALIKE}) <= 1


def _decoded(loaded: LoadedModel, found: dict[str, Any]) -> str:
    return str(loaded.tokenizer.decode(found["tokens"]))
