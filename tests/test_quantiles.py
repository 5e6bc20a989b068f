"""Quantiles against the binomial that they come from: intervals that hold the truth as often as they say, refusals where they cannot."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from headway.models.quantiles import BLOCKS, QUANTILES, blocks_of, effective, needed, order_ranks, quantiles


@given(st.sampled_from(sorted(QUANTILES.values())), st.floats(0, 1))
def test_order_statistics_hold_the_quantile_with_95_percent(share: float, place: float) -> None:
    n = needed(share) + int(10 ** (1 + 5 * place)) - 10
    ranks = order_ranks(n, share)
    assert ranks is not None
    lower, upper = ranks
    assert 1 <= lower <= upper <= n
    assert binom.cdf(upper - 1, n, share) - binom.cdf(lower - 1, n, share) >= 0.95 - 1e-9
    # no wider than it needs to be: a rank less at either end leaves more than its part outside
    assert upper == n or binom.sf(upper - 2, n, share) > 0.025
    assert binom.cdf(lower, n, share) > min(0.025, 0.05 - binom.sf(upper - 1, n, share))


@pytest.mark.parametrize(("share", "n"), [(0.5, 6), (0.9, 29), (0.99, 299), (0.999, 2995)])
def test_a_quantile_is_refused_below_the_sample_that_holds_it(share: float, n: int) -> None:
    assert needed(share) == n
    assert order_ranks(n - 1, share) is None
    assert order_ranks(n, share) is not None


@pytest.mark.parametrize("n", [100, 298, 299, 400, 999])
def test_case_e7_p99_of_few_requests_carries_an_interval_or_is_refused(n: int) -> None:
    found = quantiles(np.random.default_rng(n).exponential(1.0, n))["p99"]
    if n < 299:
        assert (found.value, found.low, found.high) == (None, None, None)
        assert found.refused == f"needs 299 requests, has {n}"
    else:
        assert found.low is not None
        assert found.high is not None
        assert found.value is not None
        assert found.low < found.value <= found.high
    assert quantiles(np.zeros(n))["p999"].refused == f"needs 2,995 requests, has {n}"


@pytest.mark.parametrize("n", [400, 1200])
def test_the_interval_holds_the_true_quantile_as_often_as_it_says(n: int) -> None:
    rng, true, repeats = np.random.default_rng(7), -math.log(0.01), 400
    held = 0
    for _ in range(repeats):
        values = rng.exponential(1.0, n)
        found = quantiles(values, blocks_of([n]))["p99"]
        held += (found.low or 0.0) <= true <= (found.high or math.inf) or found.value is None
    assert held / repeats >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / repeats)


def test_values_that_come_in_bad_stretches_count_for_less() -> None:
    rng = np.random.default_rng(1)
    shift = np.repeat(rng.normal(0, 3, BLOCKS), 200)
    bursty, plain = shift + rng.normal(0, 1, BLOCKS * 200), rng.normal(0, 1, BLOCKS * 200)
    blocks = blocks_of([BLOCKS * 200])
    assert effective(plain <= np.median(plain), blocks) == BLOCKS * 200
    assert effective(bursty <= np.median(bursty), blocks) < 5 * BLOCKS
    wide, narrow = quantiles(bursty, blocks)["p50"], quantiles(bursty)["p50"]
    assert (wide.high or 0) - (wide.low or 0) > 5 * ((narrow.high or 0) - (narrow.low or 0))
    open_end = quantiles(bursty, blocks)["p999"]
    assert open_end.value is not None
    assert (open_end.high, open_end.refused) == (None, ""), "enough values, worth too few: nobody knows how far up it may lie"
    assert quantiles(bursty)["p999"].high is not None


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30))
def test_blocks_are_consecutive_and_never_cross_runs(runs: list[int]) -> None:
    found = blocks_of(runs)
    if found is None:
        assert sum(max(1, min(math.ceil(BLOCKS / len(runs)), n // 10)) for n in runs) < 8
        return
    assert len(found) == sum(runs)
    assert (np.diff(found) >= 0).all()
    run = np.repeat(np.arange(len(runs)), runs)
    assert all(len(set(run[found == b])) == 1 for b in set(found))


@given(st.lists(st.floats(0, 1e6), max_size=400), st.integers(0, 50))
def test_a_quantile_lies_in_its_own_interval_and_those_never_served_sort_last(values: list[float], never: int) -> None:
    found = quantiles(np.array([*values, *[np.inf] * never]))
    for one in found.values():
        assert one.value is None or (one.low is not None and one.low <= one.value <= (one.high if one.high is not None else math.inf))
        assert one.value is not None or one.refused or not (values or never)
