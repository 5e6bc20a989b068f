"""A plant of kernel tables against a real vLLM run of the same llm on the same card, request by request.

The plant is fitted to the tables, the stock engine is simulated on the run's own arrivals and lengths, and every request's TTFT and
TPOT are held against its stamps. Tables hold no host: what they lack of a step is taken from the end of the run, where the server
only decodes and fewer run than may, and what is judged came before.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.table import Row, at_most, informs, shared_data
from headway.controllers.policy import Policy
from headway.controllers.simulator import NOISE_LENGTH, Candidate, Draw, simulate
from headway.controllers.static import StaticLaw
from headway.identification.fit import fit
from headway.identification.hardware.compose import missing_collective
from headway.identification.readers import read_trace
from headway.identification.readers.requests_table import read_requests
from headway.identification.readers.serving_run import ServingRun, read_serving_run
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Batch
from headway.models.signals import Limits, Target
from headway.models.workload import Workload

RUNS = {"8B": ("RTXPRO6000_Llama-3.1-8B", 1), "32B": ("RTXPRO6000_Qwen3-32B", 2)}
"""Folder of the tables and of the run beside them, and the run's TP."""
MOST_TOKENS, MOST_SEQS = 2048, 128
"""Engine arguments of both runs, as their own records have them (max_num_batched_tokens, max_num_seqs)."""
KV_TOKENS = {"8B": 500_000, "32B": 400_000}
"""Cache that 90 % of the cards' memory leaves beside the weights; neither run comes near it, so that neither preempts."""
NEVER = Target(1e4, 1e4)


class Served(NamedTuple):
    """What every request of a run waited, shapes (n,) in order of arrival.

    Args:
        workload: its arrivals at the engine and its lengths.
        ttft_s: from the engine's queue to the first token [s].
        tpot_s: mean time between its tokens [s].
        last_s: its last token, from the first arrival [s].
    """

    workload: Workload
    ttft_s: np.ndarray
    tpot_s: np.ndarray
    last_s: np.ndarray


def folder_of(name: str) -> Path:
    """The folder of tables and run.

    Args:
        name: a key of RUNS.

    Returns:
        Its path.

    Raises:
        Missing: it is not there.
    """
    return shared_data("steps", "llmservingsim", RUNS[name][0])


@functools.cache
def fitted(name: str) -> tuple[IdentifiedPlant, tuple[str, ...]]:
    """The plant of a run's kernel tables.

    Args:
        name: a key of RUNS.

    Returns:
        (the plant, what the reader said of the tables).

    Raises:
        Missing: the tables are not there.
    """
    trace = read_trace(folder_of(name) / f"tp{RUNS[name][1]}" / "attention.csv")
    return fit(trace), trace.warnings


def measured(name: str) -> Served:
    """What a run's own stamps say.

    Args:
        name: a key of RUNS.

    Returns:
        Its requests.

    Raises:
        Missing: the run is not there.
    """
    frame = read_requests(folder_of(name) / "vllm_run" / "requests.jsonl").frame.sort("engine_arrival_s", maintain_order=True)
    arrival, first, last = (frame[c].to_numpy() for c in ("engine_arrival_s", "engine_first_token_s", "engine_last_token_s"))
    prompt, output = (frame[c].to_numpy().astype(np.int64) for c in ("input_tokens", "output_tokens"))
    workload = Workload(arrival - arrival[0], prompt, output, np.zeros(len(arrival), np.int64), f"vllm_run of the {name}")
    return Served(workload, first - arrival, (last - first) / (output - 1), last - arrival[0])


def simulated(identified: IdentifiedPlant, run: Served, kv_tokens: int, factor: float = 1.0) -> Served:
    """The same requests on the stock engine with a plant.

    Args:
        identified: the plant; its residuals are left out, what is compared are means.
        run: whose arrivals and lengths.
        kv_tokens: of the cache [tokens].
        factor: on every step.

    Returns:
        Its requests.
    """
    limits = Limits(kv_tokens=kv_tokens, max_seqs=MOST_SEQS, max_tokens=MOST_TOKENS)
    stock = Candidate(StaticLaw(float(MOST_TOKENS)), Policy(order="fcfs", triage="none", running_limit=float(MOST_SEQS)))
    same = np.full(NOISE_LENGTH, factor)
    out = simulate(identified, stock, Draw(run.workload, same, same), (NEVER,), limits)
    tpot_s = (out.last_s - out.arrival_s - out.ttft_s) / (out.output_tokens - 1)
    return Served(run.workload, out.ttft_s, tpot_s, out.last_s)


def drain_of(run: ServingRun) -> tuple[Batch, np.ndarray]:
    """The seconds at the end of a run in which it only decoded and fewer ran than may.

    Args:
        run: the decode-only seconds.

    Returns:
        (their steps, shape (k,); measured durations, shape (k,) [s]).
    """
    rows = run.decode_requests < MOST_SEQS
    n, context = run.decode_requests[rows], run.context_tokens[rows]
    nothing = np.zeros(len(n))
    return Batch(n, n * context, nothing, nothing, nothing), run.step_time_s[rows]


