"""The transport contract over TCP, over TCP by two rails, over the mapped transport."""

import pytest

from dualpath.testing.transport import TransportConformance
from dualpath.testing.transport_node import ChildNode
from dualpath.transport.mapped import MappedPeer, MappedServer
from dualpath.transport.tcp import TcpPeer, TcpServer


class TestTcp(TransportConformance):
    def serve(self, service, *, key=None):
        return TcpServer(service, node_id="node", key=key)

    def connect(self, address, *, key=None):
        if isinstance(address, str):
            host, _, port = address.rpartition(":")
            address = (host, int(port))
        return TcpPeer(*address, key=key)

    def child(self, slots, slot_bytes):
        return ChildNode("tcp", slots, slot_bytes)


class TestTcpByTwoRails(TestTcp):
    def serve(self, service, *, key=None):
        return TcpServer(service, node_id="node", key=key, rails=[("127.0.0.2", 0)])


class TestMapped(TransportConformance):
    one_sided = True

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path_factory):
        self.path = tmp_path_factory.mktemp("m") / "node.sock"

    def serve(self, service, *, key=None):
        return MappedServer(service, self.path, node_id="node", key=key)

    def connect(self, address, *, key=None):
        return MappedPeer(address, key=key)

    def child(self, slots, slot_bytes):
        return ChildNode("mapped", slots, slot_bytes, str(self.path))
