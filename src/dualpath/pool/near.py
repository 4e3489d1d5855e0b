"""Attention near the data: one `Attend` over many views becomes one block table and one call of the kernel.

request    q of all queries                       [rows, query_heads, head_dim]
table      the slots of every query that is OK    straight out of the arena, nothing is copied
reply      out and lse of all rows                rows of a query that is not OK are (0, -inf)
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dualpath.errors import UsageError
from dualpath.pool.views import Slice, View
from dualpath.transport.base import Reply
from dualpath.wire.failures import UnknownViewError
from dualpath.wire.messages import Attend, Geometry, Outcome, Partials

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dualpath import attention

_LARGEST = 1 << 31
_LAST_POSITION = 1 << 62


def answer(
    request: Attend, payload: memoryview, views: Mapping[int, View], buffer: NDArray[np.uint8], *, threads: int
) -> Reply:
    """Return `Partials` for `request` over the blocks in `buffer`, the arena of these views' slots.

    Raises `UsageError` if the request is at odds with the views or its payload, `UnknownViewError` for a view that is
    not there; nothing is computed then.
    """
    import numpy as np

    from dualpath import attention

    unknown = next((query.view for query in request.queries if query.view not in views), None)
    if unknown is not None:
        raise UnknownViewError(f"no view {unknown} on this connection", hint="extend it again from its first block")
    geometry = _check(request, payload, views)
    tables = [
        views[query.view].table(
            request.layer, query.blocks, query.position - request.window + 1 if request.window else 0
        )
        for query in request.queries
    ]
    outcomes = [Outcome.LOST if table is None else Outcome.OK for table in tables]
    rows = np.array([query.rows for query in request.queries], np.int32)
    queries = np.require(
        np.frombuffer(payload, np.float32).reshape(-1, request.query_heads, geometry.head_dim), requirements=["C", "A"]
    )
    position = np.concatenate([np.arange(q.position, q.position + q.rows, dtype=np.int64) for q in request.queries])
    good = np.array([table is not None for table in tables])
    good_rows = None if good.all() else np.repeat(good, rows)
    if good_rows is not None:
        queries, position, rows = queries[good_rows], position[good_rows], rows[good]
    state = attention.State.empty(len(queries), request.query_heads, geometry.value_dim)
    started = time.perf_counter()
    if len(queries):
        attention.attend(
            state,
            queries,
            position,
            _block_table([table for table in tables if table is not None], rows, buffer),
            geometry,
            scale=request.scale,
            softcap=request.softcap,
            window=request.window,
            threads=threads,
        )
    compute_s = time.perf_counter() - started
    arrays = [*attention.finish(state)] + ([state.max, state.exp_sum] if request.debug else [])
    if good_rows is not None:
        empty = [0.0, -np.inf, -np.inf, 0.0]
        arrays = [_spread(array, good_rows, value) for array, value in zip(arrays, empty, strict=False)]
    return Reply(Partials(outcomes, compute_s), [np.ascontiguousarray(array).data.cast("B") for array in arrays])


def _check(request: Attend, payload: memoryview, views: Mapping[int, View]) -> Geometry:
    if not request.queries:
        raise UsageError("an attend without queries")
    geometry = views[request.queries[0].view].geometry
    if any(views[query.view].geometry != geometry for query in request.queries):
        raise UsageError("the views of one attend have different geometries", hint="send one attend per layer group")
    if not 1 <= request.query_heads < _LARGEST or request.query_heads % geometry.kv_heads:
        raise UsageError(f"{request.query_heads} query heads over {geometry.kv_heads} kv heads")
    if not math.isfinite(request.scale) or not 0.0 <= request.softcap < math.inf:
        raise UsageError(f"no such softmax: scale {request.scale}, softcap {request.softcap}")
    if not 0 <= request.window < _LAST_POSITION:
        raise UsageError(f"no such window: {request.window}")
    if any(not 1 <= q.rows < _LARGEST or not 0 <= q.position < _LAST_POSITION for q in request.queries):
        raise UsageError("a query has at least one row, at a position of at least 0")
    rows = sum(query.rows for query in request.queries)
    expected = rows * request.query_heads * geometry.head_dim * 4
    if payload.nbytes != expected:
        raise UsageError(
            f"queries have {payload.nbytes} bytes; {rows} rows of {request.query_heads} heads x {geometry.head_dim} "
            f"float32 have {expected}"
        )
    return geometry


def _block_table(tables: list[Slice], rows: NDArray[np.int32], buffer: NDArray[np.uint8]) -> attention.BlockTable:
    import numpy as np

    from dualpath.attention import BlockTable

    if len(tables) == 1:  # one sequence, the common case in decode: nothing to join
        only, count = tables[0], len(tables[0].offset)
        ends = np.array([[0, rows[0]], [0, count]], np.int32)
        return BlockTable(
            [buffer], np.zeros(count, np.int32), only.offset, only.tokens, only.position, ends[0], ends[1]
        )
    joined = Slice(
        np.concatenate([table.offset for table in tables]),
        np.concatenate([table.tokens for table in tables]),
        np.concatenate([table.position for table in tables]),
    )
    row_start = np.zeros(len(tables) + 1, np.int32)
    block_start = np.zeros(len(tables) + 1, np.int32)
    np.cumsum(rows, out=row_start[1:])
    np.cumsum([len(table.offset) for table in tables], out=block_start[1:])
    return BlockTable(
        buffers=[buffer],
        buffer=np.zeros(len(joined.offset), np.int32),
        offset=joined.offset,
        tokens=joined.tokens,
        position=joined.position,
        row_start=row_start,
        block_start=block_start,
    )


def _spread(array: NDArray[np.float32], rows: NDArray[np.bool_], value: float) -> NDArray[np.float32]:
    """Put the rows of `array` where `rows` is true, and `value` elsewhere."""
    import numpy as np

    full = np.full((len(rows), *array.shape[1:]), value, np.float32)
    full[rows] = array
    return full
