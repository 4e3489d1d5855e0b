"""A data rail is pulled: the management port, on a NIC of its own, goes on answering, and reads over the other rail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bench.nodes import WITH_KEY, node_in
from tests.host.conftest import needs_namespaces

from dualpath.host.lab import Lab, lab
from dualpath.host.lab.config import parse_lab

ROOT = Path(__file__).parents[2]
NICS = ("data0", "data1", "mgmt0")
SUBNETS = "".join(f'[[networks]]\nname = "net{n}"\nsubnet = "10.98.{n}.0/24"\n' for n in range(3))
HOSTS = "".join(
    f'[[hosts]]\nname = "{host}"\nnics = ['
    + ", ".join(
        f'{{ name = "{nic}", network = "net{n}", address = "10.98.{n}.{at}", rate = "200Mbit", priority = true }}'
        for n, nic in enumerate(NICS)
    )
    + "]\n"
    for at, host in ((1, "a"), (2, "b"))
)
ANSWERS_WITHIN_S = 10.0  # while the data rail is down for good
STATS = f"""
import json, sys, urllib.request
request = urllib.request.Request(sys.argv[1] + "/stats", headers={{"Authorization": "Bearer a key of the test"}})
print(int(json.load(urllib.request.urlopen(request, timeout={ANSWERS_WITHIN_S}))["bytes_out_total"]))
"""


@pytest.fixture
def three_nics() -> Iterator[Lab]:
    """Two hosts with two NICs for data and one for management."""
    needs_namespaces()
    text = f'name = "mgmt{os.getpid()}"\n{SUBNETS}{HOSTS}'
    with lab(parse_lab(text, source="test")) as emulated:
        yield emulated


@pytest.mark.parametrize("pulled", ["data0", "data1"])
def test_management_answers_while_a_data_rail_is_down(three_nics: Lab, pulled: str) -> None:
    a, b = three_nics.host("a"), three_nics.host("b")

    def bytes_out(url: str) -> int:
        done = a.run([sys.executable, "-c", STATS, url], stdout=subprocess.PIPE, text=True, timeout=60)
        return int(done.stdout)

    command = [sys.executable, "-m", "tests.pool.lab_reads"]
    with node_in(three_nics, "--management", f"{b.address('mgmt0')}:0") as (_, spec, _, url):
        assert url.startswith(f"http://{b.address('mgmt0')}:")
        with a.popen(
            [*command, spec], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=WITH_KEY
        ) as reader:

            def read(blocks: int) -> list[int]:
                reader.stdin.write(f"{blocks}\n")
                reader.stdin.flush()
                return [int(count) for count in reader.stdout.readline().split()]

            try:
                assert reader.stdout.readline() == "ready\n"
                before = read(64)
                assert all(count > 0 for count in before)  # over both rails
                counted = bytes_out(url)
                b.nic(pulled).down()
                first = bytes_out(url)  # at once: nobody has noticed yet
                meanwhile = read(64)
                last = bytes_out(url)
            finally:
                reader.kill()
    assert counted <= first < last
    assert sum(meanwhile) >= sum(before) + 16  # 64 blocks of 256 KiB
    left = 1 if pulled == "data0" else 0
    assert meanwhile[left] - before[left] >= 12  # what the pulled rail had on its way may have been counted there
