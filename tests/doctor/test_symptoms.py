"""The troubles that the doctor is for, each with recorded hosts that have it, and their healthy twins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from dualpath.doctor.base import Level
from dualpath.doctor.recording import Recording
from dualpath.doctor.run import BAD, examine
from dualpath.testing.recordings import load_fixture

from .hosts import roce_host

FOLDER = Path(__file__).parent / "fixtures"

SYMPTOMS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "1 a NIC at a quarter of its rate: few lanes, or trained down": (
        ("cx6dx-x4-slot", "pcie-link", "cx6dx-healthy"),
        ("cx6dx-x4-slot-lspci", "pcie-link", "cx6dx-healthy"),
        ("mlx5-trained-down", "pcie-link", "mlx5-gen4-enough"),
        ("mlx5-gpu-x4", "pcie-link", "mlx5-healthy"),
    ),
    "2 RDMA connects, then transfers break off: MTU along the path, PFC on another priority": (
        ("mlx5-mtu-1500", "mtu", "mlx5-healthy"),
        ("mlx5-mtu-router", "mtu", "mlx5-healthy"),
        ("mlx5-mtu-silent", "mtu", "mlx5-healthy"),
        ("ib-path-mtu", "mtu", "ib-healthy"),
        ("mlx5-pfc-off", "pfc-priority", "mlx5-tcp-only"),
        ("e810-pfc-off", "pfc-priority", "e810-tcp-only"),
        ("mlx5-pfc-other-priority", "pfc-priority", "connectx6-healthy"),
        ("e810-dscp-unmapped", "pfc-priority", "e810-healthy"),
        ("mlx5-lossless-without-buffer", "pfc-priority", "connectx6-healthy"),
    ),
    "3 GPU-to-GPU far below CPU-to-CPU: staged through host memory": (
        ("mlx5-no-peermem", "peer-memory", "mlx5-dmabuf"),
        ("mlx5-legacy-peermem", "peer-memory", "mlx5-healthy"),
        ("efa-proprietary", "peer-memory", "efa-healthy"),
        ("mlx5-iommu", "iommu-acs", "mlx5-healthy"),
        ("mlx5-acs", "iommu-acs", "mlx5-healthy"),
        ("raw-gpu-staged", "gpu-bandwidth", "raw-healthy"),
    ),
    "4 CPU load rises with RDMA on: interrupts on one CPU, busy polling": (
        ("mlx5-irqs-on-one-cpu", "irq-affinity", "connectx6-healthy"),
        ("mlx5-irqs-on-other-node", "irq-affinity", "connectx6-healthy"),
        ("e810-busy-poll", "busy-poll", "e810-healthy"),
    ),
    "5 out of memory as soon as contexts grow: the prefetch window": (
        ("run-window-over-memory", "window-memory", "run-healthy"),
        ("run-over-budget", "window-memory", "run-healthy"),
    ),
    "6 very low across switches: shallow buffers, PFC deadlock": (
        ("mlx5-pfc-deadlock", "pause-counters", "connectx6-healthy"),
        ("mlx5-pause-storm", "pause-counters", "connectx6-healthy"),
        ("mlx5-paused-by-switch", "pause-counters", "connectx6-healthy"),
        ("bnxt-pauses-moving", "pause-counters", "bnxt-healthy"),
        ("e810-many-pauses", "pause-counters", "e810-healthy"),
        ("mlx5-ecn-off", "ecn", "connectx6-healthy"),
    ),
    "7 slow though the link is right: NIC and GPU on different sockets": (
        ("mlx5-other-socket", "gpu-nic-distance", "mlx5-healthy"),
        ("mlx5-other-socket-sysfs", "gpu-nic-distance", "mlx5-healthy"),
        ("mlx5-memoryless-node", "nic-numa", "mlx5-healthy"),
    ),
    "8 many drops, wrong power of light: module, cable, rate of the peer's port": (
        ("bnxt-dark-lane", "optics", "bnxt-healthy"),
        ("mlx5-weak-light", "optics", "connectx6-healthy"),
        ("mlx5-hot-module", "optics", "connectx6-healthy"),
        ("e810-long-copper", "optics", "e810-healthy"),
        ("mlx5-discards", "discards", "mlx5-old-discards"),
        ("mlx5-symbol-errors", "link-errors", "connectx6-healthy"),
        ("mlx5-fec-mismatch", "link-errors", "connectx6-healthy"),
        ("bnxt-link-flaps", "link-errors", "bnxt-healthy"),
        ("mlx5-rate-reduced", "rdma-link", "mlx5-healthy"),
        ("ib-lanes-lost", "rdma-link", "ib-healthy"),
    ),
    "9 handshake fine, large packets terrible: RoCE version, VLAN or address family of the GID": (
        ("mlx5-roce-v1-only", "roce-gid", "mlx5-index-differs"),
        ("mlx5-pinned-gid", "roce-gid", "mlx5-index-differs"),
        ("mlx5-link-local", "roce-gid", "mlx5-index-differs"),
        ("mlx5-cm-roce-v1", "roce-gid", "mlx5-healthy"),
    ),
    "10 connects, then handshakes vanish: a firewall drops UDP port 4791": (
        ("soft-roce-iptables-drop", "firewall", "bnxt-nft-opens-roce"),
        ("bnxt-nft-drops-roce", "firewall", "bnxt-nft-opens-roce"),
    ),
    "11 the second NIC is useless: idle at a low speed, RDMA not enabled, module not loaded": (
        ("mlx5-idle-nic", "nic-idle", "mlx5-unused-port"),
        ("e810-no-irdma", "rdma-capable", "e810-healthy"),
        ("cx6dx-blacklisted", "rdma-capable", "cx6dx-healthy"),
        ("mlx5-port-down", "rdma-link", "mlx5-unused-port"),
    ),
    "12 peak bandwidth under half of nominal": (("raw-under-half", "peak-bandwidth", "raw-healthy"),),
    "13 decode P99 over budget: window too small, QoS off": (
        ("run-window-too-small", "decode-p99", "run-healthy"),
        ("run-qos-off", "decode-p99", "run-healthy"),
        ("e810-dscp-unmapped", "pfc-priority", "e810-healthy"),
        ("mlx5-trust-pcp", "pfc-priority", "connectx6-healthy"),
        ("mlx5-lanes-share-priority", "pfc-priority", "connectx6-healthy"),
        ("mlx5-global-traffic-class", "pfc-priority", "mlx5-healthy"),
        ("mlx5-ets-starved", "ets", "connectx6-healthy"),
        ("e810-one-traffic-class", "ets", "e810-healthy"),
    ),
}
"""By trouble: a recorded host, the check that finds it, and a host like it on which all is well."""

CASES = [pytest.param(*case, id=f"{row.split()[0]}-{case[0]}") for row, cases in SYMPTOMS.items() for case in cases]


@cache
def bad(name: str) -> frozenset[tuple[str, Level]]:
    """Return what is a warning or worse on a recorded host."""
    recording = load_fixture(FOLDER / f"{name}.toml").recording
    return frozenset((found.check, found.level) for found in examine([recording]).findings if found.level in BAD)


@pytest.mark.parametrize(("sick", "check", "healthy"), CASES)
def test_a_trouble_is_found_and_its_healthy_twin_is_silent(sick: str, check: str, healthy: str) -> None:
    assert check in {name for name, _ in bad(sick)}
    assert bad(healthy) == frozenset()


V2 = (3, "::ffff:10.0.0.2", "v2", "eth2")
PAIRS = [
    pytest.param(roce_host("b", mtu=1500, gids=(V2,)), ["pair-mtu"], id="2-mtu"),
    pytest.param(roce_host("b", gids=((3, "::ffff:10.0.0.2", "v1", "eth2"),)), ["pair-roce-version"], id="9-version"),
    pytest.param(roce_host("b", gids=((3, "fd00::2", "v2", "eth2"),)), ["pair-gid"], id="9-family"),
    pytest.param(roce_host("b", gids=((3, "::ffff:10.0.0.2", "v2", "eth2.7"),)), ["pair-gid"], id="9-vlan"),
    pytest.param(roce_host("b", gids=((1, "::ffff:10.0.0.2", "v2", "eth2"),)), [], id="9-index-alone"),
    pytest.param(roce_host("b", gids=(V2,), rate="25 Gb/sec (1X EDR)"), ["pair-rates"], id="8-rate"),
    pytest.param(roce_host("b", gids=(V2,)), [], id="healthy"),
]


@pytest.mark.parametrize(("other", "checks"), PAIRS)
def test_two_ends_that_differ_are_found(other: Recording, checks: Sequence[str]) -> None:
    findings = examine([roce_host("a"), other], checks=()).findings
    assert sorted({found.check for found in findings if found.level in BAD}) == checks
