"""The reference of every check, as a page: `python -m dualpath.doctor.reference > docs/reference/doctor-checks.md`."""

from __future__ import annotations

import sys

from dualpath.doctor.base import Check, PairCheck
from dualpath.doctor.run import pair_checks, single_checks

HEAD = """# Checks of the doctor

Written by `python -m dualpath.doctor.reference` from the checks themselves. Each looks at what was recorded of a host
and reports `critical`, `warning`, `unknown`, `info` or `ok`; how to run them is in [the guide](../guides/doctor.md).
"""


def render() -> str:
    """Return the page, in Markdown."""
    return "\n".join(
        [
            HEAD,
            *_section("One host", "Judged for every host.", single_checks()),
            *_section("Two hosts", "Judged for every two hosts that are given together.", pair_checks()),
        ]
    )


def _section(title: str, about: str, checks: tuple[Check, ...] | tuple[PairCheck, ...]) -> list[str]:
    lines = [f"## {title}", "", about, "", "| check | makes sure of |", "|---|---|"]
    lines += [f"| [{check.name}](#{check.name}) | {_cell(check.title)} |" for check in checks]
    lines.append("")
    for check in checks:
        lines += [f"### {check.name}", "", f"{check.title}.", ""]
        lines += ["Reads:", "", *(f"- `{one}`" for one in check.reads), ""]
        lines += [f"Reference: {check.reference}", ""]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render())
