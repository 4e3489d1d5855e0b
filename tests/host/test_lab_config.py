from __future__ import annotations

from pathlib import Path

import pytest

from dualpath.errors import UsageError
from dualpath.host.lab.config import find_lab, parse_lab, ready_made
from dualpath.host.lab.topology import CreateBridge, CreateCable, CreateNamespace, ShapeInterface, steps
from dualpath.host.lanes import LANES

GOOD = """
name = "pair"
networks = [{ name = "data", subnet = "10.99.0.0/24" }]
[[hosts]]
name = "a"
nics = [{ name = "data0", network = "data", address = "10.99.0.1", rate = "2Gbit", priority = true }]
[[hosts]]
name = "b"
nics = [{ name = "data0", network = "data", address = "10.99.0.2" }]
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('rate = "2Gbit"', 'speed = "2Gbit"', "unknown field `speed`"),
        ('rate = "2Gbit"', 'rate = "fast"', "not a rate: 'fast'"),
        ('rate = "2Gbit"', "mtu = 9000", "priority and burst need a rate"),
        ('rate = "2Gbit"', 'rate = "2Gbit", mtu = 9', "mtu 9"),
        ('rate = "2Gbit"', 'rate = "2Gbit", burst = "64M"', "not a size"),
        ('"10.99.0.2"', '"10.99.1.2"', "b.data0: 10.99.1.2 is no host address of 10.99.0.0/24"),
        ('"10.99.0.2"', '"10.99.0.255"', "is no host address"),
        ('"10.99.0.2"', '"10.99.0.2/24"', "does not appear to be an IPv4 or IPv6 address"),
        ('"10.99.0.2"', '"10.99.0.1"', "address 10.99.0.1 is there twice"),
        ('name = "b"', 'name = "a"', "host a is there twice"),
        ('name = "b"', 'name = "net"', "cannot be called net"),
        ('name = "b"', 'name = "b-1"', "not a name for a host: 'b-1'"),
        ('nics = [{ name = "data0"', 'nics = [{ name = "lo"', "a NIC cannot be called lo"),
        ('name = "data0"', 'name = "a_name_that_is_too_long"', "not a name for a NIC"),
        ('network = "data", address = "10.99.0.2"', 'network = "dat", address = "10.99.0.2"', "no network dat"),
        ('"10.99.0.0/24" }', '"10.99.0.0/24" }, { name = "more", subnet = "10.99.0.0/25" }', "overlap"),
        ('"10.99.0.0/24" }', '"10.99.0.0/24" }, { name = "data", subnet = "10.98.0.0/24" }', "data is there twice"),
        ('"10.99.0.0/24"', '"10.99.0.1/24"', "has host bits set"),
        ('name = "pair"', 'name = "Pair/.."', "not a name for a lab"),
        ('name = "pair"', "name = 3", "Expected `str`"),
        ('name = "pair"', "name =", "pair.toml"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_lab_is_refused_by_name_of_the_fault(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(UsageError) as caught:
        parse_lab(GOOD.replace(old, new), source="pair.toml")
    assert said in str(caught.value)
    assert str(caught.value).startswith("pair.toml: ")
    assert caught.value.hint


def test_two_nics_of_a_host_need_two_names() -> None:
    nic = '{ name = "data0", network = "data", address = "10.99.0.3" }'
    with pytest.raises(UsageError, match="host b: NIC data0 is there twice"):
        parse_lab(GOOD.replace('"10.99.0.2" }', f'"10.99.0.2" }}, {nic}'), source="pair.toml")


def test_the_steps_make_everything_before_it_is_used() -> None:
    plan = steps(parse_lab(GOOD, source="pair.toml"))
    assert plan[:4] == [
        CreateNamespace("dp-pair-net"),
        CreateNamespace("dp-pair-a"),
        CreateNamespace("dp-pair-b"),
        CreateBridge("dp-pair-net", "br-data"),
    ]
    assert plan[4] == CreateCable("dp-pair-net", "port0", "br-data", "dp-pair-a", "data0", 1500, "10.99.0.1", 24)
    shaped = [(step.namespace, step.interface) for step in plan if isinstance(step, ShapeInterface)]
    assert shaped == [("dp-pair-a", "data0"), ("dp-pair-net", "port0")]  # both directions; b has no rate


def test_the_ready_made_labs_are_what_they_are_called() -> None:
    labs = ready_made()
    assert sorted(labs) == [
        "storage-prefill-decode",
        "two-hosts-one-nic",
        "two-hosts-one-nic-10g",
        "two-hosts-two-nics",
    ]
    counts = [[len(host.nics) for host in lab.hosts] for _, lab in sorted(labs.items())]
    assert counts == [[2, 2, 2], [1, 1], [1, 1], [2, 2]]
    assert find_lab("two-hosts-one-nic").host("a").nic("data0").rate == "1Gbit"
    assert find_lab("two-hosts-one-nic-10g").host("b").nic("data0").rate == "10Gbit"
    for lab in labs.values():
        assert all(len(getattr(step, "port", "")) <= 15 for step in steps(lab))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot read"):
        find_lab(str(file))


def test_a_lab_that_is_neither_file_nor_name_is_refused_with_the_names() -> None:
    with pytest.raises(UsageError) as caught:
        find_lab("two-hosts")
    assert "two-hosts-one-nic" in caught.value.hint
    with pytest.raises(UsageError, match="no such file"):
        find_lab("missing.toml")


def test_each_lane_has_a_priority_of_its_own() -> None:
    assert {lane: (marks.tos, marks.priority, marks.so_priority) for lane, marks in LANES.items()} == {
        "realtime": (0xB8, 5, 6),
        "prefetch": (0x68, 3, 3),
        "bulk": (0x20, 1, 1),
    }
