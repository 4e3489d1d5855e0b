from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualpath.pool.service import PoolService
from dualpath.testing.node import DirectConnection, FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def service(clock: FakeClock) -> Iterator[PoolService]:
    service = PoolService(64 * 1024, threads=1, clock=clock, grace_s=30.0)
    yield service
    service.close()


@pytest.fixture
def wire(service: PoolService) -> DirectConnection:
    return DirectConnection(service)
