"""Decodes in an emulated host, against float64, and says how each step went: `lab_decode.py SPEC SCHEME`.

Reads a line from stdin after the first steps, and another after some more: between them a NIC is pulled.
"""

from __future__ import annotations

import sys
import time

from tests.path.world import PATIENCE_S, World

from dualpath.kv import KVLayout, LayerGroup, LayerKind
from dualpath.path import DualPath, PathConfig, Scheme
from dualpath.pool.client import connect

GROUP = LayerGroup(kind=LayerKind.FULL, layers=(0, 1), query_heads=4, kv_heads=4, head_dim=64, value_dim=64)
LAYOUT = KVLayout((GROUP,), "float32", block_tokens=32, model="lab")  # 64 KiB a layer block


def main(spec: str, scheme: str) -> None:
    with connect(spec, key="a key of the test", tenant=scheme) as pool:
        config = PathConfig(Scheme(scheme), 2 * LAYOUT.block_bytes, 16 << 16, threads=1, deadline_s=PATIENCE_S)
        with DualPath(LAYOUT, config, pool) as path:
            world = World(path)
            sequence = world.open()
            world.append(sequence, 30 * 32)
            for round_ in range(3):
                worst_s = 0.0
                for _ in range(12):
                    began = time.monotonic()
                    world.step([(sequence, 1)])  # every output is held against float64
                    worst_s = max(worst_s, time.monotonic() - began)
                rails = [rail.bytes_received for rail in pool.nodes[0].peer.rails]
                print(round_, round(worst_s, 3), *rails, flush=True)
                if round_ < 2:
                    sys.stdin.readline()


main(*sys.argv[1:])
