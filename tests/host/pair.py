"""Two small hosts on an IPv4 and an IPv6 network."""

from __future__ import annotations

TWO_HOSTS = """
name = "pair"
networks = [{ name = "data", subnet = "10.99.0.0/24" }, { name = "six", subnet = "fd00:99::/64" }]
[[hosts]]
name = "a"
nics = [
  { name = "data0", network = "data", address = "10.99.0.1", rate = "200Mbit", priority = true, mtu = 9000 },
  { name = "six0", network = "six", address = "fd00:99::1", rate = "1Gbit", priority = true },
]
[[hosts]]
name = "b"
nics = [
  { name = "data0", network = "data", address = "10.99.0.2", rate = "200Mbit", priority = true, mtu = 9000 },
  { name = "six0", network = "six", address = "fd00:99::2" },
]
"""


def lab_text(name: str) -> str:
    """Return it as TOML, under a name of its own."""
    return TWO_HOSTS.replace('"pair"', f'"{name}"')


SINK = """
import socket, sys, time
server = socket.create_server(("10.99.0.2", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
count, started = 0, None
while data := peer.recv(1 << 18):
    started = started or time.monotonic()
    count += len(data)
print(count, time.monotonic() - started, flush=True)
"""
"""Counts what one connection sends, and how long that took."""

SOURCE = """
import socket, sys
with socket.create_connection(("10.99.0.2", int(sys.argv[1]))) as peer:
    peer.sendall(bytes(int(sys.argv[2])))
"""

TWO_LANES = """
import select, socket, sys
lanes = {}
for tos, port in zip((0xB8, 0x20), sys.argv[1:]):
    lane = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    lane.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
    lane.setsockopt(socket.SOL_SOCKET, 32, 900_000)  # SO_SNDBUFFORCE: some 800 KB of payload wait for the NIC
    lane.connect(("10.99.0.2", int(port)))
    lane.setblocking(False)
    lanes[lane] = bytes(8000)
while True:
    for lane in select.select((), lanes, ())[1]:
        lane.send(lanes[lane])
"""
"""Sends on both lanes as fast as the NIC takes it, until it is stopped."""

TWO_SINKS = """
import select, socket, sys
lanes = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for lane in lanes:
    lane.setsockopt(socket.SOL_SOCKET, 33, 4_000_000)  # SO_RCVBUFFORCE: nothing is lost while others have the core
    lane.bind(("10.99.0.2", 0))
print(*(lane.getsockname()[1] for lane in lanes), flush=True)
counts = dict.fromkeys(lanes, 0)
while counts[lanes[0]] < int(sys.argv[1]):
    for lane in select.select(lanes, (), ())[0]:
        counts[lane] += len(lane.recv(9000))
print(*counts.values(), flush=True)
"""
"""Counts both lanes until the first has received so many bytes."""
