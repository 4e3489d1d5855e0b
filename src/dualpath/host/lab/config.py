"""What a lab consists of, as its TOML file says.

    name = "two-hosts-one-nic"

    [[networks]]
    name = "data"
    subnet = "10.77.0.0/24"

    [[hosts]]
    name = "a"
    nics = [{ name = "data0", network = "data", address = "10.77.0.1", rate = "1Gbit", priority = true, mtu = 9000 }]

An unknown key is an error. What these objects hold has been checked, also when they were made by hand.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import TypeVar

import msgspec

from dualpath.errors import UsageError
from dualpath.host.shaping import Shape, default_burst
from dualpath.units import parse_bits_per_s, parse_bytes

NETWORKS = "net"
"""The namespace of the bridges is called as if it were a host of this name."""

_LAB_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_HOST_NAME = re.compile(r"[a-z0-9][a-z0-9_]{0,30}")  # no hyphen: it parts the lab's name from the host's
_NETWORK_NAME = re.compile(r"[a-z0-9][a-z0-9_]{0,11}")  # 15 characters with the bridge's prefix
_NIC_NAME = re.compile(r"[a-z0-9][a-z0-9_.]{0,14}")  # the kernel's limit is 15


T = TypeVar("T", bound="NetworkConfig | NicConfig | HostConfig")


class NetworkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A broadcast domain: one bridge, one subnet. Raises `UsageError` where it cannot exist."""

    name: str
    subnet: str
    """IPv4 or IPv6, such as `10.77.0.0/24`."""

    def __post_init__(self) -> None:
        _check_name("network", self.name, _NETWORK_NAME)
        try:
            ipaddress.ip_network(self.subnet)
        except ValueError as error:
            raise UsageError(f"network {self.name}: {error}", hint='write the subnet like "10.77.0.0/24"') from None


class NicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One NIC of a host. Raises `UsageError` where it cannot exist."""

    name: str
    network: str
    address: str
    """Without the prefix length, which is the network's."""
    rate: str | None = None
    """Such as `1Gbit`, for each direction; without one the NIC is as fast as this machine."""
    priority: bool = False
    """Whether lanes are told apart by DSCP, in strict order; see `dualpath.host.lanes`."""
    burst: str | None = None
    """Size of the token bucket, such as `256KiB`; by default what the rate needs."""
    mtu: int = 1500

    def __post_init__(self) -> None:
        _check_name("NIC", self.name, _NIC_NAME)
        if self.name == "lo":
            raise UsageError("a NIC cannot be called lo", hint="every host has a loopback interface already")
        if self.rate is None and (self.priority or self.burst is not None):
            raise UsageError(f"NIC {self.name}: priority and burst need a rate", hint='add rate = "1Gbit"')
        if not 1280 <= self.mtu <= 65535:
            raise UsageError(f"NIC {self.name}: mtu {self.mtu}", hint="between 1280 and 65535")
        _ = self.shape  # that its numbers can be read

    @property
    def shape(self) -> Shape | None:
        """What each direction is held to; `None` where there is no rate."""
        if self.rate is None:
            return None
        rate = parse_bits_per_s(self.rate)
        burst = default_burst(rate) if self.burst is None else parse_bytes(self.burst)
        return Shape(rate, burst, self.priority)


class HostConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One emulated host. Raises `UsageError` where it cannot exist."""

    name: str
    nics: tuple[NicConfig, ...]

    def __post_init__(self) -> None:
        _check_name("host", self.name, _HOST_NAME)
        if self.name == NETWORKS:
            raise UsageError(f"a host cannot be called {NETWORKS}", hint="that is the bridges' namespace")
        _check_unique(f"host {self.name}: NIC", (nic.name for nic in self.nics))

    def nic(self, name: str) -> NicConfig:
        """Return the NIC called `name`. Raises `UsageError` if there is none."""
        return _named("NIC", name, self.nics, f"host {self.name}")


class LabConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole lab. Raises `UsageError` where its parts do not fit together."""

    name: str
    networks: tuple[NetworkConfig, ...]
    hosts: tuple[HostConfig, ...]

    def __post_init__(self) -> None:
        _check_name("lab", self.name, _LAB_NAME)
        if not self.hosts or not self.networks:
            raise UsageError(f"lab {self.name} lacks hosts or networks", hint="it takes at least one of each")
        _check_unique("network", (network.name for network in self.networks))
        _check_unique("host", (host.name for host in self.hosts))
        subnets = [ipaddress.ip_network(network.subnet) for network in self.networks]
        for i, one in enumerate(subnets):
            for other in subnets[:i]:
                if one.version == other.version and one.overlaps(other):
                    raise UsageError(f"the subnets {other} and {one} overlap", hint="give each network its own")
        placed = [(host, nic) for host in self.hosts for nic in host.nics]
        for host, nic in placed:
            self._check_address(host, nic)
        _check_unique("address", (str(ipaddress.ip_address(nic.address)) for _, nic in placed))

    def host(self, name: str) -> HostConfig:
        """Return the host called `name`. Raises `UsageError` if there is none."""
        return _named("host", name, self.hosts, f"lab {self.name}")

    def network(self, name: str) -> NetworkConfig:
        """Return the network called `name`. Raises `UsageError` if there is none."""
        return _named("network", name, self.networks, f"lab {self.name}")

    def namespace(self, host: str) -> str:
        """Return the network namespace of a host, or of the bridges (`NETWORKS`)."""
        return f"dp-{self.name}-{host}"

    def _check_address(self, host: HostConfig, nic: NicConfig) -> None:
        where = f"{host.name}.{nic.name}"
        subnet = ipaddress.ip_network(self.network(nic.network).subnet)
        try:
            address = ipaddress.ip_address(nic.address)
        except ValueError as error:
            raise UsageError(f"{where}: {error}", hint='write the address like "10.77.0.1", without a prefix') from None
        reserved = (subnet.network_address, subnet.broadcast_address) if subnet.num_addresses > 2 else ()
        if address not in subnet or address in reserved:
            raise UsageError(
                f"{where}: {address} is no host address of {subnet}, the subnet of network {nic.network}",
                hint="all addresses of a network lie in its subnet",
            )


def parse_lab(text: str, *, source: str) -> LabConfig:
    """Return the lab that a TOML text describes. Raises `UsageError`, which names `source`."""
    try:
        return msgspec.convert(tomllib.loads(text), LabConfig)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{source}: {error}", hint="`dualpath lab list` names files to start from") from None
    except UsageError as error:
        raise UsageError(f"{source}: {error}", hint=error.hint) from None


def ready_made() -> dict[str, LabConfig]:
    """Return the labs that come with dualpath, by name."""
    files = sorted(resources.files(__package__).joinpath("files").iterdir(), key=lambda file: file.name)
    labs = [parse_lab(file.read_text(), source=file.name) for file in files if file.name.endswith(".toml")]
    return {lab.name: lab for lab in labs}


def find_lab(name: str) -> LabConfig:
    """Return the lab in the file at `name`, or the ready-made one called so. Raises `UsageError`."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise UsageError(f"no such file: {name}", hint="`dualpath lab list` names labs that need no file")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {name}: {error}", hint="a lab is a TOML file") from error
        return parse_lab(text, source=name)
    labs = ready_made()
    if name not in labs:
        raise UsageError(f"no lab called {name}", hint=f"a TOML file, or one of {', '.join(labs)}")
    return labs[name]


def _check_name(what: str, name: str, pattern: re.Pattern[str]) -> None:
    if not pattern.fullmatch(name):
        raise UsageError(f"not a name for a {what}: {name!r}", hint=f"it has to match {pattern.pattern}")


def _check_unique(what: str, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UsageError(f"{what} {twice[0]} is there twice", hint="each needs a name or address of its own")


def _named(what: str, name: str, items: tuple[T, ...], where: str) -> T:
    for item in items:
        if item.name == name:
            return item
    raise UsageError(f"{where} has no {what} {name}", hint=f"it has {', '.join(item.name for item in items) or 'none'}")
