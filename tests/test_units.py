"""Byte counts and rates, read and written."""

from __future__ import annotations

import pytest

from dualpath.errors import UsageError
from dualpath.units import format_bits_per_s, format_bytes, format_bytes_per_s, parse_bits_per_s, parse_bytes


@pytest.mark.parametrize(
    ("text", "bits_per_s"), [("1Gbit", 10**9), ("200Mbit", 2 * 10**8), ("2.5 Gbit/s", 25 * 10**8), ("64kbit", 64_000)]
)
def test_rates_are_decimal(text: str, bits_per_s: int) -> None:
    assert parse_bits_per_s(text) == bits_per_s


@pytest.mark.parametrize("text", ["", "1", "1G", "1GB", "1gbps", "0Mbit", "-1Gbit", "1Gibit"])
def test_what_does_not_say_bits_is_no_rate(text: str) -> None:
    with pytest.raises(UsageError, match="not a rate"):
        parse_bits_per_s(text)


@pytest.mark.parametrize(
    ("bits_per_s", "text"),
    [(0, "0 bit/s"), (999, "999 bit/s"), (9.4e8, "940 Mbit/s"), (1e9, "1 Gbit/s"), (9.997e8, "1 Gbit/s"),
     (51.2e9, "51.2 Gbit/s"), (2.4e15, "2400 Tbit/s")],
)  # fmt: skip
def test_rates_of_links(bits_per_s: float, text: str) -> None:
    assert format_bits_per_s(bits_per_s) == text


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [(850e6, "850 MB/s"), (6.4e9, "6.4 GB/s"), (18e9, "18 GB/s"), (1.374e12, "1.37 TB/s"), (999.7e9, "1 TB/s")],
)
def test_rates_over_memory(bytes_per_s: float, text: str) -> None:
    assert format_bytes_per_s(bytes_per_s) == text


def test_sizes_are_binary_without_exponents() -> None:
    assert [format_bytes(float(size)) for size in (1020 << 10, 5000 << 40)] == ["1020 KiB", "4.88 PiB"]


@pytest.mark.parametrize("digits", [30, 400])
def test_a_size_beyond_every_machine_is_refused(digits: int) -> None:
    with pytest.raises(UsageError, match="more than any machine has"):
        parse_bytes("9" * digits + "GiB")
