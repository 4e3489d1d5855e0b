"""The document that the experiment decodes from."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualpath.errors import CapacityError, UsageError

if TYPE_CHECKING:
    from dualpath.engine.load import LoadedModel

_CHARS_PER_TOKEN = 12  # more than any text has on average: enough text to cut the wanted tokens from


@dataclass(frozen=True)
class Prompt:
    """Token ids, and where they come from, for people."""

    source: str
    ids: tuple[int, ...]


def check_context(context: int, new_tokens: int, max_context: int, *, model: str, hint: str = "") -> None:
    """Raise `CapacityError` if the model cannot hold the prompt and the new tokens."""
    if context < 1 or new_tokens < 1:
        raise UsageError(f"context ({context}) and new tokens ({new_tokens}) must be at least 1")
    if context + new_tokens > max_context:
        raise CapacityError(
            f"context {context} + {new_tokens} new tokens is more than the {max_context} tokens of {model}",
            hint=hint or f"use --context {max(1, max_context - new_tokens)} or less",
        )


def default_document() -> Path:
    """Return a long text that is on every machine with Python: the source of its own help topics."""
    spec = importlib.util.find_spec("pydoc_data.topics")
    if spec is None or spec.origin is None or not Path(spec.origin).exists():
        raise UsageError("this Python comes without pydoc_data/topics.py", hint="give a document with --prompt-file")
    return Path(spec.origin)


def prompt_of(loaded: LoadedModel, file: Path | None, context: int, *, offset: int = 0, seed: int = 0) -> Prompt:
    """Return `context` tokens for a model: of a document, or seeded random ids where there is no tokenizer.

    Raises `UsageError` for a document that cannot be used.
    """
    if loaded.tokenizer is not None:
        return document_prompt(loaded.tokenizer, file, context, offset=offset)
    if file is not None:
        raise UsageError(f"{loaded.name} has no tokenizer to read {file} with", hint="leave out --prompt-file")
    return Prompt(f"random token ids, seed {seed}", random_ids(int(loaded.config.vocab_size), context, seed))


def document_prompt(tokenizer: Any, file: Path | None, context: int, *, offset: int = 0) -> Prompt:
    """Return `context` tokens of a document, from token `offset` on.

    Raises `UsageError` if the file cannot be read or is too short.
    """
    path = default_document() if file is None else file
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="check --prompt-file") from error
    wanted = offset + context
    ids = encode(tokenizer, text[: wanted * _CHARS_PER_TOKEN])
    if len(ids) < wanted and len(text) > wanted * _CHARS_PER_TOKEN:
        ids = encode(tokenizer, text)
    if len(ids) < wanted:
        raise UsageError(
            f"{path.name} has {len(ids)} tokens, but {wanted} are wanted",
            hint=f"use --context {max(1, len(ids) - offset)} or less, or a longer --prompt-file",
        )
    return Prompt("/".join(path.parts[-2:]), tuple(ids[offset:wanted]))


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of `text`, with whatever special tokens the model wants at its start."""
    return [int(token) for token in tokenizer(text, verbose=False)["input_ids"]]


def random_ids(vocabulary: int, count: int, seed: int) -> tuple[int, ...]:
    """Return `count` seeded random token ids, for models without a tokenizer and for random KV."""
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    return tuple(draw.randrange(vocabulary) for _ in range(count))


def greedy(logits: Any) -> int:
    """Return the token of the highest logit, the lowest id on a tie."""
    return int(logits.argmax())
