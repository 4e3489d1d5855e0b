"""`ethtool -g`, `-a`, `-c`, `-m`, `-S` and `--show-fec`, in the wording of several versions and drivers."""

from __future__ import annotations

import pytest

from dualpath.doctor.parsers.ethtool_coalesce import Coalesce, parse_coalesce
from dualpath.doctor.parsers.ethtool_counters import (
    LINK_DOWN,
    NO_DESCRIPTOR,
    PORT_FULL,
    UNCORRECTED,
    matching,
    moved,
    parse_counters,
    paused_us,
    pauses,
)
from dualpath.doctor.parsers.ethtool_fec import Fec, parse_fec
from dualpath.doctor.parsers.ethtool_module import Limits, dbm, parse_module
from dualpath.doctor.parsers.ethtool_pause import Pause, parse_pause
from dualpath.doctor.parsers.ethtool_rings import Rings, parse_rings


def test_rings_of_an_old_and_a_new_ethtool() -> None:
    old = (
        "Ring parameters for eth2:\nPre-set maximums:\nRX:\t\t8192\nRX Mini:\t0\nRX Jumbo:\t0\nTX:\t\t8192\n"
        "Current hardware settings:\nRX:\t\t1024\nRX Mini:\t0\nRX Jumbo:\t0\nTX:\t\t512\n"
    )
    new = """Ring parameters for eth2:
Pre-set maximums:
RX:			8192
RX Mini:		n/a
RX Jumbo:		n/a
TX:			8192
TX push buff len:	n/a
HDS thresh:		n/a
Current hardware settings:
RX:			1024
RX Mini:		n/a
RX Jumbo:		n/a
TX:			512
RX Buf Len:		n/a
CQE Size:		n/a
TX Push:	off
TCP data split:	off
"""
    assert parse_rings(old) == parse_rings(new) == Rings(rx=1024, tx=512, rx_max=8192, tx_max=8192)


def test_rings_that_a_driver_does_not_tell() -> None:
    assert parse_rings("Pre-set maximums:\nRX:\tn/a\nTX:\tn/a\nCurrent hardware settings:\nRX:\tn/a") == Rings()
    assert parse_rings("netlink error: Operation not supported") == Rings()


def test_pause_as_set_and_as_negotiated() -> None:
    assert parse_pause("Pause parameters for eth0:\nAutonegotiate:\toff\nRX:\t\ton\nTX:\t\toff\n") == Pause(
        autonegotiate=False, rx=True, tx=False
    )
    negotiated = (
        "Pause parameters for eth0:\nAutonegotiate:\ton\nRX:\t\ton\nTX:\t\ton\nRX negotiated: off\nTX negotiated: off\n"
    )
    assert parse_pause(negotiated) == Pause(autonegotiate=True, rx=False, tx=False)


def test_coalesce_has_two_answers_on_one_line() -> None:
    text = "Coalesce parameters for eth0:\nAdaptive RX: on  TX: off\nrx-usecs: 8\nrx-frames: 128\ntx-usecs: 16\n"
    assert parse_coalesce(text) == Coalesce(adaptive_rx=True, adaptive_tx=False, rx_us=8, rx_frames=128, tx_us=16)
    assert parse_coalesce("Adaptive RX: n/a  TX: n/a\nrx-usecs:\tn/a\n") == Coalesce()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Configured FEC encodings: Auto\nActive FEC encoding: RS", Fec(("auto",), ("rs",))),
        (
            "Supported/Configured FEC encodings: Auto RS BaseR\nActive FEC encoding: Off",
            Fec(("auto", "rs", "baser"), ("off",)),
        ),
        ("Configured FEC encodings: None\nActive FEC encoding: None", Fec(("off",), ("off",))),
        (
            "Supported/Configured FEC encodings: RS\nActive FEC encoding: RS\nStatistics:\n  corrected_blocks: 123\n"
            "  uncorrectable_blocks: 4\n  fec_symbol_err_0: 445 [ per_lane:  125, 120, 100, 100 ]",
            Fec(("rs",), ("rs",), 123, 4),
        ),
        ("netlink error: Operation not supported", Fec()),
    ],
)
def test_fec(text: str, expected: Fec) -> None:
    assert parse_fec(text) == expected


@pytest.mark.parametrize(
    ("line", "direction", "priority"),
    [
        ("rx_prio3_pause: 7", "rx", 3),
        ("tx_pause_prio_4: 7", "tx", 4),
        ("rx_priority_3_xoff.nic: 7", "rx", 3),
        ("port.tx_priority_0_xoff: 7", "tx", 0),
        ("rx_pfc_ena_frames_pri5: 7", "rx", 5),
        ("rx_global_pause: 7", "rx", None),
        ("link_xoff_rx.nic: 7", "rx", None),
        ("tx_pause_frames: 7", "tx", None),
    ],
)
def test_pause_counters_of_every_driver(line: str, direction: str, priority: int | None) -> None:
    (count,) = pauses(parse_counters(f"NIC statistics:\n     {line}\n"))
    assert (count.direction, count.priority, count.frames) == (direction, priority, 7)


def test_link_wide_pauses_count_only_where_there_are_none_by_priority() -> None:
    counters = parse_counters("     rx_pause_ctrl_phy: 900\n     rx_prio3_pause: 900\n     rx_prio3_pause_duration: 12")
    assert [count.name for count in pauses(counters)] == ["rx_prio3_pause"]
    assert paused_us(counters) == {("rx", 3): 12}


