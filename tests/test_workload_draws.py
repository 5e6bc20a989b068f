"""Workloads and the windows that seeds draw from a recording: what is refused, what stays, what two seeds may share."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.models.workload import Replay, Workload


def recorded(n: int, seed: int = 0) -> Workload:
    rng = np.random.default_rng(seed)
    return Workload(np.cumsum(rng.exponential(0.1, n)), np.arange(1, n + 1), rng.integers(1, 50, n), np.arange(n) % 2, "a recording")


WORKLOADS = st.builds(recorded, st.integers(6, 200), st.integers(0, 100))


def same(a: Workload, b: Workload) -> bool:
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(Workload))


@given(WORKLOADS, st.integers(0, 10**6), st.integers(1, 300), st.booleans())
def test_a_seed_is_a_window_of_the_recording(workload: Workload, seed: int, requests: int, heldout: bool) -> None:
    drawn = Replay(workload).draw(seed, requests, heldout=heldout)
    drawn.check()
    n, third = len(workload), len(workload) // 3
    assert len(drawn) == min(requests, third if heldout else n - third)
    first = int(drawn.prompt_tokens[0]) - 1  # a prompt's length is its place
    window = workload.window(first, first + len(drawn))
    assert same(drawn, window.rescaled(workload.rate_rps) if np.isfinite(window.rate_rps) and np.isfinite(workload.rate_rps) else window)
    assert drawn.arrival_s[0] == 0
    assert (first >= n - third) if heldout else (first + len(drawn) <= n - third)
    assert same(drawn, Replay(workload).draw(seed, requests, heldout=heldout))


@given(WORKLOADS, st.integers(0, 50), st.integers(0, 50))
def test_training_and_heldout_seeds_share_no_request(workload: Workload, training: int, heldout: int) -> None:
    a = Replay(workload).draw(training, len(workload), heldout=False)
    b = Replay(workload).draw(heldout, len(workload), heldout=True)
    assert not set(a.prompt_tokens) & set(b.prompt_tokens)
    assert len(a) + len(b) == len(workload)


def test_a_few_seeds_spread_their_windows_over_all_of_the_part() -> None:
    starts = sorted(int(Replay(recorded(3000)).draw(seed, 100, heldout=False).prompt_tokens[0]) - 1 for seed in range(8))
    gaps = np.diff([0, *starts, 1900])
    assert gaps.max() <= 2 * 1900 / 8
    assert gaps[1:-1].min() >= 0.4 * 1900 / 8


@given(WORKLOADS, st.floats(0.01, 1000))
def test_another_rate_keeps_the_requests_and_their_order(workload: Workload, rate_rps: float) -> None:
    faster = workload.rescaled(rate_rps)
    assert faster.rate_rps == pytest.approx(rate_rps, rel=1e-9)
    assert faster.arrival_s[0] == 0
    np.testing.assert_allclose(np.diff(faster.arrival_s) * rate_rps, np.diff(workload.arrival_s) * workload.rate_rps, rtol=1e-6)
    assert np.array_equal(faster.prompt_tokens, workload.prompt_tokens)
    assert same(workload, workload.rescaled(None))


def test_the_rate_is_that_of_the_gaps() -> None:
    assert dataclasses.replace(recorded(6), arrival_s=np.arange(6) / 4).rate_rps == 4.0
    assert np.isnan(recorded(6).window(2, 3).rate_rps)
    assert np.isnan(dataclasses.replace(recorded(6), arrival_s=np.ones(6)).rate_rps)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"arrival_s": np.zeros(0)}, "workload a recording holds no request"),
        ({"prompt_tokens": np.ones(5)}, "workload: prompt_tokens has 5 rows, arrival_s has 6"),
        ({"class_id": np.ones(7)}, "workload: class_id has 7 rows, arrival_s has 6"),
        ({"arrival_s": np.array([0, 1, 2, 1.5, 3, 4])}, "workload: arrival_s must be finite and ascending; sort the rows by time"),
        ({"arrival_s": np.array([0, 1, 2, np.nan, 3, 4])}, "workload: arrival_s must be finite and ascending; sort the rows by time"),
        ({"prompt_tokens": np.array([1, 2, 0, 4, 0, 6])}, "workload: prompt_tokens must be at least 1, row 2 has 0"),
        ({"output_tokens": np.array([1, 2, 3, 4, 5, -6])}, "workload: output_tokens must be at least 1, row 5 has -6"),
    ],
)
def test_what_is_no_workload_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        dataclasses.replace(recorded(6), **fields).check()


@pytest.mark.parametrize(
    ("rate_rps", "workload", "message"),
    [
        (0.0, recorded(6), "rate must be positive, got 0; write for example --rate 12/s"),
        (float("inf"), recorded(6), "rate must be positive, got inf; write for example --rate 12/s"),
        (1.0, recorded(1), "a workload of one request, or with all arrivals at one instant, has no rate to rescale"),
    ],
)
def test_what_has_no_rate_is_not_rescaled(rate_rps: float, workload: Workload, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        workload.rescaled(rate_rps)


def test_a_recording_too_short_to_hold_a_third_back_is_refused() -> None:
    with pytest.raises(ValueError, match="a recording holds 5 requests; it takes at least 6 to hold a third of them back"):
        Replay(recorded(5)).draw(0, 3, heldout=False)
    with pytest.raises(ValueError, match="requests must be at least 1, got 0"):
        Replay(recorded(9)).draw(0, 0, heldout=False)
