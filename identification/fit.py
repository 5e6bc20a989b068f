"""From a trace to a plant: its structure, its laws, its noise, its intervals, and its error on steps it has not seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from headway.identification.diagnostics.clock import device_only
from headway.identification.diagnostics.diagnose import diagnose
from headway.identification.diagnostics.excitation import excitation
from headway.identification.hardware.points import Hardware, hardware_findings
from headway.identification.limits import is_told, limits_of
from headway.identification.rows import KEPT, judge, select, used_rows
from headway.identification.score import Score, score_rows
from headway.identification.structures.bends import polished, sureness
from headway.identification.structures.crossval import folds, out_of_fold
from headway.identification.structures.families import curve_column, told_by_others
from headway.identification.structures.intervals import kept_residuals, margin, margin_interval
from headway.identification.structures.ladder import Rung, climb
from headway.identification.structures.lag import Lag, estimate, neighbours_of, refined, sentences
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
"""Used rows up to which the plant's residuals are of laws that had not seen them, and its structure is chosen on all of them;
above it residuals of both kinds are the same to a percent, and so is a structure chosen on half."""
DEPLOYMENT = ("model", "hardware", "tensor_parallel")
"""Columns of a table that tell apart what was measured: a law holds for one value of each."""
LAG_ROUNDS, LAG_CHANGE = 8, 2e-3
"""Times a plant and the shares booked on neighbours are told by each other at most; change of any step at which they agree."""
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
    structure. With blocks="even" or "odd" it is of the plant itself, scored on the others. With "all" it is of the
    procedure: chosen and fitted on the even blocks, scored on the odd ones. The plant is then chosen and fitted on all
    rows, of more than `OUT_OF_FOLD_ROWS` only fitted; where other terms act in it than were scored, a warning says so.

    Args:
        trace: measured steps, shape (k,).
        blocks: rows to fit to: "all", "even" or "odd" blocks of 200.
        where: wanted value, or range low:high, by column, for the fit and its held-out error; None takes every row.
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
    rows = used_rows(reason, selected, trace.aside if selected.all() else None)
    say("choosing a structure", 0.2)
    scored, (wanted, rungs) = _structures(split, selected & kept, structure)
    _enough(trace, int((selected & kept).sum()), rows, wanted)
    say("fitting", 0.5)
    found = _learn(trace, selected & kept, wanted, epsilon, engine)
    say("held-out error", 0.6)
    heldout, doubts = _heldout(found, split, scored, epsilon)
    doubts += _other(scored, wanted) if heldout else []
    say("bootstrap intervals", 0.7)
    rng = np.random.default_rng([seed, 0xF17])
    sure = sureness(found.learned, found.structure, trace.batch(), trace.step_time_s, rng)
    machine, doubtful = hardware_findings(found.learned.plant, sure.interval, trace.batch(), selected & kept, hardware or Hardware())
    say("diagnostics", 0.85)
    excited, unmoved = _excited(trace, found)
    most = engine.max_seqs if is_told(trace, limits, "max_seqs") else None
    checked, findings = _diagnosed(trace, found, selected, reason, epsilon, most, rungs if structure == AUTO else None)
    about = {
        "rows": rows,
        "ladder": [rung.to_json() for rung in [*rungs, *found.rungs]],
        "lag": found.identified.about["lag"],
        "heldout": heldout.to_json() if heldout else None,
        "margin_ci95": {
            regime: None if found.identified.margin[regime] is None else margin_interval(r, epsilon, rng)
            for regime, r in found.residual.items()
        },
        "correlation": sure.correlation,
        "excitation": excited,
        "diagnostics": checked,
        **machine,
        "clock": trace.clock,
        "warnings": [
            *_unlikely(trace),
            *_mixed(trace, selected & kept, wanted),
            *trace.warnings,
            *_unrecorded(trace, selected),
            *said,
            *found.said,
            *doubts,
            *doubtful,
            *unmoved,
            *findings,
        ],
        "sources": [source._asdict() for source in trace.sources],
        "training": {"blocks": blocks, "where": {k: str(v) for k, v in (where or {}).items()}, "epsilon": epsilon, "seed": seed},
    }
    say("done", 1.0)
    return dataclasses.replace(found.identified, interval=sure.interval, about=about)


FAST_S, SLOW_S = 5e-5, 1.0
"""A median step shorter or longer than this is more likely a wrong unit than a fast or slow engine [s]."""


def _unlikely(trace: Trace) -> list[str]:
    median = float(np.median(trace.step_time_s))
    likely = FAST_S <= median <= SLOW_S or median == 0
    return [] if likely else [f"the median step takes {median:.3g} s: is step_time_s of this trace in seconds?"]


def _enough(trace: Trace, used: int, rows: Mapping[str, Any], wanted: Structure) -> None:
    fewest = FEWEST_AGGREGATES if wanted.name == "concurrency" else FEWEST
    if used < fewest:
        aside = ", ".join(f"{count} {reason}" for reason, count in rows["set_aside"].items())
        raise ValueError(
            f"{', '.join(trace.files) or 'trace'}: a fit needs at least {fewest} used rows, got {used} of {rows['read']} asked for"
            + (f" (set aside: {aside})" if aside else "")
            + "; record more, give more files of the same engine, or choose other blocks or values"
        )


def _steps(count: float) -> str:
    return f"{int(np.ceil(count))}" if count < 1e9 else f"{count:.0e}"


def _unrecorded(trace: Trace, rows: np.ndarray) -> list[str]:
    """What the format of the trace cannot tell of the rows asked for, and what that does to the plant."""
    said, names = [], [*trace.missing[:-2], " and ".join(trace.missing[-2:])]
    if trace.missing:
        what = "is not recorded in this format: its term" if len(trace.missing) == 1 else "are not recorded in this format: their terms"
        does = "it does lands" if len(trace.missing) == 1 else "they do lands"
        said.append(f"{', '.join(names)} {what} cannot be fitted, and what {does} in the others")
    said += device_only(trace.clock, has_period=False)
    if "steps_averaged" in trace.frame.columns:
        many = trace.frame["steps_averaged"].cast(pl.Float64).fill_null(1.0).to_numpy()[rows]
        averages = ~(many <= 1)  # NaN: an average over nobody knows how many
        known = many[averages & np.isfinite(many)]
        if averages.any():
            how = f"{np.median(known):,.0f} steps at the median" if len(known) else "several steps, of a number that is not recorded"
            said.append(
                f"{int(averages.sum()):,} of {len(many):,} rows average {how}: single steps scatter more, so there is no margin; "
                "record single steps"
            )
    return said


def _mixed(trace: Trace, rows: np.ndarray, wanted: Structure) -> list[str]:
    """Whether one law was asked to hold what several deployments measured, and how to take one of them."""
    frame = trace.frame.filter(pl.Series(rows))
    if wanted.name == "concurrency":
        column = curve_column(frame)
        points = frame.group_by(column, maintain_order=True).agg(rows=pl.len(), points=pl.col("decode_requests").n_unique())
        if points.height < 2:
            return []
        clear = pl.col("rows") == pl.col("points")  # else two measurements of one concurrency: not one curve, it seems
        largest = points.sort(clear, "rows", descending=True, maintain_order=True).row(0)
        enough = points.filter(pl.col("points") >= FEWEST_AGGREGATES).height
        return [
            f"the rows are {points.height} curves of time per token against concurrency ({enough} of {FEWEST_AGGREGATES} points or more), each "
            f"of its own deployment: one law over all of them is not trustworthy; fit one at a time, as with --where '{column}={largest[0]}' "
            f"({largest[1]} points)"
        ]
    if neighbours_of(trace).before.any():
        return []  # of an engine that ran, not of a table
    several = {name: frame[name].unique(maintain_order=True).drop_nulls().to_list() for name in DEPLOYMENT if name in frame.columns}
    said = [f"{name} ({', '.join(map(str, values))})" for name, values in several.items() if len(values) > 1]
    if not said:
        return []
    choice = " ".join(f"--where '{name}={values[0]}'" for name, values in several.items() if len(values) > 1)
    return [f"the rows mix several of {', '.join(said)}: one law over all of them is not trustworthy; fit one at a time, as with {choice}"]


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


def _structures(split: _Split, rows: np.ndarray, structure: str) -> tuple[Structure, tuple[Structure, list[Rung]]]:
    """The structure whose held-out error is told, and the plant's own with the rungs tried for it.

    Blocks of a sorted table are whole regions of its grid, and of a short trace whole phases of the load: chosen on half of
    them alone a term may bend in the wrong place for the others. Of a long trace the ladder takes a thin sample either way.
    """
    kept = split.reason == KEPT
    chosen = _structure(split.trace, split.learn & kept, structure)
    if split.same or int(rows.sum()) > OUT_OF_FOLD_ROWS:
        return chosen[0], chosen
    return chosen[0], _structure(split.trace, rows, structure)


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
    batch, y = trace.batch(), trace.step_time_s
    mixed = np.asarray(batch.prefill_tokens) > 0
    wanted = polished(wanted, batch, y, rows)
    fold, beside = folds(rows, mixed), neighbours_of(trace)
    told = told_by_others(trace.frame, rows) if wanted.name == "concurrency" else None
    learned = learn(wanted, batch, y, rows, told=told)
    predicted = np.asarray(learned.plant.step_time_s(batch), float)
    lag, tried = estimate(y, predicted, batch, beside, rows, fold)
    for _ in range(LAG_ROUNDS if lag.any else 0):  # each plant tells the neighbours better, and they the share
        y, before = trace.step_time_s / lag.factor(predicted, beside), predicted
        learned = learn(wanted, batch, y, rows, told=told)
        predicted = np.asarray(learned.plant.step_time_s(batch), float)
        if np.abs(np.log(predicted[rows] / before[rows])).max() < LAG_CHANGE:
            break
        lag = refined(lag, trace.step_time_s, predicted, batch, beside, rows)
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
            said.append(f"{regime}: too few steps for a margin at epsilon {epsilon:g}, which needs {_steps(1 / epsilon)}")
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


def _other(scored: Structure, taken: Structure) -> list[str]:
    """Whether the held-out error is of a structure with other terms than the plant's."""
    one, other = ((s.name, s.columns("decode"), s.columns("mixed")) for s in (scored, taken))
    if one == other:
        return []
    return [
        "held out, other terms act than in the plant: the ladder chose them on the even blocks alone, the plant's on all rows; the error is of "
        "choosing and fitting, not of this one plant"
    ]


