"""Rows from measurements: percentiles, comparisons, and what happens after the first difference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dualpath.bench.rows import Comparison, Measured, Reference, percentile, row


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.fixture
def reference() -> Reference:
    found = Reference("hf")
    for token in (1, 0, 1):
        found.add(token, logits(0.0, float(token)))
    return found


def test_percentiles_interpolate() -> None:
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert percentile([1, 2], 0.99) == pytest.approx(1.99)
    assert percentile([7], 0.99) == 7
    assert math.isnan(percentile([], 0.5))


def test_the_same_tokens_are_identical_and_the_largest_error_is_kept(reference: Reference) -> None:
    comparison = Comparison(reference)
    for token, off in ((1, 0.25), (0, 0.5), (1, 0.0)):
        comparison.add(token, logits(off, float(token)))
    assert comparison.identical
    assert comparison.max_logit_error == 0.5


def test_logits_stop_counting_after_the_first_difference(reference: Reference) -> None:
    comparison = Comparison(reference)
    comparison.add(1, logits(0.0, 1.0))
    comparison.add(1, logits(0.0, 0.75))  # another token, but over the same input: counts
    comparison.add(1, logits(99.0, 1.0))  # another text: does not count
    assert not comparison.identical
    assert comparison.max_logit_error == 0.75


def test_nan_logits_are_an_infinite_error(reference: Reference) -> None:
    comparison = Comparison(reference)
    comparison.add(1, logits(math.nan, 1.0))
    assert comparison.max_logit_error == math.inf


def test_forgotten_logits_no_longer_count_but_tokens_do(reference: Reference) -> None:
    reference.forget(before=2)
    reference.forget(before=2)
    comparison = Comparison(reference)
    comparison.add(1, logits(9.0, 9.0))
    comparison.add(1, logits(9.0, 9.0))
    assert (comparison.identical, comparison.max_logit_error) == (False, 0.0)


def test_a_row_has_the_figures_per_token() -> None:
    measured = Measured(
        "fetch", ttft_s=2.0, step_s=[0.1, 0.3], tokens=[5, 6, 7], cpu_s=0.6, wall_s=0.4, wire_bytes=1000, stall_s=0.02,
        wasted_bytes=8, peak_local_kv_bytes=99,
    )  # fmt: skip
    found = row(measured, None)
    assert (found["scheme"], found["identical"], found["max_logit_error"]) == ("fetch", True, 0.0)
    assert found["tpot_ms_p50"] == pytest.approx(200)
    assert found["tokens_per_s"] == pytest.approx(5)
    assert found["cpu_percent"] == pytest.approx(150)
    assert found["wire_bytes_per_token"] == 500
    assert found["stall_ms_per_token"] == pytest.approx(10)
    assert (found["wasted_bytes"], found["peak_local_kv_bytes"], found["ttft_s"]) == (8, 99, 2.0)
    assert (found["tpot_ms"], found["tokens"]) == ([100.0, 300.0], [5, 6, 7])
