"""Validation in closed loop: the controller and the best static setting serve the same arrivals, measured against predicted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from headway.controllers.loop import drive
from headway.controllers.simulator import LOG_COLUMNS, Candidate, Draw, draw, simulate
from headway.experiments.checks import Check, agrees, kept, live_gates, no_worse, queue_held, required
from headway.experiments.constraints import Requirement
from headway.experiments.predictions import Predictions, paired_predictions
from headway.experiments.saturation import load_on
from headway.experiments.statistics import Estimate, gain_interval
from headway.models.bottleneck import batch_of, blind, resources
from headway.models.engine import Engine
from headway.models.goodput import FINISHED, GAP_BINS, GAP_LOW_S, GAP_RATIO, Outcome, summarise
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits, Target
from headway.models.stability import Load
from headway.models.workload import WorkloadSource

FRESH = 100_000
"""Seeds of validation start here: noise and windows that tuning, held-out seeds included, never drew."""

Progress = Callable[[str, float], None]


@dataclasses.dataclass(frozen=True)
class Side:
    """One contender: what was predicted for it and what was measured.

    Args:
        measured: runs on the engine.
        predicted: runs of the exact simulator on the same arrivals.
        load: how much of the engine it takes, with the plant's interval; None where that cannot be said.
        resources: where the predicted time of its recorded steps goes, see `headway.models.bottleneck.resources`.
    """

    measured: list[Outcome]
    predicted: list[Outcome]
    load: Load | None = None
    resources: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

    def judged(
        self, identified: IdentifiedPlant, candidate: Candidate, source: WorkloadSource, targets: tuple[Target, ...], limits: Limits
    ) -> Side:
        """With its load and where its time goes, once its runs are there.

        Args:
            identified: the plant that predicts.
            candidate: law and policy.
            source: of the workloads.
            targets: one per class.
            limits: of the engine.

        Returns:
            Side.
        """
        load = load_on(identified, candidate, source, targets, limits, self.measured)
        spent = resources(identified.plant, batch_of(self.measured[0].log))
        return dataclasses.replace(self, load=load, resources=spent)


@dataclasses.dataclass(frozen=True)
class Validation:
    """The verdict and what it rests on.

    Args:
        engine: name of the engine.
        outcome: "met" if target and prediction held, "not met", or "invalid" if the run can say neither.
        checks: of the promise that tuning made.
        gates: of the experiment itself; one that fails makes it invalid.
        controller: the tuned side.
        static: the best static setting.
        gain: measured attainment over the static setting, paired over the runs.
        targets: one per class.
        target_reached: in every class at least 1 - epsilon of the owed tokens was on time, the queue did not grow all through the
            runs, and what was required at tuning was kept.
        prediction_held: what tuning predicted was measured, and the best static setting did no better.
        notes: what else should be known.
        predictions: the controller's recorded steps against the plant, with the drift alarm; None where none were recorded.
        others: further contenders on the same arrivals, by name, such as the engine with its default flags.
        compared: figures of controller and static side, each measured with its interval over the runs, and predicted.
    """

    engine: str
    outcome: str
    checks: list[Check]
    gates: list[Check]
    controller: Side
    static: Side
    gain: Estimate
    targets: tuple[Target, ...]
    target_reached: bool
    prediction_held: bool
    notes: list[str]
    predictions: Predictions | None
    others: dict[str, Side] = dataclasses.field(default_factory=dict)
    compared: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            The content of validation.json.
        """

        def figures(outcomes: list[Outcome], load: Load | None) -> dict[str, Any]:
            return {**summarise(outcomes, self.targets, load).to_json(), "distributions": distributions(outcomes, self.targets)}

        def shown(side: Side) -> dict[str, Any]:
            return {**figures(side.measured, side.load), "resources": side.resources, "timeline": timeline(side.measured[0])}

        return {
            "schema": "headway/validation/1",
            "engine": self.engine,
            "outcome": self.outcome,
            "checks": [dataclasses.asdict(c) for c in self.checks],
            "gates": [dataclasses.asdict(c) for c in self.gates],
            "target_reached": self.target_reached,
            "prediction_held": self.prediction_held,
            "gain": self.gain.value,
            "gain_ci95": [None if np.isnan(x) else x for x in (self.gain.low, self.gain.high)],
            "runs": len(self.controller.measured),
            "controller": shown(self.controller),
            "best_static": shown(self.static),
            "predicted": {
                "controller": figures(self.controller.predicted, self.controller.load),
                "best_static": figures(self.static.predicted, self.static.load),
            },
            "drift": None if self.predictions is None else self.predictions.to_json(),
            "others": {
                name: {"measured": figures(side.measured, side.load), "predicted": figures(side.predicted, side.load)}
                for name, side in self.others.items()
            },
            "compared": self.compared,
            "notes": self.notes,
        }


