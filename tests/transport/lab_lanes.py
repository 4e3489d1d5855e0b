"""Round trips beside a full prefetch, in an emulated host: `lab_lanes.py SPEC`. Prints two medians, in seconds."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import deque

from dualpath.pool.client import connect
from dualpath.wire.messages import BlockKey, Lane, PrepareItem

SLOT, SLOTS = 128 << 10, 16


def main(spec: str) -> None:
    with connect(spec, key="a key of the test", tenant="lanes", timeout_s=20.0) as pool:
        node, key = pool.nodes[0], BlockKey(b"lanes", 0)
        refs = node.prepare([PrepareItem(key, SLOTS, SLOT, 1)])[0]
        node.write(refs, [memoryview(bytes(SLOT))] * SLOTS, SLOT)
        node.commit([key])
        full, ended = threading.Event(), threading.Event()

        def prefetch() -> None:
            places = [memoryview(bytearray(SLOT)) for _ in range(SLOTS)]
            under_way = deque([node.read(refs, places, SLOT, timeout_s=20.0) for _ in range(2)])
            while not ended.is_set():
                under_way.popleft().wait(20.0)
                full.set()
                under_way.append(node.read(refs, places, SLOT, timeout_s=20.0))
            for ticket in under_way:
                ticket.wait(20.0)

        def call_for_blocks() -> None:
            places = [memoryview(bytearray(SLOTS * SLOT)) for _ in range(2)]
            under_way = deque([node.start_read_by_call(refs, place, SLOT, timeout_s=20.0) for place in places])
            while not ended.is_set():
                under_way.popleft().result()
                full.set()
                places.reverse()
                under_way.append(node.start_read_by_call(refs, places[1], SLOT, timeout_s=20.0))
            for call in under_way:
                call.result()

        for load, lane in ((prefetch, Lane.REALTIME), (call_for_blocks, Lane.BULK)):
            full.clear()
            ended.clear()
            thread = threading.Thread(target=load)
            thread.start()
            full.wait(20.0)
            trips = []
            for _ in range(20):
                began = time.perf_counter()
                node.ping(20.0, lane=lane)
                trips.append(time.perf_counter() - began)
            ended.set()
            thread.join()
            print(statistics.median(trips), flush=True)


main(sys.argv[1])
