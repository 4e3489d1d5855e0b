"""Recorded hosts as text, one TOML file each, written by hand or out of a bug report, as tests of the doctor read them.

    python -m dualpath.testing.recordings host.tar.gz > tests/doctor/fixtures/name.toml

base = "mlx5-healthy.toml"        # optional: start from another file of the folder; tables below are laid over it
about = "the slot has four lanes"
host = "decode-1"
root = true
missing = ["mlnx_qos"]            # programs that are not installed; replaces the base's list
remove = ["/dev/infiniband/uverbs0", "ethtool -m eth2"]   # files, links or command lines of the base to leave out
later_s = 5.0
[expect]                          # what the checks must say above `info`; a check not named must stay silent
pcie-link = "critical"
[files]
"/sys/class/net/eth2/mtu" = "9000"
[links]
"/sys/class/net/eth2/device" = "../../../0000:3b:00.0"
[commands]
"ethtool eth2" = '''Settings for eth2: …'''
"nft list ruleset" = { stdout = "", stderr = "Operation not permitted", exit_code = 1 }   # if it did not go well
[later]                           # files whose text had changed `later_s` seconds after
[later_commands]
[raw]                             # optional: a `RawReport`
[run]                             # optional: what `dualpath run --json` says
"""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dualpath.doctor.archive import read_archive
from dualpath.doctor.base import Level
from dualpath.doctor.recording import Measured, Output, Recording
from dualpath.host.raw import RawReport

_LAID_OVER = ("files", "links", "commands", "later", "later_commands")


@dataclass(frozen=True)
class Fixture:
    """A recorded host and what must be found in it."""

    name: str
    recording: Recording
    expect: dict[str, Level]
    """By check, the worst level above `info` that it must report."""


def load_fixture(path: Path) -> Fixture:
    """Return the fixture written at `path`."""
    tables = _tables(path)
    recording = Recording(
        host=tables.get("host", path.stem),
        files=tables["files"],
        links=tables["links"],
        commands={line: _output(text) for line, text in tables["commands"].items()},
        missing=tuple(tables.get("missing", ())),
        root=tables.get("root", False),
        measured=Measured(
            raw=msgspec.convert(tables["raw"], RawReport) if "raw" in tables else None,
            run=tables.get("run"),
        ),
        later=tables["later"],
        later_commands={line: _output(text) for line, text in tables["later_commands"].items()},
        later_s=tables.get("later_s", 0.0),
    )
    return Fixture(path.stem, recording, {name: Level(level) for name, level in tables.get("expect", {}).items()})


def fixture_text(recording: Recording) -> str:
    """Return the TOML file of which `load_fixture` makes `recording`; measurements are left out."""
    lines = [
        f"host = {_quoted(recording.host, multiline=False)}",
        f"root = {json.dumps(recording.root)}",
        f"missing = [{', '.join(_quoted(program, multiline=False) for program in recording.missing)}]",
        f"later_s = {recording.later_s}",
    ]
    tables: dict[str, dict[str, str]] = {
        "expect": {},
        "files": {path: _quoted(text) for path, text in recording.files.items()},
        "links": {path: _quoted(text) for path, text in recording.links.items()},
        "commands": {line: _written(output) for line, output in recording.commands.items()},
        "later": {path: _quoted(text) for path, text in recording.later.items()},
        "later_commands": {line: _written(output) for line, output in recording.later_commands.items()},
    }
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{_quoted(key, multiline=False)} = {value}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _output(value: str | dict[str, Any]) -> Output:
    return Output(value) if isinstance(value, str) else msgspec.convert(value, Output)


def _written(output: Output) -> str:
    if output == Output(output.stdout):
        return _quoted(output.stdout)
    stdout, stderr = _quoted(output.stdout), _quoted(output.stderr)
    return f"{{ stdout = {stdout}, stderr = {stderr}, exit_code = {output.exit_code} }}"


def _quoted(text: str, *, multiline: bool = True) -> str:
    """Return `text` as a TOML string: as it stands where that is possible, else with escapes, which are JSON's."""
    plain = all(letter >= " " or letter in "\n\t" for letter in text) and "\x7f" not in text
    if multiline and plain and "\n" in text and "'''" not in text and not text.endswith("'"):
        return f"'''\n{text}'''"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _tables(path: Path) -> dict[str, Any]:
    own = tomllib.loads(path.read_text(encoding="utf-8"))
    base: dict[str, Any] = _tables(path.parent / own.pop("base")) if "base" in own else {}
    base.pop("expect", None)
    merged = {**base, **own}
    for name in _LAID_OVER:
        merged[name] = {**base.get(name, {}), **own.get(name, {})}
        for gone in own.get("remove", ()):
            if gone not in own.get(name, {}):
                merged[name].pop(gone, None)
    merged.pop("remove", None)
    return merged


if __name__ == "__main__":
    sys.stdout.write(fixture_text(read_archive(Path(sys.argv[1]))))
