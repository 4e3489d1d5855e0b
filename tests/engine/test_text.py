"""Detokenising a stream: never half a character, never a lost or doubled one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from dualpath.engine.text import TextStream, stop_tokens


def bytes_decoder(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def test_a_character_of_several_tokens_comes_at_once() -> None:
    stream = TextStream(bytes_decoder)
    assert [stream.push(byte) for byte in "a€b".encode()] == ["a", "", "", "€", "b"]
    assert stream.flush() == ""


def test_what_stays_incomplete_is_given_at_the_end() -> None:
    stream = TextStream(bytes_decoder)
    assert [stream.push(byte) for byte in "€".encode()[:2]] == ["", ""]
    assert stream.flush() == "\ufffd"


@given(st.text(max_size=40))
def test_the_pieces_are_the_text(text: str) -> None:
    stream = TextStream(bytes_decoder)
    pieces = [stream.push(byte) for byte in text.encode("utf-8", "ignore")]
    assert "".join(pieces) + stream.flush() == text.encode("utf-8", "ignore").decode()


def test_leading_spaces_that_depend_on_the_token_before_are_kept() -> None:
    words = ["Hello", "big", "world"]

    def decode(ids: Sequence[int]) -> str:
        return " ".join(words[i] for i in ids)

    stream = TextStream(decode)
    assert [stream.push(i) for i in range(3)] == ["Hello", " big", " world"]


def test_stop_tokens_come_as_one_or_many_or_none() -> None:
    def loaded(value: object) -> SimpleNamespace:
        return SimpleNamespace(
            model=SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=value)), config=SimpleNamespace()
        )

    assert stop_tokens(loaded(2)) == {2}  # type: ignore[arg-type]  # a stand-in
    assert stop_tokens(loaded([2, 7])) == {2, 7}  # type: ignore[arg-type]  # a stand-in
    assert stop_tokens(loaded(None)) == frozenset()  # type: ignore[arg-type]  # a stand-in
