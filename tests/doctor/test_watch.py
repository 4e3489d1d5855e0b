"""Rates of two samples, and what a sample reads."""

from __future__ import annotations

from dualpath.doctor.recording import Output
from dualpath.doctor.watch import Sample, rates, sample
from dualpath.host.tree import RecordedTree

from .hosts import roce_host

GIGABIT = 1_000_000_000


def two(before: dict[str, int], after: dict[str, int], nominal: int | None = 100 * GIGABIT) -> tuple[Sample, Sample]:
    return Sample(10.0, {"eth2": before}), Sample(12.0, {"eth2": after}, {"eth2": nominal})


def test_rates_are_per_second() -> None:
    (found,) = rates(
        *two(
            {"statistics/rx_bytes": 0, "statistics/tx_bytes": 0, "rx_prio3_pause": 5, "rx_discards_phy": 1},
            {
                "statistics/rx_bytes": GIGABIT,
                "statistics/tx_bytes": 0,
                "rx_prio3_pause": 25,
                "rx_discards_phy": 3,
            },
        )
    )
    assert found.rx_bits_per_s == 4 * GIGABIT
    assert (found.used, found.idle) == (0.04, True)
    assert (found.rx_pauses_per_s, found.tx_pauses_per_s, found.discards_per_s) == (10, 0, 1)


def test_rdma_counts_though_the_network_stack_does_not_see_it() -> None:
    (found,) = rates(*two({"ib/port_rcv_data": 0}, {"ib/port_rcv_data": GIGABIT}))
    assert found.rx_bits_per_s == 16 * GIGABIT  # words of four bytes, over two seconds
    assert found.idle is False


def test_a_nic_that_does_not_say_its_speed_is_neither_idle_nor_busy() -> None:
    (found,) = rates(*two({"statistics/rx_bytes": 0}, {"statistics/rx_bytes": 8}, None))
    assert (found.used, found.idle) == (None, None)


def test_a_nic_that_has_come_or_gone_is_left_out() -> None:
    assert rates(Sample(0, {"eth2": {}}), Sample(1, {"eth3": {}})) == []


def test_a_sample_reads_files_and_the_drivers_counters() -> None:
    host = roce_host(
        "a",
        files={
            "/sys/class/net/eth2/statistics/rx_bytes": "12",
            "/sys/class/net/eth2/speed": "100000",
            "/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "3",
        },
    )

    def run(line: str, _until_s: float) -> Output | None:
        return Output("NIC statistics:\n     rx_discards_phy: 7\n") if line == "ethtool -S eth2" else None

    found = sample(RecordedTree(host.files, host.links), run, clock=lambda: 5.0)
    assert found.at_s == 5.0
    assert found.nominal_bits_per_s == {"eth2": 100 * GIGABIT}
    assert found.counters["eth2"] == {"statistics/rx_bytes": 12, "ib/port_rcv_data": 3, "rx_discards_phy": 7}
