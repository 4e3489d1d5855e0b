"""A model over seeded random KV, the same for every decoder: what benches of I/O need instead of a prompt."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dualpath.attention.dispatch import check_threads
from dualpath.bench import machine
from dualpath.bench.decoders import PathDecoder
from dualpath.bench.turns import LEAD_STEPS, TURN_STEPS, Contender, Turn
from dualpath.errors import CapacityError, UsageError
from dualpath.pool.spec import check_deadline
from dualpath.units import format_bytes

if TYPE_CHECKING:
    from dualpath.bench.experiment import View
    from dualpath.bench.nodes import Nodes
    from dualpath.engine.load import LoadedModel
    from dualpath.kv import KVLayout


@dataclass(frozen=True, kw_only=True)
class RandomKVConfig:
    """Settings of a bench over random KV, as in `ExperimentConfig`; `samples`: measured steps of each, at least."""

    model: str = "smollm2-135m"
    dtype: str = "float32"
    block_tokens: int = 256
    samples: int = 64
    window_bytes: int = 64 << 20
    threads: int = 0
    seed: int = 0
    deadline_s: float = 30.0

    def check(self) -> None:
        """Raise `UsageError` for values that cannot work."""
        if min(self.samples, self.window_bytes) < 1:
            raise UsageError("samples and the window must be at least 1")
        check_threads(self.threads)
        check_deadline(self.deadline_s)
        if self.block_tokens <= LEAD_STEPS + TURN_STEPS:  # a turn would fill and seal one: what is remote would change
            raise UsageError(f"blocks of {self.block_tokens} tokens are too small", hint="--block-tokens 16 or more")

    def check_context(self, tokens: int) -> None:
        """Raise `UsageError` for a context that cannot be divided into a local and a remote part."""
        if tokens < 2 * self.block_tokens:
            raise UsageError(
                f"a context of {tokens} tokens is less than two blocks of {self.block_tokens}",
                hint="a longer --context, or a smaller --block-tokens",
            )


@dataclass(frozen=True)
class RandomKV:
    """A loaded model, its layout, and what decoders over it are fed with."""

    config: RandomKVConfig
    loaded: LoadedModel
    layout: KVLayout
    turn: Turn

    @property
    def fp32(self) -> bool:
        """Whether all schemes have to say the same."""
        return self.config.dtype == "float32"

    def blocks(self, context: int) -> int:
        """Return the whole blocks of a context: the rest is left out."""
        return context // self.layout.block_tokens

    def bytes(self, context: int) -> int:
        """Return the KV bytes of a context's whole blocks."""
        return self.blocks(context) * self.layout.block_bytes

    def check_room(self, context: int, *, copies: int) -> None:
        """Raise `CapacityError` if so many copies of a context's KV do not fit this machine's memory."""
        one, free = self.bytes(context), machine.available_bytes()
        if copies * one > 0.9 * free:
            raise CapacityError(
                f"{copies} copies of {format_bytes(one)} of KV do not fit the {format_bytes(free)} of free memory",
                hint="a smaller --context",
            )

    def contender(
        self,
        stack: contextlib.ExitStack,
        name: str,
        context: int,
        *,
        nodes: Nodes | None = None,
        far_blocks: int = 0,
        on_progress: Callable[[int, int], None],
    ) -> Contender:
        """Return a decoder, filled, of which `far_blocks` are at the nodes; `stack` closes it.

        `name`: a scheme, or one followed by `-prefetch`, which reads nothing ahead.
        """
        from dualpath.path import PathConfig, Scheme

        config, layout = self.config, self.layout
        near = self.blocks(context) - far_blocks
        settings = PathConfig(
            scheme=Scheme(name.removesuffix("-prefetch")),
            hot_bytes=near * layout.block_bytes + layout.open.block_bytes,
            window_bytes=config.window_bytes,
            threads=config.threads,
            deadline_s=config.deadline_s,
            ahead=not name.endswith("-prefetch"),
        )
        decoder = PathDecoder(self.loaded, layout, settings, None if nodes is None else nodes.connector(name))
        stack.callback(decoder.close)
        decoder.fill(context, config.seed, on_progress)
        return Contender(name, decoder, self.blocks(context) * layout.block_tokens)


def load_random_kv(config: RandomKVConfig, *, view: View) -> RandomKV:
    """Load the model. Raises a `DualPathError`, as `load_model` does."""
    from dualpath.engine.load import kv_layout, load_model, use_threads

    with view.progress(f"loading {config.model}") as bar:
        loaded = load_model(config.model, dtype=config.dtype, progress=bar.note)
    use_threads(config.threads)
    loaded = dataclasses.replace(loaded, max_context=sys.maxsize)  # random KV: positions beyond the limit are fine
    layout = kv_layout(loaded, hot_bytes=config.window_bytes, block_tokens=config.block_tokens)
    return RandomKV(config, loaded, layout, Turn.of(config.samples, int(loaded.config.vocab_size), config.seed))


def settings_of(config: RandomKVConfig) -> dict[str, Any]:
    """Return what was set, ready for JSON."""
    return {**dataclasses.asdict(config), "lead_steps": LEAD_STEPS, "turn_steps": TURN_STEPS}
