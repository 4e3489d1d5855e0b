"""The tools that tests of transports are written with."""

from __future__ import annotations

import pytest

from dualpath.testing import transport_case
from dualpath.testing.transport_case import eventually


def test_what_held_once_has_held() -> None:
    """Also if it no longer does: a rail was connected, and may be lost again at once."""
    answers = iter([False, True, False])
    assert eventually(lambda: next(answers))


def test_what_never_holds_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_case, "PATIENCE_S", 0.0)
    assert not eventually(lambda: False)
