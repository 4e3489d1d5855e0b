"""A lab that is up, as tests and benches use it.

with lab("two-hosts-two-nics") as emulated:
    server = emulated.host("b").popen(["dualpath", "pool", "--listen", "10.77.0.2:7700"])
    emulated.host("a").nic("data1").set_rate("200Mbit")
    emulated.host("a").nic("data1").down()          # as if the cable were pulled
    print(emulated.host("a").nic("data0").counters())
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dualpath.errors import HostError, UsageError
from dualpath.host.lab import build
from dualpath.host.lab.config import NETWORKS, HostConfig, LabConfig, NicConfig, find_lab
from dualpath.host.lab.topology import port
from dualpath.host.netlink import Link, links, open_netlink
from dualpath.host.nics import Counters
from dualpath.host.shaping import Shape, default_burst, set_rate
from dualpath.units import parse_bits_per_s


@dataclass(frozen=True, slots=True)
class EmulatedNic:
    """One NIC of an emulated host."""

    lab: LabConfig
    host: HostConfig
    config: NicConfig

    def down(self) -> None:
        """Pull the cable: the host's end loses its carrier and keeps its address and routes, as with a real NIC."""
        self._set_port_state("down")

    def up(self) -> None:
        """Put the cable back."""
        self._set_port_state("up")

    def set_rate(self, rate: str) -> None:
        """Change the rate of both directions, such as to `200Mbit`, under traffic too.

        Raises `UsageError` for a NIC that was brought up without a rate.
        """
        if self.config.shape is None:
            raise UsageError(
                f"{self.host.name}.{self.config.name} has no rate to change", hint="give it one in its lab"
            )
        bits_per_s = parse_bits_per_s(rate)
        shape = Shape(bits_per_s, default_burst(bits_per_s), self.config.priority)
        for namespace, interface in self._ends():
            with open_netlink(namespace) as netlink:
                set_rate(netlink, build.interface_index(netlink, interface), shape)

    def link(self) -> Link:
        """Return the host's end as netlink shows it now."""
        with open_netlink(self.lab.namespace(self.host.name)) as netlink:
            for link in links(netlink):
                if link.name == self.config.name:
                    return link
        raise HostError(f"the NIC {self.host.name}.{self.config.name} is gone", hint="has the lab been taken down?")

    def counters(self) -> Counters:
        """Return what the host's end has counted."""
        return self.link().counters

    def _ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Return namespace and interface of the host's end and of the bridge's."""
        host, bridges = self.lab.namespace(self.host.name), self.lab.namespace(NETWORKS)
        return (host, self.config.name), (bridges, port(self.lab, self.host.name, self.config.name))

    def _set_port_state(self, state: str) -> None:
        _, (namespace, interface) = self._ends()
        with open_netlink(namespace) as netlink:
            netlink.link("set", index=build.interface_index(netlink, interface), state=state)


@dataclass(frozen=True, slots=True)
class EmulatedHost:
    """One host of a lab."""

    lab: LabConfig
    config: HostConfig

    @property
    def namespace(self) -> str:
        """The name of its network namespace, as `ip netns` has it."""
        return self.lab.namespace(self.config.name)

    def address(self, nic: str) -> str:
        """Return the address of a NIC."""
        return self.config.nic(nic).address

    def nic(self, name: str) -> EmulatedNic:
        """Return the NIC called `name`. Raises `UsageError` if there is none."""
        return EmulatedNic(self.lab, self.config, self.config.nic(name))

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command line that runs `words` in this host. Raises `HostError` without iproute2.

        `ip netns exec` rather than setns(2): it also mounts a /sys that shows this host's NICs and no others, and it
        becomes the command, so that signals and the exit code are the command's own.
        """
        return [build.iproute2(), "netns", "exec", self.namespace, *words]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Have this thread, and those that it starts, run in this host until the block is left: sockets made by them
        are the host's. /sys stays what it was. Raises `HostError` if the host is gone."""
        from pyroute2 import netns  # type: ignore[import-untyped] # it has no annotations

        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            try:
                netns.setns(self.namespace, flags=0)
            except FileNotFoundError:
                raise HostError(f"there is no host {self.config.name}", hint="has the lab been taken down?") from None
            yield
        finally:
            netns.setns(here)
            os.close(here)

    def popen(self, words: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command in this host; `options` are those of `subprocess.Popen`. The lab's end ends it too."""
        return subprocess.Popen(self.command(words), **options)

    def run(self, words: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run a command in this host to its end; `options` are those of `subprocess.run`."""
        return subprocess.run(self.command(words), check=options.pop("check", True), **options)

    def python(self, code: str, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
        """Start this Python with `code` in this host; `arguments` are its `sys.argv[1:]`."""
        return self.popen([sys.executable, "-c", code, *arguments], **options)


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab, up or not."""

    config: LabConfig

    def host(self, name: str) -> EmulatedHost:
        """Return the host called `name`. Raises `UsageError` if there is none."""
        return EmulatedHost(self.config, self.config.host(name))

    @property
    def up(self) -> bool:
        """Whether all of its hosts are there."""
        wanted = {self.config.namespace(name) for name in (NETWORKS, *(host.name for host in self.config.hosts))}
        return wanted <= set(build.namespaces(self.config.name))

    def require_up(self) -> None:
        """Raise `UsageError` unless the lab is up."""
        if not self.up:
            raise UsageError(f"lab {self.config.name} is not up", hint=f"dualpath lab up {self.config.name}")


@contextlib.contextmanager
def lab(config: LabConfig | str, *, name: str | None = None) -> Iterator[Lab]:
    """Bring a lab up for the block, and take it down however the block is left; processes in it are ended.

    `config` may be a file or a ready-made lab's name. `name` replaces the lab's own, so that several can be up at once.
    """
    found = find_lab(config) if isinstance(config, str) else config
    if name is not None:
        found = msgspec.structs.replace(found, name=name)
    build.up(found)
    try:
        yield Lab(found)
    finally:
        build.down(found.name)
