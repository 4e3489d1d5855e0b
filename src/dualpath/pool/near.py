"""Attention near the data: one `Attend` over many views becomes one block table and one call of the kernel.

request    q of all queries                       [rows, query_heads, head_dim]
table      the slots of every query that is OK    straight out of the arena, nothing is copied; of a partial read only
                                                  the blocks that can matter most to the query, by their keys' bounds
reply      out and lse of all rows                rows of a query that is not OK are (0, -inf)
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dualpath import attention
from dualpath.attention import BlockTable
from dualpath.attention.bounds import check_fraction, choose, count_of
from dualpath.errors import UsageError
from dualpath.host.scheduling import ordinary
from dualpath.pool.views import LARGEST, LAST_POSITION, Slice, View
from dualpath.transport.base import Reply
from dualpath.wire.failures import UnknownViewError
from dualpath.wire.messages import Attend, Geometry, Outcome, Partials, Rank, Ranked, ViewQuery

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def answer(
    request: Attend, payload: memoryview, views: Mapping[int, View], buffer: NDArray[np.uint8], *, threads: int
) -> Reply:
    """Return `Partials` for `request` over the blocks in `buffer`, the arena of these views' slots.

    Raises `UsageError` if the request is at odds with the views or its payload, `UnknownViewError` for a view that is
    not there; nothing is computed then.
    """
    import numpy as np

    geometry, rows = _check(request, payload, views)
    window = request.window
    tables = [
        views[query.view].table(request.layer, query.blocks, query.position - window + 1 if window else 0)
        for query in request.queries
    ]
    queries = np.frombuffer(payload, np.float32).reshape(rows, request.query_heads, geometry.head_dim)
    queries = queries if queries.flags.aligned else queries.copy()
    read: int | None = None
    if request.read_fraction < 1.0:
        with ordinary():
            tables = _most_relevant(request, queries, tables, views, buffer)
        read = sum(len(table.offset) for table in tables if table is not None)
    asked = [(query, table) for query, table in zip(request.queries, tables, strict=True) if table is not None]
    if request.debug or len(asked) < len(tables):
        return _partly(request, queries, tables, geometry, buffer, threads, read)
    # Whatever can be done before the kernel runs is done before: the blocks push all else out of the cache.
    out = np.empty((rows, request.query_heads, geometry.value_dim), np.float32)
    lse = np.empty((rows, request.query_heads), np.float32)
    parts = [memoryview(out).cast("B"), memoryview(lse).cast("B")]
    positions, table = _positions(asked), _block_table(asked, buffer)
    started = time.perf_counter()
    with ordinary():
        attention.partial(
            out,
            lse,
            queries,
            positions,
            table,
            geometry,
            scale=request.scale,
            softcap=request.softcap,
            window=window,
            threads=threads,
        )
    return Reply(Partials([Outcome.OK] * len(asked), time.perf_counter() - started, read), parts)


def ranked(request: Rank, payload: memoryview, views: Mapping[int, View], buffer: NDArray[np.uint8]) -> Reply:
    """Return `Ranked` for `request`: what `answer` would read of it. Raises as `answer` does."""
    import numpy as np

    geometry, rows = _check_queries(request, payload, views)
    if rows > len(request.queries):
        raise UsageError("queries to rank have one row each", hint="prompts read everything")
    queries = np.frombuffer(payload, np.float32).reshape(rows, request.query_heads, geometry.head_dim)
    outcomes: list[Outcome] = []
    chosen: list[list[int]] = []
    with ordinary():
        for q, query in zip(queries, request.queries, strict=True):
            table = views[query.view].table(request.layer, query.blocks, 0)
            outcomes.append(Outcome.LOST if table is None else Outcome.OK)
            chosen.append([] if table is None else _chosen(request, q, views[query.view], table, buffer).tolist())
    return Reply(Ranked(outcomes, chosen))


def _most_relevant(
    request: Attend,
    queries: NDArray[np.float32],
    tables: Sequence[Slice | None],
    views: Mapping[int, View],
    buffer: NDArray[np.uint8],
) -> list[Slice | None]:
    """Return the tables of a partial read. Queries of several rows are prompts, of which rows want different blocks."""
    chosen: list[Slice | None] = []
    row = 0
    for query, table in zip(request.queries, tables, strict=True):
        q, row = queries[row], row + query.rows
        if table is not None and query.rows == 1:
            table = table.only(_chosen(request, q, views[query.view], table, buffer))
        chosen.append(table)
    return chosen


def _chosen(
    request: Attend | Rank, q: NDArray[np.float32], view: View, table: Slice, buffer: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """Return the blocks of `table` that one row reads, as indices in it."""
    import numpy as np

    if count_of(request.read_fraction, len(table.offset)) == len(table.offset):
        return np.arange(len(table.offset))
    bounds = view.bounds(request.layer, table, buffer)
    first = table.position == 0  # what a sequence begins with draws attention whatever it says
    return choose(q * q.dtype.type(request.scale), bounds, table.tokens, request.read_fraction, keep=first)


def _partly(
    request: Attend,
    queries: NDArray[np.float32],
    tables: Sequence[Slice | None],
    geometry: Geometry,
    buffer: NDArray[np.uint8],
    threads: int,
    read: int | None,
) -> Reply:
    """Answer a request of which some query needs a block that is not here, or that wants max and exp-sum apart."""
    import numpy as np

    good = [(query, table) for query, table in zip(request.queries, tables, strict=True) if table is not None]
    rows = np.repeat([table is not None for table in tables], [query.rows for query in request.queries])
    state = attention.State.empty(int(rows.sum()), request.query_heads, geometry.value_dim)
    started = time.perf_counter()
    if good:
        with ordinary():
            attention.attend(
                state,
                queries[rows],
                _positions(good),
                _block_table(good, buffer),
                geometry,
                scale=request.scale,
                softcap=request.softcap,
                window=request.window,
                threads=threads,
            )
    compute_s = time.perf_counter() - started
    arrays = [*attention.finish(state)] + ([state.max, state.exp_sum] if request.debug else [])
    empty = [0.0, -np.inf, -np.inf, 0.0]
    full = [_spread(array, rows, value) for array, value in zip(arrays, empty, strict=False)]
    outcomes = [Outcome.LOST if table is None else Outcome.OK for table in tables]
    return Reply(Partials(outcomes, compute_s, read), [memoryview(array).cast("B") for array in full])


def _check(request: Attend, payload: memoryview, views: Mapping[int, View]) -> tuple[Geometry, int]:
    """Return the views' geometry and the number of query rows."""
    if not 0.0 <= request.softcap < math.inf:
        raise UsageError(f"no such softmax: softcap {request.softcap}")
    if not 0 <= request.window < LAST_POSITION:
        raise UsageError(f"no such window: {request.window}")
    return _check_queries(request, payload, views)


