"""From a trace to a plant: one law per regime, its intervals, its noise, and its error on steps it has not seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from headway.identification.excitation import excitation
from headway.identification.intervals import coefficient_interval, kept_residuals, margin
from headway.identification.limits import limits_of
from headway.identification.robust import Law, fit_law
from headway.identification.rows import KEPT, judge, select, used_rows
from headway.identification.score import Score, score_rows
from headway.identification.trace import Trace
from headway.models import PLANTS
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.plant import Plant
from headway.models.regimes import TERMS, terms
from headway.models.signals import Limits

FEWEST = 20
"""Used rows below which a regime gets no law of its own, and a trace no plant."""
DECODE_TERMS = 3
"""Terms that act in a decode-only step."""


class Part(NamedTuple):
    """The rows that one law is fitted to.

    Args:
        regime: "decode", "mixed" or "all": the first half of its coefficients' names.
        rows: numbers of the rows in the trace, in time order, shape (k,), int64.
        acting: how many leading terms of `TERMS` act.
    """

    regime: str
    rows: np.ndarray
    acting: int


def fit(
    trace: Trace,
    *,
    blocks: str = "all",
    where: Mapping[str, object] | None = None,
    epsilon: float = 0.01,
    limits: Limits | Mapping[str, Any] | None = None,
    structure: str = "regimes",
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> IdentifiedPlant:
    """Fit a plant to measured steps.

    The held-out error is always of rows that the law scored has not seen: with blocks="all" a second law is fitted to
    the even blocks and scored on the odd ones, with "even" or "odd" the law itself is scored on the others.

    Args:
        trace: measured steps, shape (k,).
        blocks: rows to fit to: "all", "even" or "odd" blocks of 200.
        where: wanted value by column, for the fit and its held-out error; None takes every row.
        epsilon: share of steps over the budget that the margins allow, in (0, 1).
        limits: the engine's, all or some by field of `Limits`; they count before those found with the trace.
        structure: a key of `headway.models.PLANTS`.
        seed: of the bootstrap.
        progress: called with a label and the share done.

    Returns:
        The plant with noise, intervals, margins, hull and limits; `about` says how it came about.

    Raises:
        ValueError: an argument out of range, or fewer than 20 used rows.
    """
    say = progress or _silent
    _check(structure, epsilon)
    selected = select(trace, blocks, where)
    engine, said = limits_of(trace, limits)
    say("judging rows", 0.0)
    reason = judge(trace)
    say("fitting", 0.2)
    found = _learn(trace, selected & (reason == KEPT), structure, epsilon, engine)
    say("held-out error", 0.5)
    heldout, doubts = _heldout(found, trace, reason, blocks, where, structure, epsilon)
    say("bootstrap intervals", 0.6)
    interval = _intervals(found, np.random.default_rng([seed, 0xF17]))
    say("excitation", 0.9)
    excited, unmoved = _excited(found)
    about = {
        "rows": used_rows(reason, selected, trace.aside),
        "heldout": heldout.to_json() if heldout else None,
        "excitation": excited,
        "warnings": [*_unlikely(trace), *trace.warnings, *said, *found.said, *doubts, *unmoved],
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


def _silent(_label: str, _share: float) -> None:
    """No one watches."""


def _check(structure: str, epsilon: float) -> None:
    if structure not in PLANTS:
        raise ValueError(f"unknown plant structure {structure!r}; this version knows {sorted(PLANTS)}")
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon must be in (0, 1), got {epsilon:g}; write 0.01 for 1 %")


class _Found(NamedTuple):
    """A fitted plant, with the laws and rows behind it."""

    identified: IdentifiedPlant
    parts: list[Part]
    laws: list[Law]
    columns: np.ndarray
    said: list[str]


def _learn(trace: Trace, rows: np.ndarray, structure: str, epsilon: float, engine: Limits) -> _Found:
    """Laws, noise, margins and hull from the rows of a mask."""
    if int(rows.sum()) < FEWEST:
        raise ValueError(f"a fit needs at least {FEWEST} used rows, got {int(rows.sum())}; record more, or choose other blocks or values")
    batch = trace.batch()
    columns = terms(batch)
    parts, said = _parts(rows, batch.prefill_tokens > 0, structure)
    laws = [fit_law(columns[part.rows, : part.acting], trace.step_time_s[part.rows]) for part in parts]
    plant = _plant(structure, parts, laws)
    residual = np.log(trace.step_time_s[rows]) - np.log(plant.step_time_s(batch)[rows])
    mixed = batch.prefill_tokens[rows] > 0
    margins = {"decode": margin(residual[~mixed], epsilon), "mixed": margin(residual[mixed], epsilon)}
    for regime, value in margins.items():
        if value is None:
            said.append(f"{regime}: too few steps for a margin at epsilon {epsilon:g}, which needs {int(np.ceil(1 / epsilon))}")
    hull = Hull(*(float(getattr(batch, field.name)[rows].max()) for field in dataclasses.fields(Hull)))
    noise = Noise(kept_residuals(residual[~mixed]), kept_residuals(residual[mixed]))
    return _Found(IdentifiedPlant(plant, noise, hull, margins, {}, engine, {}), parts, laws, columns, said)


def _parts(rows: np.ndarray, mixed: np.ndarray, structure: str) -> tuple[list[Part], list[str]]:
    """Which rows each law is fitted to. A regime with too few of its own takes the law of all rows, and it is said."""
    everything = np.flatnonzero(rows)
    if structure == "affine":
        return [Part("all", everything, len(TERMS))], []
    parts, said = [], []
    for regime, mask, count in (("decode", ~mixed, DECODE_TERMS), ("mixed", mixed, len(TERMS))):
        own = np.flatnonzero(rows & mask)
        if len(own) < FEWEST:
            said.append(f"{regime}: only {len(own)} used rows, fewer than {FEWEST}; its law is fitted to all rows and is a guess")
            own, count = everything, len(TERMS)
        parts.append(Part(regime, own, count))
    return parts, said


def _plant(structure: str, parts: list[Part], laws: list[Law]) -> Plant:
    values = {}
    for part, law in zip(parts, laws, strict=True):
        values |= {f"{part.regime}.{name}": float(v) for (name, _), v in zip(TERMS, law.coefficients, strict=False)}
    if structure == "regimes":
        values = {name: v for name, v in values.items() if name not in [f"decode.{term}" for term, _ in TERMS[DECODE_TERMS:]]}
    return PLANTS[structure].from_coefficients(values)


def _heldout(
    found: _Found, trace: Trace, reason: np.ndarray, blocks: str, where: Mapping[str, object] | None, structure: str, epsilon: float
) -> tuple[Score | None, list[str]]:
    """The error on blocks that the scored law was not fitted to, and what it says against the plant."""
    train, test = ("even", "odd") if blocks == "all" else (blocks, {"even": "odd", "odd": "even"}[blocks])
    learn, unseen = select(trace, train, where) & (reason == KEPT), select(trace, test, where)
    if not (unseen & (reason == KEPT)).any() or int(learn.sum()) < FEWEST:
        return None, [f"no held-out error: the {train} blocks of 200 rows hold fewer than {FEWEST} used rows, or the {test} blocks none"]
    half = found if blocks == train else _learn(trace, learn, structure, epsilon, found.identified.limits)
    result = score_rows(half.identified, trace, unseen, reason)
    kept = unseen & (reason == KEPT)
    typical = fit_law(np.ones((int(learn.sum()), 1)), trace.step_time_s[learn]).coefficients[0]
    constant = float(np.mean(np.abs(typical / trace.step_time_s[kept] - 1)))
    said = [f"held out: {text}" for text in result.warnings]
    if result.mape is not None and result.mape >= 0.95 * constant:
        said.append(f"held out, the plant errs by {result.mape:.1%}, a constant by {constant:.1%}: the terms explain nothing")
    return result, said


def _intervals(found: _Found, rng: np.random.Generator) -> dict[str, tuple[float, float]]:
    """Intervals by name of coefficient; none for a term that never occurred."""
    interval = {}
    names = found.identified.plant.coefficients()
    for part, law in zip(found.parts, found.laws, strict=True):
        ends = coefficient_interval(law, rng)
        live = np.abs(law.rows).max(axis=0) > 0
        for (term, _), (low, high), here in zip(TERMS, ends, live, strict=False):
            name = f"{part.regime}.{term}"
            if here and name in names and np.isfinite(low):
                value = names[name].value
                interval[name] = (min(float(low), value), max(float(high), value))
    return interval


def _excited(found: _Found) -> tuple[dict[str, Any], list[str]]:
    result, said = {}, []
    for part, law in zip(found.parts, found.laws, strict=True):
        result[part.regime], more = excitation(part.regime, found.columns[part.rows, : part.acting], law)
        said += more
    return result, said
