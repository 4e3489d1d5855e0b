"""`ethtool -S NIC`: counters, under names that every driver chooses itself.

The tables below say which names mean the same:

| meaning | mlx5 | ice, i40e | bnxt | ena, virtio |
|---|---|---|---|---|
| pause frames of priority 3 | `rx_prio3_pause` | `rx_priority_3_xoff.nic` | `rx_pfc_ena_frames_pri3` | |
| pause frames, link-wide | `rx_pause_ctrl_phy` | `link_xoff_rx.nic` | `rx_pause_frames` | |
| dropped, no room in the port's buffer | `rx_discards_phy` | `rx_dropped.nic` | `rx_stat_discard` | |
| dropped, no receive descriptor | `rx_out_of_buffer` | | | `rx_queue_0_drops` |
| link went down | `link_down_events_phy` | | `link_down_events` | |

Sources: the kernel's Documentation/networking/device_drivers/ethernet/, and the drivers' own string tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dualpath.doctor.parsers.labels import integer, labelled

_PRIORITY_PAUSE = (
    re.compile(r"(rx|tx)_prio([0-7])_pause"),  # mlx5
    re.compile(r"(rx|tx)_pause_prio_([0-7])"),  # mlx4
    re.compile(r"(?:port\.)?(rx|tx)_priority_([0-7])_xoff(?:\.nic)?"),  # ice, i40e
    re.compile(r"(rx|tx)_pfc_ena_frames_pri([0-7])"),  # bnxt
)
_LINK_PAUSE = (
    re.compile(r"(rx|tx)_global_pause"),  # mlx5
    re.compile(r"(rx|tx)_pause_ctrl_phy"),  # mlx5 too: PFC frames are among them
    re.compile(r"(?:port\.)?link_xoff_(rx|tx)(?:\.nic)?"),  # ice, i40e
    re.compile(r"(rx|tx)_pause_frames"),  # bnxt
)
_PAUSED = re.compile(r"(rx|tx)_(?:prio([0-7])|global)_pause_duration")

PORT_FULL = re.compile(
    r"(?:rx|tx)_discards_phy|rx_prio[0-7]_(?:discards|buf_discard|cong_discard)"  # mlx5
    r"|(?:port\.)?rx_(?:dropped|discards)(?:\.nic)?|(?:port\.)?rx_dropped"  # ice, i40e
    r"|rx_stat_discard|rx_total_discard_pkts|rx_discard_packets_cos[0-7]"  # bnxt
)
"""Dropped by the NIC because its port buffer was full: PCIe, memory or the path behind it did not keep up."""

NO_DESCRIPTOR = re.compile(
    r"rx_out_of_buffer|dev_out_of_buffer|rx_no_buffer(?:_count)?|rx_missed_errors|rx(?:_queue_)?[0-9]+_drops"
)
"""Dropped because the host had posted no buffer: the ring is short, or the CPU late."""

ALLOWANCE = re.compile(r"(?:bw_in|bw_out|pps|conntrack|linklocal)_allowance_exceeded")
"""Shaped by the cloud: the instance's allowance is used up (ena)."""

LINK_DOWN = re.compile(r"link_down_events(?:_phy)?")
UNCORRECTED = re.compile(
    r"rx_pcs_symbol_err(?:_phy)?|rx_symbol_err_phy|rx_crc_errors(?:_phy|\.nic)?|(?:port\.)?rx_crc_errors"
    r"|rx_fcs_err_frames|rx_fec_uncorrectable_blocks|fec_uncorrectable_blocks"
)
"""Symbols, frames or blocks that arrived damaged, after whatever error correction there is."""


@dataclass(frozen=True, slots=True)
class PauseCount:
    """Pause frames of one direction and priority (`None`: link-wide)."""

    direction: str
    priority: int | None
    frames: int
    name: str


def parse_counters(text: str) -> dict[str, int]:
    """Return every counter by the driver's name. A name that appears twice keeps its last value."""
    found = {}
    for label, value in labelled(text):
        count = integer(value)
        if count is not None and count >= 0 and label and " " not in label:
            found[label] = count
    return found


def pauses(counters: Mapping[str, int]) -> list[PauseCount]:
    """Return the pause frames by priority; link-wide ones only where the driver counts none by priority."""
    by_priority = [
        PauseCount(match.group(1), int(match.group(2)), frames, name)
        for name, frames in counters.items()
        if (match := _first(_PRIORITY_PAUSE, name))
    ]
    if by_priority:
        return by_priority
    return [
        PauseCount(match.group(1), None, frames, name)
        for name, frames in counters.items()
        if (match := _first(_LINK_PAUSE, name))
    ]


def paused_us(counters: Mapping[str, int]) -> dict[tuple[str, int | None], int]:
    """Return for how long each (direction, priority or link-wide) was paused so far, in microseconds (mlx5 only)."""
    return {
        (match.group(1), int(match.group(2)) if match.group(2) else None): value
        for name, value in counters.items()
        if (match := _PAUSED.fullmatch(name))
    }


def matching(counters: Mapping[str, int], names: re.Pattern[str]) -> dict[str, int]:
    """Return the counters whose whole name matches."""
    return {name: value for name, value in counters.items() if names.fullmatch(name)}


def moved(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return how far each counter moved, for those that did. One that went back was reset: it counts from zero."""
    return {
        name: value - start if (start := before[name]) <= value else value
        for name, value in after.items()
        if name in before and value != before[name]
    }


def _first(patterns: Iterable[re.Pattern[str]], name: str) -> re.Match[str] | None:
    return next((match for pattern in patterns if (match := pattern.fullmatch(name))), None)
