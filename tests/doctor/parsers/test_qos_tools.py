"""`mlnx_qos` and `dcb`, as several versions print."""

from __future__ import annotations

import pytest

from dualpath.doctor.parsers import dcb
from dualpath.doctor.parsers.mlnx_qos import TrafficClass, parse_mlnx_qos

NEW = """DCBX mode: OS controlled
Priority trust state: dscp
dscp2prio mapping:
	prio:0 dscp:07,06,05,04,03,02,01,00,
	prio:3 dscp:31,30,29,28,27,26,25,24,46,
default priority:
Receive buffer size (bytes): 20016,156096,0,0,0,0,0,0,max_buffer_size=262016
Cable len: 7
PFC configuration:
	priority    0   1   2   3   4   5   6   7
	enabled     0   0   0   1   0   0   0   0
	buffer      0   0   0   1   0   0   0   0
tc: 0 ratelimit: unlimited, tsa: ets, bw: 50%
	priority:  0
	priority:  1
tc: 3 ratelimit: 10.0 Gbps, tsa: ets, bw: 50%
	priority:  3
tc: 6 ratelimit: unlimited, tsa: strict
	priority:  6
"""
OLD = """Priority trust mode: pcp
PFC configuration:
	priority    0   1   2   3   4   5   6   7
	enabled     1   0   1   0   0   0   1   1

tc: 0 ratelimit: unlimited, tsa: vendor

	priority:  1
"""


def test_a_new_mlnx_qos() -> None:
    qos = parse_mlnx_qos(NEW)
    assert (qos.dcbx, qos.trust, qos.pfc) == ("os", "dscp", frozenset({3}))
    assert qos.priority_of_dscp[26] == qos.priority_of_dscp[46] == 3
    assert qos.priority_of_dscp[0] == 0
    assert qos.buffer_of_priority == (0, 0, 0, 1, 0, 0, 0, 0)
    assert qos.buffer_bytes == (20016, 156096, 0, 0, 0, 0, 0, 0)
    assert qos.class_of_priority == {0: 0, 1: 0, 3: 3, 6: 6}
    assert qos.classes[3] == TrafficClass("ets", 50)
    assert qos.classes[6] == TrafficClass("strict", None)


def test_an_old_mlnx_qos_has_no_buffers_and_no_dscp() -> None:
    qos = parse_mlnx_qos(OLD)
    assert (qos.trust, qos.pfc) == ("pcp", frozenset({0, 2, 6, 7}))
    assert qos.buffer_bytes == qos.buffer_of_priority == ()
    assert qos.priority_of_dscp == {}
    assert qos.classes[0] == TrafficClass("vendor", None)


def test_an_error_says_nothing() -> None:
    assert parse_mlnx_qos("Netlink error: Bad value. see dmesg.").pfc is None


@pytest.mark.parametrize(
    "text",
    [
        "pfc-cap 8 macsec-bypass off delay 4096\nprio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off",
        "pfc-cap 8 \nmacsec-bypass off \ndelay 0 \nprio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off \n",
        "pfc-cap 8 prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off delay 0",
    ],
)
def test_dcb_pfc(text: str) -> None:
    assert dcb.parse_pfc(text) == frozenset({3})


def test_dcb_pfc_all_off_is_not_unknown() -> None:
    assert dcb.parse_pfc("prio-pfc 0:off 1:off 2:off 3:off 4:off 5:off 6:off 7:off") == frozenset()
    assert dcb.parse_pfc("Attribute read: Operation not supported") is None


def test_dcb_app_knows_names_and_numbers() -> None:
    named = dcb.parse_dscp_priorities("default-prio 0\ndscp-prio CS1:1 AF31:3 EF:5 CS6:6")
    assert named == {8: 1, 26: 3, 46: 5, 48: 6}
    assert dcb.parse_dscp_priorities("dscp-prio 26:3 46:5 stream-port-prio 860:4") == {26: 3, 46: 5}
    assert dcb.parse_default_priority("default-prio 2") == 2
    assert dcb.parse_dscp_priorities("") == {}


def test_dcb_ets_and_buffers() -> None:
    ets = "willing off ets-cap 8 cbs off\ntc-bw 0:60 1:40 2:0\ntc-tsa 0:ets 1:ets 2:strict\nprio-tc 0:0 1:1 2:2"
    assert dcb.parse_prio_tc(ets) == {0: 0, 1: 1, 2: 2}
    assert dcb.parse_tc_bandwidth(ets) == {0: 60, 1: 40, 2: 0}
    assert dcb.parse_tc_algorithms(ets) == {0: "ets", 1: "ets", 2: "strict"}
    buffers = "prio-buffer 0:0 1:0 3:1\nbuffer-size 0:18048b 1:16KiB 2:2Kb 3:0b total-size 28320b"
    assert dcb.parse_prio_buffer(buffers) == {0: 0, 1: 0, 3: 1}
    assert dcb.parse_buffer_bytes(buffers) == {0: 18048, 1: 16384, 2: 2000, 3: 0}


@pytest.mark.parametrize("text", ["order: dscp pcp", "order dscp pcp\n"])
def test_dcb_apptrust(text: str) -> None:
    assert dcb.parse_trust(text) == ("dscp", "pcp")
    assert dcb.parse_trust("order: ") == ()
