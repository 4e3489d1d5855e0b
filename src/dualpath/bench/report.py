"""The experiment's result as one HTML page: pure, dict in, text out.

The page needs nothing from outside: styles and plots (SVG) are inline. It follows the reader's light or dark theme.
"""

from __future__ import annotations

import math
from html import escape
from typing import Any

from dualpath.bench.settings import SCHEMES
from dualpath.page import document, legend, swatch
from dualpath.plots import Series, bars, lines
from dualpath.units import format_bytes

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("scheme", "scheme", "how a decode step reaches KV that is not local"),
    ("identical", "same", "token ids equal to the reference's over the whole run"),
    (
        "max_logit_error",
        "logit error",
        "largest difference from the reference's logits while the tokens agree",
    ),
    ("ttft_s", "TTFT s", "time to the first token: the whole prefill"),
    ("tpot_ms_p50", "TPOT P50 ms", "time per output token, median"),
    ("tpot_ms_p99", "TPOT P99 ms", "time per output token, 99th percentile"),
    ("tokens_per_s", "tokens/s", "decode rate"),
    (
        "cpu_percent",
        "CPU %",
        "of one core, while decoding, all processes of the run (nodes elsewhere not counted)",
    ),
    ("wire_bytes_per_token", "wire/token", "bytes in and out over all connections, headers included"),
    ("stall_ms_per_token", "stall ms", "per token, time that compute waited for KV or partials"),
    ("wasted_bytes", "wasted", "prefetched and never used"),
    ("peak_local_kv_bytes", "peak local KV", "most KV held here at once: hot region and window"),
)
"""Field of a row, its heading, and what it means: for the table, the page and the guide alike."""
FAR_READ = ("far_read", "far read", "of the far layer blocks, how many were read")
"""The column that partial reads add."""

_WORDS = {("threads", 0): "all cores", ("interleave", 0): "one after another"}
_BYTES = ("wire_bytes_per_token", "wasted_bytes", "peak_local_kv_bytes")


