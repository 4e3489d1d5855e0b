"""The management port, without a node behind it."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from dualpath.errors import UsageError
from dualpath.pool.management import Management
from dualpath.pool.meter import Meter


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
