"""Arrivals that are no renewal process: rates that change, and clients who wait for their answers."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.models.arrivals import Arrivals, Closed, Weibull
from headway.models.durations import Durations, ExponentialTime, FixedTime, LogNormalTime
from headway.models.generators import Synthetic
from headway.models.lengths import Constant
from headway.models.varying import MMPP, Diurnal, Ramp, Step, Varying

RATES, TIMES, HELD = st.floats(0.05, 200), st.floats(0.01, 5000), st.floats(1, 5000)
DURATIONS = st.one_of(
    st.builds(FixedTime, st.just(0.0) | TIMES), st.builds(ExponentialTime, TIMES), st.builds(LogNormalTime, TIMES, st.floats(0, 2))
)
BURSTS = st.builds(
    lambda a, b, dwells: MMPP((a, b) if len(dwells) == 2 else (a, 0.0, b), dwells),
    RATES,
    RATES,
    st.tuples(HELD, HELD) | st.tuples(HELD, HELD, HELD),
)
CHANGING = st.one_of(
    BURSTS,
    st.builds(Diurnal, RATES, st.floats(0, 1), TIMES, st.none() | st.floats(0, 1)),
    st.builds(lambda r, to, at, more: Step(r, to, at, at + more), RATES, RATES, st.just(0.0) | TIMES, st.just(math.inf) | TIMES),
    st.builds(Ramp, RATES, RATES, TIMES, st.just(0.0) | TIMES),
)
ANY = CHANGING | st.builds(Closed, st.integers(1, 60), DURATIONS)


def drawn(arrivals: Arrivals, seed: int, n: int):
    return Synthetic(arrivals, (Constant(10),), (Constant(5),)).draw(seed, n, heldout=False)


@given(ANY, st.integers(0, 2**40), st.integers(1, 200), st.integers(1, 200))
def test_every_draw_is_a_workload_and_more_begin_with_the_same(arrivals: Arrivals, seed: int, n: int, more: int) -> None:
    arrivals.check()
    few, many = drawn(arrivals, seed, n), drawn(arrivals, seed, n + more)
    many.check()
    assert many.arrival_s[0] == 0
    first = many.window(0, n)
    assert all(np.array_equal(getattr(few, name), getattr(first, name)) for name in ("arrival_s", "after", "think_s"))
    assert np.array_equal(many.arrival_s, drawn(arrivals, seed, n + more).arrival_s)


def expected(arrivals: Varying, time_s: np.ndarray) -> np.ndarray:
    """The integral of the rate from 0 to each time, by the midpoint rule: what the closed forms are held to."""
    match arrivals:
        case Step(rate, to, at_s, until_s):
            return rate * time_s + (to - rate) * (np.clip(time_s, at_s, until_s) - at_s)
        case Ramp() | Diurnal():
            share = (np.arange(20_000) + 0.5) / 20_000
            return np.array([t * rate_at(arrivals, t * share).mean() for t in time_s])
    raise AssertionError(arrivals)


def rate_at(arrivals: Varying, time_s: np.ndarray) -> np.ndarray:
    match arrivals:
        case Ramp(rate, to, over_s, at_s):
            return rate + (to - rate) * np.clip((time_s - at_s) / over_s, 0, 1)
        case Diurnal(rate, amplitude, period_s, phase):
            assert phase is not None
            return rate * (1 + amplitude * np.sin(2 * np.pi * (time_s / period_s + phase)))
    raise AssertionError(arrivals)


@settings(max_examples=40)
@given(
    st.one_of(
        st.builds(Diurnal, st.floats(1, 20), st.floats(0, 1), st.floats(5, 500), st.floats(0, 1)),
        st.builds(lambda r, to, at, more: Step(r, to, at, at + more), RATES, RATES, st.floats(0, 20), st.just(math.inf) | st.floats(1, 20)),
        st.builds(Ramp, st.floats(1, 20), st.floats(1, 20), st.floats(1, 60), st.floats(0, 20)),
    ),
    st.integers(0, 1000),
)
def test_arrivals_are_those_of_rate_one_on_a_warped_clock(arrivals: Varying, seed: int) -> None:
    time_s = drawn(arrivals, seed, 40).arrival_s
    even = drawn(still(arrivals), seed, 40).arrival_s * arrivals.rate_rps
    assert expected(arrivals, time_s) == pytest.approx(even, rel=2e-3, abs=2e-3)


def still(arrivals: Varying) -> Varying:
    """The same process without its change."""
    match arrivals:
        case Diurnal():
            return dataclasses.replace(arrivals, amplitude=0.0)
        case Step() | Ramp():
            return dataclasses.replace(arrivals, to_rps=arrivals.rate_rps)
    raise AssertionError(arrivals)


@given(CHANGING, st.integers(0, 1000), st.floats(0.1, 10))
def test_another_rate_keeps_the_clock_of_the_change(arrivals: Varying, seed: int, factor: float) -> None:
    changed = arrivals.rescaled(arrivals.rate_rps * factor)
    assert changed.rate_rps == pytest.approx(arrivals.rate_rps * factor)
    for field in dataclasses.fields(arrivals):  # pyright: ignore[reportArgumentType]
        value, now = getattr(arrivals, field.name), getattr(changed, field.name)
        wanted = np.multiply(value, factor) if field.name.endswith("_rps") else value
        assert now == (pytest.approx(wanted) if field.name.endswith("_rps") else value)
    slow, fast = sorted((arrivals, changed), key=lambda one: one.rate_rps)
    assert (drawn(fast, seed, 60).arrival_s <= drawn(slow, seed, 60).arrival_s * (1 + 1e-9) + 1e-9).all()


@pytest.mark.parametrize(
    ("arrivals", "ends"),
    [
        (Step(5.0, 20.0, 50.0, 90.0), [(0, 50, 5.0), (50, 90, 20.0), (90, 120, 5.0)]),
        (Ramp(5.0, 15.0, 40.0, 20.0), [(0, 20, 5.0), (20, 60, 10.0), (60, 100, 15.0)]),
        (Diurnal(10.0, 0.8, 100.0, 0.0), [(0, 50, 10 * (1 + 0.8 * 2 / np.pi)), (50, 100, 10 * (1 - 0.8 * 2 / np.pi))]),
    ],
)
def test_counts_follow_the_rate(arrivals: Arrivals, ends: list[tuple[float, float, float]]) -> None:
    runs = [drawn(arrivals, seed, 2500).arrival_s[1:] for seed in range(60)]
    for low, high, rate in ends:
        found = sum(int(((run > low) & (run <= high)).sum()) for run in runs)
        wanted = rate * (high - low) * len(runs)
        assert abs(found - wanted) < 5 * math.sqrt(wanted), f"{low} to {high} s"


@pytest.mark.parametrize("arrivals", [MMPP((2.0, 20.0), (30.0, 5.0)), MMPP((0.0, 12.0), (4.0, 4.0)), MMPP((6.0, 6.0), (3.0, 1.0))])
def test_bursts_have_the_rate_and_the_dispersion_of_the_closed_form(arrivals: MMPP) -> None:
    width_s, windows, runs = 10.0, 200, 12
    (rate_1, rate_2), (dwell_1, dwell_2) = arrivals.rates_rps, arrivals.dwells_s
    share, c = dwell_1 / (dwell_1 + dwell_2), 1 / (1 / dwell_1 + 1 / dwell_2)
    rate = share * rate_1 + (1 - share) * rate_2
    assert arrivals.rate_rps == pytest.approx(rate)
    spread = share * (1 - share) * (rate_1 - rate_2) ** 2
    variance = rate * width_s + 2 * spread * (c * width_s - c**2 * (1 - math.exp(-width_s / c)))
    slow = rate + 2 * spread * c  # variance of the count per second in long windows: what the mean's own error comes from
    counts = []
    for seed in range(runs):
        found = drawn(arrivals, seed, int(rate * width_s * (windows + 60) * 1.6)).arrival_s
        assert found[-1] > 30 + width_s * windows
        # Not from 0: the request at 0 and the first state are no sample of the process.
        counts.append(np.histogram(found, 30 + width_s * np.arange(windows + 1))[0])
    total_s = width_s * windows * runs
    assert abs(np.mean(counts) / width_s - rate) < 5 * math.sqrt(slow / total_s)
    # The variance of a variance of correlated counts: bounded by what as many independent ones, thinned by their memory, would have.
    independent = windows * runs * width_s / (width_s + 2 * c)
    assert np.var(counts) == pytest.approx(variance, rel=5 * math.sqrt(3 / independent))


def test_a_day_is_begun_at_any_hour() -> None:
    day = Diurnal(10.0, 0.9, 3600.0)
    counts = [int((drawn(day, seed, 2500).arrival_s < 60).sum()) for seed in range(300)]
    assert np.mean(counts) == pytest.approx(600, rel=5 * 0.9 / math.sqrt(2 * 300))
    assert np.std(counts) / 600 == pytest.approx(0.9 / math.sqrt(2), rel=0.15)


@pytest.mark.parametrize("shape", [0.4, 0.6, 1.0, 3.0])
def test_weibull_gaps_have_the_moments_of_the_closed_form(shape: float) -> None:
    gaps_s = Weibull(4.0, shape).gaps_s(np.random.default_rng(0), 400_000)
    assert gaps_s.mean() == pytest.approx(0.25, rel=6 * Weibull(4.0, shape).cv / math.sqrt(len(gaps_s)))
    scale = 0.25 / math.gamma(1 + 1 / shape)
    for t in (0.05, 0.25, 1.0):
        survives = math.exp(-((t / scale) ** shape))
        assert (gaps_s > t).mean() == pytest.approx(survives, abs=5 * math.sqrt(survives / len(gaps_s)) + 1e-9)
    assert Weibull(4.0, 1.0).cv == pytest.approx(1.0)


# Closed loops.


@given(st.integers(1, 40), DURATIONS, st.integers(0, 1000), st.integers(1, 200))
def test_a_client_waits_for_its_own_last_request(clients: int, think: Durations, seed: int, n: int) -> None:
    workload = drawn(Closed(clients, think), seed, n)
    assert workload.after is not None
    assert workload.think_s is not None
    assert (workload.after == -1).sum() == min(n, clients)
    waited = workload.after[workload.after >= 0]
    assert len(np.unique(waited)) == len(waited), "no two wait for one end"
    early_s = workload.arrival_s - workload.arrival_s[workload.after] - workload.think_s
    turns = np.bincount(workload.after[workload.after >= 0] % clients, minlength=clients)
    assert turns.max() - turns.min() <= 1, "all send as often"
    if clients == 1:
        assert early_s[1:] == pytest.approx(0.0, abs=1e-6 * (1 + workload.arrival_s[-1]))


@pytest.mark.parametrize("answer_s", [0.0, 0.5, 4.0])
def test_the_response_time_law_holds(answer_s: float) -> None:
    clients, n = 20, 20_000
    workload = drawn(Closed(clients, ExponentialTime(2.0)), 0, n)
    assert workload.after is not None
    assert workload.think_s is not None
    end_s = np.zeros(n)
    for i in range(n):
        begin = workload.arrival_s[i] if workload.after[i] < 0 else end_s[workload.after[i]] + workload.think_s[i]
        end_s[i] = begin + answer_s
    until_s = end_s[-clients:].min()  # from then on clients run out of requests
    wanted = clients / (answer_s + 2.0) * until_s
    assert abs((end_s <= until_s).sum() - wanted) < 5 * math.sqrt(wanted) * 2.0 / (answer_s + 2.0) + clients
    assert Closed(clients, ExponentialTime(2.0)).rate_rps == 10.0


def test_clients_who_do_not_think_are_a_fixed_concurrency() -> None:
    workload = drawn(Closed(8), 0, 80)
    assert not workload.arrival_s.any()
    assert workload.after is not None
    assert (workload.after == -1).sum() == 8
    assert Closed(8).rate_rps == math.inf


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Weibull(1.0, 0.0), "weibull: shape must be in [0.1, 100], got 0; 1 is Poisson, below it are bursts"),
        (MMPP((1.0,), (1.0,)), "mmpp: needs as many rates as dwell times, at least two, got 1 and 1"),
        (MMPP((1.0, 2.0), (1.0,)), "mmpp: needs as many rates as dwell times, at least two, got 2 and 1"),
        (MMPP((1.0, 2.0), (1.0, 0.0)), "dwell of arrivals must be positive and finite, got 0"),
        (MMPP((0.0, 0.0), (1.0, 1.0)), "mmpp: rates must be finite and not negative, one of them above 0, got 0, 0"),
        (MMPP((1.0, -1.0), (1.0, 1.0)), "mmpp: rates must be finite and not negative, one of them above 0, got 1, -1"),
        (MMPP((1.0, 2.0), (1e-5, 1e-5)), "mmpp: a round of all states holds 3e-05 requests on average; that is no other than poisson"),
        (Diurnal(1.0, 1.2, 60.0), "diurnal: amplitude must be in [0, 1], got 1.2; 0.6 swings between 40 % and 160 % of the rate"),
        (Diurnal(1.0, 0.5, 0.0), "period of arrivals must be positive and finite, got 0"),
        (Diurnal(1.0, 0.5, 60.0, 2.0), "diurnal: phase must be in [0, 1], a part of the period, got 2; 0.25 begins at the peak"),
        (Step(1.0, 0.0, 5.0), "to of arrivals must be positive and finite, got 0"),
        (Step(1.0, 2.0, -5.0), "step: at must be finite and not negative, got -5 s"),
        (Step(1.0, 2.0, 5.0, 5.0), "step: until must lie after at, got 5 s and 5 s"),
        (Ramp(1.0, 2.0, 0.0), "over of arrivals must be positive and finite, got 0"),
        (Ramp(1.0, 2.0, 1.0, math.inf), "ramp: at must be finite and not negative, got inf s"),
        (Closed(0), "closed: clients must be in [1, 100000], got 0"),
        (Closed(2, ExponentialTime(0.0)), "exponential: the mean must be positive and finite, got 0 s"),
        (FixedTime(-1.0), "constant: the time must be finite and not negative, got -1 s"),
        (LogNormalTime(0.0, 1.0), "lognormal: the median must be positive and finite, got 0 s"),
        (LogNormalTime(1.0, 11.0), "lognormal: sigma must be in [0, 10], got 11; it is the spread of the logarithm"),
    ],
)
def test_a_parameter_out_of_range_is_refused(made, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        made.check()


def test_a_closed_loop_has_no_rate_to_set() -> None:
    with pytest.raises(ValueError, match="a closed loop has no rate to set, got 5/s"):
        Closed(4).rescaled(5.0)


@settings(max_examples=20)
@given(DURATIONS, st.integers(0, 10**6))
def test_times_have_their_mean(times: Durations, seed: int) -> None:
    n = 20_000
    found = times.draw(np.random.default_rng(seed), n)
    assert found.min() >= 0
    cv = {FixedTime: 0.0, ExponentialTime: 1.0}.get(type(times), 0.0)
    if isinstance(times, LogNormalTime):
        cv = math.sqrt(math.expm1(times.sigma**2))
        assert np.median(found) == pytest.approx(times.median_s, rel=8 * max(times.sigma, 1e-9) / math.sqrt(n))
        if times.sigma > 1:  # the tail of the mean's own error is too heavy for a bound in standard errors
            return
    assert abs(found.mean() - times.mean_s) <= times.mean_s * (6.5 * cv / math.sqrt(n) + 1e-9)
