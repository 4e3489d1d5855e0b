"""Rates as people write them, PCIe, and what is questioned."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.errors import UsageError
from dualpath.plan.hardware import load_gpu, load_nic, parse_bytes_per_s, parse_nic_bits_per_s, pcie_bytes_per_s


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("400G", 50e9),
        ("400g", 50e9),
        ("400Gbit/s", 50e9),
        ("400 Gb/s", 50e9),
        ("400Gbps", 50e9),
        ("50GB/s", 50e9),
        ("50 GBps", 50e9),
        ("50GiB/s", 50 * 2**30),
        ("1.6T", 200e9),
        ("100M", 12.5e6),
        ("8bit/s", 1),
    ],
)
def test_rates(text: str, bytes_per_s: float) -> None:
    assert parse_bytes_per_s(text) == pytest.approx(bytes_per_s)


@pytest.mark.parametrize("text", ["", "400", "fast", "-1G", "0G", "400G/h", "4e5", "400GB/s/s", "G"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bytes_per_s(text)


@given(st.text(max_size=12))
def test_any_text_is_a_rate_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert parse_bytes_per_s(text) > 0


def test_a_nic_of_400_gigabytes_is_questioned() -> None:
    with pytest.raises(UsageError, match="400GB/s") as caught:
        load_nic("400GB/s")
    assert "did you mean 400 Gbit/s = 50 GB/s?" in caught.value.hint
    with pytest.raises(UsageError, match="40T"):
        parse_nic_bits_per_s("40T")
    assert parse_nic_bits_per_s("100GB/s") == parse_nic_bits_per_s("800G") == 800e9


def test_a_nic_by_its_rate() -> None:
    nic = load_nic("2x100G")
    assert (nic.ports, nic.bits_per_s, nic.bytes_per_s, nic.source) == (2, 100e9, 25e9, "given")
    with pytest.raises(UsageError, match="0 ports"):
        load_nic("0x100G")


def test_pcie() -> None:
    assert pcie_bytes_per_s(3, 4) == pytest.approx(3.94e9, rel=0.001)
    assert pcie_bytes_per_s(1, 1) == 250e6
    assert pcie_bytes_per_s(4, 16) == pytest.approx(31.5e9, rel=0.001)
    for generation, lanes in ((0, 16), (7, 16), (4, 3), (4, 0)):
        with pytest.raises(UsageError):
            pcie_bytes_per_s(generation, lanes)


def test_a_nic_moves_what_its_adapter_and_its_slot_allow() -> None:
    assert load_nic("connectx-7").bytes_per_s == 50e9
    assert load_nic("connectx-5").bytes_per_s == pytest.approx(15.75e9, rel=0.001)  # 2 x 100G behind generation 3 x16
    assert load_nic("e810-cqda2").bytes_per_s == 12.5e9  # 2 x 100G behind one 100G controller


def test_unknown_names_get_close_matches() -> None:
    with pytest.raises(UsageError) as caught:
        load_nic("connectx7")
    assert "connectx-7" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        load_gpu("H100")
    assert "h100-sxm" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        load_gpu("?")
    assert "rtx-4090" in caught.value.hint
