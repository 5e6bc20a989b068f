"""The controller straight from the fit: what it starts from, what a workload that is known changes, and that stock does no better."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import numpy as np
import pytest

from headway.controllers.default import ESTIMATE, LEAST_TOKENS, MOST_MARGIN, PRICE, ROOM, default_candidate
from headway.controllers.policy import prefill_rate_tps
from headway.controllers.record import ControllerRecord, content_hash
from headway.controllers.simulator import draw, evaluate
from headway.controllers.tracker import TrackerLaw
from headway.engines.runtime import Runtime
from headway.experiments.baseline import Static
from headway.models.arrivals import Poisson
from headway.models.generators import Synthetic
from headway.models.identified import IdentifiedPlant
from headway.models.lengths import LogNormal
from headway.models.measures import ATTAINMENT
from headway.models.noise import Noise
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from tests.guarded_loops import record
from tests.small_problems import known

PLANT = RegimePlant((6e-3, 7e-5, 5e-9, 0.0, 0.0, 0.0), (6.5e-3, 1e-4, 6e-9, 3e-5, 5e-10, 5e-4))
LIMITS = Limits(200_000, 16, max_seqs=256, max_tokens=8192)
TWO = (Target(1.0, 0.025, name="chat", share=0.8), Target(10.0, 0.025, name="documents", share=0.2))


def fitted(limits: Limits = LIMITS) -> IdentifiedPlant:
    rng = np.random.default_rng(0)
    return known(PLANT, limits, Noise(rng.normal(0, 0.03, 500), rng.normal(0, 0.06, 500)))


def test_triage_is_on_and_every_number_is_one_that_the_parts_allow() -> None:
    law, policy = default_candidate(fitted(), TWO, LIMITS)[:2]
    law.check()
    policy.check()
    assert (policy.order, policy.triage) == ("slack", "reject")
    assert (law.gains()["least_tokens"].value, law.gains()["late_rate"].value) == (LEAST_TOKENS, 0.01)
    rate_tps = prefill_rate_tps(PLANT, (1 - law.setpoint_margin) * 0.025, LIMITS.max_tokens)
    assert policy.memory_price_s * 1000 / LIMITS.block_tokens == pytest.approx(PRICE * 1000 / rate_tps), "of a prompt of 1000 tokens"
    wild = dataclasses.replace(fitted(), margin={"decode": 0.9, "mixed": None})
    assert default_candidate(wild, TWO, LIMITS).law.init()[1] == pytest.approx(-math.log1p(-MOST_MARGIN))


def test_an_engine_of_few_tokens_has_a_floor_within_them() -> None:
    small = Limits(30_000, 16, max_seqs=8, max_tokens=64)
    assert default_candidate(fitted(small), TWO, small).law.gains()["least_tokens"].value == 64


def test_what_the_policy_is_to_have_counts_and_stock_order_has_no_price() -> None:
    stock = default_candidate(fitted(), TWO, LIMITS, policy={"order": "fcfs", "triage": "timeout", "running_limit": 32.0}).policy
    assert (stock.order, stock.triage, stock.running_limit, stock.memory_price_s) == ("fcfs", "timeout", 32.0, 0.0)
    assert default_candidate(fitted(), TWO, LIMITS, policy={"memory_price_s": 0.001, "estimate": 2.0}).policy.memory_price_s == 0.001
    with pytest.raises(ValueError, match=re.escape("estimate must be in [0, 100], got -1")):
        default_candidate(fitted(), TWO, LIMITS, policy={"estimate": -1.0})


def test_prompts_that_an_idle_engine_serves_in_time_are_not_shed_by_the_estimate() -> None:
    short, long = np.full(500, 300), np.full(500, 9000)
    assert default_candidate(fitted(), TWO, LIMITS, prompt_tokens=[short, short]).policy.estimate == ESTIMATE
    law, policy = default_candidate(fitted(), TWO[:1], LIMITS, prompt_tokens=[long])[:2]
    rate_tps = prefill_rate_tps(PLANT, (1 - law.setpoint_margin) * 0.025, LIMITS.max_tokens)
    assert 1.0 <= policy.estimate < ESTIMATE
    assert policy.estimate == pytest.approx(max(1.0, ROOM * 1.0 * rate_tps / 9000))
    assert law.gains()["least_tokens"].value == LEAST_TOKENS, "steps within the ITL are nearly as fast as long ones"
    for nothing in ([], [np.zeros(0)]):
        unknown = default_candidate(fitted(), TWO[:1], LIMITS, prompt_tokens=nothing)
        assert (unknown.policy.estimate, unknown.law.gains()["least_tokens"].value) == (1.0, LEAST_TOKENS)


def test_the_itl_is_given_up_only_where_long_steps_are_much_faster() -> None:
    long = np.full(500, 9000)
    floors = {}
    for floor_s in (6.5e-3, 18e-3):  # of a step with prefill: within 25 ms the second one leaves room for few tokens
        plant = RegimePlant(PLANT.decode, (floor_s, *PLANT.mixed[1:]))
        identified = known(plant, LIMITS, fitted().noise)
        floors[floor_s] = default_candidate(identified, TWO[:1], LIMITS, prompt_tokens=[long]).law.gains()["least_tokens"].value
    assert floors[6.5e-3] == LEAST_TOKENS
    assert floors[18e-3] > 1000, "they are served fast, at the price of late steps"


def test_stock_does_no_better_where_documents_share_an_overloaded_engine() -> None:
    prompts = (LogNormal(600, 0.8, 16, 4096), LogNormal(8192, 0.5, 1024, 16_384))
    outputs = (LogNormal(180, 0.7, 4, 1500), LogNormal(200, 0.6, 8, 1500))
    identified = fitted()
    ours, stock = default_candidate(identified, TWO, LIMITS), Static(2048, 256).candidate()
    for rate_rps in (4.0, 8.0):
        source = Synthetic(Poisson(rate_rps), prompts, outputs, (0.8, 0.2))
        draws = [draw(source, identified, seed, 400) for seed in range(3)]
        mine, theirs = evaluate(identified, [ours, stock], draws, TWO, LIMITS)[..., ATTAINMENT].mean(axis=1)
        assert mine > theirs + 0.05, f"at {rate_rps:g}/s"


def test_a_file_from_before_the_floor_reads_as_a_law_without_one_and_is_not_called_edited() -> None:
    law = default_candidate(fitted(), TWO, LIMITS).law
    assert isinstance(law, TrackerLaw)
    law = dataclasses.replace(law, least_tokens=0.0)  # pyright: ignore[reportCallIssue]
    data = json.loads(json.dumps(record(law).to_json()))
    del data["law"]["gains"]["least_tokens"]
    acting = {name: part for name, part in data.items() if name not in ("schema", "content_sha256", "workload", "tuning")}
    data["content_sha256"] = content_hash(acting)
    read = ControllerRecord.from_json(data)
    assert not read.edited
    assert read.candidate.law.gains()["least_tokens"].value == 0.0
    assert Runtime(data).gains == Runtime(json.loads(json.dumps(record(law).to_json()))).gains
