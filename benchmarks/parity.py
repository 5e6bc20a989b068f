"""Our scheduler against the real vLLM's, both driven by one plant: what each puts into every step.

The real one runs in the environment of `scripts/vllm-env` (`benchmarks.vllm_scheduler`), ours on the same clock, the same requests
and the same noise. A step is the same if the same requests get the same tokens. Steps are compared by their place: after a first
difference two schedulers may stay apart, and all that follows counts as different.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.table import ROOT, Row, at_least, environment_python, informs
from benchmarks.vllm_scheduler import Settings, Sums, step_time_s
from headway.controllers.loop import drive
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate
from headway.controllers.static import StaticLaw
from headway.models.engine import Engine, Step, batch_of
from headway.models.regimes import AffinePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Prefix, Workload

PLANT = (0.006, 8e-5, 2e-8, 5e-5, 4e-9, 2e-4)
"""Seconds of floor, per decode, cache token read, prompt token, pair and chunk: the size of a 32B model on two devices."""
STEPS, SAME = 2_500, 99.0
"""Steps of every setting, and the least share of them that must be the same [%]."""
TARGETS = (Target(5.0, 0.05),)


class Case(NamedTuple):
    """One setting of the engine under one load.

    Args:
        settings: of vLLM.
        rate_rps: arrivals, Poisson [requests/s].
        prompt_tokens: median of the log-normal prompts [tokens].
        output_tokens: median of the log-normal outputs [tokens].
        shared_tokens: that all prompts begin with [tokens].
    """

    settings: Settings
    rate_rps: float
    prompt_tokens: float
    output_tokens: float
    shared_tokens: int = 0


ENGINE = Settings(max_num_batched_tokens=2048, max_num_seqs=256, max_model_len=8192, block_size=16, blocks=40_000)
SMALL = ENGINE._replace(blocks=2_000)
CASES: dict[str, Case] = {
    "plenty of memory": Case(ENGINE, 8.0, 700.0, 150.0),
    "running limit 16": Case(ENGINE._replace(max_num_seqs=16), 8.0, 700.0, 150.0),
    "cache full": Case(SMALL, 12.0, 500.0, 200.0),
    "cache full, admission by the first chunk": Case(SMALL._replace(scheduler_reserve_full_isl=False), 12.0, 500.0, 200.0),
    "cache full, watermark 5 %": Case(SMALL._replace(watermark=0.05), 12.0, 500.0, 200.0),
    "chunk cap 256": Case(ENGINE._replace(long_prefill_token_threshold=256), 6.0, 1500.0, 150.0),
    "prefix caching, 512 tokens of every prompt shared": Case(ENGINE._replace(enable_prefix_caching=True), 8.0, 700.0, 150.0, 512),
    "cache full, prefix caching, 512 tokens of every prompt shared": Case(
        SMALL._replace(enable_prefix_caching=True), 12.0, 700.0, 200.0, 512
    ),
    "cache full, prefix caching, nothing shared": Case(SMALL._replace(enable_prefix_caching=True), 12.0, 500.0, 200.0),
}
"""Settings with a bar."""


class Compared(NamedTuple):
    """Two runs of one case.

    Args:
        steps: compared [steps].
        same: of them, in which the same requests got the same tokens [steps].
        first: place of the first that differs; -1 if none.
        theirs: that step as vLLM composed it, tokens by request.
        ours: and as we did.
        preempted: how often vLLM and we preempted in all [requests].
    """

    steps: int
    same: int
    first: int
    theirs: dict[int, int]
    ours: dict[int, int]
    preempted: tuple[int, int]

    @property
    def share(self) -> float:
        """Steps that are the same [%]."""
        return 100 * self.same / max(self.steps, 1)


class RecordingEngine(Engine):
    """The plant and its noise behind the port, and what every step held.

    Args:
        limits: of the engine.
        plant: as in the job for vLLM, shape (6,).
        noise: factor of every step, shape (k,).
    """

    name = "recording"

    def __init__(self, limits: Limits, plant: list[float], noise: list[float]) -> None:
        """Take plant and noise."""
        self.limits, self.plant, self.noise = limits, plant, noise
        self.steps: list[dict[int, int]] = []

    def reset(self) -> None:
        """Forget the steps."""
        self.steps = []

    def execute(self, step: Step) -> float:
        """Record the step.

        Args:
            step: what to run.

        Returns:
            Duration with its noise, summed in the same order as for vLLM [s].
        """
        took = step_time_s(self.plant, Sums(*batch_of(step))) * self.noise[len(self.steps) % len(self.noise)]
        self.steps.append(dict(zip(step.request.tolist(), step.tokens.tolist(), strict=True)))
        return took


def job_of(case: Case, steps: int, seed: int) -> dict[str, Any]:
    """A case as vLLM's side reads it.

    Args:
        case: the case.
        steps: to compare [steps].
        seed: of arrivals, lengths and noise.

    Returns:
        As `benchmarks.vllm_scheduler.Drive` takes it.
    """
    rng, n = np.random.default_rng(seed), steps
    # what can never fit is refused before it reaches a scheduler
    half = min(case.settings.max_model_len, case.settings.blocks * case.settings.block_size) // 2
    prompt = np.clip(rng.lognormal(np.log(case.prompt_tokens), 0.8, n), case.shared_tokens + 1, half).astype(int)
    output = np.clip(rng.lognormal(np.log(case.output_tokens), 0.7, n), 1, half // 2).astype(int)
    return {
        "settings": case.settings._asdict(),
        "arrival_s": np.cumsum(rng.exponential(1 / case.rate_rps, n)).tolist(),
        "prompt_tokens": prompt.tolist(),
        "output_tokens": output.tolist(),
        "shared_tokens": case.shared_tokens,
        "plant": list(PLANT),
        "noise": np.exp(rng.normal(0, 0.05, 997)).tolist(),
        "steps": steps,
    }


def ours(job: dict[str, Any]) -> tuple[list[dict[int, int]], int]:
    """Our scheduler on a job: stock order, a static budget, no triage.

    Args:
        job: as from `job_of`.

    Returns:
        (tokens by request of every step, preemptions).
    """
    s = Settings(**job["settings"])
    limits = Limits(
        kv_tokens=s.blocks * s.block_size,
        block_tokens=s.block_size,
        max_seqs=s.max_num_seqs,
        max_len=s.max_model_len,
        max_tokens=s.max_num_batched_tokens,
        watermark=s.watermark,
        reservation="gate" if s.scheduler_reserve_full_isl else "chunk",
        prefix_cache="on" if s.enable_prefix_caching else "off",
    )
    policy = Policy(order="fcfs", triage="none", chunk_tokens=float(s.long_prefill_token_threshold), running_limit=float(s.max_num_seqs))
    engine = RecordingEngine(limits, job["plant"], job["noise"])
    arrival, prompt, output = (np.asarray(job[k]) for k in ("arrival_s", "prompt_tokens", "output_tokens"))
    out = drive(
        engine,
        Candidate(StaticLaw(float(s.max_num_batched_tokens)), policy),
        Workload(arrival, prompt, output, np.zeros(len(arrival), np.int64), prefix=prefix_of(job)),
        TARGETS,
        AffinePlant(tuple(job["plant"])),
        command=lambda _law, _policy: len(engine.steps) < job["steps"],
    )
    return engine.steps, int(out.preempted)


def prefix_of(job: dict[str, Any]) -> Prefix | None:
    """Which prompts of a job begin alike, in units of a cache block: the shared ones, then each request's own.

    Args:
        job: as from `job_of`.

    Returns:
        The prefixes; None where nothing is shared.
    """
    unit, shared = int(job["settings"]["block_size"]), int(job["shared_tokens"])
    if shared == 0:
        return None
    first, ids, start = shared // unit, [], [0]
    new = first
    for prompt in job["prompt_tokens"]:
        own = prompt // unit - first
        ids += [*range(first), *range(new, new + own)]
        new += own
        start.append(len(ids))
    return Prefix(unit, np.asarray(start, np.int64), np.asarray(ids, np.int64))


def theirs(jobs: Mapping[str, dict[str, Any]], python: Path) -> dict[str, dict[str, Any]]:
    """The real scheduler on all jobs, in one process.

    Args:
        jobs: by name.
        python: of the environment with vLLM.

    Returns:
        By name, as `benchmarks.vllm_scheduler.Drive.run` returns it.

    Raises:
        RuntimeError: the process failed; the message is its last line.
    """
    with tempfile.TemporaryDirectory(prefix="headway-parity-") as folder:
        asked, found = Path(folder) / "jobs.json", Path(folder) / "result.json"
        asked.write_text(json.dumps(jobs), encoding="utf-8")
        command = [str(python), "-m", "benchmarks.vllm_scheduler", str(asked), str(found)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            raise RuntimeError(f"benchmarks.vllm_scheduler ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
        return json.loads(found.read_text(encoding="utf-8"))


def compared(job: dict[str, Any], found: dict[str, Any]) -> Compared:
    """Our scheduler on a job, against what vLLM made of it.

    Args:
        job: as from `job_of`.
        found: as from `theirs`.

    Returns:
        The comparison.
    """
    mine, preempted = ours(job)
    real = [dict(step) for step in found["steps"]]
    steps = max(len(mine), len(real))
    pairs = list(zip(real, mine, strict=False))
    different = [k for k, (a, b) in enumerate(pairs) if a != b]
    first = different[0] if different else -1
    a, b = pairs[first] if different else ({}, {})
    return Compared(steps, len(pairs) - len(different), first, a, b, (int(found["preempted"]), preempted))


def vllm_scheduler(steps: int = STEPS, seed: int = 1) -> Iterator[Row]:
    """Share of equal steps in every case.

    Args:
        steps: of every case [steps].
        seed: of arrivals, lengths and noise.

    Yields:
        Rows.

    Raises:
        Missing: no vLLM here.
    """
    python = environment_python("vllm-env")
    jobs = {name: job_of(case, steps, seed) for name, case in CASES.items()}
    found = theirs(jobs, python)
    for name, job in jobs.items():
        c = compared(job, found[name])
        tag = f"real vLLM's scheduler, {name}: equal steps of {c.steps:,}"
        yield at_least(tag, c.share, SAME, "%")
        yield informs(f"{name}: preemptions of vLLM / ours, first step that differs", f"{c.preempted[0]} / {c.preempted[1]}, {_first(c)}")


def _first(c: Compared) -> str:
    """The first difference in words."""
    if c.first < 0:
        return "none"
    both = sorted(c.theirs.keys() | c.ours.keys())
    apart = [f"request {i}: {c.theirs.get(i, 0)} / {c.ours.get(i, 0)} tokens" for i in both if c.theirs.get(i) != c.ours.get(i)]
    return f"step {c.first}, {', '.join(apart[:3])}"
