"""`ethtool N` and `ethtool -i N`: a NIC's link, what it could do, its driver and firmware."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MODE = re.compile(r"\b(\d{2,7})base", re.ASCII)
_SPEED = re.compile(r"(\d{1,8})\s*Mb/s", re.ASCII)


@dataclass(frozen=True, slots=True)
class EthtoolLink:
    """What `ethtool N` prints. `None` means that it does not say."""

    speed_bits_per_s: int | None = None
    supported_bits_per_s: int | None = None
    """The fastest of the supported link modes."""
    partner_bits_per_s: int | None = None
    """The fastest mode that the link partner advertised."""
    autonegotiation: bool | None = None
    port: str = ""
    """`Direct Attach Copper`, `FIBRE`, `Twisted Pair`, …"""
    detected: bool | None = None
    reason: str = ""
    """Why no link is detected, where the driver says: `No cable`."""


@dataclass(frozen=True, slots=True)
class EthtoolDriver:
    """What `ethtool -i N` prints; empty where it does not say."""

    driver: str = ""
    version: str = ""
    firmware: str = ""
    bus: str = ""


def parse_ethtool(text: str) -> EthtoolLink:
    """Return the link that `ethtool N` describes."""
    values = _sections(text)
    speed = _SPEED.match(values.get("Speed", ""))
    detected = values.get("Link detected", "")
    reason = re.search(r"\(([^()]{1,80})\)", detected)
    return EthtoolLink(
        speed_bits_per_s=int(speed[1]) * 1_000_000 if speed else None,
        supported_bits_per_s=_fastest(values.get("Supported link modes", "")),
        partner_bits_per_s=_fastest(values.get("Link partner advertised link modes", "")),
        autonegotiation={"on": True, "off": False}.get(values.get("Auto-negotiation", "").lower()),
        port=values.get("Port", ""),
        detected={"yes": True, "no": False}.get(detected.partition(" ")[0].lower()),
        reason=reason[1] if reason else "",
    )


def parse_ethtool_driver(text: str) -> EthtoolDriver:
    """Return the driver that `ethtool -i N` describes."""
    values = _sections(text)
    return EthtoolDriver(
        driver=values.get("driver", ""),
        version=values.get("version", ""),
        firmware=values.get("firmware-version", ""),
        bus=values.get("bus-info", ""),
    )


def _sections(text: str) -> dict[str, str]:
    """Return `key: value` lines; lines without a key continue the value above."""
    values: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and re.fullmatch(r"[A-Za-z][\w /-]{0,60}", name.strip()):
            key = name.strip()
            values.setdefault(key, value.strip())
        elif key and line.strip():
            values[key] += f" {line.strip()}"
    return values


def _fastest(modes: str) -> int | None:
    speeds = [int(speed) for speed in _MODE.findall(modes)]
    return max(speeds) * 1_000_000 if speeds else None
