"""Needles: a pass key hidden in a long document, and a question for it. Pure.

    haystack   [ chat begins | document … | "The pass key is 4821. …" | … document ]
    question   [ "What is the pass key …?" | chat ends | "The pass key is" ]           then the model writes

The question is apart from the haystack, so that it can be fed token by token: in one piece it would be a prompt, which
reads everything, and could hand on what partial reads would not find.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

DEPTHS = (0.1, 0.4, 0.7)
"""Where needles are hidden, as shares of the document."""
ANSWER_TOKENS = 8
_MARK = "\x1f"
_HIDDEN = "\n\nThe pass key is {key}. Remember it. {key} is the pass key.\n\n"
_QUESTION = "\n\nWhat is the pass key in the text above?"
_BEGINNING = " The pass key is"


@dataclass(frozen=True)
class Needle:
    """A haystack of about `length` tokens with a pass key of four digits at `depth`, and the question for it."""

    length: int
    depth: float
    key: str
    haystack: tuple[int, ...]
    question: tuple[int, ...]


def hide(tokenizer: Any, document: tuple[int, ...], length: int, depth: float, *, seed: int) -> Needle:
    """Hide a seeded key in the first `length` tokens of a document, at a share `depth` of them.

    The chat template of the tokenizer is used where it has one.
    """
    key = str(random.Random(f"{seed} {length} {depth}").randrange(1000, 10000))  # noqa: S311 - not for secrets
    before, after = _chat(tokenizer)
    cut = int(length * depth)
    middle = _ids(tokenizer, _HIDDEN.format(key=key))
    haystack = (*_ids(tokenizer, before), *document[:cut], *middle, *document[cut:length])
    beginning = _BEGINNING.lstrip() if after[-1:].isspace() else _BEGINNING
    return Needle(length, depth, key, haystack, _ids(tokenizer, _QUESTION + after + beginning))


def _chat(tokenizer: Any) -> tuple[str, str]:
    """Return what the tokenizer's chat template puts before and after a message; nothing where it has none."""
    if not getattr(tokenizer, "chat_template", None):
        return "", "\n\n"
    message = [{"role": "user", "content": _MARK}]
    text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    before, _, after = text.partition(_MARK)
    return before, after


def _ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    if not text:
        return ()
    return tuple(int(token) for token in tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
