"""`nvidia-smi topo -m` and `nvidia-smi --query-gpu` of several driver generations."""

from __future__ import annotations

from dualpath.doctor.parsers.nvidia import parse_gpu_query, parse_topology

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  PIX  = Connection traversing at most a single PCIe bridge
"""
NEW = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\tSYS\t0-51,104-155\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\tPXB\t52-103,156-207\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tPXB\tSYS\t X \t\t\t\t\n" + LEGEND + "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: rocep155s0\n\n"
)
OLD = (
    "\tGPU0\tGPU1\tmlx5_0\tmlx5_1\tCPU Affinity\n"
    "GPU0\t X \tNV2\tPHB\tSYS\t0-15\n"
    "GPU1\tNV2\t X \tSYS\tNODE\t16-31\n"
    "mlx5_0\tPHB\tSYS\t X \tSYS\t\n"
    "mlx5_1\tSYS\tNODE\tSYS\t X \t\n" + LEGEND
)
PASTED = """\
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      PHB     SYS     0-31    0               N/A
GPU1    PHB      X      SYS     0-31    0               N/A
NIC0    SYS     SYS      X

NIC Legend:

  NIC0: mlx5_bond_0
"""


def test_nics_carry_their_devices_names() -> None:
    topology = parse_topology(NEW)
    assert topology.gpus == ["GPU0", "GPU1"]
    assert topology.relations["GPU0"] == {"GPU0": "X", "GPU1": "NV18", "mlx5_0": "PIX", "rocep155s0": "SYS"}
    assert topology.relations["rocep155s0"]["GPU1"] == "PXB"
    assert topology.numa_nodes == {"GPU0": 0, "GPU1": 1}


def test_the_matrix_of_an_older_driver() -> None:
    topology = parse_topology(OLD)
    assert topology.relations["GPU1"] == {"GPU0": "NV2", "GPU1": "X", "mlx5_0": "SYS", "mlx5_1": "NODE"}
    assert topology.numa_nodes == {}


def test_a_matrix_that_was_pasted_with_blanks() -> None:
    topology = parse_topology(PASTED)
    assert topology.relations["GPU1"]["mlx5_bond_0"] == "SYS"
    assert topology.numa_nodes == {"GPU0": 0, "GPU1": 0}


def test_a_machine_without_nics_or_without_gpus() -> None:
    assert parse_topology(
        "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-7\tN/A\t\tN/A\n"
    ).relations == {"GPU0": {"GPU0": "X"}}
    assert parse_topology("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n").gpus == []


def test_a_query_with_a_heading_and_one_without() -> None:
    row = {"index": "1", "name": "NVIDIA H100 PCIe", "pci.bus_id": "0000:9a:00.0", "memory.total": "81559 MiB"}
    heading = "index, name, pci.bus_id, memory.total [MiB]\n"
    line = "1, NVIDIA H100 PCIe, 00000000:9A:00.0, 81559 MiB\n"
    assert parse_gpu_query(heading + line) == [row]
    assert parse_gpu_query(line, ("index", "name", "pci.bus_id", "memory.total")) == [row]
    assert parse_gpu_query("No devices were found\n") == []
