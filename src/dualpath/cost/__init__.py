"""The cost model: pure functions of layouts, bytes and rates. No I/O, no clock, no measurement of its own.

Rates are bytes per second and times are seconds, as the names say. One subject to a file: `kv` (bytes kept and read),
`bandwidth`, `compute`, `balance` and `tpot` (time per token of every scheme), `window`, `deductions` (what comes off
HBM and NICs first), `money`, `prefill_decode`; `decode` and `blocks` work on a layout that runs.
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