def columns(result: dict[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """Return the columns of a result's table."""
    return (*COLUMNS, FAR_READ) if _partial(result) else COLUMNS


def render(result: dict[str, Any]) -> str:
    """Return the page for a result of `run_experiment`."""
    rows = result["schemes"]
    colours = {row["scheme"]: _colour(row["scheme"]) for row in rows}
    prompt, model = result["prompt"], result["model"]
    title = f"dualpath run: {model['name']}, {prompt['tokens']:,} tokens"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p class=soft>{escape(_subtitle(result))}</p>",
        _verdict(result),
        "<h2>Results</h2>",
        _table(rows, columns(result), colours),
        "<h2>Time per output token over the run</h2>",
        _tpot_lines(rows, colours),
        "<h2>Time per output token, P50 and P99</h2>",
        _tpot_bars(rows, colours),
        "<h2>Bytes on the wire per token</h2>",
        _wire_bars(result, colours),
        _details(result),
        _output(prompt),
    ]
    return document(title, parts)


def cell(field: str, value: Any) -> str:
    """Return a value of a row as people read it: bytes with a unit, times with three digits, an em dash for none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if field in _BYTES:
        return format_bytes(value)
    if field == FAR_READ[0]:
        return f"{value:.0%}"
    if field == "max_logit_error":
        return f"{value:.1e}" if value else "0"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def _subtitle(result: dict[str, Any]) -> str:
    model, prompt, settings = result["model"], result["prompt"], result["settings"]
    return (
        f"{model['dtype']}, {settings['new_tokens']} new tokens after {prompt['source']}; "
        f"{format_bytes(result['expected']['kv_bytes'])} of KV, of which {format_bytes(settings['hot_bytes'])} are "
        f"kept local, the rest on {settings['nodes']} node{'s' if settings['nodes'] != 1 else ''}"
    )


def verdict(result: dict[str, Any]) -> str:
    """Return in one line whether the schemes gave the same output."""
    reference, kv = result["reference"]["scheme"], result["settings"].get("kv_dtype", "same")
    differing = [row["scheme"] for row in result["schemes"] if not row["identical"]]
    if kv != "same" and not result["ok"]:
        return f"Schemes that fold the same {kv} KV in the same order gave different tokens"
    if differing and _changing(result) and result["ok"]:
        error = max(row["max_logit_error"] for row in result["schemes"])
        return (
            f"{_changing(result)} changed tokens against {reference} in {', '.join(differing)} "
            f"(logit error while they agreed: at most {error:.2g})"
        )
    if differing:
        return f"Tokens differ from {reference}: {', '.join(differing)}"
    return f"Same tokens as {reference} in every scheme"


def _changing(result: dict[str, Any]) -> str:
    """Return what was asked for that may change tokens; empty: nothing."""
    kv, parts = result["settings"].get("kv_dtype", "same"), []
    if kv != "same":
        parts.append(f"keeping KV in {kv}")
    if _partial(result):
        parts.append(f"reading {result['settings']['read_fraction']:.0%} of far blocks")
    text = " and ".join(parts)
    return text[:1].upper() + text[1:]


def _partial(result: dict[str, Any]) -> bool:
    return bool(result["settings"].get("read_fraction", 1.0) < 1.0)


def _verdict(result: dict[str, Any]) -> str:
    fine = all(row["identical"] for row in result["schemes"]) or bool(_changing(result) and result["ok"])
    return f'<p class="verdict{"" if fine else " bad"}">{escape(verdict(result))}</p>'


def _table(rows: list[dict[str, Any]], shown: tuple[tuple[str, str, str], ...], colours: dict[str, str]) -> str:
    head = "".join(f'<th title="{escape(meaning)}">{escape(name)}</th>' for _, name, meaning in shown)
    body = []
    for row in rows:
        cells = []
        for field, _, _ in shown:
            text = escape(cell(field, row.get(field)))
            if field == "scheme":
                text = swatch(colours[row["scheme"]]) + text
            flag = " class=bad" if field == "identical" and not row["identical"] else ""
            cells.append(f"<td{flag}>{text}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    meanings = "".join(f"<dt>{escape(name)}</dt><dd>{escape(meaning)}</dd>" for _, name, meaning in shown)
    return (
        f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
        f"<details><summary class=soft>What the columns mean</summary><dl>{meanings}</dl></details>"
    )


def _colour(scheme: str) -> str:
    """Return the colour of a scheme, the same on every page."""
    return f"var(--s{SCHEMES.index(scheme) if scheme in SCHEMES else 0})"


def _tpot_lines(rows: list[dict[str, Any]], colours: dict[str, str]) -> str:
    series = [Series(row["scheme"], colours[row["scheme"]], tuple(row["tpot_ms"])) for row in rows]
    plot, cut = lines(series, x_label="token")
    note = " Values above the plot are cut off at its edge." if cut else ""
    caption = f"Milliseconds for each token; lower is better.{note}"
    return f"<figure>{legend(colours)}{plot}<figcaption>{caption}</figcaption></figure>"


def _tpot_bars(rows: list[dict[str, Any]], colours: dict[str, str]) -> str:
    pairs = [
        (row["scheme"], colours[row["scheme"]], [("P50", row["tpot_ms_p50"]), ("P99", row["tpot_ms_p99"])])
        for row in rows
    ]
    caption = "Solid: P50. Pale: P99. Lower is better."
    return f"<figure>{bars(pairs, form=lambda ms: f'{ms:.1f} ms')}<figcaption>{caption}</figcaption></figure>"


def _wire_bars(result: dict[str, Any], colours: dict[str, str]) -> str:
    rows, expected = result["schemes"], result["expected"]
    singles = [(row["scheme"], colours[row["scheme"]], [("", row["wire_bytes_per_token"])]) for row in rows]
    caption = (
        "Counted, in and out. By the cost model a scheme that fetches moves "
        f"{format_bytes(expected['fetch_wire_bytes_per_token'])} per token, and one that ships queries "
        f"{format_bytes(expected['reduce_wire_bytes_per_token'])}, whatever the context."
    )
    return f"<figure>{bars(singles, form=format_bytes)}<figcaption>{escape(caption)}</figcaption></figure>"


def _details(result: dict[str, Any]) -> str:
    sections = [
        _list("Settings", result["settings"]),
        _list("Model", result["model"]),
        _list("Machine", result["machine"]),
    ]
    return f"<div class=columns>{''.join(f'<section>{section}</section>' for section in sections)}</div>"


def _list(title: str, values: dict[str, Any]) -> str:
    items = []
    for key, value in values.items():
        is_bytes = key.endswith("_bytes") and isinstance(value, int)
        name = key.removesuffix("_bytes").replace("_", " ")
        text = format_bytes(value) if is_bytes else _WORDS.get((key, value), "—" if value is None else str(value))
        items.append(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>")
    return f"<h2>{escape(title)}</h2><dl>{''.join(items)}</dl>"


def _output(prompt: dict[str, Any]) -> str:
    text = prompt.get("output")
    return f"<h2>What was written</h2><pre>{escape(text)}</pre>" if text else ""
