"""The cells of the gain table: three real plants under five loads, at the rates where the best static setting attains what is asked.

A run lasts at least `SPAN_S`: in overload a percentage measures how long stock order was left to drown. Recorded traffic is cut into
pieces, and every window joins some of them: the traces are shorter than twenty windows of two minutes, and windows that overlap
would be twenty times the same one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple, final

import numpy as np

from benchmarks.table import shared_data
from headway.controllers.simulator import Candidate, Draw, draw, evaluate
from headway.experiments.baseline import Static, static_grid
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.identification.readers.workloads import read_workload
from headway.models.arrivals import Arrivals, Gamma, Poisson
from headway.models.generators import Synthetic
from headway.models.identified import IdentifiedPlant
from headway.models.lengths import LogNormal
from headway.models.measures import ATTAINMENT
from headway.models.recorded_lengths import RecordedLengths
from headway.models.signals import Limits, Target
from headway.models.varying import Varying
from headway.models.workload import Workload, WorkloadSource
from headway.workloads import workload_source

SPAN_S = 120.0
"""Arrivals of a window span at least so long [s]."""
FEWEST = 300
"""Requests of a window at least: of long documents two minutes hold too few."""
PIECE = 200
"""Consecutive requests in a piece of recorded traffic: bursts are kept, a window holds several pieces."""
LONGEST_PROMPT = 16_384
"""Prompts of the documents are cut to this [tokens]."""
STAMPS_S = 3.0
"""The documents' arrivals were stamped on a grid this wide; they are spread over it [s]."""
LEVELS = (0.99, 0.95, 0.85, 0.70)
"""Attainment of the best static setting in hindsight, by which the rates of the cells are set."""

FPM = "fpm_vllm0201_b300"
TRACES = {
    "tp4": (FPM, "qwen3-32b_tp4.fpm_detail.csv"),
    "moe": (FPM, "qwen3.6-35b-a3b_tp4.fpm_detail.csv"),
    "8b": ("llmservingsim", "RTXPRO6000_Llama-3.1-8B", "tp1", "attention.csv"),
}
"""Measured steps of each plant. The 8B one is composed of kernel tables, without noise: it takes that of Qwen3-32B TP1."""
NOISE_OF_8B = (FPM, "qwen3-32b_tp1.fpm_detail.csv")
PROMISES = {"tp4": (1.0, 0.025), "moe": (1.0, 0.025), "8b": (2.0, 0.060)}
"""TTFT and ITL per plant; documents of the two classes have ten times the TTFT [s]."""
FLOOR_ERROR, SLOPE_ERROR = 1.03, 0.97
"""What the controller's 8B plant has wrong: its floor, and the cost of a prompt token."""


class Pair(NamedTuple):
    """A plant twice.

    Args:
        truth: fitted to all rows; what the engine does.
        fitted: fitted to the even blocks; what tuning and the controller know.
    """

    truth: IdentifiedPlant
    fitted: IdentifiedPlant


def plants(name: str) -> Pair:
    """A plant and what the controller knows of it.

    Args:
        name: a key of TRACES.

    Returns:
        Pair.

    Raises:
        Missing: the measured steps are not there.
    """
    trace = read_trace(shared_data("steps", *TRACES[name]))
    truth = fit(trace)
    if name != "8b":
        return Pair(truth, fit(trace, blocks="even"))
    noisy = read_trace(shared_data("steps", *NOISE_OF_8B))
    whole, half = fit(noisy), fit(noisy, blocks="even")
    wrong = dataclasses.replace(truth.plant, **_off(truth.plant))  # pyright: ignore[reportArgumentType]
    return Pair(
        dataclasses.replace(truth, noise=whole.noise, margin=whole.margin),
        dataclasses.replace(truth, plant=wrong, noise=half.noise, margin=half.margin),
    )


def _off(plant: object) -> dict[str, tuple[float, ...]]:
    """Laws of the plant with floor and slope off by a few percent: first and fourth coefficient."""
    factors = {"decode": (FLOOR_ERROR, 1, 1, 1, 1, 1), "mixed": (FLOOR_ERROR, 1, 1, SLOPE_ERROR, 1, 1)}
    return {law: tuple(f * x for f, x in zip(by, getattr(plant, law), strict=True)) for law, by in factors.items()}


