"""Validation on a served vLLM: what its clients measured, held against what was predicted, and whether the trial can say anything."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headway.engines.vllm.starting import Start
from headway.engines.vllm.trial import Arm, Run, Trial, as_json, predicted, turns
from headway.experiments.checks import Check, live_gates
from headway.experiments.constraints import asked_again
from headway.experiments.statistics import mean_interval
from headway.experiments.validate import Side, Validation, requiring, verdict
from headway.experiments.whole_files import read_json, write_json
from headway.loads import Load
from headway.models.goodput import Outcome, summarise
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Target

Progress = Callable[[str, float], None]

LATE_SHARE = 0.02
"""Share of the TTFT target by which 99 of 100 requests may have been sent late."""
LAG_SHARE = 0.1
"""Share of the ITL target by which the clients' own loop may lag, 99 times of 100: token stamps are as late as it is."""
OTHERS = 0.05
"""Share of the machine that other programs may take during a run."""
ALONE = "no other programs on the machine"
FIGURES = (
    "attainment",
    "request_attainment",
    "goodput_tps",
    "ttft_p50_s",
    "ttft_p99_s",
    "itl_p50_s",
    "itl_p99_s",
    "step_p50_s",
    "step_p99_s",
)
"""What is compared, each measured and predicted."""


def validate_served(
    start: Start,
    arms: Sequence[Arm],
    identified: IdentifiedPlant,
    load: Load,
    *,
    seconds: float,
    repetitions: int,
    together: bool = True,
    keep: Path | None = None,
    uncertified: bool = False,
    progress: Progress | None = None,
) -> Validation:
    """Run every arm on the same arrivals, in turn, as often as asked, and judge.

    Args:
        start: how servers are started.
        arms: contenders; controller and best static setting first.
        identified: the plant that predicts.
        load: workload and targets.
        seconds: of arrivals in a run [s].
        repetitions: of the arms.
        together: keep all servers running at once.
        keep: folder for every run; runs that it holds of this very trial are not repeated.
        uncertified: run a law whose certificate is refused.
        progress: called with a label and a fraction.

    Returns:
        Validation.

    Raises:
        ValueError: a server that does not start, or a folder that holds another trial.
    """
    if keep is not None:
        _same_trial(keep, {**as_json(start, arms), **_about(arms, load, seconds)})
    runs: dict[str, list[Run]] = {arm.name: [] for arm in arms}
    expected: dict[str, list[Outcome]] = {arm.name: [] for arm in arms}
    trial = Trial(start, arms, load.source, load.targets, seconds=seconds, together=together, keep=keep, uncertified=uncertified)
    with trial.open():
        for repetition in range(repetitions):
            for place, arm in enumerate(turns(arms, repetition)):
                done = (repetition + place / len(arms)) / repetitions
                tell = _teller(progress, f"run {repetition + 1} of {repetitions}: {arm.name}", done, len(arms) * repetitions)
                run = trial.run(arm, repetition, tell)
                runs[arm.name].append(run)
                expected[arm.name].append(predicted(arm, identified, trial.workload(repetition), repetition, load.targets, run.limits))
    return judged(start, arms, runs, expected, identified, load, seconds)


def _teller(progress: Progress | None, label: str, done: float, parts: int) -> Callable[[float], None] | None:
    if progress is None:
        return None
    progress(label, done)
    return lambda share: progress(label, min(done + share / parts, 1.0))


def _about(arms: Sequence[Arm], load: Load, seconds: float) -> dict[str, Any]:
    controllers = [a.record.to_json()["content_sha256"] for a in arms if a.record is not None]
    targets = [dataclasses.asdict(t) for t in load.targets]
    return {
        "controllers": controllers,
        "workload": load.spec,
        "rate_rps": load.rate_rps,
        "rows": load.rows,
        "targets": targets,
        "seconds": seconds,
    }


