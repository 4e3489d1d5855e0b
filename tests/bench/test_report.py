"""The page and its plots: complete, self-contained, and nothing from the input is taken for markup."""

from __future__ import annotations

import math
import re
from html import escape
from html.parser import HTMLParser
from typing import Any

import pytest

from dualpath.bench.report import COLUMNS, cell, render, verdict
from dualpath.bench.rows import Measured, row
from dualpath.plots import Series, bars, lines, ticks

EVIL = "<script>alert('x')</script>&\""


def result(*, name: str = "tiny", identical: bool = True) -> dict[str, Any]:
    rows = []
    for scheme in ("hf", "local", "reduce"):
        steps = [0.05 + 0.001 * (step % 7) for step in range(63)]
        measured = Measured(scheme, ttft_s=1.5, step_s=steps, tokens=[1] * 64, cpu_s=5, wall_s=4, wire_bytes=63000)
        rows.append({**row(measured, None), "identical": identical or scheme != "reduce"})
    return {
        "schemes": rows,
        "reference": rows[0],
        "ok": identical,
        "model": {"name": name, "type": "llama", "dtype": "float32"},
        "prompt": {"source": name, "fill": "prompt", "tokens": 4096, "output": name},
        "settings": {"new_tokens": 64, "hot_bytes": 16 << 20, "nodes": 2, "threads": 0, "pool": name},
        "expected": {
            "kv_bytes": 188743680,
            "fetch_wire_bytes_per_token": 188743680,
            "reduce_wire_bytes_per_token": 278640,
        },
        "machine": {"cpu": name, "memory_bytes": 24 << 30},
    }


class Tags(HTMLParser):
    VOID = ("meta", "line", "rect", "polyline")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_complete() -> None:
    page = render(result())
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert page.count("<svg") == 3
    assert page.count("<polyline") == 3
    for _, name, meaning in COLUMNS:
        assert name in page
        assert escape(meaning) in page
    assert "Same tokens as hf in every scheme" in page


def test_the_page_needs_nothing_from_outside() -> None:
    page = render(result())
    outside = re.findall(r"https?://[^\"' ]+", page)
    assert set(outside) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|link|img|iframe)", page)
    assert "url(" not in page


def test_everything_is_escaped() -> None:
    page = render(result(name=EVIL))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_difference_is_named() -> None:
    found = result(identical=False)
    assert verdict(found) == "Tokens differ from hf: reduce"
    assert 'class="verdict bad"' in render(found)


def test_a_difference_by_quantised_kv_is_no_failure() -> None:
    found = result(identical=False)
    found["settings"]["kv_dtype"] = "int8"
    found["schemes"][2]["max_logit_error"] = 0.25
    found["ok"] = True
    assert verdict(found).startswith("Keeping KV in int8 changed tokens against hf in reduce (logit error")
    assert 'class="verdict"' in render(found)
    found["ok"] = False
    assert "Schemes that fold the same int8 KV in the same order gave different tokens" in render(found)
    assert 'class="verdict bad"' in render(found)


def test_light_and_dark() -> None:
    assert "prefers-color-scheme: dark" in render(result())


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("identical", True, "yes"),
        ("identical", False, "NO"),
        ("ttft_s", None, "—"),
        ("tpot_ms_p99", math.nan, "—"),
        ("tpot_ms_p50", 61.66, "61.7"),
        ("tpot_ms_p50", 212.4, "212"),
        ("wire_bytes_per_token", 278640.0, "272 KiB"),
        ("max_logit_error", 4.2e-5, "4.2e-05"),
        ("max_logit_error", 0.0, "0"),
        ("scheme", "hf", "hf"),
    ],
)
def test_cells(field: str, value: Any, text: str) -> None:
    assert cell(field, value) == text


def test_ticks_are_round_and_cover() -> None:
    assert ticks(93) == [0, 20, 40, 60, 80, 100]
    assert ticks(1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0) == [0, 1]
    assert ticks(math.inf) == [0, 1]


def test_one_outlier_does_not_flatten_the_plot() -> None:
    svg, cut = lines([Series("a", "red", (50.0,) * 200 + (9000.0,))], x_label="token")
    assert cut
    assert ">60<" in svg
    assert ">8000<" not in svg


def test_long_runs_are_thinned_but_keep_their_peaks() -> None:
    values = tuple(90.0 if index == 777 else 50.0 for index in range(10_000))
    svg, _ = lines([Series("a", "red", values)], x_label="token")
    assert svg.count(",") < 600


def test_plots_without_values_do_not_fail() -> None:
    assert "<svg" in lines([Series("a", "red", ())], x_label="token")[0]
    assert "<svg" in lines([Series("a", "red", (math.nan,))], x_label="token")[0]
    assert "—" in bars([("a", "red", [("P50", math.nan)])], form=str)


def test_a_load_is_drawn_as_an_image_of_its_own() -> None:
    from xml.etree import ElementTree

    from dualpath.bench.load_plot import load_svg

    rows = [
        {"variant": "baseline", "tpot_ms_p50": 1200.0, "tpot_ms_p99": 2400.0},
        {"variant": "dual<&>", "tpot_ms_p50": 300.0, "tpot_ms_p99": 600.0},
    ]
    image = ElementTree.fromstring(load_svg({"variants": rows}))
    space = "{http://www.w3.org/2000/svg}"
    assert [text.text for text in image.iter(f"{space}text")] == [
        *("baseline", "P50 1,200 ms", "P99 2,400 ms"),
        *("dual<&>", "P50 300 ms", "P99 600 ms"),
    ]
    widths = [float(bar.attrib["width"]) for bar in image.iter(f"{space}rect")]
    assert [round(width / widths[1], 2) for width in widths] == [0.5, 1.0, 0.12, 0.25]
    style = image.find(f"{space}style")
    assert style is not None
    assert "prefers-color-scheme: dark" in str(style.text)
