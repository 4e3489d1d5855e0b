"""The cost model: pure functions of layouts, bytes and rates. No I/O, no clock, no measurement of its own.

Rates are bytes per second and times are seconds, as the names say.
"""

from dualpath.cost.blocks import block_tokens_that_fit, layout_that_fits
from dualpath.cost.decode import (
    expected_fetch_tpot_s,
    fetch_bytes_per_token,
    kv_bytes,
    reduce_bytes_per_token,
)

__all__ = [
    "block_tokens_that_fit",
    "expected_fetch_tpot_s",
    "fetch_bytes_per_token",
    "kv_bytes",
    "layout_that_fits",
    "reduce_bytes_per_token",
]
