"""The shared key, out of a file or the environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dualpath.cli.key import KEY_VARIABLE, shared_key
from dualpath.errors import UsageError


@pytest.mark.parametrize("key", [b"0123456789abcdef", bytes(range(128, 160)), "schlüssel-schlüssel".encode()])
def test_a_key_may_be_any_bytes(key: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(KEY_VARIABLE, os.fsdecode(b" " + key + b"\n"))
    assert shared_key() == key
    file = tmp_path / "key"
    file.write_bytes(key + b"\n")
    assert shared_key(file) == key


def test_no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(KEY_VARIABLE, " ")
    assert shared_key() is None
    (tmp_path / "key").write_text("\n")
    with pytest.raises(UsageError, match="is empty"):
        shared_key(tmp_path / "key")
