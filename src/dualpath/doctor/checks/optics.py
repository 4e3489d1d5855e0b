"""Modules and cables: light outside its bounds, heat, copper where the distance needs glass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dualpath.doctor.base import Check, Finding, Level, Unknown
from dualpath.doctor.host import Host
from dualpath.doctor.parsers.ethtool_module import NO_LIGHT_DBM, Limits, Module, parse_module
from dualpath.doctor.subjects import GIGABIT_PER_S, fast_nics, said
from dualpath.host.nics import Nic

DARK_DBM = -30.0
"""Less than any receiver of these links can use: no light."""
COPPER_M = {25: 5.0, 100: 5.0, 200: 3.0, 400: 3.0, 800: 2.5}
"""Longest passive copper by speed in Gbit/s: IEEE 802.3by, bj and cd; from 400 on what is sold, 802.3ck says 2 m."""


def judge(host: Host) -> Iterator[Finding]:
    """Yield what is wrong with each module. A NIC without one, or whose driver does not read it, is passed over."""
    for nic in fast_nics(host):
        try:
            text = said(host, f"ethtool -m {nic.name}")
        except Unknown as why:
            yield Finding(level=Level.UNKNOWN, symptom=f"{nic.name}: {why}", fix=why.fix, subject=nic.name)
            continue
        module = parse_module(text) if text else Module()
        if module.medium == "copper":
            yield from _copper(nic, module)
        elif module.tx_dbm or module.rx_dbm:
            yield from _light(nic, module, "rx", module.rx_dbm, module.rx_limits)
            yield from _light(nic, module, "tx", module.tx_dbm, module.tx_limits)
        yield from _heat(nic, module)


def _light(nic: Nic, module: Module, side: str, powers: Mapping[int, float], limits: Limits) -> Iterator[Finding]:
    """Judge the lanes of one side together: they are one fibre or one module."""
    used = {lane: dbm for lane, dbm in powers.items() if not _unused(module, lane)}
    wrong = {lane: said for lane, dbm in used.items() if (said := _wrong(dbm, limits))}
    if not wrong:
        return
    lanes = ", ".join(f"lane {lane} {used[lane]:.2f} dBm ({said})" for lane, said in wrong.items())
    worst = any("alarm" in said or "light" in said for said in wrong.values())
    name = "received" if side == "rx" else "sent"
    yield Finding(
        level=Level.CRITICAL if worst else Level.WARNING,
        symptom=f"{nic.name}: {name} light is out of bounds: {lanes}",
        cause="a dirty or broken fibre, or the peer's transmitter"
        if side == "rx"
        else "a failing laser in this module",
        fix=f"swap the cable or module of {nic.name} first ({module.vendor} {module.part}), then clean the connectors",
        evidence=(
            f"ethtool -m {nic.name}: {side} power "
            f"low alarm {_bound(limits.low_alarm)}, low warning {_bound(limits.low_warning)}, "
            f"high warning {_bound(limits.high_warning)}, high alarm {_bound(limits.high_alarm)}",
            *(f"ethtool -m {nic.name}: {flag} is on" for flag in module.raised),
        ),
        subject=nic.name,
    )


def _wrong(dbm: float, limits: Limits) -> str:
    return "no light" if dbm <= DARK_DBM else limits.judge(dbm)


def _unused(module: Module, lane: int) -> bool:
    """A lane that neither sends nor receives, beside others that do, is one that the link does not use."""
    dark = {n for n in module.rx_dbm if max(module.rx_dbm[n], module.tx_dbm.get(n, NO_LIGHT_DBM)) <= DARK_DBM}
    return lane in dark and len(dark) < len(module.rx_dbm)


def _heat(nic: Nic, module: Module) -> Iterator[Finding]:
    if module.temperature_c is None:
        return
    said = module.temperature_limits.judge(module.temperature_c)
    if said.startswith("high"):
        yield Finding(
            level=Level.CRITICAL if "alarm" in said else Level.WARNING,
            symptom=f"{nic.name}: the module is at {module.temperature_c:.1f} C ({said})",
            cause="too little air, or a module of a higher power class than its cage can cool",
            fix="raise the fan speed, and check that empty cages are covered",
            evidence=(f"ethtool -m {nic.name}: {module.vendor} {module.part}, {module.temperature_c} degrees C",),
            subject=nic.name,
        )


def _copper(nic: Nic, module: Module) -> Iterator[Finding]:
    """A passive cable has a length that its speed allows."""
    gigabits = (nic.speed_bits_per_s or 0) / GIGABIT_PER_S
    allowed = min((metres for speed, metres in COPPER_M.items() if gigabits >= speed), default=None)
    if allowed is not None and module.length_m is not None and allowed < module.length_m <= 100:
        yield Finding(
            level=Level.WARNING,
            symptom=f"{nic.name}: {module.length_m:g} m of copper at {gigabits:g} Gbit/s; {allowed:g} m is the most",
            cause="a passive cable (DAC) where the distance needs an optical one: errors, drops, or a slower link",
            fix=f"take an active optical cable or optical modules for {nic.name}",
            evidence=(f"ethtool -m {nic.name}: {module.vendor} {module.part} {module.transceiver}",),
            subject=nic.name,
        )


def _bound(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} dBm"


CHECK = Check(
    name="optics",
    title="Modules send and receive enough light, stay cool, and copper is short enough",
    reads=("ethtool -m NIC",),
    reference="https://man7.org/linux/man-pages/man8/ethtool.8.html",
    judge=judge,
)
