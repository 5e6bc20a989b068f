"""Planning a recording: the settings that add the most to what is known of a plant, simulated before they are run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headway.experiments.excite import record_design, record_trace
from headway.experiments.plan import PlannedSetting, RecordingPlan, Told, total_steps
from headway.identification.design.optimal import (
    Precision,
    efficiency,
    information,
    known_from_intervals,
    numbers_of,
    optimal,
    precision_of,
    sensitivity,
    standard_errors,
    tellable,
    unmoved,
)
from headway.identification.design.sample_size import Need, steps_for_margin
from headway.identification.design.settings import SHORTEST_STAY, Mixture, Setting, grid, stay, stay_steps
from headway.identification.rows import KEPT, judge
from headway.identification.trace import Trace
from headway.models.engine import PlantEngine
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Batch, Plant
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits

CHECK_SHARE = 0.2
"""Share of the steps spent on settings drawn from the whole grid: the best design for a linear law sits in the corners of
the grid, and says nothing of a bend between them."""
LEAST_SHARE = 0.01
"""Share below which a setting of the optimum is left out, and the rest weighed anew."""
MOST_CHECKS = 16
"""Settings that check the law at most."""
SETTINGS = 15
"""Settings that a plan holds, about: no stay is longer than this part of the steps."""
STAIRCASE_STEPS = 3000
"""Steps of the plain staircase that are simulated for comparison [steps]."""
PASSES = 3
"""Times that number of steps and design are computed in turn: each depends on the other."""


def assumed_plant(limits: Limits) -> Plant:
    """A plant for a first plan, before anything was measured: each input at its limit adds about what the floor is.

    Only ratios matter to a design. Prompt tokens at their limit count three times the floor, attention a half.

    Args:
        limits: of the engine.

    Returns:
        The plant, in units of its floor.
    """
    n, kv = 0.5 / limits.max_seqs, 0.5 / limits.kv_tokens
    pairs = 0.5 / (limits.max_tokens * min(limits.max_len, limits.kv_tokens) / 4)
    return RegimePlant((1.0, n, kv, 0.0, 0.0, 0.0), (1.2, n, kv, 3.0 / limits.max_tokens, pairs, 0.02))


def plan_recording(
    identified: IdentifiedPlant | None,
    limits: Limits,
    *,
    trace: Trace | None = None,
    steps: int | None = None,
    margin_width: float = 0.02,
    epsilon: float = 0.01,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> RecordingPlan:
    """Propose what to record next.

    The settings are those whose steps, added to what is known, make the determinant of the plant's information largest;
    a fifth of the steps checks the law between them. What they will tell is then simulated: the staircase that would be
    run, on the plant without noise, transients included.

    Args:
        identified: what is known; None assumes a plant, and says so.
        limits: of the engine.
        trace: the steps that the plant was fitted to, whose information counts; None takes the plant's intervals.
        steps: of the plan; None takes as many as the margin asks for [steps].
        margin_width: of the margin's 95 % interval, in (0, 1).
        epsilon: share of steps over the budget that the margin allows, in (0, 1).
        seed: of the draws.
        progress: called with a label and the share done.

    Returns:
        The plan.

    Raises:
        ValueError: an argument out of range, limits under which nothing can be held, or nothing that could be told.
    """
    say = progress or _silent
    if steps is not None and steps < SHORTEST_STAY:
        raise ValueError(f"a plan needs at least {SHORTEST_STAY} steps, got {steps}")
    plant = identified.plant if identified else assumed_plant(limits)
    precision = precision_of(identified.noise if identified else None)
    residuals = {r: np.asarray(getattr(identified.noise, r) if identified else (), float) for r in ("decode", "mixed")}
    need = {regime: steps_for_margin(residual, margin_width, epsilon) for regime, residual in residuals.items()}
    names, settings = numbers_of(plant), grid(limits)
    known = _known(identified, trace, names, precision)
    total, rows, held, fine = steps or total_steps(need, 0.5), (), known, np.ones(len(names), bool)
    for _ in range(1 if steps else PASSES):
        say("steps of every setting", 0.1)
        mixtures = [stay(setting, limits, min(stay_steps(setting), max(total // SETTINGS, SHORTEST_STAY))) for setting in settings]
        held = np.stack([_told(plant, names, m.batch, m.share, precision) for m in mixtures])
        fine = tellable(held.mean(axis=0) + known)
        if not fine.any():
            raise ValueError("no setting within these limits tells any number of the plant; raise max_tokens, max_seqs or max_len")
        told = np.flatnonzero(fine)
        here = told[:, None], told
        rows = _chosen(settings, mixtures, held[:, *here], known[here], total, seed)
        total = steps or total_steps(need, sum(row.mixed * row.steps for row in rows) / total)
    say("simulating the plan", 0.6)
    runs = _runs(plant, limits, rows, seed)
    mixed = _mean(runs["plan"], lambda run: run["prefill_tokens"] > 0)
    if steps is None:  # the plan as it runs has its own share of steps with prefill
        grown = total_steps(need, mixed) / sum(row.steps for row in rows)
        rows = tuple(row._replace(steps=max(round(row.steps * grown), 1)) for row in rows)
    total = sum(row.steps for row in rows)
    told = {name: _mean(parts, lambda run: _information(plant, names, run, precision)) for name, parts in runs.items()}
    after = {name: known + total * one for name, one in {**told, "grid": held.mean(axis=0)}.items()}
    fine &= tellable(after["plan"])
    here = np.ix_(fine, fine)
    return RecordingPlan(
        settings=rows,
        numbers=_numbers(plant, names, fine, {"now": known, **after}, assumed=identified is None),
        need=need,
        epsilon=epsilon,
        width=margin_width,
        efficiency={name: efficiency(after[name][here], after["plan"][here]) for name in ("staircase", "grid")},
        mixed=float(mixed),
        step_time_s=float(_mean(runs["plan"], lambda run: run["step_time_s"])) if identified else None,
        limits=limits,
        seed=seed,
        said=(*precision.said, *_said(identified, trace, need, names, fine), *_beyond(identified, runs["plan"])),
    )


def _silent(_label: str, _share: float) -> None:
    """No one watches."""


def _told(plant: Plant, names: list[str], batch: Batch, share: np.ndarray, precision: Precision) -> np.ndarray:
    """Information of one step of a mixture, shape (m, m)."""
    return information(sensitivity(plant, names, batch), share * precision.of(batch))


def _known(identified: IdentifiedPlant | None, trace: Trace | None, names: list[str], precision: Precision) -> np.ndarray:
    """Information at hand, shape (m, m)."""
    if identified is None:
        return np.zeros((len(names), len(names)))
    if trace is None:
        return known_from_intervals(identified, names)
    used = judge(trace) == KEPT
    batch = Batch(*(column[used] for column in trace.batch()))
    return _told(identified.plant, names, batch, np.ones(int(used.sum())), precision)


def _chosen(
    settings: list[Setting], mixtures: list[Mixture], held: np.ndarray, known: np.ndarray, total: int, seed: int
) -> tuple[PlannedSetting, ...]:
    """The optimum without its crumbs, beside the settings that check the law."""
    rng = np.random.default_rng([seed, 0xC4EC])
    count = min(int(CHECK_SHARE * total) // SHORTEST_STAY, MOST_CHECKS)
    check = np.sort(rng.permutation(len(settings))[: min(count, len(settings))])
    part = CHECK_SHARE if len(check) else 0.0
    prior = known / total + (part * held[check].mean(axis=0) if part else 0.0)
    first = optimal((1 - part) * held, prior).weight
    support = np.flatnonzero(first >= min(max(LEAST_SHARE, SHORTEST_STAY / 2 / total), first.max()))
    if tellable(prior + held[support].mean(axis=0)).all():
        weight = optimal((1 - part) * held[support], prior).weight
    else:  # the crumbs alone told some number
        support, weight = np.flatnonzero(first > 0), first[first > 0]
    shares = [("tell", k, (1 - part) * w) for k, w in zip(support.tolist(), weight.tolist(), strict=True)]
    shares += [("check", k, part / len(check)) for k in check.tolist()]
    edges = np.rint(np.cumsum([share for _, _, share in shares]) * total).astype(int)
    return tuple(
        PlannedSetting(settings[k], int(n), purpose, mixtures[k].mixed)
        for (purpose, k, _), n in zip(shares, np.diff(edges, prepend=0), strict=True)
        if n > 0
    )


Parts = list[tuple[float, dict[str, np.ndarray]]]
"""Recordings, each with its share of a whole."""


def _runs(plant: Plant, limits: Limits, rows: tuple[PlannedSetting, ...], seed: int) -> dict[str, Parts]:
    """The plan, one stay of each setting, and the plain staircase, on the plant without noise."""
    engine, total = PlantEngine(plant, limits, np.ones(1), np.ones(1)), sum(row.steps for row in rows)
    plan = [(row.steps / total, record_design(engine, [(row.setting, _stay_of(row))], seed=seed + k)) for k, row in enumerate(rows)]
    return {"plan": plan, "staircase": [(1.0, record_trace(engine, steps=min(total, STAIRCASE_STEPS), seed=seed))]}


def _stay_of(row: PlannedSetting) -> int:
    """Length of this setting's stays as `visits` cuts them [steps]."""
    return max(round(row.steps / max(round(row.steps / stay_steps(row.setting)), 1)), 1)


