"""Tuning on small problems: what is searched, how one is chosen, what beside the best static setting is claimed of it."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.controllers import StaticLaw, TrackerLaw
from headway.controllers.default import default_candidate
from headway.controllers.simulator import Draw, evaluate
from headway.experiments import tune as tuning
from headway.experiments.baseline import TIMEOUTS, Static, Trained, best, static_grid
from headway.experiments.capacity import HIGHEST, LOWEST, capacity_factor, class_capacity_factors
from headway.experiments.choice import LOADS
from headway.experiments.free import free_parameters
from headway.experiments.load import load_curve
from headway.experiments.search import Found
from headway.experiments.selection import SCORES
from headway.experiments.statistics import gain_interval, mean_interval
from headway.experiments.tune import NEAR, Effort, Problem, Tuned, choose, tune
from headway.models.generators import Gamma, Poisson, Synthetic
from headway.models.identified import IdentifiedPlant
from headway.models.lengths import Geometric, LogNormal
from headway.models.measures import ATTAINMENT, CLEAN, GOODPUT_TPS, SHED
from headway.models.noise import Noise
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload
from tests.small_problems import known

PLANT = RegimePlant((6e-3, 7e-5, 5e-9, 0.0, 0.0, 0.0), (6.5e-3, 1e-4, 6e-9, 3e-5, 5e-10, 5e-4))
LIMITS = Limits(30_000, 16, max_seqs=64, max_tokens=2048)
TARGETS = (Target(0.8, 0.022),)
EFFORT = Effort(train_seeds=3, heldout_seeds=6, requests=60, sobol=8, starts=1, iterations=2)


def noisy(limits: Limits = LIMITS) -> IdentifiedPlant:
    rng = np.random.default_rng(0)
    return known(PLANT, limits, Noise(rng.normal(0, 0.05, 500), rng.normal(0, 0.1, 500)))


def problem(rate_rps: float, objective: str = "attainment") -> Problem:
    source = Synthetic(Gamma(rate_rps, 2.0), (LogNormal(800, 1.0, high=8000),), (Geometric(120),))
    return Problem(noisy(), source, TARGETS, LIMITS, objective)


def plain(found: Tuned) -> str:
    """Everything that was found, as text."""
    sides = [side.to_json() for side in (found.tuned, found.static, found.early, found.default)]
    return json.dumps([sides, found.gain, found.gain_early, found.outcome, found.capacity_rps, found.warnings, found.tried])


# the whole way


@pytest.fixture(scope="module")
def heavy() -> Tuned:
    return tune(problem(12.0), EFFORT)


def test_the_same_seed_finds_the_same_and_another_searches_elsewhere(heavy: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    searched, real = [], tuning.search

    def kept_in_mind(*given_to_it, **more):
        searched.append(real(*given_to_it, **more))
        return searched[-1]

    monkeypatch.setattr(tuning, "search", kept_in_mind)
    assert plain(tune(problem(12.0), EFFORT)) == plain(heavy)
    tune(problem(12.0), dataclasses.replace(EFFORT, seed=1))
    first, other = (s.scores[:, 0].tolist() for s in searched)
    assert first[0] == other[0], "both begin with the untuned controller"
    assert first != other


def test_what_is_claimed_is_what_the_heldout_seeds_show(heavy: Tuned) -> None:
    values = [side.measures[:, ATTAINMENT] for side in (heavy.tuned, heavy.static, heavy.early)]
    assert all(v.shape == (EFFORT.heldout_seeds,) for v in values)
    assert heavy.gain == gain_interval(values[1], values[0])
    assert heavy.gain_early == gain_interval(values[2], values[0])
    assert heavy.outcome == ("better" if heavy.gain.low > 0 else "no better")
    for side in (heavy.tuned, heavy.static, heavy.early, heavy.default):
        again = evaluate(noisy(), [side.candidate], problem(12.0).draws(EFFORT, heldout=True), TARGETS, LIMITS)[0]
        assert np.array_equal(again, side.measures)
        assert side.to_json()["attainment"] == pytest.approx(side.measures[:, ATTAINMENT].mean())
        assert side.to_json()["figures"]["requests"] == EFFORT.heldout_seeds * EFFORT.requests


def test_the_static_settings_are_the_best_of_their_grids_on_the_training_seeds(heavy: Tuned) -> None:
    train = problem(12.0).draws(EFFORT, heldout=False)
    for side, timeouts in ((heavy.static, (None,)), (heavy.early, TIMEOUTS)):
        grid = [s for timeout in timeouts for s in static_grid(LIMITS, timeout)]
        values = evaluate(noisy(), [s.candidate() for s in grid], train, TARGETS, LIMITS)[..., ATTAINMENT].mean(axis=1)
        assert values.max() == pytest.approx(values[grid.index(Static(**side.settings))], abs=1e-12)


def test_a_load_that_any_setting_carries_is_no_better_and_says_so() -> None:
    found = tune(problem(0.5), EFFORT)
    assert found.outcome == "no better"
    assert found.gain.low <= 0 <= found.gain.high + 1e-9
    assert found.gain.value == pytest.approx(0, abs=0.02)


def test_where_no_point_beats_the_static_settings_the_better_of_them_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_found(problem, space, draws, effort, ledger, say, starts):
        return Found([space.point(space.base)], np.zeros((1, SCORES)), [], [], 1, [space])

    monkeypatch.setattr(tuning, "search", nothing_found)
    found = tune(problem(12.0), EFFORT)
    sides, draws = (found.static, found.early), problem(12.0).draws(EFFORT, heldout=False)

    def attained(heavier: float) -> np.ndarray:
        return problem(12.0).scores([s.candidate for s in sides], draws, 1 / heavier)[:, 0]

    here, heavier = attained(1.0), np.sum([attained(load) for load in LOADS], axis=0)
    better = max(range(2), key=lambda k: (here[k], heavier[k]))
    assert here[0] == here[1], "the case: nobody waits long enough to be shed"
    assert heavier[1] > heavier[0]
    assert found.tuned.candidate == sides[better].candidate
    assert found.tuned.settings == sides[better].settings


def test_a_near_tie_is_no_reason_to_fall_back_to_the_static_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {}

    def two_found(problem, space, draws, effort, ledger, say, starts):
        low = space.point(space.base)
        points.update(best=low, near=np.clip(low + 1, space.low, space.high))
        scores = np.array([[0.950, 0.950, 0.1, 1.0, 0.1, 0.0], [0.945, 0.945, 0.9, 1.0, 0.1, 0.0]])
        return Found(list(points.values()), scores, [], [], 2, [space, space])

    trained = np.array([0.947, 0.947, 0.5, 1.0, 0.1, 0.0])
    monkeypatch.setattr(tuning, "search", two_found)
    monkeypatch.setattr(tuning, "best_static", lambda problem, draws, timeouts, ledger: Trained(Static(512, 32, timeouts[0]), trained))
    assert isinstance(tune(problem(12.0), EFFORT).tuned.candidate.law, TrackerLaw)


def test_an_unknown_objective_or_number_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^objective must be one of attainment, requests, capacity, got 'speed'$"):
        tune(problem(5.0, "speed"), EFFORT)
    message = "cannot tune ['speed']; known: " + ", ".join(free_parameters(LIMITS))
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        tune(problem(5.0), EFFORT, free=("speed", "margin"))


def test_progress_goes_from_nothing_to_the_end() -> None:
    told: list[float] = []
    tune(problem(5.0), EFFORT, free=(), progress=lambda label, fraction: told.append(fraction))
    assert told == sorted(told)
    assert told[0] == 0.0
    assert told[-1] <= 1.0


def test_training_and_heldout_seeds_share_no_arrival() -> None:
    training, heldout = (problem(5.0).draws(EFFORT, heldout=h) for h in (False, True))
    gaps = [np.concatenate([np.diff(d.workload.arrival_s) for d in draws]) for draws in (training, heldout)]
    assert not set(gaps[0]) & set(gaps[1])


# what is chosen


def kept(rows: list[list[float]]) -> np.ndarray:
    """Scores of candidates that keep all that is required."""
    return np.column_stack([np.array(rows), np.zeros(len(rows))])


@pytest.mark.parametrize(
    ("scores", "objective", "chosen"),
    [
        ([[0.90, 0.90, 0.9], [0.95, 0.95, 0.1]], "attainment", 1),  # 5 points of attainment outweigh any cleanness
        ([[0.95 - NEAR / 2, 0, 0.9], [0.95, 0, 0.1], [0.95 - 2 * NEAR, 0, 1.0]], "attainment", 0),  # among near ties the cleanest
        ([[0.949, 0, 0.9], [0.95, 0, 0.1]], "requests", 1),
        ([[3.0, 0, 0.9], [3.001, 0, 0.1]], "capacity", 1),
        ([[0.5, 0, 0.5], [0.5, 0, 0.5]], "attainment", 0),
    ],
)
def test_the_cleanest_of_the_near_best_is_chosen(scores: list[list[float]], objective: str, chosen: int) -> None:
    table = np.column_stack([np.array(scores), np.ones((len(scores), 2)), np.zeros(len(scores))])
    assert choose([np.zeros(1)] * len(scores), table, objective) == chosen


@pytest.mark.parametrize("objective", ["attainment", "requests", "capacity"])
def test_an_exact_tie_goes_to_more_goodput_then_to_the_lower_p99_gap(objective: str) -> None:
    tied = [[1.0, 1.0, 1.0, 1184.0, 0.067], [1.0, 1.0, 1.0, 1551.0, 0.030], [1.0, 1.0, 1.0, 1551.0, 0.016], [0.9, 0.9, 0.9, 2000.0, 0.01]]
    assert choose([np.zeros(1)] * 4, kept(tied), objective) == 2
    less = [[1.0, 1.0, 1.0, 1184.0, np.inf], [0.999, 0.999, 0.999, 1551.0, 0.016]]
    assert choose([np.zeros(1)] * 2, kept(less), objective) == 0, "no tie"


def test_a_load_that_is_met_all_over_is_not_tuned_into_a_slower_engine() -> None:
    kept = dataclasses.replace(problem(12.0), targets=(Target(5.0, 0.5),))
    found = tune(
        kept,
        dataclasses.replace(EFFORT, heldout_seeds=2, sobol=32),
        free=("running_limit",),
        policy={"running_limit": 8.0, "estimate": 1.0, "memory_price_s": 0.0},
    )
    base, chosen = kept.scores([found.default.candidate, found.tuned.candidate], kept.draws(EFFORT, heldout=False))
    assert base[:3].tolist() == chosen[:3].tolist() == [1.0, 1.0, 1.0]
    assert chosen[3] > base[3], "it started at a slow setting, and a faster one keeps the promise as well"


# what it is compared with


def test_the_grid_is_the_one_of_the_start_up_flags() -> None:
    grid = static_grid(Limits(10**6))
    assert sorted({s.token_budget for s in grid}) == [128, 256, 512, 768, 1024, 2048, 4096, 8192]
    assert sorted({s.running_limit for s in grid}) == [8, 16, 32, 48, 64, 96, 128, 256]
    assert len(grid) == 64
    assert all(s.timeout is None for s in grid)
    assert len(static_grid(Limits(100, max_seqs=1, max_tokens=2))) == 2


def test_a_static_setting_is_stock_and_its_timeout_counts_from_arrival() -> None:
    law, policy, _ = Static(512, 32).candidate()
    assert (law, policy.order, policy.triage, policy.running_limit) == (StaticLaw(512.0), "fcfs", "none", 32.0)
    policy = Static(512, 32, 0.8).candidate().policy
    assert (policy.order, policy.triage, policy.timeout) == ("fcfs", "timeout", 0.8)
    assert Static(**Static(512, 32, 0.8).to_json()) == Static(512, 32, 0.8)


def test_of_equal_settings_the_smaller_is_best() -> None:
    settings, values = [Static(1, 1), Static(1, 2), Static(2, 1)], np.zeros((3, 2, 1))
    values[1:, 0, 0] = 0.8
    assert best(settings, values, 0) == 1


# intervals


def test_a_95_percent_interval_of_20_seeds_covers_most_of_the_time() -> None:
    rng = np.random.default_rng(0)
    found = [mean_interval(rng.normal(0.9, 0.1, 20), seed) for seed in range(300)]
    assert 0.89 <= np.mean([e.low <= 0.9 <= e.high for e in found]) <= 0.97
    assert all(e.low < e.value < e.high for e in found)


def test_pairing_takes_out_what_the_seeds_share() -> None:
    rng = np.random.default_rng(0)
    load = rng.uniform(0.3, 0.9, 20)
    paired = gain_interval(load, load * 1.05 + rng.normal(0, 0.002, 20))
    assert 0.045 < paired.low <= paired.value <= paired.high < 0.055
    shuffled = gain_interval(load, rng.permutation(load * 1.05))
    assert shuffled.high - shuffled.low > 20 * (paired.high - paired.low)


@given(st.lists(st.floats(0.1, 1.0), min_size=2, max_size=12), st.floats(0.1, 3.0))
def test_a_gain_is_relative(values: list[float], factor: float) -> None:
    found = gain_interval(np.array(values), factor * np.array(values))
    assert [found.value, found.low, found.high] == pytest.approx([factor - 1] * 3, abs=1e-9)


def test_one_seed_has_no_interval_and_unequal_seeds_are_refused() -> None:
    assert np.isnan([mean_interval(np.array([0.5])).low, gain_interval(np.array([0.5]), np.array([0.6])).low]).all()
    with pytest.raises(ValueError, match=re.escape("paired values need the same seeds, got (3,) and (2,)")):
        gain_interval(np.ones(3), np.ones(2))


def test_case_e7_p99_from_100_samples_decides() -> None:
    # two policies that are the same, 100 requests a seed, 200 repeats: by chance, better is claimed in at most 5 %
    rng = np.random.default_rng(7)
    seeds = Effort().heldout_seeds
    repeats = [gain_interval(*(rng.binomial(100, 0.9, seeds) / 100 for _ in range(2)), seed=k) for k in range(200)]
    assert sum(e.low > 0 for e in repeats) <= 10
    # on the same seeds they cannot differ at all
    draws = problem(12.0).draws(EFFORT, heldout=True)
    a, b = evaluate(noisy(), [Static(512, 32).candidate()] * 2, draws, TARGETS, LIMITS)[..., ATTAINMENT]
    assert gain_interval(a, b) == (0.0, 0.0, 0.0)


# capacity and load


def ten_per_second(rate_rps: float, n: int = 1000) -> tuple[IdentifiedPlant, list[Draw], Limits]:
    """Every step takes 100 ms and holds one request of one token."""
    plant = RegimePlant((0.1, 0.0, 0.0, 0.0, 0.0, 0.0), (0.1, 0.0, 0.0, 0.0, 0.0, 0.0))
    limits = Limits(100_000, max_tokens=100)
    workload = Workload(np.arange(n) / rate_rps, np.full(n, 100), np.ones(n, int), np.zeros(n, int))
    return known(plant, limits), [Draw(workload, np.ones(4), np.ones(4))], limits


@pytest.mark.parametrize("rate_rps", [2.0, 10.0, 40.0])
def test_capacity_is_where_the_queue_begins_to_grow(rate_rps: float) -> None:
    identified, draws, limits = ten_per_second(rate_rps)
    stock = Static(100, 8).candidate()
    found = capacity_factor(identified, [stock, stock], draws, (Target(0.15, 0.2, epsilon=0.01),), limits)
    # request i waits i (0.1 - 1/rate) s; at the 990th the 50 ms are used up, at 10.005/s
    assert found * rate_rps == pytest.approx([10.005, 10.005], rel=0.006)
    assert (found * rate_rps <= 10.0051).all(), "the rate given is one that was carried"


def test_capacity_says_so_where_no_rate_is_carried_or_every_rate_is() -> None:
    identified, draws, limits = ten_per_second(1.0)
    stock = Static(100, 8).candidate()
    assert capacity_factor(identified, [stock], draws, (Target(0.05, 0.2),), limits)[0] == pytest.approx(LOWEST)
    assert capacity_factor(identified, [stock], draws, (Target(1e9, 0.2),), limits)[0] == pytest.approx(HIGHEST, rel=0.006)


def test_each_class_has_a_capacity_of_its_own() -> None:
    identified, draws, limits = ten_per_second(1.0)
    stock = Static(100, 8).candidate()
    workload = draws[0].workload
    two = [d._replace(workload=dataclasses.replace(workload, class_id=np.arange(len(workload)) % 2)) for d in draws]
    tight, loose = Target(0.15, 0.2, epsilon=0.01, name="tight"), Target(1e9, 1e8, name="loose")
    found = class_capacity_factors(identified, stock, two, (tight, loose), limits)
    assert found[1] == pytest.approx(HIGHEST, rel=0.006)
    assert LOWEST < found[0] < 0.9 * found[1]
    alike = class_capacity_factors(identified, stock, two, (tight, dataclasses.replace(tight, name="other")), limits)
    whole = capacity_factor(identified, [stock], two, (tight, tight), limits)[0]
    assert min(alike) * 0.98 <= whole <= max(alike) * 1.02


def test_a_load_curve_is_what_each_load_measures() -> None:
    draws = problem(5.0).draws(EFFORT, heldout=True)
    contenders = {"static": Static(512, 32).candidate(), "default": default_candidate(noisy(), TARGETS, LIMITS)}
    curve = load_curve(noisy(), contenders, draws, TARGETS, LIMITS, factors=(0.5, 1.0, 3.0))
    own = evaluate(noisy(), list(contenders.values()), draws, TARGETS, LIMITS).mean(axis=1)
    assert curve["rate_rps"] == pytest.approx(np.mean([d.workload.rate_rps for d in draws]) * np.array([0.5, 1.0, 3.0]))
    for row, name in zip(own, contenders, strict=True):
        found = [curve[name][k][1] for k in ("attainment", "request_attainment", "goodput_tps", "shed")]
        assert found == pytest.approx(row[[ATTAINMENT, CLEAN, GOODPUT_TPS, SHED]].tolist())
    assert curve["static"]["attainment"][0] > curve["static"]["attainment"][2]


def test_a_load_beyond_the_trace_is_marked(heavy: Tuned) -> None:
    assert not [w for w in heavy.warnings if w.startswith("extrapolation")]
    small = dataclasses.replace(noisy(), hull=dataclasses.replace(noisy().hull, decode_requests=2.0))
    source = Synthetic(Poisson(12.0), (LogNormal(800, 1.0, high=8000),), (Geometric(120),))
    found = tune(Problem(small, source, TARGETS, LIMITS), EFFORT, free=())
    assert re.fullmatch(r"extrapolation: steps of up to \d+ decoding sequences, the trace held 2", found.warnings[-1])


def test_one_odd_seed_does_not_send_the_interval_to_infinity() -> None:
    a = np.ones(20)
    b = a.copy()
    b[7] = 0.9
    found = gain_interval(a, b)
    assert found.value == pytest.approx(-0.005)
    assert -0.03 < found.low < found.value <= found.high < 0.01
    assert gain_interval(a, a) == (0.0, 0.0, 0.0)
