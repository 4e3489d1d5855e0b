"""What it costs to keep KV in fewer bytes, or to read only part of it: perplexity over a document, and needles found.

Every row runs in scheme `reduce` over the same prefix, which is prefilled once for each dtype of KV: rows are forks of
it that read another fraction of the blocks. The first row is exact, and all others are held against it.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualpath.attention.bounds import check_fraction
from dualpath.attention.dispatch import check_threads
from dualpath.bench import machine
from dualpath.bench.likelihood import compare
from dualpath.bench.needle import ANSWER_TOKENS, DEPTHS, Needle, hide
from dualpath.bench.nodes import require_nodes
from dualpath.bench.prompt import Prompt, check_context, document_prompt
from dualpath.errors import UsageError
from dualpath.kv.layout import kv_dtype_called
from dualpath.pool.spec import check_deadline, parse

if TYPE_CHECKING:
    from dualpath.bench.experiment import Bar, View
    from dualpath.bench.likelihood import Logits
    from dualpath.engine.engine import Engine
    from dualpath.engine.load import LoadedModel
    from dualpath.kv import KVLayout
    from dualpath.path import DualPath, SequenceId
    from dualpath.pool.client import Pool

EXACT = ("same", 1.0)


@dataclass(frozen=True)
class AccuracyConfig:
    """Settings of an accuracy run.

    | field | meaning |
    |---|---|
    | `model`, `dtype` | see `engine.load.load_model` |
    | `kv_dtypes`, `read_fractions` | a row for each pair: names of `kv.layout.KV_DTYPES`, and shares of far blocks |
    | `prompt_file`, `offset` | the document, and its first token; `None`: a text that comes with Python |
    | `context`, `scored` | tokens of the document, of which the last `scored` are predicted one by one |
    | `needles` | lengths of haystacks; each hides a key at every depth of `needle.DEPTHS` |
    | `hot_bytes`, `window_bytes`, `block_tokens` | see `ExperimentConfig` |
    | `nodes`, `pool` | start `nodes` nodes here, or use those of the spec `pool` |
    """

    model: str = "smollm2-135m"
    dtype: str = "float32"
    kv_dtypes: tuple[str, ...] = ("same",)
    read_fractions: tuple[float, ...] = (1.0,)
    prompt_file: Path | None = None
    offset: int = 0
    context: int = 4096
    scored: int = 128
    needles: tuple[int, ...] = (512, 1024, 1536, 2048)
    hot_bytes: int = 16 << 20
    window_bytes: int = 64 << 20
    block_tokens: int = 64
    nodes: int = 2
    pool: str = ""
    key: bytes | None = None
    threads: int = 0
    seed: int = 0
    deadline_s: float = 10.0

    def check(self) -> None:
        """Raise `UsageError` for values that cannot work, before anything slow begins."""
        for name in self.kv_dtypes:
            kv_dtype_called(name)
        for fraction in self.read_fractions:
            check_fraction(fraction)
        if not self.kv_dtypes or not self.read_fractions:
            raise UsageError("nothing to measure", hint="name a dtype of KV and a fraction at least")
        if not 1 <= self.scored < self.context:
            raise UsageError(f"cannot predict {self.scored} of {self.context} tokens one by one")
        if any(length < 1 for length in self.needles):
            raise UsageError("a haystack has at least one token")
        check_threads(self.threads)
        check_deadline(self.deadline_s)
        if self.pool:
            parse(self.pool)

    def rows(self) -> tuple[tuple[str, float], ...]:
        """Return the rows, `(kv_dtype, read_fraction)`: the exact one first, each once."""
        pairs = [(dtype, fraction) for dtype in self.kv_dtypes for fraction in self.read_fractions]
        return tuple(dict.fromkeys([EXACT, *pairs]))


@dataclass
class Found:
    """What was measured of one row. Counters cover the steps over the document that were scored."""

    logits: list[Logits] = field(default_factory=list)
    blocks: int = 0
    blocks_read: int = 0
    wire_bytes: int = 0
    answers: list[tuple[Needle, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Task:
    """What every row is asked: tokens before, tokens fed one by one, what comes after each; and needles."""

    before: tuple[int, ...]
    fed: tuple[int, ...]
    targets: tuple[int, ...]
    needles: tuple[Needle, ...]


def run_accuracy(config: AccuracyConfig, *, view: View) -> dict[str, Any]:
    """Measure all rows and return the result, ready for JSON. Raises a `DualPathError` for whatever goes wrong."""
    config.check()
    require_nodes(config.pool, key=config.key, deadline_s=config.deadline_s)
    from dualpath.engine.load import load_model, use_threads

    with view.progress(f"loading {config.model}") as bar:
        loaded = load_model(config.model, dtype=config.dtype, progress=bar.note)
    use_threads(config.threads)
    if loaded.tokenizer is None:
        raise UsageError(f"{loaded.name} has no tokenizer to read a document with", hint="use a trained model")
    prompt, task = _task(config, loaded)
    found: dict[tuple[str, float], Found] = {}
    with _pool(config, _layout(config, loaded, "same"), task) as pool:
        for kv_dtype in dict.fromkeys(dtype for dtype, _ in config.rows()):
            fractions = [fraction for dtype, fraction in config.rows() if dtype == kv_dtype]
            layout = _layout(config, loaded, kv_dtype)
            with _engine(config, loaded, layout, pool) as (path, engine):
                measured = _Measuring(path, engine, pool, fractions)
                steps = len(fractions) * _steps(task)
                with view.progress(f"KV kept in {kv_dtype}: prefill and decode", total=steps, unit="tokens") as bar:
                    measured.document(task, bar)
                    for needle in task.needles:
                        measured.needle(needle, bar)
            found |= {(kv_dtype, fraction): one for fraction, one in measured.found.items()}
    return _result(config, loaded, prompt, task, found)


class _Measuring:
    """Rows of one dtype of KV: over each prefix, a fork for every fraction."""

    def __init__(self, path: DualPath, engine: Engine, pool: Pool, fractions: Sequence[float]) -> None:
        self._path, self._engine, self._pool = path, engine, pool
        self.found = {fraction: Found() for fraction in fractions}

    def document(self, task: Task, bar: Bar) -> None:
        """Feed the scored tokens one by one."""
        for found, sequence in self._forks(task.before):
            metrics, wire = self._path.metrics.snapshot(), self._wire_bytes()
            for token in task.fed:
                found.logits.append(self._engine.decode(sequence, token).numpy().copy())
                bar.advance()
            found.blocks += self._path.metrics.far_blocks - metrics.far_blocks
            found.blocks_read += self._path.metrics.far_blocks_read - metrics.far_blocks_read
            found.wire_bytes += self._wire_bytes() - wire

    def needle(self, needle: Needle, bar: Bar) -> None:
        """Feed the question token by token, and let the model answer."""
        from dualpath.engine.text import greedy_tokens, plain_decoder, stop_tokens

        loaded = self._engine.loaded
        for found, sequence in self._forks(needle.haystack):
            for token in needle.question:
                logits = self._engine.decode(sequence, token)
                bar.advance()
            stops = stop_tokens(loaded)
            answer = list(greedy_tokens(self._engine, sequence, logits, limit=ANSWER_TOKENS, stops=stops))
            found.answers.append((needle, plain_decoder(loaded.tokenizer)(answer)))

    def _forks(self, prefix: Sequence[int]) -> Iterator[tuple[Found, SequenceId]]:
        """Prefill `prefix`, and give a fork of it to each row; everything is closed again."""
        parent = self._path.open()
        self._path.read_fraction = 1.0  # also where the last chunk of the prefix is one token
        self._engine.prefill(parent, prefix)
        for fraction, found in self.found.items():
            self._path.read_fraction = fraction
            child = self._path.fork(parent)
            yield found, child
            self._path.close_sequence(child)
        self._path.close_sequence(parent)

    def _wire_bytes(self) -> int:
        return self._pool.counters.tx_bytes + self._pool.counters.rx_bytes


def _task(config: AccuracyConfig, loaded: LoadedModel) -> tuple[Prompt, Task]:
    longest = max((config.context, *config.needles))
    check_context(longest, 256, loaded.max_context, model=loaded.name, hint="use a smaller --context and --needles")
    prompt = document_prompt(
        loaded.tokenizer, config.prompt_file, max(longest, config.context + 1), offset=config.offset
    )
    ids, start = prompt.ids, config.context - config.scored
    needles = tuple(
        hide(loaded.tokenizer, ids, length, depth, seed=config.seed) for length in config.needles for depth in DEPTHS
    )
    return prompt, Task(ids[:start], ids[start : config.context], ids[start + 1 : config.context + 1], needles)


def _steps(task: Task) -> int:
    return len(task.fed) + sum(len(needle.question) for needle in task.needles)


def _layout(config: AccuracyConfig, loaded: LoadedModel, kv_dtype: str) -> KVLayout:
    from dualpath.engine.load import kv_layout

    return kv_layout(
        loaded,
        hot_bytes=config.hot_bytes,
        block_tokens=config.block_tokens,
        kv_dtype=kv_dtype_called(kv_dtype),
    )


@contextlib.contextmanager
def _pool(config: AccuracyConfig, layout: KVLayout, task: Task) -> Iterator[Pool]:
    """Connect to the nodes, or start some that can hold the longest prefix."""
    from dualpath.pool.client import connect
    from dualpath.pool.local import LocalNodes

    tenant = f"accuracy-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        spec, key = config.pool, config.key
        if not spec:
            longest = max([len(task.before) + len(task.fed), *(len(one.haystack) + 256 for one in task.needles)])
            capacity = 2 * (longest + layout.block_tokens) * layout.bytes_per_token + (64 << 20)
            nodes = stack.enter_context(LocalNodes(config.nodes, capacity=capacity, threads=1, sockets=False))
            spec, key = nodes.spec, None
        yield stack.enter_context(connect(spec, key=key, tenant=tenant, timeout_s=config.deadline_s))


@contextlib.contextmanager
def _engine(
    config: AccuracyConfig, loaded: LoadedModel, layout: KVLayout, pool: Pool
) -> Iterator[tuple[DualPath, Engine]]:
    from dualpath.engine.engine import Engine
    from dualpath.path import DualPath, PathConfig, Scheme

    settings = PathConfig(
        Scheme.REDUCE, config.hot_bytes, config.window_bytes, config.threads, deadline_s=config.deadline_s
    )
    with DualPath(layout, settings, pool) as path, Engine(loaded, path) as engine:
        yield path, engine


def _result(
    config: AccuracyConfig,
    loaded: LoadedModel,
    prompt: Prompt,
    task: Task,
    found: dict[tuple[str, float], Found],
) -> dict[str, Any]:
    return {
        "rows": [_row(config, loaded, task, pair, found) for pair in config.rows()],
        "model": {"name": loaded.name, "dtype": loaded.dtype, "fingerprint": loaded.fingerprint},
        "prompt": {"source": prompt.source, "tokens": config.context},
        "settings": {
            "scored": config.scored,
            "needles": list(config.needles),
            "depths": list(DEPTHS),
            "hot_bytes": config.hot_bytes,
            "block_tokens": _layout(config, loaded, "same").block_tokens,
            "nodes": len(config.pool.split(",")) if config.pool else config.nodes,
            "seed": config.seed,
        },
        "machine": machine.describe(),
    }


def _row(
    config: AccuracyConfig,
    loaded: LoadedModel,
    task: Task,
    pair: tuple[str, float],
    found: dict[tuple[str, float], Found],
) -> dict[str, Any]:
    one, exact = found[pair], found[EXACT]
    likelihood = compare(one.logits, exact.logits, task.targets)
    base = compare(exact.logits, exact.logits, task.targets).perplexity
    hits = [needle.key in answer for needle, answer in one.answers]
    return {
        "kv_dtype": pair[0],
        "read_fraction": pair[1],
        **asdict(likelihood),
        "perplexity_ratio": math.inf if likelihood.not_finite else likelihood.perplexity / base,
        "needles_found": sum(hits),
        "needles": len(hits),
        "far_blocks": one.blocks,
        "far_blocks_read": one.blocks_read,
        "wire_bytes_per_token": one.wire_bytes / len(task.fed),
        "kv_bytes_per_token": _layout(config, loaded, pair[0]).bytes_per_token,
        "answers": [
            {"length": needle.length, "depth": needle.depth, "key": needle.key, "answer": answer, "found": hit}
            for (needle, answer), hit in zip(one.answers, hits, strict=True)
        ],
    }