def _same_trial(keep: Path, about: dict[str, Any]) -> None:
    """Refuse to mix the runs of two trials."""
    mark = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()
    file = keep / "trial.json"
    if not file.exists():
        write_json(file, {"sha256": mark, **json.loads(json.dumps(about, default=str))})
    elif read_json(file).get("sha256") != mark:
        raise ValueError(
            f"{keep} holds the runs of another trial (other controller, load or flags); name another folder, or remove that one"
        )


def judged(
    start: Start,
    arms: Sequence[Arm],
    runs: dict[str, list[Run]],
    expected: dict[str, list[Outcome]],
    identified: IdentifiedPlant,
    load: Load,
    seconds: float,
) -> Validation:
    """The verdict over runs that were made.

    Args:
        start: how servers were started.
        arms: contenders; controller and best static setting first.
        runs: of each arm.
        expected: what the simulator said of the same.
        identified: the plant.
        load: workload and targets.
        seconds: of arrivals in a run [s].

    Returns:
        Validation.
    """
    targets, sides = load.targets, {}
    for arm in arms:
        side = Side([run.outcome(targets) for run in runs[arm.name]], expected[arm.name])
        sides[arm.name] = side.judged(identified, arm.candidate, load.source, targets, runs[arm.name][0].limits)
    first, second = (sides[arm.name] for arm in arms[:2])
    flat = [run for arm in arms for run in runs[arm.name]]
    simulated = start.device is not None
    gates = [*live_gates(first.measured, second.measured, identified), *client_gates(flat, targets, alone=not simulated)]
    notes = trial_notes(start, arms, runs, seconds)
    record = arms[0].record
    result = verdict(f"vllm{'-sim' if simulated else ''}", (first, second), targets, identified, gates, notes)
    result = requiring(result, asked_again((record.tuning if record is not None else {}).get("required") or []))
    compared = [row for arm in arms[:2] for row in comparison(arm.name, sides[arm.name], targets)]
    return dataclasses.replace(result, others={arm.name: sides[arm.name] for arm in arms[2:]}, compared=compared)


def client_gates(runs: Sequence[Run], targets: tuple[Target, ...], *, alone: bool = True) -> list[Check]:
    """Whether clients could measure: they were on time, their clock ran, nobody else was on the machine, and all tokens are accounted for.

    Args:
        runs: of all arms.
        targets: one per class.
        alone: also ask that other programs left the machine alone; a simulated device hardly minds.

    Returns:
        Gates.
    """
    ttft_s, itl_s = min(t.ttft_s for t in targets), min(t.itl_s for t in targets)
    late = max(float(np.quantile(r.clients.late_s, 0.99)) if len(r.clients.late_s) else np.inf for r in runs)
    lag = max(float(np.quantile(r.clients.lags_s, 0.99)) if len(r.clients.lags_s) else np.inf for r in runs)
    others = max(r.clients.others for r in runs)
    whole = [
        r.clients for r in runs if not any(r.clients.counts.get(s) for s in ("running", "gave up", "left")) and r.clients.server_tokens
    ]
    lost = sum(abs(c.tokens - (c.server_tokens or 0)) for c in whole)
    gates = [
        Check("requests were sent on time", f"99 of 100 within {1e3 * LATE_SHARE * ttft_s:.3g} ms", late, late <= LATE_SHARE * ttft_s, "s"),
        Check("the clients' clock ran", f"99 of 100 looks within {1e3 * LAG_SHARE * itl_s:.3g} ms", lag, lag <= LAG_SHARE * itl_s, "s"),
        Check(
            "every token was seen", f"clients and server count alike, in {len(whole)} runs without closed streams", float(lost), lost == 0
        ),
    ]
    if alone:
        gates.append(Check(ALONE, f"they took at most {OTHERS:.0%} of it in any run", others, others <= OTHERS))
    return gates