def test_what_counters_mean() -> None:
    counters = parse_counters(
        "NIC statistics:\n rx_discards_phy: 1\n rx_out_of_buffer: 2\n rx_dropped.nic: 3\n link_down_events_phy: 4\n"
        " rx_fcs_err_frames: 5\n rx_corrected_bits_phy: 6\n rx_stat_discard: 7\n [0]: rx_ucast_packets: 8\n odd: -1\n"
    )
    assert matching(counters, PORT_FULL) == {"rx_discards_phy": 1, "rx_dropped.nic": 3, "rx_stat_discard": 7}
    assert matching(counters, NO_DESCRIPTOR) == {"rx_out_of_buffer": 2}
    assert matching(counters, LINK_DOWN) == {"link_down_events_phy": 4}
    assert matching(counters, UNCORRECTED) == {"rx_fcs_err_frames": 5}, "corrected bits are what FEC is for"
    assert "odd" not in counters


def test_moved_counts_from_zero_after_a_reset() -> None:
    assert moved({"a": 5, "b": 9, "c": 1}, {"a": 8, "b": 2, "c": 1, "new": 4}) == {"a": 3, "b": 2}


SFP = """
	Identifier                                : 0x03 (SFP)
	Transceiver type                          : 25GBASE-SR
	Vendor name                               : AVAGO
	Vendor PN                                 : AFBR-725SMZ
	Laser bias current                        : 7.204 mA
	Laser output power                        : 0.6101 mW / -2.15 dBm
	Receiver signal average optical power     : 0.0100 mW / -20.00 dBm
	Module temperature                        : 34.12 degrees C / 93.42 degrees F
	Alarm/warning flags implemented           : Yes
	Laser rx power low alarm                  : On
	Laser rx power high alarm                 : Off
	Laser output power low warning threshold  : 0.1259 mW / -9.00 dBm
	Laser rx power low alarm threshold        : 0.0316 mW / -15.00 dBm
	Laser rx power low warning threshold      : 0.0501 mW / -13.00 dBm
	Module temperature high alarm threshold   : 75.00 degrees C / 167.00 degrees F
"""


def test_an_sfp_module() -> None:
    module = parse_module(SFP)
    assert (module.vendor, module.part, module.medium) == ("AVAGO", "AFBR-725SMZ", "optical")
    assert module.tx_dbm == {1: -2.15}
    assert module.rx_dbm == {1: -20.0}
    assert module.temperature_c == 34.12
    assert module.rx_limits == Limits(low_alarm=-15.0, low_warning=-13.0)
    assert module.tx_limits == Limits(low_warning=-9.0)
    assert module.temperature_limits == Limits(high_alarm=75.0)
    assert module.raised == ("laser rx power low alarm",)


def test_a_qsfp_module_counts_lanes_from_zero_or_one() -> None:
    one = "Rcvr signal avg optical power(Channel 4)  : 0.8708 mW / -0.60 dBm\n"
    one += "Transmit avg optical power (Channel 0) : 1 mW"
    assert parse_module(one).rx_dbm == {4: -0.60}
    assert parse_module(one).tx_dbm == {0: 0.0}


def test_blank_thresholds_are_none() -> None:
    blank = "Laser rx power low alarm threshold : 0.0000 mW / -inf dBm\n"
    blank += "Module temperature high alarm threshold : 0.00 degrees C"
    assert parse_module(blank).rx_limits == Limits()
    assert parse_module(blank).temperature_limits == Limits()


@pytest.mark.parametrize(
    ("line", "medium"),
    [
        ("Transceiver type : 100G Ethernet: 100G Base-CR4 or 25G Base-CR CA-L", "copper"),
        ("Transmitter technology : 0x0a (Copper cable, unequalized)", "copper"),
        ("Transmitter technology : 0x0f (Copper cable with linear active equalizers)", "active copper"),
        ("Transmitter technology : 0x00 (850 nm VCSEL)", "optical"),
        ("Transceiver type : 100G Ethernet: 100G AOC or 25GAUI C2M AOC with worst BER of 5x10^(-5)", "optical"),
        ("Connector : 0x23 (No separable connector)", ""),
    ],
)
def test_copper_or_glass(line: str, medium: str) -> None:
    assert parse_module(line).medium == medium


def test_lengths_of_cables() -> None:
    assert parse_module("Length (Copper or Active cable)           : 3m").length_m == 3
    assert parse_module("Cable assembly length                     : 0.50km").length_m == 500
    assert parse_module("Length (Copper or Active cable)           : 0m").length_m is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.7943 mW / -1.00 dBm", -1.0),
        ("1.0000 mW", 0.0),
        ("0.0000 mW / -inf dBm", -40.0),
        ("0.0000 mW", -40.0),
        ("3.3 V", None),
    ],
)
def test_power(text: str, expected: float | None) -> None:
    assert dbm(text) == (None if expected is None else pytest.approx(expected))


def test_limits_tell_alarm_from_warning() -> None:
    limits = Limits(low_alarm=-13, low_warning=-10, high_warning=2, high_alarm=5)
    said = [limits.judge(value) for value in (-14, -11, 0, 3, 6)]
    assert said == ["low alarm", "low warning", "", "high warning", "high alarm"]
    assert Limits().judge(-99) == ""
