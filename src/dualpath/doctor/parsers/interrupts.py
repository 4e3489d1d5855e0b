"""`/proc/interrupts`, and lists of CPUs as `smp_affinity_list` and `cpulist` write them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r"\s*([0-9]{1,9}):((?:\s+[0-9]+)+)\s+(\S.*)")
MOST_CPUS = 1 << 14


@dataclass(frozen=True, slots=True)
class Interrupt:
    """One numbered line: how often each CPU took it (in the order of the heading), and who asked for it."""

    number: int
    counts: tuple[int, ...]
    name: str
    """Chip, kind and device as printed: `IR-PCI-MSIX-0000:3b:00.0 1-edge mlx5_comp0@pci:0000:3b:00.0`."""


def parse_interrupts(text: str) -> list[Interrupt]:
    """Return the numbered interrupts; those that have a letter for a name (`NMI`, `LOC`) are the processor's own."""
    found = []
    cpus = len(re.findall(r"\bCPU[0-9]+", text.partition("\n")[0]))
    for line in text.splitlines():
        if match := _LINE.fullmatch(line):
            counts = tuple(int(word[:20]) for word in match.group(2).split())
            found.append(Interrupt(int(match.group(1)), counts[:cpus] if cpus else counts, match.group(3).strip()))
    return found


def parse_cpus(text: str) -> frozenset[int]:
    """Return the CPUs of `0-3,8,10-11`; parts that make no sense are left out."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if match := re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part):
            first = int(match.group(1))
            found.update(range(first, min(int(match.group(2) or first), first + MOST_CPUS) + 1))
    return frozenset(found)
