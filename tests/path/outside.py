"""Run by test_outside.py in a process of its own: decode over random KV, and say what it cost as JSON.

usage: outside.py SCHEME CONTEXT_TOKENS LIMIT_BYTES      LIMIT_BYTES 0: no limit on this process's own memory
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import numpy as np

import dualpath
from dualpath.kv import KVLayout, LayerGroup, LayerKind
from dualpath.path import DualPath, PathConfig, Scheme, SequenceId
from dualpath.pool.client import Pool
from dualpath.pool.local import LocalNodes

GROUP = LayerGroup(kind=LayerKind.FULL, layers=(0, 1), query_heads=8, kv_heads=4, head_dim=64, value_dim=64)
LAYOUT = KVLayout((GROUP,), "float32", block_tokens=256, model="outside")
HOT, WINDOW, STEPS = 4 * LAYOUT.block_bytes, 8 * LAYOUT.layer_block_bytes(GROUP), 12


def private_bytes() -> int:
    """Return the private memory of this process as the kernel counts it (what RLIMIT_DATA bounds)."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmData:"))) * 1024


def loopback_bytes() -> int:
    """Return the bytes that the loopback interface of this network namespace has received."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


def main(scheme: str, context: int, limit: int) -> None:
    with LocalNodes(2, capacity=2 << 30, threads=1, sockets=False) as nodes, dualpath.connect(nodes.spec) as pool:
        random = np.random.default_rng(0)
        warm(pool, random)
        if limit:
            resource.setrlimit(resource.RLIMIT_DATA, (private_bytes() + limit, resource.RLIM_INFINITY))
        config = PathConfig(Scheme(scheme), HOT, WINDOW)
        with DualPath(LAYOUT, config, None if scheme == "local" else pool) as path:
            sequence = path.open()
            path.fill_random(sequence, context, seed=1)
            wire, interface = pool.counters, loopback_bytes()
            for _ in range(STEPS):
                decode(path, sequence, random)
            path.reader.end()  # nothing is in flight: both counts are complete
            now = pool.counters
            result = {
                "peak_local_bytes": path.metrics.peak_local_bytes,
                "wire_bytes": now.tx_bytes + now.rx_bytes - wire.tx_bytes - wire.rx_bytes,
                "interface_bytes": loopback_bytes() - interface,
            }
    print(json.dumps(result))


def decode(path: DualPath, sequence: SequenceId, random: np.random.Generator) -> None:
    step = path.begin([(sequence, [1])])
    for layer in GROUP.layers:
        q = random.standard_normal((1, 8, 64)).astype(np.float32)
        k = random.standard_normal((1, 4, 64)).astype(np.float32)
        step.attend(layer, q, k, k, scale=0.125)
    step.commit()


def warm(pool: Pool, random: np.random.Generator) -> None:
    """Take the memory that does not depend on the context: threads and their stacks, connections, scratch."""
    for scheme in (Scheme.SHARDED, Scheme.REDUCE):
        with DualPath(LAYOUT, PathConfig(scheme, HOT, WINDOW), pool) as path:
            sequence = path.open()
            path.fill_random(sequence, 4096, seed=9)
            decode(path, sequence, random)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
