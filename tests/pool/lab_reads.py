"""Reads in an emulated host, on demand: `lab_reads.py SPEC`. For each line on stdin it reads so many blocks, compares
them, and prints how many MiB each rail has brought so far."""

from __future__ import annotations

import sys

from dualpath.pool.client import connect
from dualpath.wire.messages import BlockKey, Outcome, PrepareItem

SLOT, SLOTS = 256 << 10, 32


def main(spec: str) -> None:
    with connect(spec, key="a key of the test", tenant="reads", timeout_s=20.0) as pool:
        node, key = pool.nodes[0], BlockKey(b"reads", 0)
        refs = node.prepare([PrepareItem(key, SLOTS, SLOT, 1)])[0]
        sources = [memoryview(bytes([number]) * SLOT) for number in range(SLOTS)]
        node.write(refs, sources, SLOT)
        node.commit([key])
        places = [memoryview(bytearray(SLOT)) for _ in range(SLOTS)]
        print("ready", flush=True)
        for line in sys.stdin:
            for _ in range(int(line) // SLOTS):
                outcomes = node.read(refs, places, SLOT, timeout_s=20.0).wait(20.0)
                assert set(outcomes) == {Outcome.OK}
                assert places == sources
            print(*(rail.bytes_received >> 20 for rail in node.peer.rails), flush=True)


main(sys.argv[1])