def _diagnosed(
    trace: Trace,
    found: _Found,
    selected: np.ndarray,
    reason: np.ndarray,
    epsilon: float,
    max_seqs: int | None,
    tried: list[Rung] | None,
) -> tuple[dict[str, Any], list[str]]:
    """What the residuals of the plant say against it, with the time taken out that was booked on neighbours."""
    used, lag = selected & (reason == KEPT), Lag.from_json(found.identified.about["lag"])
    return diagnose(trace, found.learned.plant, used, reason, selected, epsilon=epsilon, lag=lag, max_seqs=max_seqs, tried=tried)


def _excited(trace: Trace, found: _Found) -> tuple[dict[str, Any], list[str]]:
    """What the trace moved, judged by the linear terms whatever structure was taken."""
    result: dict[str, Any] = {}
    said: list[str] = []
    batch = trace.batch()
    for part, law in zip(found.learned.parts, found.learned.laws, strict=True):
        here = rows_of(batch, part.rows)
        acting = len(TERMS) if (np.asarray(here.prefill_tokens) > 0).any() or part.regime != "decode" else DECODE_TERMS
        columns = np.asarray(terms(here), float)[:, :acting]
        acts = {name.partition(".")[2] for name, c in zip(part.names, law.coefficients.tolist(), strict=True) if c > 0}
        straight = fit_law(columns, trace.step_time_s[part.rows])
        result[part.regime], more = excitation(part.regime, columns, straight, acting=acts if found.structure.name == "curved" else ())
        said += more if found.structure.name != "concurrency" else []  # most of these terms are not in that plant
    return result, said
