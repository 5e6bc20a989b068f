"""All diagnostics of a fit in one call: what the residuals, the commands and the clock say against the plant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headway.identification.diagnostics.actuator import actuator
from headway.identification.diagnostics.clock import host_gap, plausible_field
from headway.identification.diagnostics.closed_loop import closed_loop
from headway.identification.diagnostics.drift import drift, jumped, levels, slow_rows
from headway.identification.diagnostics.independence import independence
from headway.identification.diagnostics.outliers import outliers
from headway.identification.diagnostics.staircase import staircase
from headway.identification.diagnostics.variance import variance
from headway.identification.diagnostics.whiteness import whiteness
from headway.identification.rows import IDLE
from headway.identification.structures.ladder import Rung, tried_text
from headway.identification.structures.lag import Lag, neighbours_of
from headway.identification.structures.learn import rows_of
from headway.identification.trace import Trace
from headway.models.plant import Plant

COMMANDS = ("token_budget", "running_limit", "chunk_tokens")
FOLLOW = ("whiteness", "independence", "lack_of_fit")
"""Diagnostics of the residuals whose findings may be no more than the consequence of a jump."""
UNORDERED = "no row is the step after another (a table, or a sample of steps): what neighbours share, and drift, were not tested"


def diagnose(
    trace: Trace,
    plant: Plant,
    used: np.ndarray,
    reason: np.ndarray,
    selected: np.ndarray,
    *,
    epsilon: float = 0.01,
    lag: Lag | None = None,
    max_seqs: int | None = None,
    tried: Sequence[Rung] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Run every diagnostic that the trace has columns for.

    Args:
        trace: all rows, shape (k,).
        plant: fitted to the rows used.
        used: rows that the plant was fitted to, shape (k,), bool.
        reason: from `headway.identification.rows.judge`, shape (k,), str.
        selected: rows asked for, shape (k,), bool.
        epsilon: share of steps over the budget that the margins allow, in (0, 1).
        lag: time booked on neighbours that was taken out before the fit, and is before the diagnostics; None for none.
        max_seqs: most requests that the engine runs at once; None where nobody said.
        tried: rungs of the ladder that chose the plant's structure; None where somebody named it.

    Returns:
        (findings by name of the diagnostic, as plain JSON values, and under "sentences" what each has to say; these
        sentences in order, those that may follow from a jump counted only).
    """
    structures = {regime: tried_text(tried, regime) for regime in ("decode", "mixed")}
    pairs = _of_residuals(trace, plant, used, epsilon, lag or Lag.none(), structures, max_seqs)
    throttled = np.zeros(len(trace), bool)
    throttled[np.flatnonzero(used)] = slow_rows(pairs["drift"][0], int(used.sum()))
    step, stream = trace.frame["step"].to_numpy(), trace.stream
    pairs["outliers"] = outliers(
        reason[selected], trace.step_time_s[selected], step[selected], stream[selected], throttled=throttled[selected]
    )
    busy = selected & (reason != IDLE)
    pairs |= {**_of_commands(trace, busy), **_of_clock(trace, busy)}
    found = {name: result for name, (result, _) in pairs.items()}
    sentences = {name: said for name, (_, said) in pairs.items() if said}
    return {**found, "sentences": sentences}, _told(sentences, jumped(pairs["drift"][0]))


def _told(sentences: dict[str, list[str]], jump: bool) -> list[str]:
    """All of them in order; behind a jump what may follow from it is counted only: a plant that is a mean of two misses in many ways."""
    held = [text for name in FOLLOW for text in sentences.get(name, [])] if jump else []
    told = [text for name, said in sentences.items() if not (jump and name in FOLLOW) for text in said]
    if not held:
        return told
    follow = f"; {len(held)} further finding{'s' * (len(held) != 1)} on residuals may follow from it, see the diagnostics of the plant"
    at = told.index(sentences["drift"][0])
    return [*told[:at], told[at] + follow, *told[at + 1 :]]


