"""From tokens to text, one token at a time: greedy decoding, and detokenising a stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualpath.engine.engine import Engine
    from dualpath.engine.load import LoadedModel
    from dualpath.path import SequenceId

_INCOMPLETE = "\ufffd"


class TextStream:
    """Detokenises a stream without ever printing half a character.

    A token may be part of a character's bytes, and its text may depend on the token before it (a leading space). So a
    token is decoded together with the ones since the last clean cut, and its text is held back while it ends in a
    replacement character:

        ids    [ ... | prefix ... read | new ... )      text of [prefix, read) is out already
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._prefix = 0
        self._read = 0

    def push(self, token: int) -> str:
        """Append a token and return the text that is complete now, perhaps none."""
        self._ids.append(token)
        return self._take(hold=True)

    def flush(self) -> str:
        """Return what was held back, incomplete as it is."""
        return self._take(hold=False)

    def _take(self, *, hold: bool) -> str:
        before = self._decode(self._ids[self._prefix : self._read])
        now = self._decode(self._ids[self._prefix :])
        if len(now) <= len(before) or (hold and now.endswith(_INCOMPLETE)):
            return ""
        self._prefix, self._read = self._read, len(self._ids)
        return now[len(before) :]


def plain_decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Return a function from ids to text that leaves out special tokens and changes nothing else."""

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    return decode


def stop_tokens(loaded: LoadedModel) -> frozenset[int]:
    """Return the ids that end a text, as the model's generation config names them."""
    generation = getattr(loaded.model, "generation_config", None)
    found = getattr(generation, "eos_token_id", None)
    if found is None:
        found = getattr(loaded.config, "eos_token_id", None)
    if found is None:
        return frozenset()
    return frozenset(int(token) for token in (found if isinstance(found, Sequence) else [found]))


def greedy_tokens(
    engine: Engine, sequence: SequenceId, logits: Any, *, limit: int, stops: Collection[int]
) -> Iterator[int]:
    """Yield up to `limit` tokens of highest logit, `logits` being those of the first; ends after one of `stops`.

    The last token yielded is not in the sequence yet: nothing has asked for what follows it.
    """
    for index in range(limit):
        token = int(logits.argmax())
        yield token
        if token in stops or index == limit - 1:
            return
        logits = engine.decode(sequence, token)
