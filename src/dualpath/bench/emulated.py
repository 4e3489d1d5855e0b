"""Hosts emulated for one bench: this process decodes in one of them, pool nodes run in others, and links have a speed
that can be set under way.

    decode ── data0 ══ link 0 ══ data0 ── pool0: node 0, node 2, …
           ── data1 ══ link 1 ══ data0 ── pool1: node 1, node 3, …

Needs root. Nothing is left, whatever ends the block; what a bench that was killed outright could not take down, the
next one does.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dualpath.bench.nodes import Nodes
from dualpath.host.lab import EmulatedNic, HostConfig, Lab, LabConfig, NetworkConfig, NicConfig, lab
from dualpath.host.lab.build import down, labs
from dualpath.pool.local import LocalNodes, Seat

FILL_RATE = "40Gbit"
"""Of links before their rate is set: more than this machine moves, so that the pool is filled quickly."""
_PREFIX = "bench-"
_MTU = 9000


@dataclass(frozen=True)
class EmulatedPool:
    """Nodes behind links. `nodes` says how to reach them from this process."""

    nodes: Nodes
    nics: tuple[EmulatedNic, ...]

    def set_rate(self, bits_per_s: float) -> None:
        """Hold each link, in both directions, to a rate."""
        self._set(f"{bits_per_s:.0f}bit")

    def open_up(self) -> None:
        """Let the links carry what they can."""
        self._set(FILL_RATE)

    def _set(self, rate: str) -> None:
        for nic in self.nics:
            nic.set_rate(rate)


def lab_of(name: str, links: int) -> LabConfig:
    """Return a lab of the decoding host and `links` hosts for nodes, each at a network of its own. Pure."""

    def nic(network: int, number: int, last: int) -> NicConfig:
        address = f"10.79.{network}.{last}"
        return NicConfig(
            name=f"data{number}", network=f"link{network}", address=address, rate=FILL_RATE, priority=True, mtu=_MTU
        )

    networks = tuple(NetworkConfig(name=f"link{i}", subnet=f"10.79.{i}.0/24") for i in range(links))
    decode = HostConfig(name="decode", nics=tuple(nic(i, i, 1) for i in range(links)))
    others = (HostConfig(name=f"pool{i}", nics=(nic(i, 0, 2),)) for i in range(links))
    return LabConfig(name=name, networks=networks, hosts=(decode, *others))


@contextlib.contextmanager
def emulated_pool(*, links: int, nodes: int, capacity_bytes: int, deadline_s: float) -> Iterator[EmulatedPool]:
    """Bring up `nodes` nodes behind `links` links, with this thread (and those that it starts) in the decoding host.

    Each node attends with one thread, since they share this machine's cores. Raises `HostError` without root.
    """
    take_down_leftovers()
    key = secrets.token_hex(32)
    with lab(lab_of(f"{_PREFIX}{os.getpid()}", links)) as up, up.host("decode").entered():
        seats = [Seat(tuple(up.host(f"pool{i}").command(())), f"10.79.{i}.2") for i in range(links)]
        with LocalNodes(nodes, capacity=capacity_bytes, key=key, threads=1, sockets=False, seats=seats) as far:
            reach = Nodes(far.spec, "", key, deadline_s)
            yield EmulatedPool(reach, tuple(_ends(up, links)))


def take_down_leftovers() -> None:
    """Take down the labs of benches that are not there any more: nothing can clean up after SIGKILL."""
    for name in labs():
        owner = name.removeprefix(_PREFIX)
        if name != owner and owner.isdecimal() and not Path("/proc", owner).exists():
            down(name)


def _ends(up: Lab, links: int) -> Iterator[EmulatedNic]:
    for i in range(links):
        yield up.host("decode").nic(f"data{i}")
        yield up.host(f"pool{i}").nic("data0")
