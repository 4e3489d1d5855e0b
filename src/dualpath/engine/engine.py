"""Runs a model over the sequences of a dual path: packed tokens, no padding, greedy steps chosen by the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dualpath.engine.hf import CACHE_KEYWORD, PackedCache
from dualpath.engine.joined import JoinedStep
from dualpath.engine.lending import borrow, give_back, use
from dualpath.engine.load import LoadedModel
from dualpath.errors import CapacityError, UsageError
from dualpath.path import DualPath, SequenceId, Step

CHUNK_TOKENS = 1024


class Engine:
    """One model over one `DualPath`. Sets the model's attention implementation; `close` restores it.

    After an error in a step the sequences are as before it.
    """

    def __init__(self, model: LoadedModel, path: DualPath) -> None:
        self.loaded, self.path = model, path
        self._model: Any = model.model
        self._cache = PackedCache(path.layout)
        borrow(self._model)
        self._borrowed = True

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Restore the model's attention implementation. Idempotent."""
        if self._borrowed:
            self._borrowed = False
            give_back(self._model)

    def prefill(
        self,
        sequence: SequenceId,
        ids: Sequence[int],
        *,
        chunk_tokens: int = CHUNK_TOKENS,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> torch.Tensor:
        """Append a prompt, in chunks that hot region and window can take. Returns float32 logits `[vocab]` of its end.

        `on_progress(done, total)` runs after each chunk. Raises `CapacityError` if the prompt is longer than the model
        allows.
        """
        if not ids:
            raise UsageError("the prompt is empty")
        self._require_context(sequence, len(ids))
        done, logits = 0, torch.empty(0)
        while done < len(ids):
            count = self.path.room(sequence, min(chunk_tokens, len(ids) - done))
            logits = self.step([(sequence, ids[done : done + count])])[0]
            done += count
            if on_progress is not None:
                on_progress(done, len(ids))
        return logits

    def decode(self, sequence: SequenceId, token: int) -> torch.Tensor:
        """Append one token. Returns float32 logits `[vocab]` of the next."""
        self._require_context(sequence, 1)
        return self.step([(sequence, [token])])[0]

    def step(self, batch: Sequence[tuple[SequenceId, Sequence[int]]]) -> torch.Tensor:
        """Append tokens to several sequences in one pass. Returns float32 logits `[len(batch), vocab]` of each end.

        All or none: after an error every sequence is as before.
        """
        step = self.path.begin(batch)
        try:
            logits = self.forward(step, batch)
            step.commit()
        except BaseException:
            step.abort()
            raise
        return logits

    def step_beside(
        self, batch: Sequence[tuple[SequenceId, Sequence[int]]], prefill: DualPath, chunk: tuple[SequenceId, list[int]]
    ) -> torch.Tensor:
        """As `step`, and append `chunk` of a prompt, whose KV is in another path, in the same pass through the model.

        Returns logits `[len(batch) + 1, vocab]`, the chunk's last. After an error the batch is as before; the prompt is
        too, unless its part was done and the batch's failed: ask `prefill.length`.
        """
        step = self.path.begin(batch)
        try:
            other = prefill.begin([chunk])
            try:
                starts = [*self._starts(batch), prefill.length(chunk[0])]
                logits = self._pass(JoinedStep(step, other), [*batch, chunk], starts)
                other.commit()
            except BaseException:
                other.abort()
                raise
            step.commit()
        except BaseException:
            step.abort()
            raise
        return logits

    def forward(self, step: Step, batch: Sequence[tuple[SequenceId, Sequence[int]]]) -> torch.Tensor:
        """Pass `batch` through all layers within an open `step`, which stays open. Returns logits as `step()` does."""
        return self._pass(step, batch, self._starts(batch))

    def _starts(self, batch: Sequence[tuple[SequenceId, Sequence[int]]]) -> list[int]:
        return [self.path.length(sequence) for sequence, _ in batch]

    @torch.inference_mode()
    def _pass(
        self, step: Step | JoinedStep, batch: Sequence[tuple[SequenceId, Sequence[int]]], starts: Sequence[int]
    ) -> torch.Tensor:
        ids = [token for _, tokens in batch for token in tokens]
        positions = [start + i for start, (_, tokens) in zip(starts, batch, strict=True) for i in range(len(tokens))]
        ends = torch.tensor([len(tokens) for _, tokens in batch]).cumsum(0) - 1
        self._cache.step = step
        use(self._model)  # plain transformers may have had its turn on the same model
        try:
            out = self._model(
                input_ids=torch.tensor([ids]),
                position_ids=torch.tensor([positions]),
                use_cache=True,
                logits_to_keep=ends,
                **{CACHE_KEYWORD: self._cache},
            )
        finally:
            self._cache.step = None
        logits: torch.Tensor = out.logits[0].float()
        return logits

    def _require_context(self, sequence: SequenceId, more: int) -> None:
        wanted = self.path.length(sequence) + more
        if wanted > self.loaded.max_context:
            raise CapacityError(
                f"{wanted} tokens are more than {self.loaded.name} allows ({self.loaded.max_context})",
                hint="use a shorter prompt or fewer new tokens",
            )
