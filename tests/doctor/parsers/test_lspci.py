"""`lspci` of several versions: devices with their links, and the drawn tree of bridges."""

from __future__ import annotations

from dualpath.doctor.parsers.lspci import parse_lspci, parse_lspci_tree
from dualpath.host.pci import PcieLink

NEW = """\
0000:40:03.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Turin PCIe GPP Bridge (prog-if 00 [Normal decode])
	NUMA node: 1
	IOMMU group: 14
	Capabilities: [58] Express (v2) Root Port (Slot+), IntMsgNum 0
		LnkCap:	Port #0, Speed 32GT/s, Width x4, ASPM L1, Exit Latency L1 <64us
		LnkSta:	Speed 16GT/s, Width x4
	Capabilities: [2a0 v1] Access Control Services
		ACSCap:	SrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+
		ACSCtl:	SrcValid+ TransBlk- ReqRedir+ CmpltRedir- UpstreamFwd+ EgressCtrl- DirectTrans-
	Kernel driver in use: pcieport

0000:41:00.0 Ethernet controller [0200]: Mellanox Technologies MT2894 Family [ConnectX-6 Lx] [15b3:101f]
	Capabilities: [60] Express (v2) Endpoint, IntMsgNum 0
		LnkCap:	Port #0, Speed 16GT/s, Width x8, ASPM not supported
		LnkSta:	Speed 16GT/s, Width x4 (downgraded)
	Capabilities: [48] Vital Product Data
		Product Name: ConnectX-6 Lx EN adapter card, 25GbE
		Read-only fields:
			[PN] Part number: MCX631102AN-ADAT
			[SN] Serial number: MT0000X00001
		End
	Kernel driver in use: mlx5_core
"""
OLD = """\
3b:00.0 Ethernet controller: Mellanox Technologies MT27800 Family [ConnectX-5]
	NUMA node: 0
	Capabilities: [60] Express (v2) Endpoint, MSI 00
		LnkCap:	Port #0, Speed 8GT/s, Width x16, ASPM not supported, Exit Latency L0s unlimited, L1 unlimited
		LnkSta:	Speed 2.5GT/s, Width x16, TrErr- Train- SlotClk+ DLActive- BWMgmt- ABWMgmt-
"""
DENIED = """\
0000:17:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
	IOMMU group: 32
	Capabilities: <access denied>
	Kernel driver in use: pcieport
"""
UNKNOWN = """\
0000:00:05.0 Ethernet controller: Amazon.com, Inc. Elastic Network Adapter (ENA)
	Capabilities: [70] Express (v2) Endpoint, MSI 00
		LnkCap:	Port #0, Speed unknown, Width x0, ASPM not supported
		LnkSta:	Speed unknown (ok), Width x0 (ok)
"""


def test_a_link_is_read_with_its_capability() -> None:
    nic = parse_lspci(NEW)["0000:41:00.0"]
    assert (nic.capable, nic.trained, nic.downgraded) == (PcieLink(16.0, 8), PcieLink(16.0, 4), True)
    assert (nic.class_name, nic.driver, nic.part_number) == ("Ethernet controller", "mlx5_core", "MCX631102AN-ADAT")


def test_a_bridge_has_its_access_control_and_place() -> None:
    bridge = parse_lspci(NEW)["0000:40:03.1"]
    assert bridge.acs is not None
    assert (bridge.acs["ReqRedir"], bridge.acs["CmpltRedir"], bridge.acs["DirectTrans"]) == (True, False, False)
    assert (bridge.numa_node, bridge.iommu_group, bridge.port_type) == (1, 14, "Root Port")


def test_an_address_without_domain_gets_one_and_old_wording_is_understood() -> None:
    nic = parse_lspci(OLD)["0000:3b:00.0"]
    assert (nic.capable, nic.trained, nic.downgraded) == (PcieLink(8.0, 16), PcieLink(2.5, 16), False)


def test_hidden_capabilities_are_told_from_absent_ones() -> None:
    bridge = parse_lspci(DENIED)["0000:17:00.0"]
    assert bridge.denied
    assert bridge.acs is None
    assert bridge.capable is None


def test_a_link_of_no_width_is_none() -> None:
    nic = parse_lspci(UNKNOWN)["0000:00:05.0"]
    assert nic.trained is None
    assert nic.capable is None


def test_the_tree_gives_each_function_the_bridges_above_it() -> None:
    paths = parse_lspci_tree("""\
-+-[0000:97]-+-00.0  Intel Corporation Device 09a2
 |           +-01.0-[98-9b]----00.0-[99-9b]--+-00.0-[9a]----00.0  NVIDIA Corporation GH100 [H100 PCIe]
 |           |                               \\-01.0-[9b]--+-00.0  Mellanox Technologies [ConnectX-7]
 |           |                                            \\-00.1  Mellanox Technologies [ConnectX-7]
 |           \\-02.0-[9c]--
 \\-[0000:00]-+-00.0  Intel Corporation Device 09a2
             \\-1c.0-[0000:02]----00.0  Intel Corporation I350 [01]----00.0
""")
    switch = ("0000:97:01.0", "0000:98:00.0")
    assert paths["0000:9a:00.0"] == (*switch, "0000:99:00.0")
    assert paths["0000:9b:00.1"] == (*switch, "0000:99:01.0")
    assert paths["0000:97:02.0"] == ()
    assert paths["0000:02:00.0"] == ("0000:00:1c.0",)
    assert "0000:01:00.0" not in paths, "what looks like a bus in a name is none"


def test_a_tree_of_one_root_and_of_other_domains() -> None:
    assert parse_lspci_tree("-[0000:40]---03.1-[41]--+-00.0\n                        \\-00.1\n") == {
        "0000:40:03.1": (),
        "0000:41:00.0": ("0000:40:03.1",),
        "0000:41:00.1": ("0000:40:03.1",),
    }
    assert parse_lspci_tree("-[0009:00]---00.0-[0009:01]----00.0\n")["0009:01:00.0"] == ("0009:00:00.0",)
