"""Stand-ins: consistent, of the same structure, and nothing of the original left."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.doctor.host import Host
from dualpath.doctor.pseudonyms import Pseudonyms
from dualpath.doctor.recording import Measured, Output, Recording
from dualpath.doctor.redact import Redaction, redact
from dualpath.doctor.run import examine

from .hosts import roce_host
from .test_archive import RAW

SALT = b"salt"


@pytest.fixture
def redaction() -> Redaction:
    return Redaction(Pseudonyms(SALT), ("decode-1", "decode-1.example.com"))


@pytest.mark.parametrize(
    "text",
    [
        "0000:3b:00.0 Ethernet controller",
        "3b:00.1",
        "LnkSta: Speed 16GT/s, Width x16",
        "firmware-version: 230.0.157.0/pkg 230.1.116.0",
        "version: 1.13.43.0",
        "driver_version, 535.104.05",
        "28.39.1002 (MT_0000000838)",
        "inet 127.0.0.1/8 scope host lo",
        "0.0.0.0/0",
        "netmask 255.255.255.0",
        "239.1.2.3",
        "::1/128",
        "0::/",
        "state: PORT_ACTIVE (4)",
        "up 12:34:56",
        "device_cap_flags: 0xe17e1c36",
        "cap_mask: 0x00000000a651e848",
        "00:00:00:00:00:00 ff:ff:ff:ff:ff:ff",
        "0000:0000:0000:0000:0000:0000:0000:0000",
        "rx_bytes: 123456789012345678901234567890",
        "not decode-12 and not mydecode-1",
        "tcp dport 4791 accept",
    ],
)
def test_what_tells_nothing_stays(redaction: Redaction, text: str) -> None:
    assert redaction.text(text) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("inet 10.20.30.40/24 brd 10.20.30.255", "20.30"),
        ("PING 203.0.113.9 (203.0.113.9) 56(84) bytes", "203.0.113"),
        ("link/ether b8:3f:d2:12:34:56", "12:34:56"),
        ("node_guid:\t\t0c42:a103:0065:bb2a", "65:bb2a"),
        ("Node GUID: 0x0c42a1030065bb2a", "65bb2a"),
        ("GID[  3]: ::ffff:10.20.30.40, RoCE v2", "20.30"),
        ("GID[  0]: fe80:0000:0000:0000:0e42:a1ff:fe65:bb2a", "fe65:bb2a"),
        ("inet6 2001:db8:7:8::9/64 scope global", "db8:7"),
        ('"dst":"fd12:3456:789a::1"', "3456:789a"),
        ("00:00:10:49:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:65:bb:2a", "65:bb:2a"),
        ("Capabilities: [140 v1] Device Serial Number 0c-42-a1-ff-ff-65-bb-2a", "65-bb-2a"),
        ("\t\t\t[SN] Serial number: MT2116X12345", "12345"),
        ("\tVendor SN                                 : MT2125VB01234", "01234"),
        ('"phys_switch_id":"2abb65fefa142c0c"', "fefa142c"),
        ("0::/docker/4fa6e0f0c6786287e131c3852c58a2e01cc697a68231826813597e4994f1d6e2", "6786287e"),
        ("root=UUID=1b4e28ba-2fa1-11d2-883f-0016d3cca427 ro", "2fa1-11d2"),
        ("node_desc: decode-1 mlx5_0", "decode"),
        ("DECODE-1.example.com answers", "example"),
    ],
)
def test_what_tells_whose_it_is_is_gone(redaction: Redaction, text: str, secret: str) -> None:
    hidden = redaction.text(text)
    assert secret.lower() not in hidden.lower()
    assert len(hidden.split()) == len(text.split())


def test_equal_stays_equal_in_every_spelling(redaction: Redaction) -> None:
    long = redaction.text("0000:0000:0000:0000:0000:ffff:0a14:1e28")
    short = redaction.text("::ffff:10.20.30.40")
    plain = redaction.text("10.20.30.40")
    assert ipaddress.IPv6Address(long) == ipaddress.IPv6Address(short)
    assert str(ipaddress.IPv6Address(long).ipv4_mapped) == plain
    assert plain.startswith("10.")


def test_a_mac_is_found_again_in_guids_and_gids(redaction: Redaction) -> None:
    mac = redaction.text("0c:42:a1:65:bb:2a").replace(":", "")
    guid = redaction.text("node_guid: 0c42:a103:0065:bb2a").split()[1].replace(":", "")
    gid = redaction.text("fe80:0000:0000:0000:0e42:a1ff:fe65:bb2a").replace(":", "")
    in_hexadecimal = redaction.text("Port GUID: 0x0e42a1fffe65bb2a").split("0x")[1]
    assert mac[:6] == "0c42a1"
    assert guid == mac[:6] + "0300" + mac[6:]
    assert gid == "fe80000000000000" + "0e42a1fffe" + mac[6:]
    assert in_hexadecimal == gid[16:]


def test_networks_stay_networks(redaction: Redaction) -> None:
    words = redaction.text("10.20.30.0 10.20.30.7 10.20.30.255 10.20.31.7").split()
    parts = [word.rpartition(".") for word in words]
    assert parts[0][2] == "0"
    assert parts[2][2] == "255"
    assert parts[0][0] == parts[1][0] == parts[2][0] != parts[3][0]


@given(st.binary(min_size=4, max_size=4), st.binary(min_size=4, max_size=4))
def test_ipv4_stand_ins_keep_ranges_and_differences(one: bytes, other: bytes) -> None:
    pseudonyms = Pseudonyms(SALT)
    hidden, hidden_other = pseudonyms.ipv4(one), pseudonyms.ipv4(other)
    assert (hidden == hidden_other) == (one == other)
    for kind in ("is_loopback", "is_multicast", "is_link_local"):
        assert getattr(ipaddress.IPv4Address(hidden), kind) == getattr(ipaddress.IPv4Address(one), kind)
    assert (hidden[0] == 10) == (one[0] == 10)


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_ipv6_stand_ins_keep_ranges_and_differences(one: bytes, other: bytes) -> None:
    pseudonyms = Pseudonyms(SALT)
    assert (pseudonyms.ipv6(one) == pseudonyms.ipv6(other)) == (one == other)
    hidden = ipaddress.IPv6Address(pseudonyms.ipv6(one))
    for kind in ("is_multicast", "is_link_local", "is_loopback"):
        assert getattr(hidden, kind) == getattr(ipaddress.IPv6Address(one), kind)


@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_any_text_can_be_redacted(text: str) -> None:
    assert len(Redaction(Pseudonyms(SALT)).text(text).split("\n")) == len(text.split("\n"))


def test_another_salt_gives_others_and_the_same_the_same() -> None:
    host = roce_host("decode-1")
    assert redact(host, salt=b"a") == redact(host, salt=b"a")
    assert redact(host, salt=b"a") != redact(host, salt=b"b")


def test_a_whole_recording() -> None:
    host = Recording(
        "decode-1.example.com",
        files={"/sys/class/infiniband/mlx5_0/node_desc": "decode-1 mlx5_0"},
        commands={"ping -M do -c 1 -W 1 -s 56 pool-7": Output("PING pool-7 (10.1.2.3)", "pool-7: no answer")},
        measured=Measured(raw=RAW, run={"prompt": {"output": "a secret"}, "schemes": []}),
        later_commands={"ethtool -S eth2": Output("10.1.2.3")},
    )
    hidden = redact(host, salt=SALT)
    everything = repr(hidden)
    for secret in ("decode-1", "example.com", "pool-7", "10.1.2.3", "pool-1", "a secret"):
        assert secret not in everything, secret
    assert hidden.host.startswith("host-")


def test_what_is_found_does_not_change() -> None:
    """Checks see the same in a redacted recording, also between two with one salt."""
    hosts = [
        roce_host("a"),
        roce_host("b", mtu=1500, gids=((4, "::ffff:10.0.7.2", "v2", "eth2.100"),)),
        roce_host("c", gids=((0, "::ffff:10.0.0.3", "v1", "eth2"),)),
    ]
    before = examine(hosts).findings
    after = examine([redact(host, salt=SALT) for host in hosts]).findings
    assert sorted((f.check, f.level, f.subject) for f in before) == sorted((f.check, f.level, f.subject) for f in after)
    assert Host(redact(hosts[0], salt=SALT)).nics == Host(hosts[0]).nics