def timeline(outcome: Outcome, rows: int = 3000) -> dict[str, list[float]]:
    """The run's steps, in order, the first ones if there are too many to show.

    Args:
        outcome: with a log.
        rows: most steps.

    Returns:
        Columns by name; empty if nothing was recorded.
    """
    log = outcome.log[:rows]
    return {name: [float(f"{x:.6g}") for x in log[:, k]] for k, name in enumerate(LOG_COLUMNS)} if len(log) else {}


def distributions(outcomes: list[Outcome], targets: tuple[Target, ...]) -> dict[str, Any]:
    """TTFT and gaps at the client as curves that reach to the far tail.

    Args:
        outcomes: of one side.
        targets: one per class.

    Returns:
        {"share": [...], "ttft_s": [...], "itl_s": [...]}: quantiles at the same shares; None where infinite (never served).
    """
    share = np.concatenate([np.linspace(0, 0.9, 46), 1 - np.geomspace(0.1, 0.0005, 40)[1:]])
    transport = np.array([t.transport_s for t in targets])
    known = [(o.owed > 0) | (o.status >= FINISHED) for o in outcomes]  # not those cut off before their first token was due
    ttft = np.concatenate([(np.nan_to_num(o.ttft_s, nan=np.inf) + transport[o.class_id])[k] for o, k in zip(outcomes, known, strict=True)])
    gaps = np.sum([o.gaps for o in outcomes], axis=0)
    edges = (GAP_LOW_S * GAP_RATIO ** (np.arange(GAP_BINS) + 0.5) + transport[:, None]).ravel()
    order = np.argsort(edges, kind="stable")
    counts = np.cumsum(gaps.ravel()[order])
    at = np.searchsorted(counts, share * counts[-1]) if counts[-1] else np.zeros(len(share), int)
    curve = np.quantile(ttft, share, method="higher") if len(ttft) else np.full(len(share), np.inf)
    return {
        "share": [float(x) for x in share],
        "ttft_s": [float(x) if np.isfinite(x) else None for x in curve],
        "itl_s": [float(edges[order][min(i, len(order) - 1)]) for i in at] if counts[-1] else [None] * len(share),
    }


def validate_on_plant(
    contenders: tuple[Candidate, Candidate],
    identified: IdentifiedPlant,
    truth: IdentifiedPlant,
    source: WorkloadSource,
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    requests: int,
    runs: int = 20,
    progress: Progress | None = None,
) -> Validation:
    """Validate on the exact simulator, on fresh seeds, or on another plant than the controller was tuned on.

    Args:
        contenders: controller and best static setting.
        identified: the plant that predicts.
        truth: the plant that is measured.
        source: of the workloads.
        targets: one per class.
        limits: of the engine.
        requests: per run.
        runs: seeds.
        progress: called with a label and a fraction.

    Returns:
        Validation.
    """
    sides = (Side([], []), Side([], []))
    for k in range(runs):
        drawn, expected = (draw(source, plant, FRESH + k, requests, heldout=True) for plant in (truth, identified))
        expected = expected if truth is not identified else draw(source, identified, 2 * FRESH + k, requests, heldout=True)
        expected = Draw(drawn.workload, expected.decode, expected.mixed)
        for side, candidate in zip(sides, contenders, strict=True):
            side.measured.append(simulate(truth, candidate, drawn, targets, limits, record_steps=3000 if k == 0 else 0))
            side.predicted.append(simulate(identified, candidate, expected, targets, limits))
        if progress:
            progress("validating", (k + 1) / runs)
    note = (
        "measured on the plant that tuning used, with other noise and arrivals"
        if truth is identified
        else "measured on another plant than tuning used"
    )
    judged = [side.judged(identified, c, source, targets, limits) for side, c in zip(sides, contenders, strict=True)]
    return verdict("sim", (judged[0], judged[1]), targets, identified, [], [f"engine sim: {note}"])


