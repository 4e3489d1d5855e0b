"""A recording: what a host said, at one time, to whoever asked. Plain data; no judgement, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from dualpath.host.raw import RawReport


@dataclass(frozen=True, slots=True)
class Output:
    """What a command printed. `exit_code` is -1 if it was stopped; `stderr` says why."""

    stdout: str
    stderr: str = ""
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements that go with a host: what was measured is judged beside what is configured."""

    raw: RawReport | None = None
    """Of `dualpath bench raw --json`."""
    run: dict[str, object] | None = None
    """Of `dualpath run --json`: `schemes` with `tpot_ms_p50`, `tpot_ms_p99`, `stall_ms_per_token`, …"""


@dataclass(frozen=True, slots=True)
class Recording:
    """Files by absolute path, symbolic links by absolute path, and commands by their line as typed.

    A command that is not installed is in `missing`, so that "not installed" and "not asked" differ.
    """

    host: str
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    commands: dict[str, Output] = field(default_factory=dict)
    """By command line: `ethtool -g eth0`, `lspci -vvv`."""
    missing: tuple[str, ...] = ()
    """Programs that are not installed: `mlnx_qos`."""
    root: bool = False
    """Whether it was recorded with root's rights; some tools say less without."""
    measured: Measured = field(default_factory=Measured)
    later: dict[str, str] = field(default_factory=dict)
    """Counters (files) as they were `later_s` seconds after: what moved meanwhile."""
    later_commands: dict[str, Output] = field(default_factory=dict)
    """Commands that print counters (`ethtool -S eth0`), run again `later_s` seconds after."""
    later_s: float = 0.0