def _of_residuals(
    trace: Trace, plant: Plant, used: np.ndarray, epsilon: float, lag: Lag, structures: dict[str, str], max_seqs: int | None
) -> dict[str, tuple[Any, list[str]]]:
    batch = rows_of(trace.batch(), used)
    predicted, beside = np.asarray(plant.step_time_s(trace.batch()), float), neighbours_of(trace)
    predicted = (predicted * lag.factor(predicted, beside))[used]
    residual = np.log(trace.step_time_s[used]) - np.log(np.maximum(predicted, np.finfo(float).tiny))
    mixed, stream = batch.prefill_tokens > 0, trace.stream[used]
    columns = {name: column for name, column in batch._asdict().items() if name not in trace.missing}
    ordered = bool(beside.before.any())  # else no row is the step after another, as in a table of kernels
    timed = slice(None) if ordered else slice(0)
    moved = drift(residual[timed], stream[timed], trace.frame["step"].to_numpy()[used][timed])
    whole, residual = residual, residual.copy()
    residual[timed] -= levels(moved[0], residual[timed], stream[timed], mixed[timed])
    white, said = whiteness(residual[timed], mixed[timed], stream[timed])
    inputs = {name: column[timed] for name, column in columns.items()}
    tokens = batch.decode_requests + batch.prefill_tokens
    climbed = staircase(residual, mixed, stream, tokens, decode_requests=batch.decode_requests, max_seqs=max_seqs, structures=structures)
    return {
        "whiteness": (white, said if ordered else [UNORDERED]),
        "independence": independence(residual[timed], predicted[timed], mixed[timed], stream[timed], inputs, structures=structures),
        "lack_of_fit": climbed,
        "variance": variance(whole, predicted, mixed, stream, columns, epsilon=epsilon),
        "drift": moved,
    }


def _column(trace: Trace, name: str, rows: np.ndarray) -> np.ndarray | None:
    """A further column of numbers, NaN where it is empty; None where the trace has none."""
    if name not in trace.frame.columns or not trace.frame[name].dtype.is_numeric():
        return None
    return trace.frame[name].cast(float).fill_null(np.nan).to_numpy()[rows]  # pyright: ignore[reportArgumentType]


def _of_commands(trace: Trace, busy: np.ndarray) -> dict[str, tuple[Any, list[str]]]:
    commands = {name: column for name in COMMANDS if (column := _column(trace, name, busy)) is not None}
    if not commands or not busy.any():
        return {}
    batch, stream, y = rows_of(trace.batch(), busy), trace.stream[busy], trace.step_time_s[busy]
    tokens, requests = batch.decode_requests + batch.prefill_tokens, batch.decode_requests + batch.prefill_requests
    known = {name: commands.get(name) for name in COMMANDS[:2]}
    mode = trace.frame["mode"].cast(str).fill_null("unknown").to_numpy()[busy] if "mode" in trace.frame.columns else None  # pyright: ignore[reportArgumentType]
    finite = {name: np.nan_to_num(column, nan=0.0) for name, column in commands.items()}
    return {
        "actuator": actuator(tokens, requests, y, stream, **known),
        "closed_loop": closed_loop(finite, y, stream, mode=mode),
    }


def _of_clock(trace: Trace, busy: np.ndarray) -> dict[str, tuple[Any, list[str]]]:
    found: dict[str, tuple[Any, list[str]]] = {}
    y, stream = trace.step_time_s[busy], trace.stream[busy]
    start, period = _column(trace, "start_s", busy), _column(trace, "period_s", busy)
    if start is not None and np.isfinite(start).any():
        found["clock"] = plausible_field(y, start, stream, np.stack(rows_of(trace.batch(), busy), axis=1))
    device = _column(trace, "device_time_s", busy)
    if period is not None:
        gap = host_gap(y if device is None else device, period, np.ones(len(y), bool))
        if gap is not None:
            found["host_gap"] = (gap._asdict(), [])
    return found
