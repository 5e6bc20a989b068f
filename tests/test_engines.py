"""The contract of every engine: what it may be asked, and what it must answer."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from headway.controllers.loop import drive
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate
from headway.controllers.static import StaticLaw
from headway.engines import ENGINES
from headway.experiments.kernels import KernelEngine
from headway.experiments.llm import Architecture
from headway.models.engine import Engine, PlantEngine, Step
from headway.models.goodput import FINISHED
from headway.models.regimes import AffinePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload

LIMITS = Limits(kv_tokens=512, block_tokens=16, max_seqs=4, max_len=128, max_tokens=32)
PLANT = AffinePlant((1e-3, 1e-4, 0.0, 1e-5, 0.0, 0.0))
MICRO = Architecture(layers=1, hidden=32, heads=2, kv_heads=1, head_dim=16, ffn=64, vocab=64)

MADE: dict[str, Callable[[], Engine]] = {
    "sim": lambda: PlantEngine(PLANT, LIMITS, np.ones(4), np.ones(4)),
    "kernels": lambda: KernelEngine(MICRO, LIMITS),
}
"""A small one of each."""


def test_every_engine_by_name_is_held_to_the_contract() -> None:
    assert set(ENGINES) <= set(MADE)


def step(*rows: tuple[int, int, int, bool], released: tuple[int, ...] = ()) -> Step:
    """Rows of request, tokens, context, decode."""
    request, tokens, context, decode = (np.array(column) for column in zip(*rows, strict=True))
    return Step(
        request.astype(np.int64), tokens.astype(np.int64), context.astype(np.int64), decode.astype(bool), np.array(released, np.int64)
    )


@pytest.mark.parametrize("name", MADE)
def test_a_step_takes_a_time_and_a_reset_forgets(name: str) -> None:
    engine = MADE[name]()
    assert engine.name
    engine.limits.check()
    for _ in range(2):
        engine.reset()
        times = [
            engine.execute(step((0, 20, 0, False))),
            engine.execute(step((0, 1, 20, True), (1, 8, 0, False))),
            engine.execute(step((0, 1, 21, True), (1, 1, 8, True))),
            engine.execute(step((1, 1, 9, True), released=(0,))),
        ]
        assert all(math.isfinite(t) and t > 0 for t in times)
        assert all(isinstance(t, float) for t in times)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("order", ["fcfs", "slack"])
def test_a_closed_loop_serves_all_requests_on_it_even_where_the_cache_is_short(name: str, order: str) -> None:
    engine = MADE[name]()
    rng = np.random.default_rng(0)
    workload = Workload(np.zeros(8), rng.integers(20, 60, 8), rng.integers(4, 60, 8), np.zeros(8, np.int64))
    engine.limits = Limits(kv_tokens=224, block_tokens=16, max_seqs=4, max_len=128, max_tokens=32) if name == "sim" else engine.limits
    candidate = Candidate(StaticLaw(32.0), Policy(order=order, triage="none", running_limit=4.0))
    found = drive(engine, candidate, workload, (Target(1e3, 1e3),), PLANT)
    assert (found.status == FINISHED).all()
    assert (found.emitted == workload.output_tokens).all()
    assert found.end_s == pytest.approx(found.log[:, 1].sum())
