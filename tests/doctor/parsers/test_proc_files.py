"""`/proc/net/bonding`, `/proc/interrupts`, `/proc/PID/limits` and `/proc/PID/status`."""

from __future__ import annotations

from dualpath.doctor.parsers.bonding import parse_bond
from dualpath.doctor.parsers.interrupts import parse_cpus, parse_interrupts
from dualpath.doctor.parsers.limits import parse_capabilities, parse_limits

BOND = """Ethernet Channel Bonding Driver: v6.8.0-45-generic

Bonding Mode: IEEE 802.3ad Dynamic link aggregation
Transmit Hash Policy: layer3+4 (1)
MII Status: up
MII Polling Interval (ms): 100

802.3ad info
LACP active: on
Active Aggregator Info:
	Aggregator ID: 1
	Number of ports: 1

Slave Interface: eth2
MII Status: up
Speed: 100000 Mbps
Link Failure Count: 0
Aggregator ID: 1
details actor lacp pdu:
    port state: 61

Slave Interface: eth3
MII Status: down
Speed: Unknown
Link Failure Count: 12
Aggregator ID: 2
"""


def test_a_bond() -> None:
    bond = parse_bond(BOND)
    assert bond.mode == "IEEE 802.3ad Dynamic link aggregation"
    assert bond.hash_policy == "layer3+4"
    assert bond.up is True
    assert [(member.name, member.up, member.speed_mbit_per_s) for member in bond.members] == [
        ("eth2", True, 100_000),
        ("eth3", False, None),
    ]
    assert [(member.failures, member.aggregator) for member in bond.members] == [(0, 1), (12, 2)]


def test_an_active_backup_bond() -> None:
    text = (
        "Bonding Mode: fault-tolerance (active-backup)\nPrimary Slave: None\nCurrently Active Slave: eth2\n"
        "MII Status: up\n\nSlave Interface: eth2\nMII Status: up\n"
    )
    assert parse_bond(text).active_member == "eth2"
    assert parse_bond(text).hash_policy == ""


INTERRUPTS = """           CPU0       CPU1
   8:          0          1  IO-APIC   8-edge      rtc0
 121:    4210337          0  IR-PCI-MSIX-0000:3b:00.0   1-edge      mlx5_comp0@pci:0000:3b:00.0
 122:          0        812  PCI-MSI 524289-edge      ens1f0-TxRx-0
 NMI:         11         12   Non-maskable interrupts
 ERR:          0
"""


def test_interrupts() -> None:
    found = parse_interrupts(INTERRUPTS)
    assert [interrupt.number for interrupt in found] == [8, 121, 122]
    assert found[1].counts == (4_210_337, 0)
    assert found[1].name.endswith("mlx5_comp0@pci:0000:3b:00.0")
    assert found[2].name == "PCI-MSI 524289-edge      ens1f0-TxRx-0"


def test_lists_of_cpus() -> None:
    assert parse_cpus("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_cpus("") == parse_cpus("x,-1,3-") == frozenset()
    assert len(parse_cpus("0-999999")) < 1 << 15, "a list that makes no sense costs little"


def test_limits_and_capabilities() -> None:
    text = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max cpu time              unlimited            unlimited            seconds   \n"
        "Max locked memory         65536                unlimited            bytes     \n"
        "Max nice priority         0                    0                    \n"
    )
    limits = parse_limits(text)
    assert limits["Max cpu time"] == (None, None)
    assert limits["Max locked memory"] == (65536, None)
    assert limits["Max nice priority"] == (0, 0)
    assert parse_capabilities("CapEff:\t00000000a80425fb\n") == {"NET_RAW"}
    assert parse_capabilities("CapEff:\t0000000000004000\n") == {"IPC_LOCK"}
    assert parse_capabilities("Name:\tx\n") is None
