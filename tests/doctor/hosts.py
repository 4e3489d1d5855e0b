"""Recorded RoCE hosts, made of a few words."""

from __future__ import annotations

import ipaddress

from dualpath.doctor.recording import Output, Recording

GID = tuple[int, str, str, str]
"""Index, address, `v1` or `v2`, interface."""

V2 = ((0, "fe80::0e42:a1ff:fe65:bb2a", "v1", "eth2"), (3, "::ffff:10.0.0.1", "v2", "eth2"))


def roce_host(
    name: str,
    *,
    gids: tuple[GID, ...] = V2,
    mtu: int = 9000,
    rate: str = "100 Gb/sec (4X EDR)",
    firmware: str = "28.39.1002",
    devices: tuple[str, ...] = ("mlx5_0",),
    nic: str = "eth2",
    files: dict[str, str] | None = None,
    commands: dict[str, str] | None = None,
) -> Recording:
    """Return a host with a ConnectX for each of `devices`, all alike, on `nic`, and a VLAN if a GID is on one."""
    found: dict[str, str] = {}
    links: dict[str, str] = {}
    for number, device in enumerate(devices):
        own = nic if number == 0 else f"{nic}{number}"
        address = f"0000:{0x3B + number:02x}:00.0"
        base = f"/sys/class/infiniband/{device}"
        port = f"{base}/ports/1"
        found |= {
            f"{base}/fw_ver": firmware,
            f"{base}/hca_type": "MT4129",
            f"{base}/board_id": "MT_0000000838",
            f"{base}/device/net/{own}": "",
            f"{port}/state": "4: ACTIVE",
            f"{port}/phys_state": "5: LinkUp",
            f"{port}/link_layer": "Ethernet",
            f"{port}/rate": rate,
        }
        links[f"{base}/device"] = f"../../../{address}"
        for index, gid, version, netdev in gids:
            netdev = netdev.replace(nic, own)
            found[f"{port}/gids/{index}"] = ipaddress.IPv6Address(gid).exploded
            found[f"{port}/gid_attrs/types/{index}"] = "RoCE v2" if version == "v2" else "IB/RoCE v1"
            found[f"{port}/gid_attrs/ndevs/{index}"] = netdev
            found |= {f"/sys/class/net/{netdev}/mtu": str(mtu), f"/sys/class/net/{netdev}/operstate": "up"}
        found |= {f"/sys/class/net/{own}/mtu": str(mtu), f"/sys/class/net/{own}/operstate": "up"}
        found[f"/sys/class/net/{own}/device/infiniband/{device}"] = ""
        links |= {
            f"/sys/class/net/{own}/device": f"../../../{address}",
            f"/sys/class/net/{own}/device/driver": "../../../../bus/pci/drivers/mlx5_core",
            f"/sys/class/net/{own}/device/subsystem": "../../../../bus/pci",
        }
    return Recording(
        name,
        files={**found, **(files or {})},
        links=links,
        commands={line: Output(text) for line, text in (commands or {}).items()},
    )
