"""The knee: found where a queue begins to grow, with an interval that holds it, and not claimed where it was not searched."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.experiments.baseline import Static
from headway.experiments.capacity import capacity_factor
from headway.experiments.knee import ABOVE, BELOW, FOUND, knee, knees
from headway.experiments.load import load_curve
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ON_TIME, OWED
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload
from tests.small_problems import known

LIMITS = Limits(100_000, max_tokens=100)
TARGET = (Target(0.15, 0.2, epsilon=0.01),)
STOCK = Static(100, 8).candidate()


def tenth_of_a_second(seeds: int = 1, rate_rps: float = 2.0, n: int = 500) -> tuple[IdentifiedPlant, list[Draw]]:
    """Every step takes 100 ms and holds one request of one token: ten a second, and not one more."""
    plant = RegimePlant((0.1, 0.0, 0.0, 0.0, 0.0, 0.0), (0.1, 0.0, 0.0, 0.0, 0.0, 0.0))
    rng = np.random.default_rng(3)
    draws = []
    for k in range(seeds):
        jitter = rng.uniform(-0.2, 0.2, n) if k else np.zeros(n)
        arrival_s = np.sort(np.arange(n) + jitter)
        w = Workload((arrival_s - arrival_s[0]) / rate_rps, np.full(n, 100), np.ones(n, int), np.zeros(n, int))
        draws.append(Draw(w, np.full(4, 1 + 0.02 * k), np.full(4, 1 + 0.02 * k)))
    return known(plant, LIMITS), draws


def test_the_knee_is_where_the_queue_begins_to_grow() -> None:
    identified, draws = tenth_of_a_second()
    found = knee(identified, [STOCK], draws, TARGET, LIMITS)
    # request i waits i (0.1 - 1/rate) s; at the 495th the 50 ms are used up
    assert found.outcome == FOUND
    assert found.rate_rps.value == pytest.approx(10.01, rel=0.004)
    assert np.isnan([found.rate_rps.low, found.rate_rps.high]).all(), "one seed has no interval"
    assert found.sentence("stock") == "stock keeps 99 % of the tokens on time up to 10 req/s (one seed: no interval)"
    again = capacity_factor(identified, [STOCK], draws, TARGET, LIMITS)[0] * 2.0
    assert found.rate_rps.value == pytest.approx(again, rel=0.01)


def test_the_interval_lies_among_the_knees_of_the_seeds() -> None:
    identified, draws = tenth_of_a_second(seeds=8)
    whole = knee(identified, [STOCK], draws, TARGET, LIMITS, share=0.8)
    assert whole.rate_rps.low < whole.rate_rps.value < whole.rate_rps.high
    single = [knee(identified, [STOCK], [d], TARGET, LIMITS, share=0.8).rate_rps.value for d in draws]
    assert min(single) * 0.97 < whole.rate_rps.low
    assert whole.rate_rps.high < max(single) * 1.03
    assert whole.to_json()["ci95_rps"] == [whole.rate_rps.low, whole.rate_rps.high]
    assert re.fullmatch(r"it keeps 80 % of the tokens on time up to \S+ req/s \[\S+, \S+\]", whole.sentence("it"))


def test_outside_what_was_searched_no_number_is_claimed() -> None:
    identified, draws = tenth_of_a_second(seeds=2)
    low = knee(identified, [STOCK], draws, TARGET, LIMITS, lowest=0.5, highest=2.0)
    assert (low.outcome, low.setting) == (ABOVE, 0)
    assert low.sentence("it") == "it keeps 99 % of the tokens on time at every load searched: its knee lies above 4 req/s"
    high = knee(identified, [STOCK], draws, TARGET, LIMITS, lowest=6.0, highest=8.0)
    assert (high.outcome, high.setting) == (BELOW, None)
    assert high.sentence("it") == "it does not keep 99 % of the tokens on time at any load searched: its knee lies below 12 req/s"
    never = knee(identified, [STOCK], draws, (Target(0.05, 0.2),), LIMITS)
    assert never.outcome == BELOW
    assert np.isnan(never.rate_rps.low)


def test_the_best_of_several_settings_is_meant_at_each_load() -> None:
    identified, draws = tenth_of_a_second(seeds=2)
    # a budget of 50 tokens needs two steps for a prompt: half the capacity
    settings: list[Candidate] = [Static(50, 8).candidate(), Static(100, 8).candidate(), Static(50, 4).candidate()]
    targets = (dataclasses.replace(TARGET[0], ttft_s=0.25),)
    alone = [knee(identified, [s], draws, targets, LIMITS).rate_rps.value for s in settings]
    found = knee(identified, settings, draws, targets, LIMITS)
    assert found.setting == 1
    assert found.rate_rps.value == pytest.approx(max(alone), rel=0.01)
    by_name = knees(identified, {"slow": settings[0]}, draws, targets, LIMITS)
    assert set(by_name) == {"slow", "any_static"}
    assert by_name["slow"].rate_rps.value == pytest.approx(alone[0], rel=0.01)
    assert by_name["any_static"].rate_rps.value >= max(alone) * 0.99


def test_below_the_knee_the_share_is_kept_and_above_it_is_not() -> None:
    identified, draws = tenth_of_a_second(seeds=4)
    found = knee(identified, [STOCK], draws, TARGET, LIMITS, share=0.9)
    rate = float(np.mean([d.workload.rate_rps for d in draws]))
    for factor, kept in ((0.99, True), (1.01, False)):
        stretch = np.array([rate / (factor * found.rate_rps.value)])
        measures = evaluate(identified, [STOCK], draws, TARGET, LIMITS, stretch=stretch)[0]
        assert (measures[:, ON_TIME].sum() / measures[:, OWED].sum() >= 0.9) == kept
    curve = load_curve(identified, {"stock": STOCK}, draws, TARGET, LIMITS, factors=(0.5, found.rate_rps.value / rate, 8.0))
    assert curve["rate_rps"][1] == pytest.approx(found.rate_rps.value)
    assert curve["stock"]["attainment"][0] > 0.9 > curve["stock"]["attainment"][2]


def test_loads_above_the_knee_that_are_carried_again_are_said() -> None:
    identified, draws = tenth_of_a_second()
    found = knee(identified, [STOCK], draws, TARGET, LIMITS)
    assert found.again == ()
    told = dataclasses.replace(found, again=(12.0, 13.0)).sentence("it")
    assert told.endswith("; above it, it attains that again at 12, 13 req/s")


@pytest.mark.parametrize(
    ("settings", "options"), [([], {}), ([STOCK], {"share": 1.0}), ([STOCK], {"lowest": 2.0, "highest": 1.0}), ([STOCK], {"lowest": 0.0})]
)
def test_what_cannot_be_searched_is_refused(settings: list[Candidate], options: dict) -> None:
    identified, draws = tenth_of_a_second(n=10)
    with pytest.raises(ValueError, match=r"^knee needs a setting, 0 < share < 1 and 0 < lowest < highest, got "):
        knee(identified, settings, draws, TARGET, LIMITS, **options)
