"""The management port, without a node behind it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from dualpath.errors import UsageError
from dualpath.pool import management as module
from dualpath.pool.management import Management
from dualpath.pool.meter import Meter
from dualpath.testing.transport_case import PATIENCE_S, eventually


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="capability: IPv6 on loopback")
def test_it_answers_at_an_ipv6_address() -> None:
    management = Management(dict, Meter(), "::1", 0)
    try:
        assert management.url == f"http://[::1]:{management.port}"
        with urllib.request.urlopen(f"{management.url}/healthz", timeout=60.0) as page:
            assert page.read() == b"ok\n"
        with pytest.raises(UsageError, match=rf"cannot listen on \[::1\]:{management.port} for management"):
            Management(dict, Meter(), "::1", management.port)
    finally:
        management.close()


@pytest.fixture
def management() -> Iterator[Management]:
    with contextlib.closing(Management(dict, Meter(), "127.0.0.1", 0)) as served:
        yield served


def silent(management: Management) -> socket.socket:
    return socket.create_connection((management.host, management.port), timeout=PATIENCE_S)


def is_well(management: Management) -> bool:
    with urllib.request.urlopen(f"{management.url}/healthz", timeout=PATIENCE_S) as page:
        return bool(page.read() == b"ok\n")


def test_who_sends_nothing_takes_few_threads_and_keeps_nobody_out(
    management: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 3)
    before = threading.active_count()
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(silent(management)) for _ in range(5)]
        assert [client.recv(1) for client in clients[:2]] == [b"", b""]  # they have made way
        assert eventually(lambda: threading.active_count() == before + 3)
        assert is_well(management)
        for client in clients[3:]:
            client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert client.makefile("rb").read().endswith(b"\r\n\r\nok\n")
    assert eventually(lambda: threading.active_count() == before)


def test_a_client_that_breaks_off_is_no_error_of_the_node(
    management: Management, capfd: pytest.CaptureFixture[str]
) -> None:
    before = threading.active_count()
    client = silent(management)
    client.sendall(b"GET /healthz")
    assert eventually(lambda: threading.active_count() == before + 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()  # with a reset
    assert eventually(lambda: threading.active_count() == before)
    assert is_well(management)
    assert capfd.readouterr().err == ""


def test_opening_it_asks_no_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(socket, "getfqdn", lambda *name: asked.append(name) or "")
    Management(dict, Meter(), "127.0.0.1", 0).close()
    assert asked == []


def test_a_key_may_be_any_bytes() -> None:
    key = "schlüssel €".encode()
    with contextlib.closing(Management(dict, Meter(), "0.0.0.0", 0, key=key)) as management:
        for given, status in ((key, b"200"), (key[:-1], b"401")):
            with socket.create_connection(("127.0.0.1", management.port), timeout=PATIENCE_S) as client:
                client.sendall(b"GET /stats HTTP/1.0\r\nAuthorization: Bearer " + given + b"\r\n\r\n")
                assert client.makefile("rb").readline().split()[1] == status