def _check_queries(request: Attend | Rank, payload: memoryview, views: Mapping[int, View]) -> tuple[Geometry, int]:
    """Do what `_check` does, as far as a ranking needs it."""
    if not request.queries:
        raise UsageError("a request without queries")
    geometry, rows = None, 0
    for query in request.queries:
        view = views.get(query.view)
        if view is None:
            raise UnknownViewError(
                f"no view {query.view} on this connection", hint="extend it again from its first block"
            )
        if geometry is None:
            geometry = view.geometry
        elif view.geometry != geometry:
            raise UsageError("the views of one request have different geometries", hint="send one per layer group")
        if not 1 <= query.rows < LARGEST or not 0 <= query.position < LAST_POSITION:
            raise UsageError("a query has at least one row, at a position of at least 0")
        rows += query.rows
    assert geometry is not None
    if not 1 <= request.query_heads < LARGEST or request.query_heads % geometry.kv_heads:
        raise UsageError(f"{request.query_heads} query heads over {geometry.kv_heads} kv heads")
    if not math.isfinite(request.scale):
        raise UsageError(f"no such softmax: scale {request.scale}")
    check_fraction(request.read_fraction)
    expected = rows * request.query_heads * geometry.head_dim * 4
    if payload.nbytes != expected:
        raise UsageError(
            f"queries have {payload.nbytes} bytes; {rows} rows of {request.query_heads} heads x {geometry.head_dim} "
            f"float32 have {expected}"
        )
    return geometry, rows


def _positions(asked: Sequence[tuple[ViewQuery, Slice]]) -> NDArray[np.int64]:
    import numpy as np

    each = [np.arange(query.position, query.position + query.rows, dtype=np.int64) for query, _ in asked]
    return each[0] if len(each) == 1 else np.concatenate(each)


def _block_table(asked: Sequence[tuple[ViewQuery, Slice]], buffer: NDArray[np.uint8]) -> BlockTable:
    import numpy as np

    if len(asked) == 1:  # one sequence, the common case in decode: nothing to join
        query, table = asked[0]
        return table.alone(query.rows, buffer)
    tables = [table for _, table in asked]
    offset = np.concatenate([table.offset for table in tables])
    row_start = np.zeros(len(asked) + 1, np.int32)
    block_start = np.zeros(len(asked) + 1, np.int32)
    np.cumsum([query.rows for query, _ in asked], out=row_start[1:])
    np.cumsum([len(table.offset) for table in tables], out=block_start[1:])
    return BlockTable(
        buffers=[buffer],
        buffer=np.zeros(len(offset), np.int32),
        offset=offset,
        tokens=np.concatenate([table.tokens for table in tables]),
        position=np.concatenate([table.position for table in tables]),
        row_start=row_start,
        block_start=block_start,
    )


def _spread(array: NDArray[np.float32], rows: NDArray[np.bool_], value: float) -> NDArray[np.float32]:
    """Put the rows of `array` where `rows` is true, and `value` elsewhere."""
    import numpy as np

    full = np.full((len(rows), *array.shape[1:]), value, np.float32)
    full[rows] = array
    return full
