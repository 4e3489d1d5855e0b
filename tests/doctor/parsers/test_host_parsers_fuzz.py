"""No text makes a parser raise: arbitrary text, and what real tools print with parts cut out and overwritten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.doctor.parsers import dcb, labels
from dualpath.doctor.parsers.bonding import parse_bond
from dualpath.doctor.parsers.ethtool_coalesce import parse_coalesce
from dualpath.doctor.parsers.ethtool_counters import parse_counters, paused_us, pauses
from dualpath.doctor.parsers.ethtool_fec import parse_fec
from dualpath.doctor.parsers.ethtool_module import dbm, parse_module
from dualpath.doctor.parsers.ethtool_pause import parse_pause
from dualpath.doctor.parsers.ethtool_rings import parse_rings
from dualpath.doctor.parsers.firewall import judge_iptables, judge_nft
from dualpath.doctor.parsers.interrupts import parse_cpus, parse_interrupts
from dualpath.doctor.parsers.limits import parse_capabilities, parse_limits
from dualpath.doctor.parsers.mlnx_qos import parse_mlnx_qos
from dualpath.testing.recordings import load_fixture

PARSERS: tuple[Callable[[str], object], ...] = (
    parse_bond,
    parse_coalesce,
    parse_counters,
    lambda text: pauses(parse_counters(text)),
    lambda text: paused_us(parse_counters(text)),
    parse_fec,
    parse_module,
    dbm,
    parse_pause,
    parse_rings,
    lambda text: judge_nft(text, 4791, {"eth0"}),
    lambda text: judge_iptables(text, 4791, {"eth0"}),
    parse_cpus,
    parse_interrupts,
    parse_capabilities,
    parse_limits,
    parse_mlnx_qos,
    dcb.parse_pfc,
    dcb.parse_dscp_priorities,
    dcb.parse_default_priority,
    dcb.parse_prio_tc,
    dcb.parse_tc_bandwidth,
    dcb.parse_tc_algorithms,
    dcb.parse_prio_buffer,
    dcb.parse_buffer_bytes,
    dcb.parse_trust,
    labels.integer,
    labels.number,
    labels.switch,
)


def samples() -> list[str]:
    """Return what the tools printed in the recorded hosts, each text once and none too long to mutate quickly."""
    folder = Path(__file__).parent.parent / "fixtures"
    names = (
        "connectx6-healthy",
        "soft-roce-iptables-drop",
        "bnxt-nft-drops-roce",
        "mlx5-hot-module",
        "e810-bond-split",
    )
    texts: set[str] = set()
    for name in names:
        recording = load_fixture(folder / f"{name}.toml").recording
        texts |= {output.stdout for output in recording.commands.values()}
        texts |= {text for path, text in recording.files.items() if path.startswith("/proc/")}
    return sorted(text for text in texts if 20 < len(text) < 5000)


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text(max_size=300))
@settings(max_examples=30, deadline=None)
def test_arbitrary_text(parse: Callable[[str], object], text: str) -> None:
    parse(text)


JUNK = st.sampled_from(
    ["", ":", "{", "}", "\n", "-", "99999999999999999999999", "n/a", "\x00", "٣", "1e999", "0x", " ", "@", "%"]
)


@given(
    text=st.sampled_from(samples()),
    cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), JUNK), min_size=1, max_size=6),
)
@settings(max_examples=150, deadline=None)
def test_mutated_output(text: str, cuts: list[tuple[float, int, str]]) -> None:
    for where, length, junk in cuts:
        start = int(where * len(text))
        text = text[:start] + junk + text[start + length :]
    for parse in PARSERS:
        parse(text)


@pytest.mark.parametrize("text", ["9" * 5000, "-" * 5000, "1:" * 2000, "prio:3 dscp:" + "9," * 3000, "٣٣٣: ٣"])
def test_numbers_without_end(text: str) -> None:
    for parse in PARSERS:
        parse(text)
        parse(f"enabled {text}x\n 1: {text} x\nMax {text}\norder {text}\nlog prefix {text} drop")
        parse(f"RX: {text}\nCapEff:\t{text}\nenabled {text}\nModule temperature : {text} C\ndscp-prio {text}:{text}")
