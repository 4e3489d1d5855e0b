"""`numactl --hardware`: NUMA nodes with their CPUs and memory, and the distances between them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_CPUS = re.compile(r"node (\d{1,4}) cpus:((?: \d{1,5})*)\s*$", re.ASCII)
_SIZE = re.compile(r"node (\d{1,4}) (size|free): (\d{1,12}) MB", re.ASCII)
_DISTANCES = re.compile(r"\s*(\d{1,4}):((?:\s+\d{1,4})+)\s*$", re.ASCII)


@dataclass(slots=True)
class NumaNode:
    """One node. Sizes are binary: numactl's `MB` are MiB."""

    node: int
    cpus: tuple[int, ...] = ()
    size_mib: int | None = None
    free_mib: int | None = None
    distances: tuple[int, ...] = field(default=())
    """To every node in turn; 10 is the node itself."""


def parse_numactl(text: str) -> dict[int, NumaNode]:
    """Return the nodes by number."""
    nodes: dict[int, NumaNode] = {}
    for line in text.splitlines():
        if cpus := _CPUS.match(line):
            _at(nodes, cpus[1]).cpus = tuple(int(cpu) for cpu in cpus[2].split())
        elif size := _SIZE.match(line):
            node = _at(nodes, size[1])
            if size[2] == "size":
                node.size_mib = int(size[3])
            else:
                node.free_mib = int(size[3])
        elif (row := _DISTANCES.match(line)) and int(row[1]) in nodes:
            nodes[int(row[1])].distances = tuple(int(distance) for distance in row[2].split())
    return nodes


def _at(nodes: dict[int, NumaNode], number: str) -> NumaNode:
    return nodes.setdefault(int(number), NumaNode(int(number)))
