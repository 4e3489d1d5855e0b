"""A plan as one HTML page that needs nothing from outside: pure, values in, text out."""

from __future__ import annotations

import math
from html import escape

from dualpath.cost.tpot import Scheme
from dualpath.page import document, legend
from dualpath.plan.quantities import seconds
from dualpath.plan.result import Plan, Ruling, Sweep
from dualpath.plan.tables import Table, budget_rows, heading, tables
from dualpath.plots import Curve, bars, curves
from dualpath.units import format_bytes_per_s

COLOURS = {str(scheme): f"var(--s{index})" for index, scheme in enumerate(Scheme)}
_BAR_COLOURS = {"asked": "var(--s2)", "there": "var(--s0)", "taken": "var(--s3)", "left": "var(--s1)"}


def render(plan: Plan, by_context: Sweep) -> str:
    """Return the page. `by_context` is a sweep of the context, for the plot."""
    bad = " bad" if plan.verdict.ruling is Ruling.WILL_NOT_MEET else ""
    parts = [
        f"<h1>{escape(heading(plan))}</h1>",
        f'<p class="verdict{bad}">{escape(str(plan.verdict.ruling).capitalize())}</p>',
        f"<p>{escape(plan.verdict.reason)}</p>",
        f"<p class=soft>Deployment test: {escape(plan.verdict.deployment_test)}</p>",
        "<h2>Time per output token against context</h2>",
        _tpot(plan, by_context),
        "<h2>Bandwidth budget</h2>",
        _bandwidth(plan),
        *(_table(table) for table in tables(plan)),
    ]
    return document(f"dualpath plan: {plan.model}", parts)


def _tpot(plan: Plan, by_context: Sweep) -> str:
    shown = []
    for name, colour in COLOURS.items():
        points = tuple(
            (float(point.value), time * 1e3)
            for point in by_context.points
            if (time := point.tpot_s[name]) is not None and 0 < time < math.inf
        )
        if points:
            shown.append(Curve(name, colour, points))
    plot = curves(
        shown,
        form_x=_tokens,
        form_y=lambda ms: seconds(ms / 1e3),
        level=(f"target: {seconds(plan.budget_s)}", plan.budget_s * 1e3),
    )
    caption = "Both axes are logarithmic; lower is better. A curve ends where the scheme's memory does."
    names = {one.name: one.colour for one in shown}
    return f"<figure>{legend(names)}{plot}<figcaption>{caption}</figcaption></figure>"


def _tokens(count: float) -> str:
    """Return a number of tokens in binary thousands, where it is a whole number of them."""
    whole = int(count)
    if whole % (1 << 20) == 0:
        return f"{whole >> 20}M"
    return f"{whole >> 10}K" if whole % 1024 == 0 else f"{whole:,}"


def _bandwidth(plan: Plan) -> str:
    rows = [(name, _BAR_COLOURS[name.partition(":")[0]], [("", rate)]) for name, rate in budget_rows(plan) if rate > 0]
    caption = "Decimal units. What is asked for is for all sequences at the target rate."
    return f"<figure>{bars(rows, form=format_bytes_per_s, left=260)}<figcaption>{caption}</figcaption></figure>"


def _table(table: Table) -> str:
    def cells(row: tuple[str, ...], tag: str) -> str:
        sides = ["left" if index in table.left else "right" for index in range(len(row))]
        return "".join(
            f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>' for cell, side in zip(row, sides, strict=True)
        )

    head = f"<thead><tr>{cells(table.columns, 'th')}</tr></thead>" if any(table.columns) else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    grid = f"<div class=scroll><table>{head}<tbody>{body}</tbody></table></div>" if table.rows else ""
    notes = "".join(f"<p class=soft>{escape(note)}</p>" for note in table.notes)
    return f"<h2>{escape(table.title)}</h2>{grid}{notes}"
