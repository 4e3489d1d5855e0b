"""The other end of the transport bench's plain stream, a program of its own: told a number of bytes, it sends as many.

It accepts as many connections as its first argument says, with the congestion control that the second names, if any.
The bytes come out of `REGION` bytes of a memfd, 1 MiB at a time. It ends with its parent.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import threading

REGION = 256 << 20
STREAM_PIECE = 1 << 20
STREAM_BYTE = 0x5A


def _main(connections: int, congestion: bytes) -> None:
    fd = os.memfd_create("dualpath-stream", os.MFD_CLOEXEC)
    os.ftruncate(fd, REGION)
    memory = memoryview(mmap.mmap(fd, REGION))
    for start in range(0, REGION, STREAM_PIECE):
        memory[start : start + STREAM_PIECE] = bytes([STREAM_BYTE]) * STREAM_PIECE

    def serve(sock: socket.socket, number: int) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        place = number * REGION // 2 % REGION
        while wanted := sock.recv(8, socket.MSG_WAITALL):
            for _ in range(0, int.from_bytes(wanted, "little"), STREAM_PIECE):
                sock.sendall(memory[place : place + STREAM_PIECE])
                place = (place + STREAM_PIECE) % REGION

    listener = socket.create_server(("127.0.0.1", 0))
    if congestion:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion)  # its connections have it too
    print(listener.getsockname()[1], flush=True)  # noqa: T201 the child's one line to its parent
    for number in range(connections):
        threading.Thread(target=serve, args=(listener.accept()[0], number), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2].encode())
