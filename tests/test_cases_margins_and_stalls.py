"""Public failures of serving tools, as cases: margins that are taken from a mean, and a tuner that must see a stall."""

from __future__ import annotations

from importlib import resources
from typing import final

import numpy as np
import pytest

from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, draw, simulate
from headway.demo import ITL_S, TTFT_S, WORKLOAD
from headway.experiments.kernels import LIMITS
from headway.experiments.tune import Effort, Problem, tune
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.loads import with_limits
from headway.models.goodput import Goodput, summarise
from headway.models.identified import IdentifiedPlant
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload, WorkloadSource
from headway.specs import synthetic
from tests.small_problems import known


@pytest.fixture(scope="module")
def demo_plant() -> IdentifiedPlant:
    with resources.as_file(resources.files("headway").joinpath("assets", "demo_trace.parquet")) as path:
        return fit(read_trace([path]), limits=with_limits(LIMITS["tiny"], {"max_tokens": 512}))


def served(identified: IdentifiedPlant, margin: float) -> list[Goodput]:
    """The shipped load, at a rate that either margin carries, steps steered to one setpoint: each run by itself."""
    candidate = Candidate(FeedforwardLaw(plant=identified.plant, margin=margin, ki=0.0), Policy(order="fcfs", triage="none"))
    targets, source = (Target(TTFT_S, ITL_S),), synthetic(WORKLOAD.format(rate=20))
    return [
        summarise([simulate(identified, candidate, draw(source, identified, k, 300), targets, identified.limits)], targets)
        for k in range(6)
    ]


def test_case_e37_mean_signal_under_protects(demo_plant: IdentifiedPlant) -> None:
    """Room for the mean of the residuals, and room for their tail: the same tokens a second, not the same on time."""
    residual = demo_plant.noise.mixed
    mean, tail = max(0.0, 1 - 1 / float(np.exp(residual).mean())), demo_plant.margin["mixed"]
    assert tail is not None
    assert mean < 0.1 < 0.3 < tail, "a mean hides what a tail needs"
    for by_mean, by_tail in zip(served(demo_plant, mean), served(demo_plant, tail), strict=True):
        assert by_tail.throughput_tps == pytest.approx(by_mean.throughput_tps, rel=0.02)
        assert by_tail.attainment > by_mean.attainment
        assert by_tail.request_attainment > by_mean.request_attainment + 0.1, (
            "one gap over the target in a hundred is a request that is not clean"
        )


STREAMS, LONG_PROMPT = 8, 60_000
STALLED = Limits(300_000, 16, max_seqs=16, max_len=100_000, max_tokens=2048)


@final
class StreamsAndADocument(WorkloadSource):
    """Eight streams, and a prompt of 60,000 tokens that comes while they run."""

    source = "streams and a document"

    def draw(self, seed: int, requests: int, *, heldout: bool) -> Workload:
        rng = np.random.default_rng([seed, heldout])
        arrival = np.append(np.zeros(STREAMS), rng.uniform(1.0, 3.0))
        prompt, output = np.append(np.full(STREAMS, 16), LONG_PROMPT), np.append(rng.integers(250, 350, STREAMS), 2)
        return Workload(arrival, prompt, output, np.append(np.zeros(STREAMS, int), 1))


def test_case_e20_the_tuner_interleaves_for_whoever_was_promised_a_gap_and_shows_what_the_prompt_pays() -> None:
    """Prompts first, as engines do that stall: with decodes' turn free to move, tuning gives them one, and the TTFT stands beside."""
    plant = RegimePlant((0.015, 1e-4, 0.0, 0.0, 0.0, 0.0), (0.015, 1e-4, 0.0, 3e-4, 0.0, 0.0))
    targets = (Target(5.0, 1.0, name="stream"), Target(60.0, 5.0, name="document"))
    problem = Problem(known(plant, STALLED), StreamsAndADocument(), targets, STALLED)
    effort = Effort(train_seeds=2, heldout_seeds=4, requests=STREAMS + 1, sobol=16, starts=1, iterations=2)
    asked = {"order": "edf", "triage": "none", "phases": "prefill_first"}
    found = tune(problem, effort, free=("decode_every",), policy=asked)
    assert found.tuned.candidate.policy.decode_every > 0
    assert found.default.candidate.policy.decode_every == 0
    draws = problem.draws(effort, heldout=True)
    woven, stalled = (
        [simulate(problem.identified, side.candidate, d, targets, STALLED) for d in draws] for side in (found.tuned, found.default)
    )
    gap = [max(float(run.max_gap_s[:STREAMS].max()) for run in runs) for runs in (woven, stalled)]
    assert gap[0] < 1.5 < 5.0 < gap[1]
    share = [sum(run.on_time.sum() for run in runs) / sum(run.owed.sum() for run in runs) for runs in (woven, stalled)]
    assert share[0] > share[1] + 0.02
    wait = [float(np.mean([run.ttft_s[STREAMS] for run in runs])) for runs in (woven, stalled)]
    assert wait[1] < wait[0] < 60.0
