"""Traffic that a controller was not tuned on: what the variants are, and that harm done there is named."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from headway.controllers.simulator import Candidate, Draw
from headway.controllers.static import StaticLaw
from headway.experiments.baseline import Static
from headway.experiments.shift import BURSTS, HARM, LEVEL, LONGER, OF_ARRIVALS, SHIFTS, SOME, Shift, Shifted, alike, shift
from headway.experiments.statistics import Estimate
from headway.models.workload import Workload
from tests.test_pareto import EFFORT, LIMITS, TARGETS, small


def traffic(n: int = 4000) -> Workload:
    rng = np.random.default_rng(2)
    arrival_s = np.cumsum(rng.exponential(0.1, n))
    return Workload(arrival_s - arrival_s[0], rng.integers(20, 400, n), rng.integers(4, 90, n), np.zeros(n, np.int64))


@pytest.mark.parametrize("name", SHIFTS)
def test_a_variant_is_a_workload_of_as_many_requests_and_no_more_tokens_a_second(name: str) -> None:
    plain = traffic()
    made = SHIFTS[name][1](plain, np.random.default_rng(0))
    made.check()
    assert len(made) == len(plain)
    per_s = [(w.prompt_tokens.sum() + w.output_tokens.sum()) / w.arrival_s[-1] for w in (made, plain)]
    assert per_s[0] <= 1.05 * per_s[1]
    assert not all(np.array_equal(getattr(made, f), getattr(plain, f)) for f in ("arrival_s", "prompt_tokens", "output_tokens"))


def test_each_variant_is_what_its_words_say() -> None:
    plain, rng = traffic(), np.random.default_rng(1)
    made = {name: change(plain, rng) for name, (_, change) in SHIFTS.items()}
    mean = lambda name, of: getattr(made[name], of).mean() / getattr(plain, of).mean()  # noqa: E731
    assert mean("longer prompts", "prompt_tokens") == pytest.approx(LONGER)
    assert mean("shorter prompts", "prompt_tokens") == pytest.approx(0.25, rel=0.01)
    assert mean("longer outputs", "output_tokens") == pytest.approx(4.0)
    assert mean("shorter outputs", "output_tokens") == pytest.approx(0.25, rel=0.02)
    longer = made["mixed prompts"].prompt_tokens > plain.prompt_tokens
    assert longer.mean() == pytest.approx(SOME, abs=0.03)
    gaps = np.diff(made["bursts"].arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(BURSTS, rel=0.15)
    counts, _ = np.histogram(made["waves"].arrival_s, bins=4)
    first, second = counts[:2].sum(), counts[2:].sum()
    assert first > 1.5 * second
    for name in OF_ARRIVALS:
        assert made[name].arrival_s[-1] == pytest.approx(plain.arrival_s[-1])


def with_budget(tokens: int) -> Candidate:
    return Static(tokens, 32).candidate()


def test_harm_is_named_with_figures_and_none_where_there_is_none() -> None:
    p = small()
    draws = p.draws(EFFORT, heldout=True)
    same = shift(p.identified, with_budget(512), with_budget(512), draws, TARGETS, LIMITS)
    assert not same.harmful
    assert all(r.gain.value == 0 for r in same.rows)
    assert [r.name for r in same.rows] == list(SHIFTS)
    assert "none has it more than 2% below" in same.sentence()
    starved = Candidate(StaticLaw(24.0), with_budget(512).policy)  # next to no prompt tokens in a step
    found = shift(p.identified, starved, with_budget(512), draws, TARGETS, LIMITS)
    assert "longer prompts" in found.harmful
    row = next(r for r in found.rows if r.name == "longer prompts")
    assert row.gain.value == pytest.approx(row.controller.value / row.fallback.value - 1)
    assert row.words in found.sentence()
    assert f"{100 * row.controller.value:.1f} against {100 * row.fallback.value:.1f} %" in found.sentence()
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["harmful"] == list(found.harmful)


def test_the_fallback_carries_the_load_that_is_tried_where_it_can() -> None:
    p = small()
    found = shift(p.identified, with_budget(512), with_budget(512), p.draws(EFFORT, heldout=True), TARGETS, LIMITS)
    carried = [r for r in found.rows if not r.note]
    assert carried
    for r in carried:
        assert r.fallback.value == pytest.approx(LEVEL, abs=0.03)
    for r in found.rows:
        assert not r.note or (r.fallback.value < LEVEL) == ("even there" in r.note)


def test_requests_that_wait_for_others_keep_their_arrivals_and_it_is_said() -> None:
    p = small()
    n = len(p.draws(EFFORT, heldout=True)[0].workload)
    after = np.where(np.arange(n) % 3 == 2, np.arange(n) - 1, -1)

    def chained(d: Draw) -> Draw:
        return d._replace(workload=dataclasses.replace(d.workload, after=after, think_s=np.full(n, 0.2)))

    found = shift(p.identified, with_budget(512), with_budget(512), [chained(d) for d in p.draws(EFFORT, heldout=True)], TARGETS, LIMITS)
    assert [r.name for r in found.rows] == [name for name in SHIFTS if name not in OF_ARRIVALS]
    assert len(found.skipped) == len(OF_ARRIVALS)


def test_a_share_of_two_percent_is_no_harm_yet() -> None:
    row = Shifted("bursts", "arrivals in bursts", 3.0, Estimate(0.9, 0.8, 1.0), Estimate(0.92, 0.9, 1.0), Estimate(-HARM, -0.1, 0.1))
    assert not row.harmful
    assert row._replace(gain=Estimate(-HARM - 1e-9, -0.1, 0.1)).harmful
    assert "no other traffic could be tried: why" in Shift([], ["why"]).sentence()


def test_a_workload_is_like_the_variant_that_it_is_and_like_none_where_it_is_the_same() -> None:
    plain, rng = traffic(), np.random.default_rng(4)
    assert alike(plain, plain) == ()
    for name, (_, change) in SHIFTS.items():
        assert name in alike(change(plain, rng), plain)
