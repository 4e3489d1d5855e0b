"""What the kernel says in ethtool's place reads like ethtool's own."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from dualpath.doctor import netlink
from dualpath.doctor.collect import collect
from dualpath.doctor.netlink import answer, printed
from dualpath.doctor.parsers.ethtool_coalesce import Coalesce, parse_coalesce
from dualpath.doctor.parsers.ethtool_rings import Rings, parse_rings


class FakeKernel:
    def get_rings(self, ifname: str) -> SimpleNamespace:
        assert ifname == "eth2"
        return SimpleNamespace(rx=1024, tx=512, rx_max=8192, tx_max=None)

    def get_channels(self, ifname: str) -> SimpleNamespace:
        return SimpleNamespace(
            max_rx=0,
            max_tx=0,
            max_other=None,
            max_combined=63,
            rx_count=0,
            tx_count=0,
            other_count=None,
            combined_count=16,
        )

    def get_coalesce(self, ifname: str) -> dict[str, int]:
        return {
            "use_adaptive_rx_coalesce": 1,
            "use_adaptive_tx_coalesce": 0,
            "rx_coalesce_usecs": 8,
            "rx_max_coalesced_frames": 128,
            "tx_coalesce_usecs": 16,
            "tx_max_coalesced_frames": 32,
        }


def text(line: str) -> str:
    output = printed(FakeKernel(), line)
    assert output is not None
    return output.stdout


def test_rings() -> None:
    assert parse_rings(text("ethtool -g eth2")) == Rings(rx=1024, tx=512, rx_max=8192, tx_max=None)


def test_coalescing() -> None:
    assert parse_coalesce(text("ethtool -c eth2")) == Coalesce(True, False, 8, 128, 16, 32)


def test_channels() -> None:
    assert "Combined:\t\t63" in text("ethtool -l eth2").partition("Current")[0]
    assert "Combined:\t\t16" in text("ethtool -l eth2").partition("Current")[2]
    assert "Other:\t\tn/a" in text("ethtool -l eth2")


@pytest.mark.parametrize("line", ["ethtool eth2", "ethtool -m eth2", "ethtool --show-fec eth2"])
def test_what_the_library_does_not_know_stays_missing(line: str) -> None:
    assert answer(line) is None


def test_a_nic_that_is_not_there_stays_missing() -> None:
    assert answer("ethtool -g no-such-nic0") is None


def test_it_is_asked_only_where_ethtool_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(netlink, "answer", lambda line: asked.append(line))
    recording = collect(seconds=0)
    assert ("ethtool" in recording.missing) == (shutil.which("ethtool") is None)
    if shutil.which("ethtool"):
        assert asked == []
