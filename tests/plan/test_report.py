"""The page and the text of a plan: complete, self-contained, within the width."""

from __future__ import annotations

import dataclasses
import re

import msgspec
import pytest

from dualpath.plan.report import render
from dualpath.plan.result import Plan
from dualpath.plan.simulate import simulate, sweep
from dualpath.plan.tables import WIDTH, tables, text
from dualpath.plots import Curve, curves

from .conftest import Make

EVIL = "<script>alert('x')</script>&\""
CONTEXTS = tuple(8192 << step for step in range(8))


@pytest.fixture
def plan(make: Make) -> Plan:
    return simulate(make(concurrency=8, gpus=8, nics=8))


def test_the_page_needs_nothing_from_outside(make: Make, plan: Plan) -> None:
    page = render(plan, sweep(make(concurrency=8), "context", CONTEXTS))
    assert page.count("<html") == page.count("</html>") == 1
    assert page.count("<svg") == 2
    assert page.count("<polyline") == 6
    assert not re.search(r"<(script|link|img|iframe)|url\(|src=", page)
    links = set(re.findall(r"https?://[^\"'< ]+", page)) - {"http://www.w3.org/2000/svg"}
    assert not any(f'href="{link}' in page for link in links)


def test_everything_on_the_page_is_escaped(make: Make) -> None:
    d = make(concurrency=8)
    d = msgspec.structs.replace(d, model=dataclasses.replace(d.model, name=EVIL))
    page = render(simulate(d), sweep(d, "context", CONTEXTS))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_page_has_every_table(make: Make, plan: Plan) -> None:
    page = render(plan, sweep(make(), "context", CONTEXTS))
    for table in tables(plan):
        assert f"<h2>{table.title}</h2>" in page


@pytest.mark.parametrize("values", [{"concurrency": 8}, {"concurrency": 64, "gpus": 8, "nics": 8}, {"context": 100}])
def test_text_is_within_the_width(make: Make, values: dict[str, int]) -> None:
    d = make(**values)
    found = msgspec.structs.replace(simulate(d), sweep=sweep(d, "context", CONTEXTS))
    lines = text(found).splitlines()
    assert max(len(line) for line in lines if "://" not in line) <= WIDTH
    assert all(line == line.rstrip() for line in lines)


def test_text_says_verdict_schemes_and_units(plan: Plan) -> None:
    page = text(plan)
    assert page.splitlines()[2].startswith(plan.verdict.ruling.upper())
    for word in ("all-local", "tiers", "fetch", "sharded", "reduce", "auto", "GiB", "GB/s", "Gbit/s", "nominal"):
        assert word in page


def test_curves_have_round_axes_and_survive_nothing() -> None:
    svg = curves([Curve("a", "red", ((1024.0, 3.0), (2048.0, 40.0)))], form_x=str, form_y=lambda y: f"{y:g} ms")
    assert ">1 ms<" in svg
    assert ">100 ms<" in svg
    assert "<svg" in curves([], form_x=str, form_y=str)
    assert "<svg" in curves([Curve("a", "red", ((1.0, 10.0),))], form_x=str, form_y=str, level=("x", 10.0))
