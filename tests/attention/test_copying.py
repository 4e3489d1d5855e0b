"""Copying blocks: the same bytes by the native copy and the Python one, and the same refusals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dualpath.attention import copy_blocks, kernels
from dualpath.errors import UsageError

SIZE = 48
SOURCE = np.random.default_rng(1).integers(0, 256, 10 * SIZE, np.uint8)


@pytest.fixture(params=sorted({kernels.available()[0], "python"}))
def _kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DUALPATH_KERNEL", request.param)
    kernels.chosen.cache_clear()
    yield
    kernels.chosen.cache_clear()


pytestmark = pytest.mark.usefixtures("_kernel")


def test_blocks_go_where_they_belong() -> None:
    SOURCE.flags.writeable = False  # as a mapped arena is
    target = np.zeros(4 * SIZE, np.uint8)
    places = [memoryview(target)[at : at + SIZE] for at in (2 * SIZE, 0)]
    copy_blocks(SOURCE, [7 * SIZE, 9 * SIZE], places, SIZE)
    assert (target[2 * SIZE : 3 * SIZE] == SOURCE[7 * SIZE : 8 * SIZE]).all()
    assert (target[:SIZE] == SOURCE[9 * SIZE :]).all()
    assert not target[SIZE : 2 * SIZE].any()
    assert not target[3 * SIZE :].any()
    copy_blocks(SOURCE, [], [], SIZE)


@pytest.mark.parametrize(
    ("offsets", "places"),
    [
        ([0, 9 * SIZE + 1], [bytearray(SIZE), bytearray(SIZE)]),
        ([0, -1], [bytearray(SIZE), bytearray(SIZE)]),
        ([0, 2**62], [bytearray(SIZE), bytearray(SIZE)]),
        ([0, SIZE], [bytearray(SIZE)]),
        ([0], [bytearray(SIZE), bytearray(SIZE)]),
        ([0, SIZE], [bytearray(SIZE), bytearray(SIZE - 1)]),
        ([0, SIZE], [bytearray(SIZE), bytes(SIZE)]),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_copied(offsets, places) -> None:
    with pytest.raises(UsageError, match="copy_blocks"):
        copy_blocks(SOURCE, offsets, [memoryview(place) for place in places], SIZE)
    assert not any(any(place) for place in places)
