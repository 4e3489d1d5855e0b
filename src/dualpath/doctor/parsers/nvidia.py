"""`nvidia-smi topo -m` (how GPUs and NICs lie to each other) and `nvidia-smi --query-gpu=… --format=csv`.

The matrix of drivers 418 to 580: NICs stand under their own names (`mlx5_0`) up to about 510, later as `NIC0` with a
legend below; affinity columns came one by one. Columns are parted by tabs, by blanks where somebody pasted them.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field

_LABEL = re.compile(r"[A-Za-z][A-Za-z_-]{0,30}\d[\w-]{0,30}", re.ASCII)
_RELATION = re.compile(r"X|NV\d{1,2}|PIX|PXB|PXN|PHB|NODE|SYS|SOC|N/A", re.ASCII)
_CONTROL = re.compile(r"\x1b\[[0-9;]{0,16}m")
_LEGEND = re.compile(r"\s*(NIC\d{1,3}):\s*([\w.@:-]{1,64})", re.ASCII)


@dataclass(slots=True)
class Topology:
    """The matrix. `relations[a][b]` is `PIX`, `PXB`, `PHB`, `NODE`, `SYS`, `NV18`, …, NICs by their device's name."""

    relations: dict[str, dict[str, str]] = field(default_factory=dict)
    numa_nodes: dict[str, int] = field(default_factory=dict)
    """NUMA affinity of GPUs, where it is one node."""

    @property
    def gpus(self) -> list[str]:
        """Return `GPU0`, `GPU1`, …"""
        return [name for name in self.relations if name.startswith("GPU")]


def parse_topology(text: str) -> Topology:
    """Return the matrix; rows and cells that cannot be read are left out."""
    lines = _CONTROL.sub("", text).splitlines()
    names = {match[1]: match[2] for line in lines if (match := _LEGEND.fullmatch(line.rstrip()))}
    topology = Topology()
    columns: list[str] = []
    headings: list[str] = []
    for line in lines:
        words = line.split()
        if not words:
            continue
        if not columns:
            columns = _columns(words)
            headings = re.split(r"\t+| {2,}", line.strip())
        elif words[0] in columns:
            cells = words[1 : 1 + len(columns)]
            if cells and all(_RELATION.fullmatch(cell) for cell in cells):
                row = names.get(words[0], words[0])
                named = (names.get(column, column) for column in columns)
                topology.relations[row] = dict(zip(named, cells, strict=False))
                node = _numa_node(headings, words[1 + len(columns) :])
                if node is not None:
                    topology.numa_nodes[row] = node
    return topology


def parse_gpu_query(text: str, fields: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """Return one table per GPU, by field as asked (`pci.bus_id`); units in the heading are dropped from it.

    `fields` names the columns of output without a heading (`--format=csv,noheader`). A bus id is written as the kernel
    does: `0000:1b:00.0`.
    """
    # Line by line: a stray quote spoils one line, not what follows.
    lines = [_row(line) for line in text.splitlines() if "," in line]
    if not fields and lines:
        heading, *lines = lines
        fields = tuple(re.sub(r"\s*\[[^\]]{0,20}\]$", "", name.strip()) for name in heading)
    rows = [dict(zip(fields, (cell.strip() for cell in cells), strict=False)) for cells in lines]
    for row in rows:
        if "pci.bus_id" in row:
            row["pci.bus_id"] = kernel_address(row["pci.bus_id"])
    return rows


def kernel_address(bus_id: str) -> str:
    """Return `0000:1b:00.0` of nvidia-smi's `00000000:1B:00.0`."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:] if domain.startswith('0000') else domain}:{rest}"


def _row(line: str) -> list[str]:
    try:
        return next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        return []


def _columns(words: list[str]) -> list[str]:
    """Return the leading labels of a heading: `GPU0 GPU1 mlx5_0 CPU Affinity`; empty if it is none."""
    count = next((at for at, word in enumerate(words) if not _LABEL.fullmatch(word)), len(words))
    return words[:count] if words[0] == "GPU0" and words[count : count + 1] in ([], ["CPU"]) else []


def _numa_node(headings: list[str], affinities: list[str]) -> int | None:
    """Return the GPU's node: `CPU Affinity` is the first cell after the matrix, `NUMA Affinity` the second."""
    if "NUMA Affinity" not in headings or len(affinities) < 2:
        return None
    node = affinities[1]
    return int(node) if node.isascii() and node.isdecimal() and len(node) < 5 else None
