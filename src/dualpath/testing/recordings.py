"""Recorded hosts written by hand, one TOML file each, as tests of the doctor read them.

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
[later]                           # files whose text had changed `later_s` seconds after
[later_commands]
[raw]                             # optional: a `RawReport`
[run]                             # optional: what `dualpath run --json` says
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

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
        commands={line: Output(text) for line, text in tables["commands"].items()},
        missing=tuple(tables.get("missing", ())),
        root=tables.get("root", False),
        measured=Measured(
            raw=msgspec.convert(tables["raw"], RawReport) if "raw" in tables else None,
            run=tables.get("run"),
        ),
        later=tables["later"],
        later_commands={line: Output(text) for line, text in tables["later_commands"].items()},
        later_s=tables.get("later_s", 0.0),
    )
    return Fixture(path.stem, recording, {name: Level(level) for name, level in tables.get("expect", {}).items()})


def _tables(path: Path) -> dict[str, Any]:
    own = tomllib.loads(path.read_text())
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
