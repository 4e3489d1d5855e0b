"""The GPUs and NICs that a plan reckons with: nominal rates, to be replaced by measured ones where there are any.

Rates of links follow the trade: `400G`, `400Gbit/s` and `400Gb/s` are bits per second, `50GB/s` and `50GiB/s` bytes
per second; G is 10^9, Gi is 2^30. A rate in bytes that no NIC reaches is questioned, not believed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dualpath.cost.bandwidth import pcie_bytes_per_s
from dualpath.errors import UsageError
from dualpath.plan.catalogue import entry

# The fastest port in the catalogue is 800 Gbit/s. A rate in bytes above that is more likely one in bits, misspelt.
_FASTEST_PORT_BITS_PER_S = 800e9
_LIMIT_BITS_PER_S = 3.2e12  # above this even a rate in bits is a slip
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTkmgt]i?|)(b|bit|bits|B|)(/s|ps|)")
_SCALE = {"": 1, **{letter: 1000**power for power, letter in enumerate("KMGT", start=1)}}
_SCALE |= {f"{letter}i": 1024**power for power, letter in enumerate("KMGT", start=1)}
_PORTS = re.compile(r"(?:(\d+)\s*[xX]\s*)?(\S.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU by its data sheet: peak rates in one direction, FLOP/s without sparsity, memory as the driver reports it.

    `price_usd` is a default assumption to be edited, not a quotation; `price_date` and `price_basis` say when and
    whence. It is 0 where there is no figure to stand on. `nvlink_bytes_per_s` is the sum of both directions of all
    links to other GPUs, as vendors state it, and 0 where there are none.
    """

    name: str
    source: str
    memory_bytes: int
    memory_bytes_per_s: float
    bf16_flop_per_s: float
    nvlink_bytes_per_s: float
    pcie_generation: int
    pcie_lanes: int
    price_usd: float = 0.0
    price_date: str = ""
    price_basis: str = ""

    @property
    def pcie_bytes_per_s(self) -> float:
        """Return the bytes per second of its PCIe link in one direction."""
        return pcie_bytes_per_s(self.pcie_generation, self.pcie_lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class NicSpec:
    """A NIC by its data sheet. `bits_per_s` is one port's, in one direction.

    `adapter_bits_per_s` is what the adapter moves over all its ports, where that is less than their sum; 0 otherwise.
    `rdma` is what it speaks: `infiniband`, `roce`, `iwarp`, `srd` (EFA), or nothing. PCIe is 0 where it is not known:
    a bare rate, or a cloud's virtual function.
    """

    name: str
    source: str
    ports: int
    bits_per_s: float
    adapter_bits_per_s: float = 0.0
    pcie_generation: int = 0
    pcie_lanes: int = 0
    rdma: tuple[str, ...] = ()

    @property
    def bytes_per_s(self) -> float:
        """Return the bytes per second in one direction over all ports: what ports, adapter and PCIe allow."""
        limits = [self.ports * self.bits_per_s / 8]
        if self.adapter_bits_per_s:
            limits.append(self.adapter_bits_per_s / 8)
        if self.pcie_generation:
            limits.append(pcie_bytes_per_s(self.pcie_generation, self.pcie_lanes))
        return min(limits)


def parse_bytes_per_s(text: str) -> float:
    """Return the bytes per second that `text` names: `400G` = 50e9, `50GB/s` = 50e9, `50GiB/s` = 53.7e9.

    A bare letter is bits, as in the names of NICs. Raises `UsageError` for anything else, a bare number included,
    since it says neither bits nor bytes.
    """
    bits_per_s, _ = _rate(text)
    return bits_per_s / 8


def parse_nic_bits_per_s(text: str) -> float:
    """Return the bits per second of one NIC port.

    Raises `UsageError` as `parse_bytes_per_s` does, and for a rate no NIC has.
    `400GB/s` is refused: eight times the 400 Gbit/s that was meant.
    """
    bits_per_s, in_bytes = _rate(text)
    number = _format(bits_per_s / 8 if in_bytes else bits_per_s)
    if in_bytes and bits_per_s > _FASTEST_PORT_BITS_PER_S:
        raise UsageError(
            f"a NIC of {text}? The fastest port is {_format(_FASTEST_PORT_BITS_PER_S)}bit/s",
            hint=f"did you mean {number}bit/s = {_format(bits_per_s / 64)}B/s?",
        )
    if bits_per_s > _LIMIT_BITS_PER_S:
        raise UsageError(f"a NIC of {text}?", hint=f"the fastest port is {_format(_FASTEST_PORT_BITS_PER_S)}bit/s")
    return bits_per_s


def _rate(text: str) -> tuple[float, bool]:
    """Return the bits per second, and whether they were written as bytes."""
    match = _RATE.fullmatch(text.strip())
    if match is None or not (match.group(2) or match.group(3)):
        raise UsageError(f"not a rate: {text!r}", hint="write it like 400G or 400Gbit/s (bits), or 50GB/s (bytes)")
    value = float(match.group(1)) * _SCALE[match.group(2)[:1].upper() + match.group(2)[1:]]
    if value <= 0:
        raise UsageError(f"a rate of {text}?", hint="a link moves something")
    in_bytes = match.group(3) == "B"
    return (value * 8 if in_bytes else value), in_bytes


def _format(value: float) -> str:
    return f"{value / 1e9:g} G" if value >= 1e9 else f"{value / 1e6:g} M"


def load_gpu(name: str) -> Gpu:
    """Return a GPU of the catalogue by its name, upper or lower case. Raises `UsageError` with close matches."""
    found, values = entry("gpus", name)
    return Gpu(name=found, **values)


def load_nic(name: str) -> NicSpec:
    """Return a NIC of the catalogue by its name, or one of a bare rate: `400G`, `2x100G`.

    Raises `UsageError` for a name that is neither, with close matches, and for a rate that no NIC has.
    """
    match = _PORTS.fullmatch(name.strip())
    if match is not None and _RATE.fullmatch(match.group(2)):
        ports = int(match.group(1) or 1)
        if ports < 1:
            raise UsageError(f"a NIC with {ports} ports?", hint="at least one")
        return NicSpec(name=name, source="given", ports=ports, bits_per_s=parse_nic_bits_per_s(match.group(2)))
    found, values = entry("nics", name)
    return NicSpec(name=found, **{**values, "rdma": tuple(values.get("rdma", ()))})