def _mean(parts: Parts, of: Callable[[dict[str, np.ndarray]], np.ndarray]) -> Any:
    """Mean over the steps of recordings, each weighed by its share."""
    return sum(share * np.asarray(of(run), float).mean(axis=0) for share, run in parts)


def _information(plant: Plant, names: list[str], run: Mapping[str, np.ndarray], precision: Precision) -> np.ndarray:
    """Information of one step of a recording, shape (1, m, m)."""
    batch = Batch(*(run[name] for name in Batch._fields))
    return _told(plant, names, batch, np.full(len(run["step"]), 1.0 / len(run["step"])), precision)[None]


def _numbers(plant: Plant, names: list[str], fine: np.ndarray, known: Mapping[str, np.ndarray], *, assumed: bool) -> tuple[Told, ...]:
    """Standard errors by what is known. Numbers of an assumed plant are in units of its floor, not of time."""
    errors = [standard_errors(known[name]) for name in ("now", "plan", "staircase")]
    found = []
    for j, name in enumerate(names):
        coefficient = plant.coefficients()[name]
        unit = "floor" + coefficient.unit[1:] if assumed else coefficient.unit
        now, after, stairs = (float(e[j]) if fine[j] and np.isfinite(e[j]) else None for e in errors)
        found.append(Told(name, unit, coefficient.value, now, after, stairs))
    return tuple(found)


