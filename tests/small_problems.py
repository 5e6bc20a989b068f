"""Small problems for the tests of simulator, loop and tuning: drawn at random, or with a plant so plain that the answer is known."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from headway.controllers import PILaw, StaticLaw, UpDownLaw
from headway.controllers.policy import ORDERS, TRIAGES, Policy
from headway.controllers.simulator import Candidate, Draw
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.plant import Plant
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload
from tests.reference import Reference, Verdict


class Problem(NamedTuple):
    """Everything that a run takes, in the order in which `simulate` takes it."""

    identified: IdentifiedPlant
    candidate: Candidate
    drawn: Draw
    targets: tuple[Target, ...]
    limits: Limits

    def reference(self, cut_s: float = math.inf) -> Verdict:
        identified, candidate, drawn, targets, limits = self
        return Reference(identified, candidate, drawn.workload, targets, limits).run(drawn.decode, drawn.mixed, cut_s)


def known(plant: Plant, limits: Limits, noise: Noise = Noise(np.zeros(0), np.zeros(0))) -> IdentifiedPlant:  # noqa: B008
    """A plant that was never fitted."""
    return IdentifiedPlant(plant, noise, Hull(64.0, 1e5, 8192.0, 1e7), {"decode": 0.05, "mixed": 0.1}, {}, limits, {})


@st.composite
def problems(draw, orders: tuple[str, ...] = ORDERS, triages: tuple[str, ...] = TRIAGES) -> Problem:
    """Small random runs: many with a cache too small for what is asked of it, with caps, classes, ties and noise."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, classes = draw(st.integers(1, 20)), draw(st.integers(1, 2))
    gaps_s = rng.exponential(draw(st.sampled_from([0.001, 0.02, 0.2])), n - 1)
    arrival_s = np.concatenate([[0.0], np.cumsum(gaps_s)])
    if draw(st.booleans()):
        arrival_s = np.round(arrival_s, 1)  # several at once
    outputs = rng.integers(1, draw(st.sampled_from([1, 3, 40])) + 1, n)
    workload = Workload(arrival_s, rng.integers(1, draw(st.sampled_from([20, 300])), n), outputs, rng.integers(0, classes, n))
    limits = Limits(
        kv_tokens=draw(st.integers(200, 1500)),
        block_tokens=draw(st.sampled_from([1, 4, 16])),
        max_seqs=draw(st.integers(1, 12)),
        max_len=draw(st.sampled_from([250, 100_000])),
        max_tokens=draw(st.sampled_from([16, 100, 512])),
        watermark=draw(st.sampled_from([0.0, 0.01, 0.1])),
        reservation=draw(st.sampled_from(["chunk", "full"])),
        first_token=draw(st.sampled_from(["last_chunk", "next_step"])),
    )
    policy = Policy(
        order=draw(st.sampled_from(orders)),
        triage=draw(st.sampled_from(triages)),
        tolerance=rng.uniform(-0.5, 0.5),
        estimate=rng.uniform(0.1, 2.0),
        timeout=rng.uniform(0.3, 2.0),
        aging_rate=draw(st.sampled_from([0.0, 0.5, 2.0])),
        chunk_tokens=draw(st.sampled_from([0.0, 16.0, 50.0, 500.0])),
        running_limit=float(draw(st.integers(1, 12))),
    )
    tokens, most = float(draw(st.integers(1, 400))), float(draw(st.sampled_from([20, 60, 400])))
    law = {
        "static": StaticLaw(tokens),
        "updown": UpDownLaw(up_tokens=8.5, initial_tokens=tokens, most_tokens=most),
        "pi": PILaw(kp=0.25, ki=0.35, slope_s_per_token=4.1e-5, initial_tokens=tokens, most_tokens=most),
    }[draw(st.sampled_from(["static", "updown", "pi"]))]
    terms = np.array([[6e-3, 1e-4, 1e-6, 0.0, 0.0, 0.0], [7e-3, 1e-4, 1e-6, 4e-5, 1e-8, 5e-4]]) * rng.uniform(0.5, 1.5, (2, 6))
    targets = tuple(
        Target(rng.uniform(0.05, 1.0), rng.uniform(0.012, 0.05), float(rng.choice([0.0, 0.002])), name=f"class {c}") for c in range(classes)
    )
    drawn = Draw(workload, np.exp(rng.normal(0, 0.1, 64)), np.exp(rng.normal(0, 0.2, 64)))
    return Problem(known(RegimePlant(tuple(terms[0]), tuple(terms[1])), limits), Candidate(law, policy), drawn, targets, limits)
