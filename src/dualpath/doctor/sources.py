"""What is recorded of a host: paths and command lines, as data.

In a path, `*` is any name, `{a,b}` either, `**` any folders. Marked as by `ls -F`, a path that ends in `@` is a
symbolic link, whose target is recorded, and one that ends in `/` is recorded as there or not (an empty text). `NIC`,
`DEVICE`, `PORT` and `PCI` stand for each interface, RDMA device, port of it and PCI function. What is not there costs
nothing.
"""

from __future__ import annotations

HOST_FILES = (
    "/proc/{cmdline,modules,meminfo,cpuinfo,interrupts,version,mounts}",
    "/proc/self/{limits,status,environ,cgroup}",
    "/proc/1/cgroup",
    "/proc/irq/*/{smp_affinity_list,effective_affinity_list}",
    "/proc/net/bonding/*",
    "/proc/driver/nvidia/{version,params}",
    "/proc/sys/net/core/{busy_poll,busy_read,rmem_max,wmem_max,netdev_max_backlog,netdev_budget,default_qdisc}",
    "/proc/sys/net/ipv4/{tcp_rmem,tcp_wmem,tcp_ecn,tcp_mtu_probing,tcp_congestion_control,ip_forward}",
    "/proc/sys/vm/{nr_hugepages,zone_reclaim_mode}",
    "/proc/sys/kernel/{numa_balancing,hostname}",
    "/etc/os-release",
    "/etc/{nccl.conf,ucx/ucx.conf,modules}",
    "/proc/net/vlan/*",
    "/etc/modprobe.d/*.conf",
    "/etc/modules-load.d/*.conf",
    "/etc/security/limits.conf",
    "/etc/security/limits.d/*.conf",
    "/sys/kernel/config/rdma_cm/*/ports/*/default_roce_{mode,tos}",
    "/sys/devices/system/cpu/{online,smt/active,intel_pstate/no_turbo}",
    "/sys/devices/system/cpu/cpu*/cpufreq/{scaling_governor,scaling_driver}",
    "/sys/devices/system/node/*/{cpulist,distance}",
    "/sys/kernel/iommu_groups/*/type",
    "/sys/class/iommu/*/",
    "/sys/kernel/mm/transparent_hugepage/{enabled,defrag}",
    "/sys/kernel/mm/hugepages/*/{nr_hugepages,free_hugepages}",
    "/sys/devices/system/node/*/hugepages/*/nr_hugepages",
    "/sys/module/{nvidia_peermem,nv_peer_mem,nvidia,mlx5_core,mlx5_ib,mlx4_ib,irdma,ice,bnxt_en,bnxt_re,rdma_rxe,efa}/",
    "/sys/module/{ib_core,ib_uverbs,rdma_ucm,rdma_cm,qedr,iw_cxgb4,hns_roce_hw_v2,mana_ib,ionic_rdma,siw}/",
    "/sys/module/{nvidia_peermem,nv_peer_mem,nvidia,nvidia_drm,mlx5_core,mlx5_ib,irdma,bnxt_re,rdma_rxe,efa}"
    "/{version,refcnt,parameters/*}",
    "/sys/kernel/security/lockdown",
    "/dev/nvidia*/",
    "/.dockerenv/",
    "/run/.containerenv/",
)

DEVICE_NODES = "/dev/infiniband"
"""Its nodes are recorded with their mode and owner, as `ls -ln` begins: `crw-rw-rw- 0 0`."""

NIC_FILES = (
    "/sys/class/net/NIC@",
    "/sys/class/net/NIC/{mtu,operstate,speed,duplex,carrier,type,flags,address}",
    "/sys/class/net/NIC/{master,lower_*,device}@",
    "/sys/class/net/NIC/{bonding,bonding_slave}/*",
)
"""Of every interface: a host with containers has hundreds, so these are few."""

HARDWARE_FILES = (
    "/sys/class/net/NIC/{carrier_changes,carrier_up_count,carrier_down_count,dev_port,phys_port_name,tx_queue_len}",
    "/sys/class/net/NIC/{gro_flush_timeout,napi_defer_hard_irqs,threaded}",
    "/sys/class/net/NIC/device/{driver,subsystem,physfn}@",
    "/sys/class/net/NIC/device/infiniband/*/",
    "/sys/class/net/NIC/device/{numa_node,local_cpulist,vendor,device,subsystem_vendor,subsystem_device}",
    "/sys/class/net/NIC/device/{current,max}_link_{speed,width}",
    "/sys/class/net/NIC/device/{sriov_numvfs,sriov_totalvfs,power/control}",
    "/sys/class/net/NIC/device/msi_irqs/*/",
    "/sys/class/net/NIC/{ecn,qos}/**",
    "/sys/class/net/NIC/queues/*/",
)
"""Of interfaces on a bus, of bonds and of their members."""

