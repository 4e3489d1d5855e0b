"""A prompt's chunks settle at what may be added to a step, whatever a token costs, and however noisy the machine is."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.engine.pacing import FIRST_TOKENS, GROWTH, QUIET_EVERY, QUIET_FIRST, Pacer


def run(
    pacer: Pacer, steps: int, quiet_s: float, fixed_s: float, token_s: float, noise: random.Random | None = None
) -> list[int]:
    """Play steps; a chunk adds `fixed_s` and `token_s` for each of its tokens. Returns what rode along."""
    sizes = []
    for _ in range(steps):
        tokens = pacer.tokens()
        step_s = quiet_s + (fixed_s + token_s * tokens if tokens else 0.0)
        if noise is not None:  # a third of the steps are held up, some of them long
            step_s *= 1 + (noise.expovariate(1.0) if noise.random() < 0.33 else 0.0)
        pacer.stepped(step_s, tokens)
        sizes.append(tokens)
    return sizes


def last(sizes: list[int]) -> int:
    return [size for size in sizes if size][-1]


def test_nothing_rides_along_before_steps_alone_are_known() -> None:
    sizes = run(Pacer(0.25, 512), QUIET_FIRST + 1, 0.2, 0.0, 0.001)
    assert sizes == [0] * QUIET_FIRST + [FIRST_TOKENS]


def test_some_steps_go_alone_however_many_prompts_wait() -> None:
    sizes = run(Pacer(0.25, 512), QUIET_FIRST + 10 * QUIET_EVERY, 0.2, 0.0, 0.001)[QUIET_FIRST:]
    assert [n for n, size in enumerate(sizes) if not size] == list(range(QUIET_EVERY - 1, len(sizes), QUIET_EVERY))


def test_the_addition_settles_at_the_budget() -> None:
    assert last(run(Pacer(0.25, 512), 100, 0.2, 0.01, 0.001)) in (38, 39, 40)  # 10 ms + 40 x 1 ms: a quarter of 200 ms
    assert last(run(Pacer(0.25, 512), 100, 0.2, 0.0, 1.0)) == 1  # a prompt that costs more goes on all the same
    assert last(run(Pacer(0.25, 64), 100, 0.2, 0.0, 0.0)) == 64


def test_sizes_grow_by_degrees() -> None:
    sizes = [size for size in run(Pacer(10.0, 512), 60, 0.2, 0.0, 0.001) if size]
    assert all(later <= GROWTH * earlier + 1 for earlier, later in itertools.pairwise(sizes))
    assert sizes[-1] > 50


def test_a_chunk_cut_short_at_a_block_does_not_start_all_over() -> None:
    pacer = Pacer(0.25, 512)
    settled = last(run(pacer, 99, 0.2, 0.01, 0.001))
    pacer.stepped(0.2, 0)
    pacer.stepped(0.211, 1)
    assert abs(pacer.tokens() - settled) <= 2


@pytest.mark.parametrize("seed", range(8))
def test_a_noisy_machine_changes_little(seed: int) -> None:
    sizes = [size for size in run(Pacer(0.25, 512), 400, 0.3, 0.01, 0.002, random.Random(seed)) if size]
    assert 24 <= statistics.median(sizes[100:]) <= 60  # 32 without noise: 10 ms + 32 x 2 ms are a quarter of 300 ms


def test_a_machine_that_slows_down_is_no_cost_of_the_prompt() -> None:
    pacer = Pacer(0.25, 512)
    before = last(run(pacer, 100, 0.2, 0.0, 0.001))
    assert last(run(pacer, 100, 0.6, 0.0, 0.003)) >= before - 2  # everything three times as slow


@given(
    share=st.floats(0.05, 1.0),
    quiet_s=st.floats(0.01, 1.0),
    fixed=st.floats(0.0, 0.8),
    token_s=st.floats(1e-4, 1e-2),
)
def test_the_budget_is_kept(share: float, quiet_s: float, fixed: float, token_s: float) -> None:
    """`fixed`: the share of the budget that a chunk costs whatever its size."""
    budget_s = share * quiet_s
    tokens = last(run(Pacer(share, 4096), 300, quiet_s, fixed * budget_s, token_s))
    assert tokens >= 1
    assert tokens == 1 or fixed * budget_s + token_s * tokens <= budget_s * 1.3 + token_s
