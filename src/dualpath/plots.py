"""Plots as inline SVG: lines over a run, curves on logarithmic axes, horizontal bars. Pure; colours are CSS values.

Everything is in a coordinate system 960 wide; the page scales it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 960
_MOST_POINTS = 480


@dataclass(frozen=True)
class Series:
    """One line: a value per token, in order."""

    name: str
    colour: str
    values: tuple[float, ...]


def ticks(highest: float, count: int = 5) -> list[float]:
    """Return round numbers from 0 to at least `highest`, about `count` steps."""
    if not highest > 0 or math.isinf(highest):
        return [0.0, 1.0]
    rough = highest / count
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(nice * scale for nice in (1, 2, 2.5, 5, 10) if nice * scale >= rough * 0.999)
    return [step * index for index in range(math.ceil(highest / step - 1e-9) + 1)]


def lines(series: Sequence[Series], *, x_label: str) -> tuple[str, bool]:
    """Return the plot, and whether values were cut off: the axis ends a little above the 99th percentile."""
    left, right, top, bottom, height = 52, 12, 10, 34, 320
    everything = sorted(value for one in series for value in one.values if math.isfinite(value))
    usual = everything[int(0.99 * (len(everything) - 1))] if everything else 1.0
    marks = ticks(min(everything[-1] if everything else 1.0, usual * 1.15))
    longest = max((len(one.values) for one in series), default=0)
    last = max(1, longest - 1)

    def x(index: float) -> float:
        return left + (_WIDTH - left - right) * index / last

    def y(value: float) -> float:
        return top + (height - top - bottom) * (1 - min(value, marks[-1]) / marks[-1])

    parts = [_grid_line(left, _WIDTH - right, y(mark), f"{mark:g}") for mark in marks]
    for mark in ticks(last, 8):
        if mark <= last and mark == int(mark):
            parts.append(f'<text x="{x(mark):.1f}" y="{height - 16}" text-anchor="middle">{mark:.0f}</text>')
    parts.append(f'<text x="{_WIDTH - right}" y="{height - 2}" text-anchor="end">{escape(x_label)}</text>')
    for one in series:
        points = " ".join(f"{x(index):.1f},{y(value):.1f}" for index, value in _thin(one.values))
        parts.append(
            f'<polyline class="line" style="stroke:{one.colour}" points="{points}">'
            f"<title>{escape(one.name)}</title></polyline>"
        )
    cut = bool(everything) and everything[-1] > marks[-1]
    return _svg(height, parts, "time per token over the run"), cut


@dataclass(frozen=True)
class Curve:
    """One curve: points (x, y), both above 0."""

    name: str
    colour: str
    points: tuple[tuple[float, float], ...]


def curves(
    shown: Sequence[Curve],
    *,
    form_x: Callable[[float], str],
    form_y: Callable[[float], str],
    level: tuple[str, float] | None = None,
) -> str:
    """Return curves on logarithmic axes, each x of a point marked; `level` is a dashed line across with its name."""
    left, right, top, bottom, height = 72, 16, 10, 30, 360
    xs = sorted({x for one in shown for x, _ in one.points})
    ys = [y for one in shown for _, y in one.points] + ([level[1]] if level else [])
    if not xs:
        return _svg(height, [], "curves")
    decades = range(math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)) + 1e-9) + 1)
    low, high = float(decades[0]), float(decades[-1])

    def place(value: float, first: float, last: float) -> float:
        return (math.log10(value) - first) / (last - first) if last > first else 0.5

    def x(value: float) -> float:
        return left + (_WIDTH - left - right) * place(value, math.log10(xs[0]), math.log10(xs[-1]))

    def y(value: float) -> float:
        return top + (height - top - bottom) * (1 - place(value, low, high))

    parts = [_grid_line(left, _WIDTH - right, y(10.0**power), form_y(10.0**power)) for power in decades]
    parts += [f'<text x="{x(at):.1f}" y="{height - 8}" text-anchor="middle">{escape(form_x(at))}</text>' for at in xs]
    if level:
        name, at = level
        parts.append(
            f'<line x1="{left}" x2="{_WIDTH - right}" y1="{y(at):.1f}" y2="{y(at):.1f}" '
            'style="stroke:var(--ink);stroke-dasharray:5 4"/>'
            f'<text class="name" x="{left + 6}" y="{y(at) - 5:.1f}">{escape(name)}</text>'
        )
    for one in shown:
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in one.points)
        parts.append(
            f'<polyline class="line" style="stroke:{one.colour}" points="{points}">'
            f"<title>{escape(one.name)}</title></polyline>"
        )
    return _svg(height, parts, "curves")


def _grid_line(x1: float, x2: float, y: float, label: str) -> str:
    return (
        f'<line class="grid" x1="{x1}" x2="{x2}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{x1 - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
    )


def _thin(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return (index, value) pairs, at most `_MOST_POINTS`: of each stretch its largest value, so that peaks stay."""
    stride = max(1, math.ceil(len(values) / _MOST_POINTS))
    found = []
    for start in range(0, len(values), stride):
        part = [(value, start + place) for place, value in enumerate(values[start : start + stride])]
        usable = [(value, index) for value, index in part if math.isfinite(value)]
        if usable:
            value, index = max(usable)
            found.append((float(index), value))
    return found


def bars(
    rows: Sequence[tuple[str, str, Sequence[tuple[str, float]]]], *, form: Callable[[float], str], left: int = 96
) -> str:
    """Return horizontal bars: per row a name, a colour and one or more (label, value); later values are paler.

    `left` is the room for names.
    """
    right, thick, gap = 120, 16, 12
    values = [value for _, _, entries in rows for _, value in entries if math.isfinite(value)]
    highest = max(values, default=0.0) or 1.0
    parts, y = [], 6.0
    for name, colour, entries in rows:
        middle = y + thick * len(entries) / 2
        parts.append(f'<text class="name" x="{left - 10}" y="{middle + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        for index, (label, value) in enumerate(entries):
            shown = value if math.isfinite(value) else 0.0
            width = max(1.0, (_WIDTH - left - right) * shown / highest) if shown > 0 else 0.0
            text = form(value) if math.isfinite(value) else "—"
            parts.append(
                f'<rect x="{left}" y="{y:.1f}" width="{width:.1f}" height="{thick - 2}" rx="2" '
                f'style="fill:{colour};opacity:{1 if index == 0 else 0.45}">'
                f"<title>{escape(f'{name} {label} {text}')}</title></rect>"
                f'<text x="{left + width + 8:.1f}" y="{y + thick - 4:.1f}">{escape(f"{label} {text}".strip())}</text>'
            )
            y += thick
        y += gap
    return _svg(round(y), parts, "bars")


def _svg(height: int, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
