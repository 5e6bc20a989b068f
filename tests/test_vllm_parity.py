"""Our stock order against the scheduler of a real vLLM, where its environment is there already: the same steps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.parity import CASES, Case, compared, job_of, ours, theirs
from benchmarks.table import ROOT

STEPS = 300


@pytest.fixture(scope="module")
def python() -> Path:
    """Python of the environment that scripts/vllm-env makes; a test does not make it, that takes 3 GB."""
    place = Path(os.environ.get("HEADWAY_VLLM") or ROOT / ".venv-vllm")
    if not (place / "headway-vllm").exists():
        pytest.skip(f"no vLLM at {place}; scripts/vllm-env makes it")
    return place / "bin" / "python"


def short(case: Case) -> Case:
    """A case in which what it is about happens within some hundred steps: three times the load, a sixth of a small cache."""
    blocks = case.settings.blocks
    return case._replace(rate_rps=3 * case.rate_rps, settings=case.settings._replace(blocks=blocks if blocks > 10_000 else blocks // 6))


@pytest.mark.slow
def test_the_real_scheduler_composes_the_same_steps(python: Path) -> None:
    jobs = {name: job_of(short(case), STEPS, 3) for name, case in CASES.items()}
    found = theirs(jobs, python)
    for name, job in jobs.items():
        c = compared(job, found[name])
        assert c.steps == STEPS
        assert c.share >= 99.0, (name, c)
        assert c.preempted[0] == c.preempted[1]
        assert (c.preempted[0] > 0) == name.startswith("cache full"), "the cases are about what they say"


def test_a_job_draws_what_fits_and_is_drawn_again_the_same() -> None:
    for case in CASES.values():
        job = job_of(case, 50, 1)
        assert job == job_of(case, 50, 1)
        assert max(p + o for p, o in zip(job["prompt_tokens"], job["output_tokens"], strict=True)) <= case.settings.max_model_len


def test_steps_that_differ_are_counted_and_named() -> None:
    job = job_of(CASES["plenty of memory"], 20, 1)
    mine, preempted = ours(job)
    steps = [[[request, tokens] for request, tokens in step.items()] for step in mine]
    same = compared(job, {"steps": steps, "preempted": preempted})
    assert (same.steps, same.share, same.first) == (20, 100.0, -1)
    steps[7] = [[request, tokens + 1] for request, tokens in steps[7]]
    other = compared(job, {"steps": steps[:18], "preempted": preempted})
    assert (other.steps, other.same, other.first, other.ours) == (20, 17, 7, mine[7])
