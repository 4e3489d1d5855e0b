"""The page of checks is the one that the checks say."""

from __future__ import annotations

from pathlib import Path

from dualpath.doctor.reference import render

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "doctor-checks.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "python -m dualpath.doctor.reference > docs/reference/doctor-checks.md"