RDMA_FILES = (
    "/sys/class/infiniband/DEVICE@",
    "/sys/class/infiniband/DEVICE/{fw_ver,hca_type,board_id,hw_rev,parent,node_type,node_guid,node_desc}",
    "/sys/class/infiniband/DEVICE/device@",
    "/sys/class/infiniband/DEVICE/device/{driver,subsystem}@",
    "/sys/class/infiniband/DEVICE/device/{numa_node,vendor,device}",
    "/sys/class/infiniband/DEVICE/device/net/*/",
    "/sys/class/infiniband/DEVICE/tc/*/traffic_class",
    "/sys/class/infiniband/DEVICE/ports/PORT/{state,phys_state,rate,link_layer,lid,sm_lid,cap_mask}",
)

GID_FILES = ("gids/INDEX", "gid_attrs/types/INDEX", "gid_attrs/ndevs/INDEX")
"""Of each port, for the first `GIDS` indices whose GID is not zero. Beyond those a table repeats itself."""
GIDS = 32

COUNTERS = (
    "/sys/class/net/NIC/{carrier_changes,statistics/*}",
    "/sys/class/infiniband/DEVICE/{hw_counters,ports/PORT/counters,ports/PORT/hw_counters}/*",
    "/proc/net/softnet_stat",
    "/proc/interrupts",
    "/proc/stat",
)
"""Read twice, some time apart. Of interfaces, as `HARDWARE_FILES`."""

PCI_CLASSES = ("0x02", "0x03", "0x12", "0x0108")
"""Network, display and 3D, accelerators, NVMe: these, and the bridges above them, are what data passes."""

PCI_FILES = (
    "/sys/bus/pci/devices/PCI@",
    "/sys/bus/pci/devices/PCI/{class,vendor,device,subsystem_vendor,subsystem_device,numa_node,local_cpulist}",
    "/sys/bus/pci/devices/PCI/{current,max}_link_{speed,width}",
    "/sys/bus/pci/devices/PCI/{aer_dev_correctable,aer_dev_nonfatal,aer_dev_fatal}",
    "/sys/bus/pci/devices/PCI/{driver,iommu_group,physfn}@",
    "/sys/bus/pci/devices/PCI/net/*/",
    "/sys/bus/pci/devices/PCI/infiniband/*/",
)

KEPT_LINES = {
    "/proc/cpuinfo": r"^(model name|vendor_id|flags|cpu MHz|CPU implementer|CPU part)\b",
    "/proc/mounts": r"\s(hugetlbfs|configfs|cgroup2?|debugfs)\s",
    "/proc/self/environ": r"^(NCCL|UCX|NIXL|RDMAV|MLX5|FI|GLOO)_\w+=",
    "/proc/stat": r"^(cpu|ctxt|softirq)",
}
"""Only the lines that match are recorded: the rest is long, or nobody's business."""

FIRST_ONLY = ("/proc/cpuinfo",)
"""One line of a kind is enough: every processor says the same."""

HOST_COMMANDS = (
    "lspci -Dvvv",
    "lspci -Dtv",
    "show_gids",
    "ibv_devinfo -v",
    "ibstat",
    "rdma -d link show",
    "rdma system show",
    "nvidia-smi topo -m",
    "nvidia-smi --query-gpu=index,name,pci.bus_id,driver_version --format=csv,noheader",
    "numactl --hardware",
    "nft list ruleset",
    "iptables-save",
    "ip -d -j link",
    "ip -j addr",
    "ip -s -j link",
    "systemctl is-active irqbalance",
    "systemctl is-active firewalld",
)

NIC_COMMANDS = (
    "ethtool NIC",
    "ethtool -i NIC",
    "ethtool -g NIC",
    "ethtool -a NIC",
    "ethtool -c NIC",
    "ethtool -l NIC",
    "ethtool -k NIC",
    "ethtool -m NIC",
    "ethtool --show-fec NIC",
    "ethtool -I --show-fec NIC",
    "mlnx_qos -i NIC",
    "dcb pfc show dev NIC",
    "dcb ets show dev NIC",
    "dcb app show dev NIC",
    "dcb apptrust show dev NIC",
    "dcb buffer show dev NIC",
)

COUNTER_COMMANDS = ("ethtool -S NIC", "rdma statistic show")
"""Run twice, some time apart."""

PROBE = "ping -M do -c 1 -W 1 -s SIZE PEER"
"""A packet that may not be cut up, as long as the MTU allows; and a short one, to tell a wrong MTU from a dead peer."""
PROBE_SMALL_BYTES = 56

PACKAGES = {
    "lspci": "pciutils",
    "ethtool": "ethtool",
    "mlnx_qos": "mlnx-tools",
    "show_gids": "mlnx-tools",
    "dcb": "iproute2",
    "ip": "iproute2",
    "rdma": "iproute2",
    "ibv_devinfo": "ibverbs-utils",
    "ibstat": "infiniband-diags",
    "numactl": "numactl",
    "nft": "nftables",
    "iptables-save": "iptables",
    "ping": "iputils-ping",
}
"""The Debian package that has a program."""
