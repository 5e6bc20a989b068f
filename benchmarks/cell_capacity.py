"""Beside the cells: the capacity that a tuned controller adds, clean requests above the knee, and workloads it was not tuned on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.cell_loads import Pair, limits_of, requests_of, source_of, targets_of, windows
from benchmarks.table import Row, at_least, informs
from headway.controllers.simulator import Candidate, evaluate
from headway.experiments.baseline import TIMEOUTS, Static, static_grid
from headway.experiments.beside import SHIFT_SEEDS
from headway.experiments.shift import alike, shift
from headway.experiments.statistics import gain_interval, mean_interval
from headway.experiments.tune import Effort, Problem, tune
from headway.models.measures import ATTAINMENT, CLEAN, SHED

PROMISE = 0.99
"""Attainment that capacity is the highest rate of."""
KV_TOKENS = 200_000
HALVINGS = 6
"""Of the rate: a capacity is known to about 1 %."""
WIDE, KEPT = 1.8, 16
"""Rates searched, up and down from where it begins; settings of a grid that are judged on all windows."""
GAINS: dict[tuple[str, str, str], float] = {
    ("tp4", "azure", "reject"): 10.0,
    ("8b", "azure", "reject"): 18.0,
    ("tp4", "two classes", "reject"): 50.0,
    ("tp4", "two classes", "defer"): 40.0,
}
"""Capacity over the static setting with a timeout in hindsight, by plant, load and triage; "defer" sheds nobody [%]."""
BEGIN = {10.0: 1.12, 18.0: 1.2, 50.0: 1.5, 40.0: 1.4}
"""Rate at which tuning begins, over that of the static setting with a timeout, by what is hoped for."""
ROUNDS = 2
"""Times it is tuned, each at the capacity of the last."""
CLEAN_BARS = {1.3: 0.93, 1.6: 0.85}
"""Share of clean requests when tuned for them, by the load over the knee."""
OTHERS = ("mooncake", "two classes", "bursty", "diurnal", "sharegpt")
"""Workloads that a controller tuned on "azure" meets unprepared."""


def capacity_of(pair: Pair, plant: str, load: str, settings: list[Candidate], begin_rps: float, count: int, *, heldout: bool) -> float:
    """The highest rate at which the best of some settings keeps the promise: for each rate another may be the best.

    Args:
        pair: the plant.
        plant: its name.
        load: one of LOADS.
        settings: to choose from in hindsight.
        begin_rps: where the search begins [requests/s].
        count: windows.
        heldout: windows that tuning never sees.

    Returns:
        Rate [requests/s].
    """
    targets, limits = targets_of(plant, load), limits_of(KV_TOKENS)

    def attained(some: list[Candidate], rate_rps: float, few: int) -> np.ndarray:
        drawn = windows(pair.truth, load, rate_rps, few, heldout=heldout)
        return evaluate(pair.truth, some, drawn, targets, limits)[..., ATTAINMENT].mean(axis=1)

    if len(settings) > KEPT:
        look = np.max([attained(settings, rate, 2) for rate in (begin_rps, begin_rps * math.sqrt(WIDE))], axis=0)
        near = attained(settings, begin_rps, 2)
        kept = {*np.argsort(-look)[: KEPT // 2].tolist(), *np.argsort(-near)[: KEPT // 2].tolist()}
        settings = [settings[i] for i in sorted(kept)]
    low, high = math.log(begin_rps / WIDE), math.log(begin_rps * WIDE)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fine = attained(settings, math.exp(middle), count).max() >= PROMISE
        low, high = (middle, high) if fine else (low, middle)
    return math.exp(low)


def capacity(pair: Pair, knee_rps: float, plant: str, load: str, triage: str, effort: Effort, count: int) -> dict[str, Any]:
    """Capacity of a tuned controller against the static settings with and without a timeout in hindsight.

    Args:
        pair: the plant.
        knee_rps: highest rate at which the best static setting in hindsight keeps the promise, about [requests/s].
        plant: its name.
        load: one of LOADS.
        triage: of the controller.
        effort: of tuning, requests apart.
        count: held-out windows.

    Returns:
        Rates, gain and share shed, as plain JSON values.
    """
    targets, limits = targets_of(plant, load), limits_of(KV_TOKENS)
    early = [s.candidate() for share in TIMEOUTS for s in static_grid(limits, share)]
    timeout = capacity_of(pair, plant, load, early, knee_rps, count, heldout=True)
    static = capacity_of(pair, plant, load, [s.candidate() for s in static_grid(limits)], knee_rps, count, heldout=True)
    rate, best = timeout * BEGIN[GAINS[plant, load, triage]], (0.0, None)
    for _ in range(ROUNDS):
        tuned = tune(
            Problem(pair.fitted, source_of(load, rate), targets, limits),
            dataclasses.replace(effort, requests=requests_of(load, rate)),
            policy={"triage": triage},
        )
        found = capacity_of(pair, plant, load, [tuned.tuned.candidate], rate, count // 2, heldout=False)
        if found > best[0]:
            best = (found, tuned)
        rate = found
    assert best[1] is not None
    ours = capacity_of(pair, plant, load, [best[1].tuned.candidate], best[0], count, heldout=True)
    there = windows(pair.truth, load, ours, count, heldout=True)
    shed = float(evaluate(pair.truth, [best[1].tuned.candidate], there, targets, limits)[..., SHED].mean())
    return {
        "what": f"{plant} {load}, {triage}",
        "static_rps": static,
        "timeout_rps": timeout,
        "ours_rps": ours,
        "gain": 100 * (ours / timeout - 1),
        "over_static": 100 * (ours / static - 1),
        "shed": shed,
        "bar": GAINS[plant, load, triage],
        "settings": best[1].tuned.settings,
    }


def clean(pair: Pair, knee_rps: float, choose: Callable[..., Static], effort: Effort, count: int, train: int) -> list[dict[str, Any]]:
    """Clean requests above the knee, everybody chosen for them, on TP4 under "azure".

    Args:
        pair: the plant.
        knee_rps: highest rate at which the best static setting keeps the promise [requests/s].
        choose: the best of a grid, from settings, plant, draws, targets, limits and a measure.
        effort: of tuning, requests apart.
        count: held-out windows.
        train: windows on which static settings are chosen.

    Returns:
        One mapping for each load.
    """
    targets, limits, found = targets_of("tp4", "azure"), limits_of(KV_TOKENS), []
    for factor, bar in CLEAN_BARS.items():
        rate = factor * knee_rps
        drawn, held = (windows(pair.truth, "azure", rate, n, heldout=h) for n, h in ((train, False), (count, True)))
        early = [s for share in TIMEOUTS for s in static_grid(limits, share)]
        settings = [choose(grid, pair.truth, drawn, targets, limits, CLEAN) for grid in (static_grid(limits), early)]
        problem = Problem(pair.fitted, source_of("azure", rate), targets, limits, "requests")
        tuned = tune(problem, dataclasses.replace(effort, requests=requests_of("azure", rate)))
        sides = [*(s.candidate() for s in settings), tuned.tuned.candidate]
        rows = evaluate(pair.truth, sides, held, targets, limits)[..., CLEAN]
        values = dict(zip(("static", "timeout", "ours"), (list(mean_interval(r)) for r in rows), strict=True))
        found.append(
            {"what": f"tp4 azure at {factor:g} of the knee ({rate:.3g}/s)", "bar": bar, **values, "settings": tuned.tuned.settings}
        )
    return found


def unprepared(
    pair: Pair, tuned: Candidate, fallback: Static, rate_rps: float, rates: dict[str, float], count: int
) -> list[dict[str, Any]]:
    """A controller on workloads that it was not tuned on, against the static setting it would fall back to.

    Args:
        pair: the plant.
        tuned: on "azure".
        fallback: the best static setting there.
        rate_rps: mean rate that it was tuned at [requests/s].
        rates: by load [requests/s].
        count: held-out windows.

    Returns:
        One mapping for each load, with the kinds of traffic that `--analyse shift` warns of, as far as the load is of them.
    """
    own = windows(pair.fitted, "azure", rate_rps, SHIFT_SEEDS, heldout=True)
    warned, found = shift(pair.fitted, tuned, fallback.candidate(), own, targets_of("tp4", "azure"), limits_of(KV_TOKENS)), []
    for load, rate in rates.items():
        targets, limits = targets_of("tp4", load), limits_of(KV_TOKENS)
        drawn = windows(pair.truth, load, rate, count, heldout=True)
        rows = evaluate(pair.truth, [fallback.candidate(), tuned], drawn, targets, limits)[..., ATTAINMENT]
        named = [name for name in alike(drawn[0].workload, own[0].workload) if name in warned.harmful]
        gain = list(gain_interval(rows[0], rows[1]))
        what = f"{load} ({rate:.3g}/s)"
        found.append({"what": what, "fallback": float(rows[0].mean()), "ours": float(rows[1].mean()), "gain": gain, "named": named})
    return found


def beside_rows(capacities: list[dict[str, Any]], cleans: list[dict[str, Any]], others: list[dict[str, Any]]) -> Iterator[Row]:
    """What was measured beside the cells, with its bars.

    Args:
        capacities: as from `capacity`.
        cleans: as from `clean`.
        others: as from `unprepared`.

    Yields:
        Rows.
    """
    for c in capacities:
        rates = f"static {c['static_rps']:.3g}/s, with timeout {c['timeout_rps']:.3g}/s, ours {c['ours_rps']:.3g}/s"
        yield at_least(
            f"capacity over static + timeout in hindsight: {c['what']} ({rates}, shed {100 * c['shed']:.1f} %)", c["gain"], c["bar"], "%"
        )
        yield informs(f"capacity over static in hindsight: {c['what']}", f"{c['over_static']:+.0f} %")
        if "defer" in c["what"]:
            yield Row(f"shed at that rate: {c['what']}", "nothing", f"{100 * c['shed']:.2f} %", c["shed"] == 0)
    for c in cleans:
        beside = f"static {c['static'][0]:.2f}, with timeout {c['timeout'][0]:.2f}"
        yield at_least(f"clean requests, tuned for them: {c['what']} ({beside})", c["ours"][0], c["bar"])
    for o in others:
        figures = f"{o['ours']:.3f} against {o['fallback']:.3f} of its fallback"
        gain, said = 100 * o["gain"][0], f"; --analyse shift warns of {', '.join(o['named'])}" if o["named"] else ""
        bar = ">= -2 %, or the report says so"
        yield Row(f"tuned on azure, met unprepared: {o['what']} ({figures})", bar, f"{gain:+.1f} %{said}", gain >= -2.0 or bool(o["named"]))