@final
@dataclasses.dataclass(frozen=True)
class Pieces(WorkloadSource):
    """Recorded traffic in pieces: a window joins pieces drawn at random, training from the first two thirds, held-out from the last.

    Args:
        workload: all recorded requests.
        rate_rps: every window is stretched to this mean rate [requests/s].
        source: where the recording came from, for people.
    """

    workload: Workload
    rate_rps: float
    source: str = "pieces"

    def draw(self, seed: int, requests: int, *, heldout: bool) -> Workload:
        """The window of one seed.

        Args:
            seed: from 0.
            requests: wanted.
            heldout: from what tuning never sees.

        Returns:
            A workload of `requests` requests.
        """
        n, rng = len(self.workload), np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(heldout),)))
        low, high = (n - n // 3, n) if heldout else (0, n - n // 3)
        starts = rng.integers(low, high - PIECE, -(-requests // PIECE))
        rows = (starts[:, None] + np.arange(PIECE)).ravel()[:requests]
        gaps_s = np.diff(self.workload.arrival_s)[rows]  # to the next request, which is in the same part
        arrival_s = np.concatenate([[0.0], np.cumsum(gaps_s[:-1])])
        w = self.workload
        joined = Workload(arrival_s, w.prompt_tokens[rows], w.output_tokens[rows], np.zeros(requests, np.int64), self.source)
        return joined.rescaled(self.rate_rps)


@final
@dataclasses.dataclass(frozen=True)
class TwoDays(Varying):
    """A rate that goes through two days in a window: a wave from .3 to 1.3 of its scale, and a step to 1.6 in each day's last quarter.

    Args:
        rate_rps: mean rate [requests/s].
        days_s: length of both days together [s].
    """

    rate_rps: float
    days_s: float = SPAN_S

    def inverse_s(self, work: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG002  # the course is given
        part = np.linspace(0.0, 1.0, 4001)
        day = (2 * (part[:-1] + 1 / 8000)) % 1.0
        rate = np.where(day > 0.75, 1.6, 0.8 + 0.5 * np.sin(2 * np.pi * day / 0.75))
        done = np.concatenate([[0.0], np.cumsum(rate / rate.sum())]) * self.rate_rps * self.days_s
        turns, rest = np.divmod(work, done[-1])
        return (turns + np.interp(rest, done, part)) * self.days_s

    def check(self) -> None:
        if not (self.rate_rps > 0 and self.days_s > 0):
            raise ValueError(f"a rate and a length above 0, got {self.rate_rps:g} and {self.days_s:g}")


@functools.cache
def _recorded(name: str) -> Workload:
    file = {"azure": "AzureLLMInferenceTrace_conv.csv", "mooncake": "mooncake_fast25_conversation_trace.jsonl"}[name]
    found = read_workload(str(shared_data("workloads", file)))[0]
    if name == "azure":
        return found
    spread = np.sort(found.arrival_s + np.random.default_rng(0).uniform(0, STAMPS_S, len(found)))
    prompt = np.minimum(found.prompt_tokens, LONGEST_PROMPT)
    return Workload(spread - spread[0], prompt, found.output_tokens, found.class_id, found.source)


def source_of(load: str, rate_rps: float) -> WorkloadSource:
    """The traffic of a cell.

    Args:
        load: one of BEGIN_RPS.
        rate_rps: mean rate [requests/s].

    Returns:
        Source of windows.

    Raises:
        Missing: the recorded traffic is not there.
    """
    if load in ("azure", "mooncake"):
        return Pieces(_recorded(load), rate_rps, f"{load} at {rate_rps:.3g}/s")
    if load == "two classes":
        prompts = (LogNormal(600, 0.8, 16, 4096), LogNormal(8192, 0.5, 1024, LONGEST_PROMPT))
        outputs = (LogNormal(180, 0.7, 4, 1500), LogNormal(200, 0.6, 8, 1500))
        return Synthetic(Poisson(rate_rps), prompts, outputs, (0.8, 0.2), load)
    if load == "sharegpt":
        return workload_source(str(shared_data("workloads", "sharegpt_vicuna_lengths.csv")), rate_rps)
    recorded = _recorded("azure")
    arrivals: Arrivals = Gamma(rate_rps, 4.0) if load == "bursty" else TwoDays(rate_rps)
    return RecordedLengths(arrivals, recorded.prompt_tokens, recorded.output_tokens, source=load)


LOADS = ("azure", "mooncake", "two classes", "bursty", "diurnal")
"""Loads of the cells. "bursty" and "diurnal" are the recorded lengths of "azure" with other arrivals."""
BEGIN_RPS = {"azure": 8.0, "mooncake": 0.5, "two classes": 3.0, "bursty": 4.0, "diurnal": 8.0, "sharegpt": 8.0}
"""Rate at which the search for those of the cells begins on TP4 [requests/s]."""
BEGIN = {"tp4": 1.0, "moe": 1.5, "8b": 0.3}
"""Factor on it for each plant."""


def targets_of(plant: str, load: str) -> tuple[Target, ...]:
    """What is promised in a cell.

    Args:
        plant: a key of PROMISES.
        load: one of BEGIN_RPS.

    Returns:
        One target per class.
    """
    ttft_s, itl_s = PROMISES[plant]
    if load != "two classes":
        return (Target(ttft_s, itl_s),)
    return (Target(ttft_s, itl_s, name="chat", share=0.8), Target(10 * ttft_s, itl_s, name="documents", share=0.2))


def limits_of(kv_tokens: int) -> Limits:
    """The engine of a cell.

    Args:
        kv_tokens: size of its cache [tokens].

    Returns:
        Limits.
    """
    return Limits(kv_tokens=kv_tokens, max_tokens=8192, max_seqs=256)


def requests_of(load: str, rate_rps: float) -> int:
    """Requests of a window that spans SPAN_S.

    Args:
        load: one of BEGIN_RPS.
        rate_rps: mean rate [requests/s].

    Returns:
        Number of requests, at least FEWEST.
    """
    spare = 1.15 if load == "bursty" else 1.0 if load in ("azure", "mooncake") else 1.05  # a drawn span is not the mean one
    return max(FEWEST, math.ceil(spare * SPAN_S * rate_rps) + 1)


def windows(plant: IdentifiedPlant, load: str, rate_rps: float, count: int, *, heldout: bool) -> list[Draw]:
    """Windows of a load with the plant's noise.

    Args:
        plant: whose noise.
        load: one of BEGIN_RPS.
        rate_rps: mean rate [requests/s].
        count: how many.
        heldout: from what tuning never sees.

    Returns:
        Draws.
    """
    source, requests = source_of(load, rate_rps), requests_of(load, rate_rps)
    return [draw(source, plant, seed, requests, heldout=heldout) for seed in range(count)]


LADDER, FINE, LOOKS, NEAREST = 1.2, 5, 5, 10
"""Ratio of the rates that are looked at first, halvings between two of them, windows of each, settings kept of the grid."""


def rates(plant: IdentifiedPlant, name: str, load: str, kv_tokens: int) -> dict[float, float]:
    """Rates at which the best static setting in hindsight attains each level.

    The whole grid on two windows up a ladder of rates, then its best few by bisection between two rungs.

    Args:
        plant: the truth.
        name: of the plant.
        load: one of BEGIN_RPS.
        kv_tokens: size of the cache [tokens].

    Returns:
        Rate by level [requests/s].
    """
    targets, limits, grid = targets_of(name, load), limits_of(kv_tokens), static_grid(limits_of(kv_tokens))

    def look(settings: list[Static], rate_rps: float, count: int) -> np.ndarray:
        drawn = windows(plant, load, rate_rps, count, heldout=True)
        some: list[Candidate] = [s.candidate() for s in settings]
        return evaluate(plant, some, drawn, targets, limits)[..., ATTAINMENT].mean(axis=1)

    rung = BEGIN_RPS[load] * BEGIN[name]
    while look(grid, rung, 2).max() < LEVELS[0]:
        rung /= LADDER**2
    rungs, values = [rung], [look(grid, rung, 2)]
    while values[-1].max() > LEVELS[-1] - 0.05:
        rungs.append(rungs[-1] * LADDER)
        values.append(look(grid, rungs[-1], 2))
    found = {}
    for level in LEVELS:
        above = max(i for i, v in enumerate(values[:-1]) if v.max() >= level - 0.01 or i == 0)
        near = {int(j) for v in values[above : above + 2] for j in np.argsort(-v)[:NEAREST]}
        low, high = rungs[max(above - 1, 0)], rungs[min(above + 2, len(rungs) - 1)]
        for _ in range(FINE):
            middle = math.sqrt(low * high)
            fine = look([grid[j] for j in sorted(near)], middle, LOOKS).max() >= level
            low, high = (middle, high) if fine else (low, middle)
        found[level] = math.sqrt(low * high)
    return found