def _said(
    identified: IdentifiedPlant | None, trace: Trace | None, need: Mapping[str, Need], names: list[str], fine: np.ndarray
) -> tuple[str, ...]:
    said = []
    if identified is None:
        said.append("no plant given: a typical one is assumed, so errors and efficiencies hold by its proportions, and no time is told")
    elif trace is None:
        said.append("no trace given: what is known is taken from the plant's intervals, as if its numbers were independent")
    still = [name for name in (unmoved(identified) if identified else []) if name in names]
    if still:
        said.append(f"the earlier trace did not move the inputs of {', '.join(still)}; the plan does")
    lost = [name for name, ok in zip(names, fine, strict=True) if not ok]
    if lost:
        said.append(f"within these limits no setting tells {', '.join(lost)} from the others")
    said += [
        f"{r}: too few residuals to measure their tail; a log-normal one is assumed for the margin"
        for r, n in need.items()
        if not n.tail.measured
    ]
    return tuple(said)


def _beyond(identified: IdentifiedPlant | None, parts: Parts) -> list[str]:
    """Where the plan leaves what the earlier trace held: there durations, and so the time it takes, are extrapolated."""
    if identified is None:
        return []
    hull = dataclasses.asdict(identified.hull)
    most = {name: max(float(run[name].max()) for _, run in parts) for name in hull}
    return [
        f"the plan reaches {name} of {most[name]:,.0f}, the earlier trace held {seen:,.0f}: its law is extrapolated there"
        for name, seen in hull.items()
        if most[name] > 1.05 * seen
    ]