def with_gap(identified: IdentifiedPlant, gap_s: float) -> IdentifiedPlant:
    """A plant whose every step takes so much longer.

    Args:
        identified: the plant.
        gap_s: of the host, between steps [s].

    Returns:
        The plant with every floor raised.
    """
    values = {n: c.value + (gap_s if n.endswith("floor") else 0.0) for n, c in identified.plant.coefficients().items()}
    return dataclasses.replace(identified, plant=type(identified.plant).from_coefficients(values))


def served() -> Iterator[Row]:
    """8B: held to the bars. 32B on two devices: the collectives that the tables lack are named, and their size."""
    yield from _one_device()
    yield from _two_devices()


def _one_device() -> Iterator[Row]:
    run, (plant, _) = measured("8B"), fitted("8B")
    drain, took_s = drain_of(read_serving_run(folder_of("8B") / "vllm_run"))
    predicted_s = np.asarray(plant.plant.step_time_s(drain))
    gap_s, ratio = float(np.median(took_s - predicted_s)), float(np.median(took_s / predicted_s))
    before = run.last_s <= float(np.max(run.workload.arrival_s + run.ttft_s))
    alone = simulated(plant, run, KV_TOKENS["8B"])
    yield informs("vLLM 0.19, 8B: kernel tables alone: TPOT mean, TTFT mean off", _both(alone, run))
    yield informs(f"vLLM 0.19, 8B: what the tables lack of a step, median of {len(took_s)} s of draining", f"{1e3 * gap_s:.2f} ms")
    found = simulated(with_gap(plant, gap_s), run, KV_TOKENS["8B"])
    what = "vLLM 0.19, 8B: tables and that gap"
    yield at_most(
        f"{what}: TPOT mean off, {before.sum()} requests that ended before", 100 * abs(_off(found.tpot_s, run.tpot_s, before)), 3.0, "%"
    )
    yield at_most(f"{what}: TPOT mean off, all {len(before)}", 100 * abs(_off(found.tpot_s, run.tpot_s)), 3.0, "%")
    yield at_most(f"{what}: TTFT mean off, all {len(before)}, all of them before", 100 * abs(_off(found.ttft_s, run.ttft_s)), 8.0, "%")
    yield informs(f"{what}: TPOT mean, TTFT mean, TTFT p50, p90 off", _both(found, run) + ", " + _quantiles(found, run))
    scaled = simulated(plant, run, KV_TOKENS["8B"], ratio)
    yield informs(f"vLLM 0.19, 8B: tables times {ratio:.3f} in place of the gap: TPOT mean, TTFT mean off", _both(scaled, run))
    yield informs("vLLM 0.19, 8B: the tables' own authors, with their simulator: TPOT mean, TTFT mean off", _authors("8B"))


def _two_devices() -> Iterator[Row]:
    run, (plant, said) = measured("32B"), fitted("32B")
    alone = simulated(plant, run, KV_TOKENS["32B"])
    yield informs("vLLM 0.19, 32B TP 2: kernel tables alone: TPOT mean, TTFT mean off", _both(alone, run))
    sentence = missing_collective(alone.tpot_s, run.tpot_s, RUNS["32B"][1]) or "nothing"
    size = re.search(r"take ([\d.]+) ms", sentence)
    lacking_ms = float(size[1]) if size else np.nan
    named = "all-reduces are not in the tables" in sentence and 20.0 <= lacking_ms <= 30.0
    yield Row("vLLM 0.19, 32B TP 2: what a step lacks, over all requests", "names the all-reduces, 20 to 30 ms", sentence, named)
    reader = [text for text in said if text.startswith("measured steps take")]
    yield informs("vLLM 0.19, 32B TP 2: what the reader says of decode-only seconds", reader[0] if reader else "nothing")
    yield informs("vLLM 0.19, 32B TP 2: the tables' own authors, with their simulator: TPOT mean, TTFT mean off", _authors("32B"))


def _off(found: np.ndarray, true: np.ndarray, rows: np.ndarray | slice = slice(None)) -> float:
    return float(found[rows].mean() / true[rows].mean() - 1)


def _both(found: Served, true: Served) -> str:
    return f"{100 * _off(found.tpot_s, true.tpot_s):+.1f} %, {100 * _off(found.ttft_s, true.ttft_s):+.1f} %"


def _quantiles(found: Served, true: Served) -> str:
    return ", ".join(f"{100 * (np.quantile(found.ttft_s, q) / np.quantile(true.ttft_s, q) - 1):+.1f} %" for q in (0.5, 0.9))


def _authors(name: str) -> str:
    text = (folder_of(name) / "vllm_run" / "simulator_comparison.txt").read_text(encoding="utf-8")
    found = [re.search(rf"{what} Mean.*?([+-][\d.]+)%", text) for what in ("TPOT", "TTFT")]
    return ", ".join(f"{float(f[1]):+.1f} %" if f else "not in the file" for f in found)
