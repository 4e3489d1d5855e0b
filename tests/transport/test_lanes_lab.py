"""Lanes on a link of known speed: a control message does not wait behind a prefetch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.host.conftest import needs_namespaces

from dualpath.host.lab import lab

ROOT = Path(__file__).parents[2]


def test_a_control_message_does_not_wait_behind_a_prefetch() -> None:
    needs_namespaces()
    environment = {**os.environ, "DUALPATH_KEY": "a key of the test"}
    with lab("two-hosts-one-nic", name=f"lanes{os.getpid()}") as emulated:
        a, b = emulated.host("a"), emulated.host("b")
        for host in (a, b):
            host.nic("data0").set_rate("200Mbit")  # so that the queues last whatever else this machine does
        listen = f"{b.address('data0')}:7700"
        command = [sys.executable, "-m", "dualpath", "pool", "--listen", listen, "--capacity", "16MiB"]
        with b.popen([*command, "--management", "off"], stdout=subprocess.PIPE, text=True, env=environment) as node:
            try:
                spec = node.stdout.readline().split()[1]
                words = [sys.executable, "-m", "tests.transport.lab_lanes", spec]
                found = a.run(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=100)
            finally:
                node.terminate()
    with_lanes_s, without_s = map(float, found.stdout.split())
    assert with_lanes_s < without_s / 3  # some 0.3 against 80 ms: two requests of 2 MiB stand before it
