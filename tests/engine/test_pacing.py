"""A prompt's chunks settle at what may be added to a step, whatever a token costs, and a hiccup changes nothing."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dualpath.engine.pacing import FIRST_TOKENS, QUIET_FIRST, Pacer


def run(pacer: Pacer, steps: int, quiet_s: float, fixed_s: float, token_s: float) -> list[int]:
    """Play steps; a chunk adds `fixed_s` and `token_s` for each of its tokens. Returns what rode along."""
    sizes = []
    for _ in range(steps):
        tokens = pacer.tokens()
        pacer.stepped(quiet_s + (fixed_s + token_s * tokens if tokens else 0.0), tokens)
        sizes.append(tokens)
    return sizes


def test_nothing_rides_along_before_steps_alone_are_known() -> None:
    sizes = run(Pacer(0.25, 512), QUIET_FIRST + 1, 0.2, 0.0, 0.001)
    assert sizes == [0] * QUIET_FIRST + [FIRST_TOKENS]


def test_the_addition_settles_at_the_budget() -> None:
    assert run(Pacer(0.25, 512), 60, 0.2, 0.01, 0.001)[-1] in (39, 40)  # 10 ms + 40 x 1 ms are a quarter of 200 ms
    assert run(Pacer(0.25, 512), 60, 0.2, 0.0, 1.0)[-1] == 1  # a prompt that costs more goes on all the same
    assert run(Pacer(0.25, 64), 60, 0.2, 0.0, 0.0)[-1] == 64


def test_sizes_at_most_double() -> None:
    sizes = [size for size in run(Pacer(10.0, 512), 20, 0.2, 0.0, 0.001) if size]
    assert all(later <= 2 * earlier for earlier, later in itertools.pairwise(sizes))


def test_a_chunk_cut_short_at_a_block_does_not_start_all_over() -> None:
    pacer = Pacer(0.25, 512)
    settled = run(pacer, 60, 0.2, 0.01, 0.001)[-1]
    pacer.stepped(0.211, 1)
    assert pacer.tokens() == settled


def test_one_step_that_was_held_up_changes_nothing() -> None:
    pacer = Pacer(0.25, 512)
    settled = run(pacer, 60, 0.2, 0.01, 0.001)[-1]
    pacer.stepped(5.0, settled)
    pacer.stepped(5.0, 0)
    assert abs(pacer.tokens() - settled) <= 1


@given(
    share=st.floats(0.05, 1.0),
    quiet_s=st.floats(0.01, 1.0),
    fixed=st.floats(0.0, 0.8),
    token_s=st.floats(1e-4, 1e-2),
)
def test_the_budget_is_kept(share: float, quiet_s: float, fixed: float, token_s: float) -> None:
    """`fixed`: the share of the budget that a chunk costs whatever its size."""
    budget_s = share * quiet_s
    tokens = run(Pacer(share, 4096), 200, quiet_s, fixed * budget_s, token_s)[-1]
    assert tokens >= 1
    assert tokens == 1 or fixed * budget_s + token_s * tokens <= budget_s * 1.1 + token_s
