"""The gain of a tuned controller over the best static settings, cell by cell: plants, loads, cache sizes and how full the engine is.

python -m benchmarks.cells --out DIR [--cells PATTERN] [--beside] [--quick] [--stale] [--table]

The engine is the plant fitted to all rows; tuning and the controller know the one fitted to the even blocks. Static settings are chosen
on training windows of the engine itself, which favours them. Every cell is kept in DIR as soon as it is measured, so that a run that was
killed goes on; a cell measured with other sources is measured anew, unless --stale takes it as it is. Without a pattern all three
plants run under all five loads with a cache of 200,000 tokens, and with 60,000 under "azure" and "two classes"; the other cells of the
cross run when a pattern names them. So do the rows beside the cells: "capacity tp4 azure reject", "clean", "unprepared". --table prints
what is kept, from whatever sources.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cell_capacity import GAINS, OTHERS, beside_rows, capacity, clean, unprepared
from benchmarks.cell_figures import bars, bounded, cell_rows, figures, gains, held, losers
from benchmarks.cell_loads import LEVELS, LOADS, TRACES, Pair, limits_of, requests_of, source_of, targets_of, windows
from benchmarks.cell_shelf import Shelf, Size
from benchmarks.table import Row, _print
from headway.controllers.default import default_candidate
from headway.controllers.simulator import Draw, evaluate
from headway.experiments.baseline import TIMEOUTS, Static, static_grid
from headway.experiments.problem import prompts_of
from headway.experiments.tune import Effort, Problem, Tuned, tune
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT
from headway.models.signals import Limits, Target

STOCK = Static(2048, 256)
"""What an engine starts with."""
CACHES = (200_000, 60_000)
SMALL_CACHE_LOADS = ("azure", "two classes")


FULL = Size(20, 8, 3, 12, 1, Effort(train_seeds=6, heldout_seeds=2, sobol=64, starts=2, iterations=6, gradient="exact"))
QUICK = Size(6, 4, 2, 6, 1, Effort(train_seeds=3, heldout_seeds=2, sobol=32, starts=1, iterations=3, gradient="exact"))


class Cell(NamedTuple):
    """One cell of the cross.

    Args:
        plant: a key of TRACES.
        load: one of LOADS.
        kv_tokens: size of the cache [tokens].
        level: attainment of the best static setting in hindsight that sets the rate.
    """

    plant: str
    load: str
    kv_tokens: int
    level: float

    @property
    def name(self) -> str:
        """As it is kept and chosen."""
        return f"{self.plant} {self.load} {self.kv_tokens // 1000}k {100 * self.level:.0f}"


CROSS = [Cell(plant, load, kv, level) for kv in CACHES for plant in TRACES for load in LOADS for level in LEVELS]


def best_of(
    settings: list[Static],
    plant: IdentifiedPlant,
    draws: list[Draw],
    size: Size,
    targets: tuple[Target, ...],
    limits: Limits,
    measure: int = ATTAINMENT,
) -> Static:
    """The best of a grid: all on a few windows, then the best few on all.

    Args:
        settings: the grid.
        plant: the truth.
        draws: windows to choose on.
        size: how many of each.
        targets: one per class.
        limits: of the engine.
        measure: that is to be high.

    Returns:
        The setting with the highest mean.
    """
    look = evaluate(plant, [s.candidate() for s in settings], draws[: size.looks], targets, limits)[..., measure].mean(axis=1)
    few = [settings[i] for i in np.argsort(-look, kind="stable")[: size.kept]]
    values = evaluate(plant, [s.candidate() for s in few], draws, targets, limits)[..., measure].mean(axis=1)
    return few[int(np.argmax(values))]


def tuned_for(pair: Pair, cell: Cell, rate_rps: float, size: Size) -> Tuned:
    """The controller tuned on what is known of the plant.

    Args:
        pair: the plant.
        cell: load and cache.
        rate_rps: mean rate [requests/s].
        size: what it may cost.

    Returns:
        Tuned.
    """
    problem = Problem(pair.fitted, source_of(cell.load, rate_rps), targets_of(cell.plant, cell.load), limits_of(cell.kv_tokens))
    return tune(problem, dataclasses.replace(size.effort, requests=requests_of(cell.load, rate_rps)))


def measured(shelf: Shelf, cell: Cell) -> dict[str, Any]:
    """Everything that a cell says.

    Args:
        shelf: plants, rates and size.
        cell: of the cross.

    Returns:
        As plain JSON values.
    """
    pair, rate_rps, size = shelf.pair(cell.plant), shelf.rate(*cell), shelf.size
    targets, limits = targets_of(cell.plant, cell.load), limits_of(cell.kv_tokens)
    train = windows(pair.truth, cell.load, rate_rps, size.train, heldout=False)
    draws = windows(pair.truth, cell.load, rate_rps, size.heldout, heldout=True)
    grid, early = static_grid(limits), [s for share in TIMEOUTS for s in static_grid(limits, share)]
    settings = {
        "static": best_of(grid, pair.truth, train, size, targets, limits),
        "hindsight": best_of(grid, pair.truth, draws, size, targets, limits),
        "timeout": best_of(early, pair.truth, train, size, targets, limits),
        "stock": STOCK,
    }
    began = time.perf_counter()
    tuned = tuned_for(pair, cell, rate_rps, size)
    tuning_s = time.perf_counter() - began
    candidates = {name: s.candidate() for name, s in settings.items()}
    prompts = prompts_of(train, len(targets))  # what a user says of the workload, and no more
    candidates |= {"untuned": default_candidate(pair.fitted, targets, limits, prompt_tokens=prompts), "ours": tuned.tuned.candidate}
    found = held(pair.truth, candidates, draws, targets, limits)
    began = time.perf_counter()
    bound = bounded(pair.truth, draws, size.bounds, targets, limits)
    return {
        **cell._asdict(),
        "rate_rps": rate_rps,
        "requests": len(draws[0].workload),
        "run_s": float(np.mean([o.end_s for o in found["static"].outcomes])),
        "least_run_s": float(min(o.end_s for h in found.values() for o in h.outcomes)),
        "itl_s": targets[0].itl_s,
        "sides": {name: figures(h, targets) for name, h in found.items()},
        "settings": {**{name: s.to_json() for name, s in settings.items()}, "ours": tuned.tuned.settings},
        "gains": gains(found, ("static", "hindsight", "timeout", "stock")),
        "losers": losers(found["ours"], found["static"], targets),
        "bound": bound,
        "said": tuned.warnings,
        "tuning_s": round(tuning_s, 1),
        "bound_s": round(time.perf_counter() - began, 1),
    }


def beside(shelf: Shelf, pattern: str, *, only_kept: bool) -> list[Row]:
    """Capacity, clean requests above the knee, and workloads that were not tuned on.

    Args:
        shelf: plants, rates and size.
        pattern: names the rows to measure, as in a shell: "capacity tp4 *", "clean"; "*" for all.
        only_kept: measure nothing.

    Returns:
        Rows of what is there.
    """
    size, azure = shelf.size, Cell("tp4", "azure", CACHES[0], LEVELS[2])
    knee = lambda plant, load: shelf.rate(plant, load, CACHES[0], LEVELS[0])  # noqa: E731

    def unmet() -> dict[str, Any]:
        rate = shelf.rate(*azure)
        pair, targets, limits = shelf.pair("tp4"), targets_of("tp4", "azure"), limits_of(CACHES[0])
        train = windows(pair.truth, "azure", rate, size.train, heldout=False)
        fallback = best_of(static_grid(limits), pair.truth, train, size, targets, limits)
        loads = {load: shelf.rate("tp4", load, CACHES[0], LEVELS[1]) for load in OTHERS}
        return {"found": unprepared(pair, tuned_for(pair, azure, rate, size).tuned.candidate, fallback, rate, loads, size.heldout)}

    def choose(*arguments: Any) -> Static:
        settings, plant, draws, targets, limits, measure = arguments
        return best_of(settings, plant, draws, size, targets, limits, measure)

    jobs: dict[str, Callable[[], dict[str, Any]]] = {
        f"capacity {plant} {load} {triage}": functools.partial(
            lambda p, q, t: capacity(shelf.pair(p), knee(p, q), p, q, t, size.effort, size.heldout), plant, load, triage
        )
        for plant, load, triage in GAINS
    }
    jobs["clean"] = lambda: {"found": clean(shelf.pair("tp4"), knee("tp4", "azure"), choose, size.effort, size.heldout, size.train)}
    jobs["unprepared"] = unmet
    there: dict[str, dict[str, Any]] = {}
    for name, job in jobs.items():
        if not fnmatch(name, pattern):
            continue
        known = shelf.kept(name, any_source=only_kept)
        if known is None and not only_kept:
            known = shelf.get(name, job)
            print(f"{name}: {known['took_s']:.0f} s", file=sys.stderr, flush=True)
        if known is not None:
            there[name] = known
    capacities = [value for name, value in there.items() if name.startswith("capacity")]
    cleans, others = (there[name]["found"] if name in there else [] for name in ("clean", "unprepared"))
    return list(beside_rows(capacities, cleans, others))


def chosen(pattern: str | None) -> list[Cell]:
    """Cells that a pattern names, or those that run by themselves.

    Args:
        pattern: as in a shell, such as "tp4 * 85"; None for none.

    Returns:
        Cells.
    """
    if pattern is not None:
        return [c for c in CROSS if fnmatch(c.name, pattern)]
    return [c for c in CROSS if c.kv_tokens == CACHES[0] or c.load in SMALL_CACHE_LOADS]


def main(arguments: list[str] | None = None) -> int:
    """Measure the cells that are not kept yet, print all and the bars.

    Args:
        arguments: of the command line; `sys.argv` if None.

    Returns:
        The exit status: 0 where every bar holds, 1 where one falls short.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cells")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results, one file a cell")
    parser.add_argument(
        "--cells", metavar="PATTERN", help="cells to run, or rows beside them, as in a shell: 'tp4 * 200k 85', 'capacity 8b *'"
    )
    parser.add_argument(
        "--stale", action="store_true", help="take what was measured with other sources as it is, and measure what is not there"
    )
    parser.add_argument("--quick", action="store_true", help="few windows and little tuning: shows that it runs, and is no result")
    parser.add_argument(
        "--beside",
        action="store_true",
        help="capacity and the like too, as without a pattern",
    )
    parser.add_argument("--table", action="store_true", help="measure nothing, print what is kept, with whatever sources it was measured")
    options = parser.parse_args(arguments)
    shelf, cells = Shelf(options.out, QUICK if options.quick else FULL, stale=options.stale), chosen(options.cells)
    results = _all(shelf, cells, only_kept=options.table)
    more = beside(shelf, "*" if options.beside or options.cells is None else options.cells, only_kept=options.table)
    rows: list[Row] = [row for cell in results for row in cell_rows(cell)]
    about = f"{len(results)} of {len(cells)} cells, measuring took {sum(c['took_s'] for c in results) / 60:.0f} min"
    if options.quick:
        about = f"a quick look at {QUICK.heldout} windows a cell: no result; {about}"
    return _print("cells", [*rows, *bars(results), *more], {}, about)


def _all(shelf: Shelf, cells: list[Cell], *, only_kept: bool) -> list[dict[str, Any]]:
    """The cells, with word on how it goes."""
    results, spent_s, measured_now = [], 0.0, 0
    for count, cell in enumerate(cells, 1):
        kept = shelf.kept(cell.name, any_source=only_kept)
        if kept is None and not only_kept:
            began = time.perf_counter()
            kept = shelf.get(cell.name, functools.partial(measured, shelf, cell))
            spent_s, measured_now = spent_s + time.perf_counter() - began, measured_now + 1
            left = sum(shelf.kept(c.name) is None for c in cells[count:])
            sides = ", ".join(f"{name} {kept['sides'][name]['attainment']:.3f}" for name in ("static", "timeout", "ours"))
            say = f"[{count}/{len(cells)}] {cell.name}: {sides}; {kept['took_s']:.0f} s, about {left * spent_s / measured_now / 60:.0f} min left"
            print(say, file=sys.stderr, flush=True)
        if kept is not None:
            results.append(kept)
    return results


if __name__ == "__main__":
    sys.exit(main())
