"""What a cell says of each contender on its held-out windows, and the bars over all cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks.table import Row, at_least, at_most, informs
from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.experiments.bound import upper_bound
from headway.experiments.outcomes import outcomes_of
from headway.experiments.statistics import Estimate, gain_interval, mean_interval
from headway.models.goodput import Outcome, summarise
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT, CLEAN, END_S
from headway.models.signals import Limits, Target

TERCILES = ("short", "middle", "long")
LATE_GAP = 1.2
"""p99 of the gaps may exceed the ITL target by this factor."""
WIDE_GAP = 0.10
"""Where the bound leaves at least this much over the static setting, the share of it that is closed is judged."""
CROWDED = 0.90
"""Where the static setting with a timeout attains no more, ours has to be better beyond doubt."""


class Held(NamedTuple):
    """One contender on the held-out windows.

    Args:
        measures: shape (windows, MEASURES).
        outcomes: one per window.
    """

    measures: np.ndarray
    outcomes: list[Outcome]


def held(
    plant: IdentifiedPlant, candidates: dict[str, Candidate], draws: list[Draw], targets: tuple[Target, ...], limits: Limits
) -> dict[str, Held]:
    """Contenders on the same windows.

    Args:
        plant: the truth.
        candidates: by name.
        draws: held-out windows.
        targets: one per class.
        limits: of the engine.

    Returns:
        Held by name.
    """
    measures = evaluate(plant, list(candidates.values()), draws, targets, limits)
    return {
        name: Held(rows, outcomes_of([(plant, candidate, d) for d in draws], targets, limits))
        for (name, candidate), rows in zip(candidates.items(), measures, strict=True)
    }


def figures(contender: Held, targets: tuple[Target, ...]) -> dict[str, Any]:
    """What is printed of a contender.

    Args:
        contender: on the held-out windows.
        targets: one per class.

    Returns:
        Attainment, clean requests, tails, shed share, attainment by class and by prompt tercile; a TTFT is None where the queue may grow.
    """
    population = summarise(contender.outcomes, targets)
    classes = [t.name for t in targets if t.name in population.classes]
    by_class = {name: population.classes[name]["attainment"] for name in classes}
    by_tercile = dict(zip(TERCILES, terciles(contender.outcomes).mean(axis=0).tolist(), strict=True))
    return {
        "attainment": float(contender.measures[:, ATTAINMENT].mean()),
        "clean": float(contender.measures[:, CLEAN].mean()),
        "itl_p99_s": population.itl_s["p99"],
        "max_gap_s": population.max_gap_s,
        "ttft_p99_s": population.ttft_s["p99"],
        "shed": population.shed,
        "classes": by_class,
        "terciles": by_tercile,
        "windows": [round(float(x), 6) for x in contender.measures[:, ATTAINMENT]],
        "run_s": float(contender.measures[:, END_S].mean()),
    }


def terciles(outcomes: list[Outcome]) -> np.ndarray:
    """Attainment of the third of the requests with the shortest prompts, the middle one and the longest.

    Args:
        outcomes: one per window.

    Returns:
        Shape (windows, 3).
    """
    edges = np.quantile(np.concatenate([o.prompt_tokens for o in outcomes]), [1 / 3, 2 / 3])
    found = np.ones((len(outcomes), 3))
    for k, o in enumerate(outcomes):
        which = np.searchsorted(edges, o.prompt_tokens)
        on_time, owed = (np.bincount(which, weights=x, minlength=3) for x in (o.on_time, o.owed))
        found[k] = on_time / np.maximum(owed, 1e-9)
    return found


def losers(ours: Held, static: Held, targets: tuple[Target, ...]) -> dict[str, list[float]]:
    """Classes and terciles: attainment of ours less that of the static setting, paired, with its interval.

    Args:
        ours: the tuned controller.
        static: the best static setting.
        targets: one per class.

    Returns:
        Difference, lower and upper end by name.
    """
    parts = {f"{name} prompts": terciles(ours.outcomes)[:, i] - terciles(static.outcomes)[:, i] for i, name in enumerate(TERCILES)}
    if len(targets) > 1:
        parts |= {t.name: _of_class(ours, c) - _of_class(static, c) for c, t in enumerate(targets)}
    return {name: list(mean_interval(values)) for name, values in parts.items()}


def _of_class(contender: Held, c: int) -> np.ndarray:
    sums = [(o.on_time[o.class_id == c].sum(), o.owed[o.class_id == c].sum()) for o in contender.outcomes]
    return np.array([on / max(owed, 1e-9) for on, owed in sums])


def gains(found: dict[str, Held], over: tuple[str, ...]) -> dict[str, list[float]]:
    """Relative gain of "ours" in attainment over others, paired.

    Args:
        found: contenders, "ours" among them.
        over: names of the others.

    Returns:
        Gain, lower and upper end by name.
    """
    mine = found["ours"].measures[:, ATTAINMENT]
    return {name: list(gain_interval(found[name].measures[:, ATTAINMENT], mine)) for name in over}


def bounded(plant: IdentifiedPlant, draws: list[Draw], count: int, targets: tuple[Target, ...], limits: Limits) -> dict[str, float]:
    """The bound on the first windows.

    Args:
        plant: the truth.
        draws: held-out windows.
        count: of the windows that are bounded.
        targets: one per class.
        limits: of the engine.

    Returns:
        Their mean bound, and how many they are.
    """
    most = [upper_bound(plant, d.workload, targets, limits, factors=(d.decode, d.mixed)).attainment for d in draws[:count]]
    return {"bound": float(np.mean(most)), "windows": count}


class Gap(NamedTuple):
    """What a static setting leaves, over all held-out windows.

    Args:
        bound: mean over the windows; one that was not bounded counts with 1, which nothing exceeds.
        static: mean attainment of the best static setting.
        closed: share of the gap between them that ours closes; NaN where there is none.
    """

    bound: float
    static: float
    closed: float


def gap(cell: dict[str, Any]) -> Gap:
    """The gap of a cell.

    Args:
        cell: as it is kept.

    Returns:
        Gap.
    """
    static, ours = (np.array(cell["sides"][name]["windows"]) for name in ("static", "ours"))
    share = cell["bound"]["windows"] / len(static)
    bound = share * cell["bound"]["bound"] + (1 - share)
    left = bound - float(static.mean())
    return Gap(bound, float(static.mean()), float(ours.mean() - static.mean()) / left if left > 0 else float("nan"))


def cell_rows(cell: dict[str, Any]) -> Iterator[Row]:
    """A cell in the table: a line for each contender, then gains and bound.

    Args:
        cell: as it is kept.

    Yields:
        Rows without a bar.
    """
    head = f"{cell['name']} ({cell['rate_rps']:.3g}/s, {cell['requests']} requests, runs of {cell['run_s']:.0f} s)"
    for name in ("static", "timeout", "stock", "untuned", "ours"):
        yield informs(f"{head}: {name}", line(cell["sides"][name]))
    said = ", ".join(
        f"{100 * v:+.1f} % [{100 * low:+.1f}, {100 * high:+.1f}] over {name}" for name, (v, low, high) in cell["gains"].items()
    )
    yield informs(f"{head}: gain", said)
    b, left = cell["bound"], gap(cell)
    yield informs(
        f"{head}: bound on {b['windows']} windows, 1 on the others",
        f"{b['bound']:.3f}; {100 * left.closed:.0f} % of the gap from {left.static:.3f} closed",
    )


def line(side: dict[str, Any]) -> str:
    """A contender's figures in one line.

    Args:
        side: as from `figures`.

    Returns:
        Text.
    """
    worst_class = min(side["classes"].items(), key=lambda kv: kv[1])
    worst_third = min(side["terciles"].items(), key=lambda kv: kv[1])
    ttft = "not told" if side["ttft_p99_s"] is None else f"{side['ttft_p99_s']:.2f} s"
    itl, longest = (f"{1e3 * side[k]:.0f} ms" if side[k] is not None else "-" for k in ("itl_p99_s", "max_gap_s"))
    return (
        f"attained {side['attainment']:.3f}, clean {side['clean']:.2f}, p99 ITL {itl}, longest {longest}, p99 TTFT {ttft}, "
        f"shed {100 * side['shed']:.1f} %, worst class {worst_class[0]} {worst_class[1]:.3f}, worst third {worst_third[0]} {worst_third[1]:.3f}"
    )


def bars(cells: list[dict[str, Any]]) -> Iterator[Row]:
    """The bars over all cells that were measured.

    Args:
        cells: as they are kept.

    Yields:
        Rows.
    """
    if not cells:
        return
    gaps = [(gap(c), c["name"]) for c in cells]
    wide = [(g.closed, name) for g, name in gaps if g.bound - g.static >= WIDE_GAP]
    yield informs(f"cells with bound - static >= {WIDE_GAP:g}", f"{len(wide)} of {len(cells)}")
    if wide:
        yield at_least("gap closed there, median", 100 * float(np.median([closed for closed, _ in wide])), 85.0, "%")
        yield at_least(f"gap closed there, least ({min(wide)[1]})", 100 * min(wide)[0], 55.0, "%")
    crowded = [c for c in cells if c["sides"]["timeout"]["attainment"] <= CROWDED]
    if crowded:
        least = min(crowded, key=lambda c: c["gains"]["timeout"][1])
        yield at_least(
            f"gain over static + timeout where it attains <= {CROWDED:g}, lower end, least of {len(crowded)} ({least['name']})",
            100 * least["gains"]["timeout"][1],
            0.0,
            "%",
        )
    worst = min(cells, key=lambda c: _over_better(c).value)
    yield at_least(
        f"gain over the better of static and static + timeout, least ({worst['name']})", 100 * _over_better(worst).value, -1.0, "%"
    )
    yield from _nobody_worse(cells)
    late = max(cells, key=lambda c: c["sides"]["ours"]["itl_p99_s"] / c["itl_s"])
    yield at_most(f"p99 ITL over its target, largest ({late['name']})", late["sides"]["ours"]["itl_p99_s"] / late["itl_s"], LATE_GAP)
    raw = min(cells, key=lambda c: c["sides"]["untuned"]["attainment"] - c["sides"]["stock"]["attainment"])
    difference = raw["sides"]["untuned"]["attainment"] - raw["sides"]["stock"]["attainment"]
    yield at_least(f"controller straight from the fit less stock default, least ({raw['name']})", 100 * difference, 0.0, "points")


def _over_better(cell: dict[str, Any]) -> Estimate:
    sides = cell["sides"]
    better = max(("static", "timeout"), key=lambda name: sides[name]["attainment"])
    return gain_interval(np.array(sides[better]["windows"]), np.array(sides["ours"]["windows"]))


def _nobody_worse(cells: list[dict[str, Any]]) -> Iterator[Row]:
    """No class and no third of the prompts below its static value: the worst difference, and how many are below it beyond doubt."""
    rows = [(*value, name, c["name"]) for c in cells for name, value in c["losers"].items()]
    difference, _, _, part, where = min(rows)
    yield at_least(f"class or prompt third less its static value, least ({where}: {part})", 100 * difference, 0.0, "points")
    below = [f"{where}: {part} {100 * value:+.1f}" for value, _, high, part, where in rows if high < 0]
    yield at_most(f"of {len(rows)} classes and thirds, below their static value beyond doubt", len(below), 0.0)
    for text in below:
        yield informs("below its static value", f"{text} points")
