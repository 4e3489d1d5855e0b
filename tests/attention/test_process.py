"""What the native kernel does to the process that it runs in."""

from __future__ import annotations

import pytest

from dualpath.attention import kernels

pytestmark = pytest.mark.skipif(kernels.available() == ("python",), reason="capability: the native kernel")


def test_threads_beyond_all_reason_are_refused() -> None:
    import numpy as np

    for threads in (0, -1, 1025, 1 << 30):
        with pytest.raises(ValueError, match="threads must be 1 to 1024"):
            kernels.native().read_bandwidth(np.zeros(64, np.uint8), threads)
