"""A NIC is pulled while a sequence decodes over two rails: the outputs are right, and decoding goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.host.conftest import needs_namespaces

from dualpath.host.lab import Lab, lab

ROOT = Path(__file__).parents[2]
WITH_KEY = {**os.environ, "DUALPATH_KEY": "a key of the test"}


@pytest.fixture(scope="module")
def two_rails() -> Iterator[Lab]:
    needs_namespaces()
    with lab("two-hosts-two-nics", name=f"rails{os.getpid()}") as emulated:
        yield emulated


@pytest.fixture(scope="module")
def node(two_rails: Lab) -> Iterator[str]:
    spec = ",".join(f"{two_rails.host('b').address(nic)}:7700" for nic in ("data0", "data1"))
    command = [sys.executable, "-m", "dualpath", "pool", "--listen", spec, "--capacity", "64MiB", "--management", "off"]
    with two_rails.host("b").popen(command, stdout=subprocess.PIPE, text=True, env=WITH_KEY) as process:
        try:
            yield process.stdout.readline().split()[1]
        finally:
            process.terminate()


@pytest.mark.parametrize("scheme", ["sharded", "reduce"])
@pytest.mark.parametrize("nic", ["data0", "data1"])
def test_a_pulled_nic_costs_no_token(two_rails: Lab, node: str, scheme: str, nic: str) -> None:
    command = [sys.executable, "-m", "tests.path.lab_decode", node, scheme]
    pulled = two_rails.host("a").nic(nic)
    with two_rails.host("a").popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=WITH_KEY
    ) as process:
        try:
            before = process.stdout.readline().split()
            pulled.down()
            process.stdin.write("\n")
            process.stdin.flush()
            meanwhile = process.stdout.readline().split()
            pulled.up()
            process.stdin.write("\n")
            process.stdin.flush()
            after = process.stdout.readline().split()
            assert process.wait(60) == 0
        finally:
            pulled.up()
            process.kill()
    assert [line[0] for line in (before, meanwhile, after)] == ["0", "1", "2"]
    if scheme == "sharded":
        assert all(int(count) > 0 for count in before[2:])  # both rails carried blocks