def trial_notes(start: Start, arms: Sequence[Arm], runs: dict[str, list[Run]], seconds: float) -> list[str]:
    """What should be known of a trial.

    Args:
        start: how servers were started.
        arms: contenders.
        runs: of each.
        seconds: of arrivals in a run [s].

    Returns:
        Sentences.
    """
    many = len(runs[arms[0].name])
    notes = [f"{many} runs of {seconds:g} s of arrivals for each of {', '.join(arm.name for arm in arms)}, in turn, on the same arrivals"]
    notes.append(start.cores.sentence())
    notes.append("stock vLLM was watched by the adapter in mode observe, which records and changes nothing")
    for arm in arms:
        total: dict[str, int] = {}
        for run in runs[arm.name]:
            for name, n in run.clients.counts.items():
                total[name] = total.get(name, 0) + n
        said = ", ".join(f"{n:,} {name}" for name, n in total.items())
        errors = [text for run in runs[arm.name] for text in run.clients.errors.values()]
        notes.append(f"{arm.name}: requests {said}" + (f"; the first error: {errors[0]}" if errors and total.get("failed") else ""))
        off = [
            run.clients
            for run in runs[arm.name]
            if run.clients.server_tokens is not None and run.clients.tokens != run.clients.server_tokens
        ]
        notes += [f"{arm.name}: {clients.token_words()}" for clients in off[:1]]
    if any(run.clients.priority == "ordinary" for arm in arms for run in runs[arm.name]):
        notes.append("the system let the load generator have no priority over the server: where cores are short, it sends and stamps late")
    shares = [run.cpu_share for arm in arms for run in runs[arm.name] if np.isfinite(run.cpu_share)]
    if start.device is None and shares:
        notes.append(
            f"the model's process had a core for {100 * min(shares):.0f} % to {100 * max(shares):.0f} % of its steps' time (median step, by run)"
        )
    return notes


def comparison(name: str, side: Side, targets: tuple[Target, ...]) -> list[dict[str, Any]]:
    """Figures of one side, run by run, measured and predicted.

    Args:
        name: of the side.
        side: its runs.
        targets: one per class.

    Returns:
        {"side", "what", "measured", "ci95", "predicted", "off"} each; `off` is measured over predicted, less 1.
    """
    measured, expected = ([figures(o, targets) for o in outcomes] for outcomes in (side.measured, side.predicted))
    rows = []
    for what in FIGURES:
        a, b = (np.array([np.nan if one[what] is None else one[what] for one in many], float) for many in (measured, expected))
        known = np.isfinite(a)
        mean = mean_interval(a[known]) if known.any() else None
        value, said = (None if mean is None else mean.value), (float(np.nanmean(b)) if np.isfinite(b).any() else None)
        ends = None if mean is None or np.isnan(mean.low) else [mean.low, mean.high]
        off = value / said - 1 if value is not None and said else None
        rows.append({"side": name, "what": what, "measured": value, "ci95": ends, "predicted": said, "off": off})
    return rows


def figures(outcome: Outcome, targets: tuple[Target, ...]) -> dict[str, float | None]:
    """Figures of one run.

    Args:
        outcome: the run.
        targets: one per class.

    Returns:
        By name of FIGURES; TTFT over the requests that got a token.
    """
    all_ = summarise([outcome], targets)
    transport = np.array([t.transport_s for t in targets])[outcome.class_id]
    ttft = (outcome.ttft_s + transport)[np.isfinite(outcome.ttft_s)]
    took = outcome.log[:, 1] if len(outcome.log) else np.zeros(0)
    at = lambda values, q: float(np.quantile(values, q)) if len(values) else None  # noqa: E731
    found: dict[str, float | None] = {name: float(getattr(all_, name)) for name in ("attainment", "request_attainment", "goodput_tps")}
    for q, word in ((0.5, "p50"), (0.99, "p99")):
        found |= {f"ttft_{word}_s": at(ttft, q), f"itl_{word}_s": all_.itl_s[word], f"step_{word}_s": at(took, q)}
    return found
