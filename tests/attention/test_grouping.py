"""The state does not depend, in any bit, on how blocks are grouped into calls, on threads, or on addresses."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.attention import State
from dualpath.attention.kernels import available

SHAPES = (
    {"sequences": ((1, 300),), "block_tokens": 32, "kv_heads": 3, "group": 3},
    {"sequences": ((1, 200), (30, 200), (4, 90)), "block_tokens": 32},
    {"sequences": ((70, 300),), "block_tokens": 64, "group": 3, "window": 50},
    {"sequences": ((1, 90),), "latent": True, "kv_heads": 1, "group": 16, "head_dim": 96, "value_dim": 64},
)


def same(a: State, b: State) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(vars(a).values(), vars(b).values(), strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3"])
@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_one_block_at_a_time(make_case, kernel, dtype, shape):
    case = make_case(1, dtype=dtype, **SHAPES[shape])
    whole = case.run(kernel)
    state = case.empty()
    for i in range(len(case.table.tokens)):
        case.with_blocks(i, i + 1).run(kernel, state=state, threads=1 + i % 3)
    assert same(state, whole)


@given(data=st.data())
def test_any_grouping_and_any_threads(make_case, data):
    kernel = data.draw(st.sampled_from(available()))
    dtype = data.draw(st.sampled_from(["float32", "int8"]))
    case = make_case(data.draw(st.integers(0, 3)), dtype=dtype, **data.draw(st.sampled_from(SHAPES)))
    n = len(case.table.tokens)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    state = case.empty()
    for begin, end in zip([0, *cuts], [*cuts, n], strict=True):
        case.with_blocks(begin, end).run(kernel, state=state, threads=data.draw(st.integers(1, 5)))
    assert same(state, case.run(kernel))


def test_addresses_do_not_matter(make_case, kernel):
    case = make_case(2, **SHAPES[1])
    table = case.table
    shifted = [np.concatenate([np.zeros(4, np.uint8), b]) for b in table.buffers]
    moved = replace(case, table=replace(table, buffers=shifted, offset=table.offset + 4))
    assert same(moved.run(kernel), case.run(kernel))


def test_rows_of_other_sequences_do_not_matter(make_case, kernel):
    case = make_case(3, **SHAPES[1])
    whole = case.run(kernel)
    rows, blocks = case.table.row_start, case.table.block_start
    for s in range(len(rows) - 1):
        own, mine = slice(rows[s], rows[s + 1]), slice(blocks[s], blocks[s + 1])
        t = case.table
        table = replace(
            t, buffer=t.buffer[mine], offset=t.offset[mine], tokens=t.tokens[mine], position=t.position[mine],
            row_start=np.array([0, rows[s + 1] - rows[s]], np.int32),
            block_start=np.array([0, blocks[s + 1] - blocks[s]], np.int32),
        )  # fmt: skip
        alone = replace(case, q=case.q[own].copy(), row_position=case.row_position[own].copy(), table=table).run(kernel)
        assert same(alone, State(whole.max[own], whole.exp_sum[own], whole.acc[own]))


@pytest.mark.parametrize("bits", [8, 16, 24])
def test_precision_of_other_queries_does_not_matter(make_case, kernel, bits):
    """A kernel may do less for queries that fit in bf16 (8 bits); one that does not must not change the others."""

    def rounded(q: np.ndarray, bits: int) -> np.ndarray:
        return (q.view(np.uint32) & np.uint32(0xFFFFFFFF << (24 - bits) & 0xFFFFFFFF)).view(np.float32)

    case = make_case(6, dtype="bfloat16", sequences=((60, 300),), block_tokens=128)
    coarse = replace(case, q=rounded(case.q, 8))
    mixed = coarse.q.copy()
    mixed[::7] = rounded(case.q[::7], bits)
    a, b = coarse.run(kernel), replace(coarse, q=mixed).run(kernel)
    others = np.arange(60) % 7 != 0
    assert same(*(State(s.max[others], s.exp_sum[others], s.acc[others]) for s in (a, b)))
    assert replace(coarse, q=mixed).error(kernel) < 1e-5


def test_calls_from_several_threads(make_case):
    """The workers serve one caller at a time; the others compute alone, with the same result."""
    case = make_case(4, sequences=((1, 4000), (30, 500)), block_tokens=64)
    kernel = available()[0]
    expected = case.run(kernel)
    wrong = []

    def call() -> None:
        for _ in range(10):
            if not same(case.run(kernel, threads=2), expected):
                wrong.append(1)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_its_own_threads(make_case):
    case = make_case(5, sequences=((1, 4000),), block_tokens=64)
    kernel = available()[0]
    expected = case.run(kernel, threads=2)
    child = os.fork()
    if child == 0:
        os._exit(0 if same(case.run(kernel, threads=2), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
