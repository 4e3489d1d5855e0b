"""Timeouts as the kernel keeps them."""

from __future__ import annotations

import socket
import struct

import pytest

from dualpath.transport.timeouts import limit_receive, limit_send


@pytest.mark.parametrize("timeout_s", [1e-9, 0.25, 1.0, 2.999_999_5, 3600.0])
def test_a_limit_is_never_shorter_than_asked_and_never_endless(timeout_s: float) -> None:
    here, there = socket.socketpair()
    with here, there:
        limit_receive(here, timeout_s)
        limit_send(here, 2 * timeout_s)
        for option, asked_s in ((socket.SO_RCVTIMEO, timeout_s), (socket.SO_SNDTIMEO, 2 * timeout_s)):
            seconds, microseconds = struct.unpack("ll", here.getsockopt(socket.SOL_SOCKET, option, 16))
            kept_s = seconds + microseconds / 1e6
            assert 0 < asked_s <= kept_s + 1e-9
            assert kept_s <= asked_s + 0.02  # the kernel counts in ticks


def test_a_receive_comes_back_when_its_time_is_up() -> None:
    here, there = socket.socketpair()
    with here, there:
        limit_receive(here, 1e-3)
        with pytest.raises(BlockingIOError):
            here.recv(1)
