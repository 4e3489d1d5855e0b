"""Labs for tests: two small hosts, under a name that no other process uses."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from dualpath.host.lab import Lab, LabConfig, build, lab
from dualpath.host.lab.config import parse_lab

from .pair import lab_text

_numbers = itertools.count()


def needs_namespaces() -> None:
    """Skip where this process may not make network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("capability: root and iproute2, to emulate hosts")
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("capability: network namespaces")


@pytest.fixture
def lab_name() -> Iterator[str]:
    """A name for a lab; whatever a test leaves under it is taken down."""
    needs_namespaces()
    name = f"test{os.getpid()}x{next(_numbers)}"
    yield name
    build.down(name)


@pytest.fixture
def config(lab_name: str) -> LabConfig:
    return parse_lab(lab_text(lab_name), source="test")


@pytest.fixture
def pair(config: LabConfig) -> Iterator[Lab]:
    """Two hosts on two networks, up: `data0` (IPv4, 200 Mbit/s) and `six0` (IPv6)."""
    with lab(config) as emulated:
        yield emulated
