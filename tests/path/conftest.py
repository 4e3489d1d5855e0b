"""What every test of a path wants: a node that is slow to answer is not given up."""

from __future__ import annotations

import pytest

from .world import PATIENCE_S


@pytest.fixture(autouse=True)
def letting_go_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what a node holds can be counted as soon as a sequence has been closed."""
    monkeypatch.setattr("dualpath.pool.node.LET_GO_TIMEOUT_S", PATIENCE_S)
