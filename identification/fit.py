"""From a trace to a plant: its structure, its laws, its noise, its intervals, and its error on steps it has not seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from headway.identification.diagnostics.diagnose import diagnose
from headway.identification.diagnostics.excitation import excitation
from headway.identification.hardware.points import Hardware, hardware_findings
from headway.identification.limits import limits_of
from headway.identification.rows import KEPT, judge, select, used_rows
from headway.identification.score import Score, score_rows
from headway.identification.structures.bends import coefficient_intervals, polished
from headway.identification.structures.crossval import folds, out_of_fold
from headway.identification.structures.intervals import kept_residuals, margin, margin_interval
from headway.identification.structures.ladder import Rung, climb
from headway.identification.structures.lag import estimate, neighbours_of, sentences
from headway.identification.structures.learn import FEWEST, Learned, learn, rows_of
from headway.identification.structures.robust import fit_law
from headway.identification.structures.terms import Structure
from headway.identification.trace import Trace
from headway.models import PLANTS
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.regimes import TERMS, terms
from headway.models.signals import Limits

AUTO = "auto"
FEWEST_AGGREGATES = 4
"""Rows below which a curve against concurrency is not fitted: each is an average over many steps."""
OUT_OF_FOLD_ROWS = 60_000
"""Used rows up to which the plant's residuals are of laws that had not seen them; above it both are the same to a percent."""
DECODE_TERMS = 3
"""Terms that act in a decode-only step."""


