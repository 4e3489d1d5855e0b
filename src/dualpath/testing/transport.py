"""The conformance suite of transports: the contract of `dualpath.transport.base`, test by test.

Subclass `TransportConformance` in a test module and fill in `serve`, `connect` and `child`; pytest runs the rest:

    class TestTcp(TransportConformance):
        def serve(self, service, *, key=None): return TcpServer(service, node_id="node", key=key)
        def connect(self, address, *, key=None): return TcpPeer(*address, key=key)
        def child(self, slots, slot_bytes): return ChildNode("tcp", slots, slot_bytes)

No test asserts how long something takes, beyond deadlines so generous that only a hang exceeds them.
"""

from __future__ import annotations

from dualpath.testing.transport_endings import EndingTests
from dualpath.testing.transport_faults import Faults, FaultyLink, FaultyPeer
from dualpath.testing.transport_node import ChildNode
from dualpath.testing.transport_service import MemoryService
from dualpath.testing.transport_transfers import TransferTests

__all__ = ["ChildNode", "Faults", "FaultyLink", "FaultyPeer", "MemoryService", "TransportConformance"]


class TransportConformance(TransferTests, EndingTests):
    """The whole contract. `one_sided = True`: reads need nothing of the node's threads (shared memory, RDMA)."""
