"""What ethtool would print, asked of the kernel itself (netlink and ioctl, by pyroute2) where ethtool is not installed.

Only what the library knows for sure: rings (`-g`), channels (`-l`), coalescing (`-c`). Everything else stays missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Protocol

from dualpath.doctor.recording import Output


class Kernel(Protocol):
    """The part of `pyroute2.Ethtool` that is used here."""

    def get_rings(self, ifname: str) -> Any:
        """Return `rx`, `tx`, `rx_max`, `tx_max`, `None` for what the NIC has not."""

    def get_channels(self, ifname: str) -> Any:
        """Return `rx_count`, `max_rx` and so on."""

    def get_coalesce(self, ifname: str) -> Mapping[str, int]:
        """Return the fields of `struct ethtool_coalesce`."""


_ONE_AT_A_TIME = threading.Lock()  # the library keeps an event loop per object


def answer(line: str) -> Output | None:
    """Return what the ethtool command `line` would print; `None` where the kernel or the library does not say."""
    if line.split()[1] not in _PRINTED:
        return None
    try:
        from pyroute2 import Ethtool  # type: ignore[import-untyped] # it has no annotations

        with _ONE_AT_A_TIME, closing(Ethtool()) as kernel:
            return printed(kernel, line)
    except Exception:  # noqa: BLE001 - no such NIC, not supported, not permitted: the library has many ways to say so
        return None


def printed(kernel: Kernel, line: str) -> Output | None:
    """Return what the ethtool command `line` prints, with the answers of `kernel`."""
    _, option, name = line.split()
    form = _PRINTED.get(option)
    return None if form is None else Output(form(kernel, name))


def _rings(kernel: Kernel, name: str) -> str:
    rings = kernel.get_rings(name)
    return (
        f"Ring parameters for {name}:\n"
        f"Pre-set maximums:\nRX:\t\t{_number(rings.rx_max)}\nTX:\t\t{_number(rings.tx_max)}\n"
        f"Current hardware settings:\nRX:\t\t{_number(rings.rx)}\nTX:\t\t{_number(rings.tx)}\n"
    )


def _channels(kernel: Kernel, name: str) -> str:
    found = kernel.get_channels(name)
    most = (found.max_rx, found.max_tx, found.max_other, found.max_combined)
    now = (found.rx_count, found.tx_count, found.other_count, found.combined_count)
    labels = ("RX", "TX", "Other", "Combined")
    lines = [f"Channel parameters for {name}:", "Pre-set maximums:"]
    lines += [f"{label}:\t\t{_number(count)}" for label, count in zip(labels, most, strict=True)]
    lines.append("Current hardware settings:")
    lines += [f"{label}:\t\t{_number(count)}" for label, count in zip(labels, now, strict=True)]
    return "\n".join(lines) + "\n"


def _coalesce(kernel: Kernel, name: str) -> str:
    found = kernel.get_coalesce(name)
    adaptive = ["on" if found[f"use_adaptive_{way}_coalesce"] else "off" for way in ("rx", "tx")]
    return (
        f"Coalesce parameters for {name}:\nAdaptive RX: {adaptive[0]}  TX: {adaptive[1]}\n"
        f"rx-usecs: {found['rx_coalesce_usecs']}\nrx-frames: {found['rx_max_coalesced_frames']}\n"
        f"tx-usecs: {found['tx_coalesce_usecs']}\ntx-frames: {found['tx_max_coalesced_frames']}\n"
    )


def _number(count: int | None) -> str:
    return "n/a" if count is None else str(count)


_PRINTED: Mapping[str, Callable[[Kernel, str], str]] = {"-g": _rings, "-l": _channels, "-c": _coalesce}
