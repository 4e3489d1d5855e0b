"""A name with several addresses has one deadline, and each address its share of it."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dualpath.testing.transport_service import MemoryService
from dualpath.transport import dial
from dualpath.transport.dial import Dialer, Tcp
from dualpath.transport.tcp import TcpServer
from dualpath.wire.messages import Lane

TIMEOUT_S = 0.6


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address that answers no more attempts to connect, nor refuses them: its queue is full."""
    with contextlib.ExitStack() as closing:
        listener = closing.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            waiting = closing.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        yield listener.getsockname()


def resolve_to(addresses: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


@pytest.mark.parametrize("within", [True, False])
def test_only_a_connection_within_the_host_is_not_paced(within: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def control(sock: socket.socket) -> bytes:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")

    if not within:
        monkeypatch.setattr(dial, "is_same_host", lambda _: False)
        monkeypatch.setattr(dial, "is_loopback", lambda _: False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = Tcp(*listener.getsockname()).connect(Lane.BULK, 1000, TIMEOUT_S)
        with sock, listener.accept()[0] as accepted:
            before = control(accepted)
            dial.tune(accepted)
            assert control(sock) == control(accepted) == (b"reno" if within else before)


def connect() -> socket.socket:
    return Tcp("pool.example", 7700).connect(Lane.BULK, 1000, TIMEOUT_S)


def test_addresses_that_do_not_answer_share_the_time(silent: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to([silent] * 4, monkeypatch)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        connect()
    assert TIMEOUT_S * 0.9 <= time.monotonic() - began < TIMEOUT_S * 3  # one after the other they would take four


def test_the_next_address_is_tried_in_time(silent: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        resolve_to([silent, listener.getsockname()], monkeypatch)
        with connect() as sock:
            assert sock.getpeername() == listener.getsockname()
            assert sock.gettimeout() is None


def test_a_name_without_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to([], monkeypatch)
    with pytest.raises(OSError, match=r"pool\.example has no address"):
        connect()


def test_the_key_is_not_in_what_a_dialer_says_of_itself() -> None:
    assert "secret" not in repr(Dialer(Tcp("pool.example", 7700), b"secret" * 8, "tenant", TIMEOUT_S))


def test_what_a_node_on_loopback_accepts_is_not_paced() -> None:
    with TcpServer(MemoryService(1, 64), "127.0.0.1", 0, node_id="n") as server:
        listener = server._listeners[0]
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"