def validate_on_engine(
    contenders: tuple[Candidate, Candidate],
    identified: IdentifiedPlant,
    engine: Engine,
    source: WorkloadSource,
    targets: tuple[Target, ...],
    *,
    requests: int,
    cut_s: float,
    runs: int = 3,
    progress: Progress | None = None,
) -> Validation:
    """Validate on a live engine: interleaved runs of both contenders on the same arrivals.

    Args:
        contenders: controller and best static setting.
        identified: the plant that predicts.
        engine: live.
        source: of the workloads.
        targets: one per class.
        requests: per run, at most.
        cut_s: length of a run on the engine's clock [s].
        runs: repetitions of the pair.
        progress: called with a label and a fraction.

    Returns:
        Validation.
    """
    sides = (Side([], []), Side([], []))
    for k in range(runs):
        drawn = draw(source, identified, FRESH + k, requests, heldout=True)
        order = (0, 1) if k % 2 == 0 else (1, 0)
        for place, i in enumerate(order):
            tell = None
            if progress is not None:
                done = (2 * k + place) / (2 * runs)
                tell = lambda now_s, _, done=done: progress("validating live", min(done + now_s / cut_s / (2 * runs), 1.0))  # noqa: E731
            sides[i].measured.append(drive(engine, contenders[i], drawn.workload, targets, identified.plant, cut_s=cut_s, progress=tell))
            sides[i].predicted.append(simulate(identified, contenders[i], drawn, targets, engine.limits, cut_s=cut_s))
    judged = [side.judged(identified, c, source, targets, engine.limits) for side, c in zip(sides, contenders, strict=True)]
    return verdict(
        engine.name,
        (judged[0], judged[1]),
        targets,
        identified,
        live_gates(sides[0].measured, sides[1].measured, identified),
        [f"{runs} paired runs of {cut_s:g} s on the engine's own clock"],
    )


def verdict(
    engine: str,
    sides: tuple[Side, Side],
    targets: tuple[Target, ...],
    identified: IdentifiedPlant,
    gates: list[Check],
    notes: list[str],
) -> Validation:
    """Hold what was measured against what was promised.

    Args:
        engine: its name.
        sides: controller and static.
        targets: one per class.
        identified: the plant that predicted.
        gates: of the experiment.
        notes: what else should be known.

    Returns:
        Validation.
    """
    measured, static, expected = (summarise(o, targets) for o in (sides[0].measured, sides[1].measured, sides[0].predicted))
    attained = [np.array([summarise([o], targets).attainment for o in side.measured]) for side in sides]
    gain = gain_interval(attained[1], attained[0])
    prediction = [
        no_worse(measured, static),
        agrees("attainment", measured, expected),
        agrees("goodput_tps", measured, expected),
    ]
    target = [check for t in targets if t.name in measured.classes for check in kept(t, measured.classes[t.name])]
    target.append(queue_held(sides[0].measured))
    fine = all(c.ok for c in (*prediction, *target))
    outcome = "invalid" if not all(g.ok for g in gates) else "met" if fine else "not met"
    held, reached = all(c.ok for c in prediction), all(c.ok for c in target if not c.name.startswith("p99 ITL"))
    said = [blind(measured.binding, kept=reached), *measured.notes]
    notes = [*notes, *(f"the controller: {text}" for text in said if text)]
    paired = paired_predictions([o.log for o in sides[0].measured], identified)
    return Validation(engine, outcome, [*target, *prediction], gates, *sides, gain, targets, reached, held, notes, paired)


def requiring(result: Validation, require: tuple[Requirement, ...]) -> Validation:
    """A verdict that also holds what the controller was tuned to keep.

    Args:
        result: the verdict without it.
        require: what tuning was asked to keep beside the objective.

    Returns:
        Validation; where a requirement is missed the target is not reached.
    """
    checks = required(require, result.controller.measured, result.targets)
    kept = all(c.ok for c in checks)
    outcome = "not met" if result.outcome == "met" and not kept else result.outcome
    place = sum(c.part == "target" for c in result.checks)
    every = [*result.checks[:place], *checks, *result.checks[place:]]
    return dataclasses.replace(result, outcome=outcome, checks=every, target_reached=result.target_reached and kept)
