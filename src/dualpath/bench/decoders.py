"""One face for all schemes, so that the same loop measures plain transformers and the dual path."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dualpath.errors import UsageError

if TYPE_CHECKING:
    from dualpath.bench.rows import Logits
    from dualpath.engine.load import LoadedModel
    from dualpath.kv import KVLayout
    from dualpath.path import PathConfig

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Counters:
    """Plain numbers that only grow (but for `peak_local_kv_bytes`)."""

    wire_bytes: int = 0
    stall_s: float = 0.0
    attend_s: float = 0.0
    wasted_bytes: int = 0
    peak_local_kv_bytes: int = 0
    far_blocks: int = 0
    far_blocks_read: int = 0


class Decoder(Protocol):
    """One sequence under one scheme. `prefill` or `fill` comes first, once."""

    def prefill(self, ids: Sequence[int], on_progress: OnProgress) -> Logits:
        """Run the prompt; return the last token's logits, float32 `[vocab]`."""

    def fill(self, tokens: int, seed: int, on_progress: OnProgress) -> None:
        """Take `tokens` tokens of seeded random KV instead of a prompt."""

    def decode(self, token: int) -> Logits:
        """Append `token`; return the logits of what follows it, float32 `[vocab]`."""

    def counters(self) -> Counters:
        """Return the counters so far; also after `end`."""

    def choice(self) -> dict[str, Any] | None:
        """Return what scheme `auto` has chosen; `None` in other schemes."""

    def end(self) -> None:
        """Let go of the sequence, so that prefetches that came to nothing are counted."""

    def close(self) -> None:
        """Release everything. Idempotent."""


class PlainDecoder:
    """Scheme `hf`: plain transformers."""

    def __init__(self, loaded: LoadedModel) -> None:
        from dualpath.engine.reference import PlainModel

        self._model = PlainModel(loaded)

    def prefill(self, ids: Sequence[int], on_progress: OnProgress) -> Logits:
        """Run the prompt in one forward pass."""
        return _array(self._model.prefill(ids, on_progress=on_progress))

    def fill(self, tokens: int, seed: int, on_progress: OnProgress) -> None:
        """Refuse: the stock cache is not ours to fill."""
        raise UsageError("scheme hf cannot start from random KV", hint="compare with scheme local instead")

    def decode(self, token: int) -> Logits:
        """Run one token."""
        return _array(self._model.decode(token))

    def counters(self) -> Counters:
        """Return the cache's size; the rest is zero."""
        return Counters(peak_local_kv_bytes=self._model.kv_bytes)

    def choice(self) -> None:
        """Nothing is chosen."""

    def end(self) -> None:
        """Nothing to let go of."""

    def close(self) -> None:
        """Nothing to release."""


class PathDecoder:
    """Every other scheme: an engine over a dual path with a pool connection of its own (none for `local`)."""

    def __init__(
        self, loaded: LoadedModel, layout: KVLayout, config: PathConfig, connect: Callable[[], Any] | None
    ) -> None:
        from dualpath.engine.engine import Engine
        from dualpath.path import DualPath

        with contextlib.ExitStack() as stack:
            self._pool = stack.enter_context(connect()) if connect is not None else None
            self._path = stack.enter_context(DualPath(layout, config, self._pool))
            self._engine = stack.enter_context(Engine(loaded, self._path))
            self._sequence = self._path.open()
            self._open = True
            self._stack = stack.pop_all()

    def prefill(self, ids: Sequence[int], on_progress: OnProgress) -> Logits:
        """Run the prompt in chunks."""
        return _array(self._engine.prefill(self._sequence, ids, on_progress=on_progress))

    def fill(self, tokens: int, seed: int, on_progress: OnProgress) -> None:
        """Fill pool and hot region with the same random KV for every scheme."""
        size = self._path.layout.block_tokens
        self._path.fill_random(self._sequence, tokens, seed, lambda now, total: on_progress(now * size, total * size))

    def decode(self, token: int) -> Logits:
        """Run one token."""
        return _array(self._engine.decode(self._sequence, token))

    def rewind(self, tokens: int) -> None:
        """Cut the sequence to its first `tokens` tokens, to decode from there again."""
        self._path.crop(self._sequence, tokens)

    def counters(self) -> Counters:
        """Return what the path and the transport have counted."""
        found = self._path.metrics.snapshot()
        wire = 0
        if self._pool is not None:
            each = [node.counters for node in self._pool.nodes]
            wire = sum(one.tx_bytes + one.rx_bytes for one in each)
        return Counters(
            wire,
            found.stall_s,
            found.attend_s,
            found.wasted_bytes,
            found.peak_local_bytes,
            found.far_blocks,
            found.far_blocks_read,
        )

    def choice(self) -> dict[str, Any] | None:
        """Return the choice of scheme `auto` as of the last step."""
        return None if self._path.auto is None else self._path.auto.explain()

    def end(self) -> None:
        """Close the sequence."""
        if self._open:
            self._open = False
            self._path.close_sequence(self._sequence)

    def close(self) -> None:
        """Close the path, then its connections."""
        self._stack.close()


def _array(logits: Any) -> Logits:
    """Return a tensor as an array over the same memory."""
    found: Logits = logits.numpy()
    return found