def fit(
    trace: Trace,
    *,
    blocks: str = "all",
    where: Mapping[str, object] | None = None,
    epsilon: float = 0.01,
    limits: Limits | Mapping[str, Any] | None = None,
    structure: str = AUTO,
    hardware: Hardware | None = None,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> IdentifiedPlant:
    """Fit a plant to measured steps.

    The held-out error is always of rows that the law scored has not seen, and that had no part in the choice of its
    structure: with blocks="all" the structure is chosen on the even blocks, a law fitted to them is scored on the odd
    ones, and the plant is then fitted to all; with "even" or "odd" the plant itself is scored on the others.

    Args:
        trace: measured steps, shape (k,).
        blocks: rows to fit to: "all", "even" or "odd" blocks of 200.
        where: wanted value by column, for the fit and its held-out error; None takes every row.
        epsilon: share of steps over the budget that the margins allow, in (0, 1).
        limits: the engine's, all or some by field of `Limits`; they count before those found with the trace.
        structure: a key of `headway.models.PLANTS`, or "auto" to choose by blocked cross-validation.
        hardware: what the engine ran, and on what: the plant is held against it; None where nobody said.
        seed: of the bootstrap.
        progress: called with a label and the share done.

    Returns:
        The plant with noise, intervals, margins, hull and limits; `about` says how it came about.

    Raises:
        ValueError: an argument out of range, fewer than 20 used rows, or a trace that the hardware cannot have produced.
    """
    say = progress or _silent
    _check(structure, epsilon)
    selected = select(trace, blocks, where)
    engine, said = limits_of(trace, limits)
    say("judging rows", 0.0)
    reason = judge(trace)
    kept = reason == KEPT
    split = _Split(trace, selected, reason, blocks, where)
    say("choosing a structure", 0.2)
    wanted, rungs = _structure(trace, split.learn & kept, structure)
    say("fitting", 0.5)
    found = _learn(trace, selected & kept, wanted, epsilon, engine)
    say("held-out error", 0.6)
    heldout, doubts = _heldout(found, split, wanted, epsilon)
    say("bootstrap intervals", 0.7)
    rng = np.random.default_rng([seed, 0xF17])
    interval = coefficient_intervals(found.learned, found.structure, trace.batch(), rng)
    machine, doubtful = hardware_findings(found.learned.plant, interval, trace.batch(), selected & kept, hardware or Hardware())
    say("diagnostics", 0.85)
    excited, unmoved = _excited(trace, found)
    checked, findings = diagnose(trace, found.learned.plant, selected & kept, reason, selected, epsilon=epsilon)
    about = {
        "rows": used_rows(reason, selected, trace.aside),
        "ladder": [rung.to_json() for rung in [*rungs, *found.rungs]],
        "lag": found.identified.about["lag"],
        "heldout": heldout.to_json() if heldout else None,
        "margin_ci95": {regime: margin_interval(r, epsilon, rng) for regime, r in found.residual.items()},
        "excitation": excited,
        "diagnostics": checked,
        **machine,
        "clock": trace.clock,
        "warnings": [*_unlikely(trace), *trace.warnings, *_unrecorded(trace), *said, *found.said, *doubts, *doubtful, *unmoved, *findings],
        "sources": [source._asdict() for source in trace.sources],
        "training": {"blocks": blocks, "where": {k: str(v) for k, v in (where or {}).items()}, "epsilon": epsilon, "seed": seed},
    }
    say("done", 1.0)
    return dataclasses.replace(found.identified, interval=interval, about=about)


SLOW_S = 1.0
"""A median step longer than this is more likely a wrong unit than a slow engine [s]."""


def _unlikely(trace: Trace) -> list[str]:
    median = float(np.median(trace.step_time_s))
    return [f"the median step takes {median:.3g} s: is step_time_s of this trace in seconds?"] if median > SLOW_S else []


def _unrecorded(trace: Trace) -> list[str]:
    """What the format of the trace cannot tell, and what that does to the plant."""
    said = [
        f"{name} is not recorded in this format: its term cannot be fitted, and what it does lands in the others" for name in trace.missing
    ]
    if trace.clock == "device":
        said.append(
            "the durations are of the device alone, without the host's gap between steps: targets on the wall clock look "
            "easier than they are, and no margin for them can be exported; record start-to-start times"
        )
    if "steps_averaged" in trace.frame.columns:
        many = float(trace.frame["steps_averaged"].fill_null(1).cast(float).median() or 1.0)  # pyright: ignore[reportArgumentType]
        if many > 1:
            said.append(f"a row averages {many:.0f} steps: single steps scatter more, so there is no margin; record single steps")
    return said


def _silent(_label: str, _share: float) -> None:
    """No one watches."""


def _check(structure: str, epsilon: float) -> None:
    if structure != AUTO and structure not in PLANTS:
        raise ValueError(f"unknown plant structure {structure!r}; this version knows {[AUTO, *sorted(PLANTS)]}")
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon must be in (0, 1), got {epsilon:g}; write 0.01 for 1 %")


class _Split:
    """Rows to learn the held-out law from, and rows to score it on, both of the rows asked for."""

    def __init__(self, trace: Trace, selected: np.ndarray, reason: np.ndarray, blocks: str, where: Mapping[str, object] | None) -> None:
        self.train, self.test = ("even", "odd") if blocks == "all" else (blocks, {"even": "odd", "odd": "even"}[blocks])
        self.trace, self.reason, self.same = trace, reason, blocks != "all"
        self.learn = selected if self.same else select(trace, self.train, where)
        self.unseen = select(trace, self.test, where)


def _structure(trace: Trace, rows: np.ndarray, structure: str) -> tuple[Structure, list[Rung]]:
    """The structure asked for; "auto" climbs the ladder on these rows, "curved" takes what bends from it."""
    if structure not in (AUTO, "curved"):
        return Structure(structure), []
    if "decode_kv_tokens" in trace.missing and "prefill_tokens" in trace.missing:
        return Structure("concurrency"), []
    found, rungs = climb(trace.batch(), trace.step_time_s, rows)
    if structure == "curved" and found.name != "curved":
        found = Structure("curved")
    return found, rungs


class _Found(NamedTuple):
    """A fitted plant, with the laws behind it and the residuals that its noise and margins are of."""

    identified: IdentifiedPlant
    learned: Learned
    structure: Structure
    residual: dict[str, np.ndarray]
    said: list[str]
    rungs: list[Rung]


def _learn(trace: Trace, rows: np.ndarray, wanted: Structure, epsilon: float, engine: Limits) -> _Found:
    """Laws, noise, margins and hull from the rows of a mask."""
    fewest = FEWEST_AGGREGATES if wanted.name == "concurrency" else FEWEST
    if int(rows.sum()) < fewest:
        raise ValueError(f"a fit needs at least {fewest} used rows, got {int(rows.sum())}; record more, or choose other blocks or values")
    batch, y = trace.batch(), trace.step_time_s
    mixed = np.asarray(batch.prefill_tokens) > 0
    wanted = polished(wanted, batch, y, rows)
    fold, beside = folds(rows, mixed), neighbours_of(trace)
    learned = learn(wanted, batch, y, rows)
    lag, tried = estimate(y, np.asarray(learned.plant.step_time_s(batch), float), beside, rows, fold)
    if lag.any:
        y = y / lag.factor(np.asarray(learned.plant.step_time_s(batch), float), beside)
        learned = learn(wanted, batch, y, rows)
    residual = np.full(len(y), np.nan)
    if int(rows.sum()) <= OUT_OF_FOLD_ROWS:
        residual = out_of_fold(wanted, batch, y, rows, fold)
    left = rows & ~np.isfinite(residual)
    residual[left] = np.log(y[left]) - np.log(learned.plant.step_time_s(rows_of(batch, left)))
    of = {"decode": residual[rows & ~mixed], "mixed": residual[rows & mixed]}
    whole = trace.clock == "wall" and "steps_averaged" not in trace.frame.columns
    margins = {regime: margin(r, epsilon) if whole else None for regime, r in of.items()}
    said = [*learned.said, *sentences(lag)]
    for regime, value in margins.items():
        if value is None and whole:
            said.append(f"{regime}: too few steps for a margin at epsilon {epsilon:g}, which needs {int(np.ceil(1 / epsilon))}")
    hull = Hull(*(float(getattr(batch, field.name)[rows].max()) for field in dataclasses.fields(Hull)))
    rungs = [Rung(f"time booked {name} on a neighbour", regime, *c, getattr(lag, name)[regime] > 0) for name, regime, c in tried]
    noise = Noise(*(kept_residuals(r) for r in of.values()))
    return _Found(
        IdentifiedPlant(learned.plant, noise, hull, margins, {}, engine, {"lag": lag.to_json()}), learned, wanted, of, said, rungs
    )


def _heldout(found: _Found, split: _Split, wanted: Structure, epsilon: float) -> tuple[Score | None, list[str]]:
    """The error on blocks that the scored law was not fitted to, and what it says against the plant."""
    trace, kept = split.trace, split.reason == KEPT
    learn_rows, scored = split.learn & kept, split.unseen & kept
    if not scored.any() or int(learn_rows.sum()) < FEWEST:
        return None, [
            f"no held-out error: the {split.train} blocks of 200 rows hold fewer than {FEWEST} used rows, or the {split.test} blocks none"
        ]
    half = found if split.same else _learn(trace, learn_rows, wanted, epsilon, found.identified.limits)
    result = score_rows(half.identified, trace, split.unseen, split.reason)
    typical = fit_law(np.ones((int(learn_rows.sum()), 1)), trace.step_time_s[learn_rows]).coefficients[0]
    constant = float(np.mean(np.abs(typical / trace.step_time_s[scored] - 1)))
    said = [f"held out: {text}" for text in result.warnings]
    if result.mape is not None and result.mape >= 0.95 * constant:
        said.append(f"held out, the plant errs by {result.mape:.1%}, a constant by {constant:.1%}: the terms explain nothing")
    return result, said


def _excited(trace: Trace, found: _Found) -> tuple[dict[str, Any], list[str]]:
    """What the trace moved, judged by the linear terms whatever structure was taken."""
    result: dict[str, Any] = {}
    said: list[str] = []
    batch = trace.batch()
    for part in found.learned.parts:
        here = rows_of(batch, part.rows)
        acting = len(TERMS) if (np.asarray(here.prefill_tokens) > 0).any() or part.regime != "decode" else DECODE_TERMS
        columns = np.asarray(terms(here), float)[:, :acting]
        result[part.regime], more = excitation(part.regime, columns, fit_law(columns, trace.step_time_s[part.rows]))
        said += more
    return result, said
