"""One self-contained HTML page: its frame, style and legends. Pure; pages are drawn with `plots`.

A page needs nothing from outside: styles and plots are inline. It follows the reader's light or dark theme; `--s0` to
`--s8` are the colours of series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

COLOURS = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff; --card: #f6f8fa; --rule: #d8dee4;
  --s0: #57606a; --s1: #2a78d6; --s2: #e34948; --s3: #eda100; --s4: #1baf7a; --s5: #4a3aa7; --s6: #d4569a;
  --s7: #0f8b8d; --s8: #a15c2f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #9aa4af; --paper: #14171b; --card: #1c2127;
  --rule: #333a43; --s0: #9aa4af; --s1: #4c97ee; --s2: #ee6a66; --s3: #e0a526; --s4: #2cbd88; --s5: #9a8ff0;
  --s6: #e27bb4; --s7: #35b5b7; --s8: #c98652; } }
"""
"""The variables of light and dark themes."""

_STYLE = (
    COLOURS
    + """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
p { margin: .25rem 0; max-width: 60rem; } .soft, figcaption { color: var(--soft); }
.verdict { display: inline-block; margin: .75rem 0 0; padding: .35rem .75rem; border-radius: 6px;
  background: var(--card); border: 1px solid var(--rule); font-weight: 600; }
.bad { color: var(--s2); }
figure, pre { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; }
figure { margin: .75rem 0 0; padding: 1rem; }
figcaption { font-size: .85rem; margin-top: .5rem; } svg { display: block; width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); } svg .name { fill: var(--ink); }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .line { fill: none; stroke-width: 1.75; stroke-linejoin: round; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 600; font-size: .82rem; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.key { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px; margin-right: .45rem; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; margin: 0 0 .5rem; font-size: .88rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.25rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 0 2.5rem; }
pre { white-space: pre-wrap; padding: .75rem; margin: .5rem 0; font-size: .85rem; }
"""
)


def document(title: str, parts: Sequence[str]) -> str:
    """Return the page with `parts`, which are markup, as its body. `title` is text."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def swatch(colour: str) -> str:
    """Return a small square in `colour`, a CSS value."""
    return f'<span class=key style="background:{colour}"></span>'


def legend(colours: Mapping[str, str]) -> str:
    """Return names, each beside its colour."""
    items = "".join(f"<span>{swatch(colour)}{escape(name)}</span>" for name, colour in colours.items())
    return f"<div class=legend>{items}</div>"
