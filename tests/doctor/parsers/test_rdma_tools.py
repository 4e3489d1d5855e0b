"""`ibv_devinfo -v`, `show_gids`, `ibstat` and `rdma`."""

from __future__ import annotations

from dualpath.doctor.parsers.ibstat import parse_ibstat
from dualpath.doctor.parsers.ibv_devinfo import parse_ibv_devinfo
from dualpath.doctor.parsers.rdma import RdmaLink, parse_rdma_link, parse_rdma_system
from dualpath.doctor.parsers.show_gids import parse_show_gids

DEVINFO = """\
hca_id:	mlx5_0
	transport:			InfiniBand (0)
	fw_ver:				28.39.1002
	board_id:			MT_0000000838
	phys_port_cnt:			1
	device_cap_flags:		0x21361c36
					BAD_PKEY_CNTR
		port:	1
			state:			PORT_ACTIVE (4)
			max_mtu:		4096 (5)
			active_mtu:		1024 (3)
			link_layer:		Ethernet
			active_width:		4X (2)
			active_speed:		100.0 Gbps (128)
			phys_state:		LINK_UP (5)
			GID[  0]:		fe80:0000:0000:0000:bace:f6ff:fe01:00a0, RoCE v1
			GID[  1]:		fe80::bace:f6ff:fe01:a0, RoCE v2
			GID[  3]:		::ffff:10.10.1.11, RoCE v2

hca_id:	rdmap79s0
	transport:			unspecified (4)
	fw_ver:				0.0.0.0
		port:	1
			state:			PORT_DOWN (1)
			active_mtu:		4096 (5)
			link_layer:		Unspecified
			active_width:		invalid width (0)
			GID[  0]:		fe80:0000:0000:0000:04c5:07ff:fe00:0011
"""


def test_ibv_devinfo_gives_ports_with_their_path_mtu() -> None:
    devices = parse_ibv_devinfo(DEVINFO)
    port = devices["mlx5_0"].ports[1]
    assert (devices["mlx5_0"].firmware, devices["mlx5_0"].board_id) == ("28.39.1002", "MT_0000000838")
    assert (port.state, port.active_mtu, port.max_mtu, port.active_width) == ("PORT_ACTIVE", 1024, 4096, "4X")
    assert port.gids[3] == ("::ffff:10.10.1.11", "RoCE v2")
    assert (devices["rdmap79s0"].transport, devices["rdmap79s0"].ports[1].state) == ("unspecified", "PORT_DOWN")


def test_ibv_devinfo_of_an_older_version_has_no_types() -> None:
    port = parse_ibv_devinfo("hca_id:\tmlx4_0\n\t\tport:\t2\n\t\t\tGID[  0]:\t\tfe80::1\n")["mlx4_0"].ports[2]
    assert port.gids == {0: ("fe80::1", "")}


def test_show_gids_with_and_without_an_ipv4_column() -> None:
    tables = parse_show_gids(
        "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n"
        "---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n"
        "mlx5_0\t1\t0\tfe80:0000:0000:0000:a4ed:ccff:fe8b:1994\t\t\tv1\tnet1\n"
        "mlx5_0\t1\t7\t0000:0000:0000:0000:0000:ffff:0a98:000c\t10.152.0.12  \tv2\tnet1\n"
        "mlx5_0\t1\t8\t0000:0000:0000:0000:0000:0000:0000:0000\t\t\tv2\tnet1\n"
        "n_gids_found=2\n"
    )
    first, second = tables["mlx5_0", 1]
    assert (first.index, first.version, first.link_local, first.netdev) == (0, 1, True, "net1")
    assert (second.index, second.version, str(second.ipv4)) == (7, 2, "10.152.0.12")


def test_ibstat() -> None:
    first, second = parse_ibstat(
        "CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 2\n\tFirmware version: 28.39.1002\n"
        "\tPort 1:\n\t\tState: Initializing\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n\t\tLink layer: InfiniBand\n"
        "\tPort 2:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tRate: 10\n\t\tLink layer: InfiniBand\n"
    )
    assert (first.device, first.port, first.state, first.rate_bits_per_s) == ("mlx5_0", 1, "Initializing", 400e9)
    assert (second.port, second.physical_state, second.model) == (2, "Polling", "MT4129")


def test_rdma_link_of_several_versions() -> None:
    assert parse_rdma_link(
        "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth2 \n    caps: <CM, IP_BASED_GIDS>\n"
        "link ibp1/1 subnet_prefix fe80:0000:0000:0000 lid 27 sm_lid 1 lmc 0 state INIT physical_state LINK_UP \n"
        "0/1: mlx4_0/1: state DOWN physical_state DISABLED netdev eth3\n"
    ) == [
        RdmaLink("mlx5_0", 1, "ACTIVE", "LINK_UP", "eth2"),
        RdmaLink("ibp1", 1, "INIT", "LINK_UP"),
        RdmaLink("mlx4_0", 1, "DOWN", "DISABLED", "eth3"),
    ]


def test_rdma_system() -> None:
    assert parse_rdma_system("netns exclusive copy-on-fork on\n") == {"netns": "exclusive", "copy-on-fork": "on"}
