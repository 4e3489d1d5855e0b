"""`ethtool -m NIC`: what is plugged in (SFP: SFF-8472, QSFP: SFF-8636, QSFP-DD and OSFP: CMIS), and how it feels.

Powers are given as `0.7943 mW / -1.00 dBm`; the standards' thresholds are absolute, so is the comparison here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from dualpath.doctor.parsers.labels import labelled, number

NO_LIGHT_DBM = -40.0
"""What `-inf dBm` counts as: the standards' smallest step is 0.0001 mW, which is this."""

_CHANNEL = re.compile(r"\s*\(?chan(?:nel)?\s*([0-9]+)\)?", re.IGNORECASE)
_TX = re.compile(r"(?:laser output power|laser tx power|transmit avg optical power|tx power)", re.IGNORECASE)
_RX = re.compile(r"(?:receiver|rcvr) signal (?:avg|average) optical power|laser rx power|rx power", re.IGNORECASE)
_LIMIT = re.compile(
    r"(laser output power|laser tx power|laser rx power|module temperature)\s+"
    r"(high|low)\s+(alarm|warn(?:ing)?)\s+threshold",
    re.IGNORECASE,
)
_FLAG = re.compile(r"(.*\S)\s+(high|low)\s+(alarm|warning)(.*)", re.IGNORECASE)
_COPPER = re.compile(r"copper|\bDAC\b|base-CR[0-9]*|passive cable|twinax", re.IGNORECASE)
_ACTIVE = re.compile(r"copper.*(?:active|limiting|linear|retim)", re.IGNORECASE)
_OPTICAL = re.compile(
    r"VCSEL|DFB|EML|FP laser|optical|base-(?:SR|LR|ER|DR|FR|ZR)[0-9]*|\bAOC\b|\bLC\b|MPO", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one quantity; `None` where the module gives none. Outside an alarm is worse than outside a warning."""

    low_alarm: float | None = None
    low_warning: float | None = None
    high_warning: float | None = None
    high_alarm: float | None = None

    def judge(self, value: float) -> str:
        """Return `low alarm`, `low warning`, `high warning`, `high alarm`, or an empty string within the bounds."""
        if self.low_alarm is not None and value < self.low_alarm:
            return "low alarm"
        if self.high_alarm is not None and value > self.high_alarm:
            return "high alarm"
        if self.low_warning is not None and value < self.low_warning:
            return "low warning"
        return "high warning" if self.high_warning is not None and value > self.high_warning else ""


@dataclass(frozen=True, slots=True)
class Module:
    """Powers in dBm by lane (from 1), temperature in degrees Celsius, length in metres."""

    identifier: str = ""
    vendor: str = ""
    part: str = ""
    transceiver: str = ""
    medium: str = ""
    """`copper` (passive), `active copper`, `optical`, or empty if it does not say."""
    length_m: float | None = None
    temperature_c: float | None = None
    tx_dbm: dict[int, float] = field(default_factory=dict)
    rx_dbm: dict[int, float] = field(default_factory=dict)
    temperature_limits: Limits = Limits()
    tx_limits: Limits = Limits()
    rx_limits: Limits = Limits()
    raised: tuple[str, ...] = ()
    """Flags that are on: `laser rx power low alarm (channel 2)`."""


def parse_module(text: str) -> Module:
    """Return what the module says; an empty `Module` for text that is none."""
    said: dict[str, list[str]] = {}
    powers: dict[str, dict[int, float]] = {"tx": {}, "rx": {}}
    limits: dict[str, dict[str, float]] = {"tx": {}, "rx": {}, "temperature": {}}
    raised = []
    for label, value in labelled(text):
        said.setdefault(label.lower(), []).append(value)
        if match := _LIMIT.fullmatch(label):
            _limit(limits, match, value)
        elif (match := _FLAG.fullmatch(label)) and value.lower() in ("on", "yes"):
            raised.append(" ".join(label.lower().split()))
        elif not match:
            _power(powers, label, value)
    medium_text = " ".join(
        value
        for name in ("transceiver type", "transmitter technology", "connector", "vendor pn")
        for value in said.get(name, ())
    )
    return Module(
        identifier=_one(said, "identifier"),
        vendor=_one(said, "vendor name"),
        part=_one(said, "vendor pn"),
        transceiver=_one(said, "transceiver type"),
        medium=_medium(medium_text),
        length_m=_length(said),
        temperature_c=number(_one(said, "module temperature")),
        tx_dbm=powers["tx"],
        rx_dbm=powers["rx"],
        temperature_limits=Limits(**limits["temperature"]),
        tx_limits=Limits(**limits["tx"]),
        rx_limits=Limits(**limits["rx"]),
        raised=tuple(raised),
    )


def dbm(text: str) -> float | None:
    """Return the dBm of `0.7943 mW / -1.00 dBm`, computed if only the milliwatts are said; `None` if neither is."""
    if re.search(r"-inf\s*dBm", text, re.IGNORECASE):
        return NO_LIGHT_DBM
    if match := re.search(r"([-+]?[0-9]{1,6}(?:\.[0-9]+)?)\s*dBm", text, re.IGNORECASE):
        return float(match.group(1))
    if not re.search(r"mW", text, re.IGNORECASE):
        return None
    milliwatts = number(text)
    if milliwatts is None or milliwatts < 0:
        return None
    return 10 * math.log10(milliwatts) if milliwatts > 0.0001 else NO_LIGHT_DBM


def _power(powers: dict[str, dict[int, float]], label: str, value: str) -> None:
    channel = _CHANNEL.search(label)
    name = _CHANNEL.sub("", label).strip()
    lane = int(channel.group(1)[:3]) if channel else 1
    power = dbm(value)
    if power is None:
        return
    if _TX.fullmatch(name):
        powers["tx"][lane] = power
    elif _RX.fullmatch(name):
        powers["rx"][lane] = power


def _limit(limits: dict[str, dict[str, float]], match: re.Match[str], value: str) -> None:
    subject, side, kind = (word.lower() for word in match.groups())
    where = "temperature" if "temperature" in subject else "rx" if "rx" in subject else "tx"
    bound = number(value) if where == "temperature" else dbm(value)
    stated = bound is not None and bound != (0 if where == "temperature" else NO_LIGHT_DBM)  # zeros: a blank page
    if bound is not None and stated:
        limits[where][f"{side}_{'alarm' if kind == 'alarm' else 'warning'}"] = bound


def _medium(text: str) -> str:
    if _ACTIVE.search(text):
        return "active copper"
    if _COPPER.search(text):
        return "copper"
    return "optical" if _OPTICAL.search(text) else ""


def _length(said: dict[str, list[str]]) -> float | None:
    for name in ("cable assembly length", "length (copper or active cable)", "length (copper)"):
        for value in said.get(name, ()):
            metres = number(value)
            if metres:
                return metres * 1000 if "km" in value else metres
    return None


def _one(said: dict[str, list[str]], name: str) -> str:
    return said.get(name, [""])[0]
