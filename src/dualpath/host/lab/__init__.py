"""Hosts emulated as network namespaces on this machine, with NICs of known speed.

config      what a lab consists of, out of TOML; files/ holds ready-made ones
topology    the steps that make it, as data
build       runs the steps, and undoes them
emulation   a lab that is up: commands in its hosts, NICs pulled and slowed down
status      how it is doing
"""

from __future__ import annotations

from dualpath.host.lab.config import HostConfig, LabConfig, NetworkConfig, NicConfig, find_lab
from dualpath.host.lab.emulation import EmulatedHost, EmulatedNic, Lab, lab

__all__ = [
    "EmulatedHost",
    "EmulatedNic",
    "HostConfig",
    "Lab",
    "LabConfig",
    "NetworkConfig",
    "NicConfig",
    "find_lab",
    "lab",
]
