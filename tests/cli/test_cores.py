"""Idle threads of a model sleep where nodes may compute on the same cores, and spin elsewhere."""

from __future__ import annotations

import os

import pytest

from dualpath.cli import cores
from dualpath.host import addresses
from dualpath.host.addresses import LocalAddress, is_here

POLICY = "OMP_WAIT_POLICY"


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POLICY, "")  # so that it is restored
    monkeypatch.delenv(POLICY)


def test_loopback_and_own_addresses_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    own = LocalAddress("eth0", addresses.ipaddress.ip_interface("192.0.2.7/24"))
    monkeypatch.setattr(addresses, "local_addresses", lambda: [own])
    assert is_here("127.0.0.1")
    assert is_here("localhost")
    assert is_here("::1")
    assert is_here("192.0.2.7")
    assert not is_here("192.0.2.8")


def test_a_name_that_leads_nowhere_may_be_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object, **__: object) -> None:
        raise OSError("no such name")

    monkeypatch.setattr(addresses.socket, "getaddrinfo", nowhere)
    assert is_here("pool.example")


@pytest.mark.parametrize(
    ("pool", "policy"),
    [
        ("", None),
        ("192.0.2.8:7700", None),
        ("192.0.2.8:7700,127.0.0.1:7700", "passive"),
        ("mapped:/run/dualpath.sock", "passive"),
    ],
)
def test_only_nodes_here_are_yielded_to(pool: str, policy: str | None) -> None:
    cores.yield_idle_cores_to(pool)
    assert os.environ.get(POLICY) == policy


def test_what_the_user_has_set_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POLICY, "active")
    cores.yield_idle_cores()
    assert os.environ[POLICY] == "active"
