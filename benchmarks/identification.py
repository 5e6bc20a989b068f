"""The bars of identification on measured traces: fit, coverage, prediction across sizes, what a trace cannot tell, large traces.

python -m benchmarks.identification
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from benchmarks.baselines import PEERS, least_squares, relative_least_squares
from benchmarks.held_out import Errors, Held, Split, held, pooled_coverage, predicted_s, share
from benchmarks.large_traces import GIB, _written
from benchmarks.table import ROOT, Row, at_least, at_most, informs, run, shared_data
from headway.identification.diagnostics.excitation import STILL
from headway.identification.fit import fit
from headway.identification.hardware.tp import fit_tp
from headway.identification.readers import read_trace
from headway.identification.rows import KEPT, judge
from headway.identification.score import Score, score
from headway.identification.structures.concurrency import leave_one_out
from headway.identification.structures.families import curves_of
from headway.identification.trace import Trace
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Batch

FIT_BARS = {
    "qwen3-32b_tp1": (2.5, 7.0),
    "qwen3-32b_tp2": (3.7, 3.5),
    "qwen3-32b_tp4": (1.7, 4.5),
    "qwen3.6-35b-a3b_tp2": (2.8, 7.0),
    "qwen3.6-35b-a3b_tp4": (1.8, 6.0),
}
"""MAPE of all steps and of those with prefill [%], fitted on even blocks, scored on odd ones."""
ENOUGH = 200
"""Held-out steps of a regime above which a run's coverage is judged alone; others are pooled."""
TAIL = "interval of the MAPE, worst decile from, max"


class Fitted(NamedTuple):
    """One trace, fitted on its even blocks and scored on its odd ones."""

    trace: Trace
    split: Split
    plant: IdentifiedPlant
    score: Score
    steps: Held


@functools.cache
def _trace(name: str) -> Trace:
    return read_trace(shared_data("steps", "fpm_vllm0201_b300", f"{name}.fpm_detail.csv"))


@functools.cache
def _fitted(name: str, structure: str = "auto") -> Fitted:
    trace = _trace(name)
    split, plant = Split(trace), fit(trace, blocks="even", structure=structure)
    found = Fitted(trace, split, plant, score(plant, trace, blocks="odd"), split.held(predicted_s(plant, trace)))
    assert found.score.mape is not None
    assert np.isclose(100 * found.score.mape, found.steps.errors().mean)  # the rows below are of the steps that `score` scored
    return found


def _both(steps: Held) -> tuple[Errors, Errors]:
    """Errors of all steps, and of those with prefill."""
    return steps.errors(), steps.of(steps.mixed).errors()


def fpm() -> Iterator[Row]:
    """Fit on even blocks, score on odd ones, beside least squares with one law for all steps."""
    for name, bars in FIT_BARS.items():
        found = _fitted(name)
        figures = (found.score.mape or np.nan, found.score.mape_mixed or np.nan)
        for kind, bar, figure, errors in zip(("held-out steps", "with prefill"), bars, figures, _both(found.steps), strict=True):
            yield at_most(f"{name}: MAPE, {errors.steps} {kind}", 100 * figure, bar, "%")
            yield informs(f"{name}: {kind}: {TAIL}", errors.tail())
        kept = found.score.rows["used"] / found.score.rows["read"]
        yield informs(f"{name}: structure chosen, held-out rows kept", f"{found.plant.plant.structure}, {100 * kept:.2f} %")
        for words, law in (("least squares, affine", least_squares), ("least squares weighted 1/t, affine", relative_least_squares)):
            yield _beside(name, words, found, law(found.split))


def baselines() -> Iterator[Row]:
    """What others reach on the same rows, in the same run."""
    for name in FIT_BARS:
        found = _fitted(name)
        ours = _both(found.steps)
        yield informs(f"{name}: ours: MAPE all / with prefill", f"{ours[0].mean:.2f} / {ours[1].mean:.2f} %")
        for words, law in PEERS.items():
            began = time.perf_counter()
            predicted = law(found.split)
            row = _beside(name, words, found, predicted)
            yield row._replace(measured=f"{row.measured}; took {time.perf_counter() - began:.1f} s")


def _beside(name: str, words: str, found: Fitted, predicted: np.ndarray) -> Row:
    """A peer on the same rows, and by how much it errs more than we do, step by step; where it errs less, the row says so."""
    cells, less = [], []
    peers, ours = found.split.held(predicted), found.steps
    for kind, rows in (("all", np.ones(len(ours.mixed), bool)), ("with prefill", ours.mixed)):
        theirs = peers.of(rows).errors()
        more, (low, high) = share((peers.ape - ours.ape)[rows], ours.block[rows])
        cells.append(f"{theirs.mean:.2f} % ({more:+.2f} [{low:+.2f}, {high:+.2f}]), {theirs.worst_decile:.1f} %, {theirs.most:.0f} %")
        if more < 0:
            less.append(kind if high < 0 else f"{kind} (not surely)")
    said = " / ".join(cells) + (f"; LESS ERROR THAN OURS: {', '.join(less)}" if less else "")
    return informs(f"{name}: {words}: MAPE (theirs - ours), worst decile, max: all / with prefill", said)


def coverage() -> Iterator[Row]:
    """The 90 % band of the plant's own residuals on steps it was not fitted to."""
    for regime in ("decode", "mixed"):
        pooled, everything = [], []
        for name in FIT_BARS:
            found = _fitted(name)
            steps = found.steps.of(found.steps.mixed == (regime == "mixed"))
            count, here = len(steps.measured_s), found.score.coverage90[regime]
            one = (steps, getattr(found.plant.noise, regime))
            everything.append(one)
            what = f"{name}: 90 % band, {count} held-out {regime} steps"
            if count > ENOUGH:
                yield _covers(what, here["value"], here["ci95"])
            else:
                pooled.append(one)
                yield informs(what, _shown(here["value"], here["ci95"]))
        for runs, judged in ((pooled, True), (everything, False)):
            if runs and (judged or len(pooled) < len(everything)):
                count = sum(len(steps.measured_s) for steps, _ in runs)
                what = f"{len(runs)} runs pooled: 90 % band, {count} held-out {regime} steps"
                value, ends = pooled_coverage(runs)
                yield _covers(what, value, ends) if judged and count > ENOUGH else informs(what, _shown(value, ends))


def _covers(what: str, value: float, ci95: tuple[float, float]) -> Row:
    return Row(what, "interval holds 90 %", _shown(value, ci95), bool(ci95[0] <= 0.9 <= ci95[1]))


def _shown(value: float, ci95: tuple[float, float]) -> str:
    return f"{100 * value:.1f} % [{100 * ci95[0]:.1f}, {100 * ci95[1]:.1f}]"


def margin() -> Iterator[Row]:
    """Margins at epsilon 1 %, fitted on even blocks, by structure; and the share of held-out steps over the budget under each."""
    structures, smaller, told = ("affine", "regimes", "auto"), 0, 0
    for name in FIT_BARS:
        for regime in ("decode", "mixed"):
            cells, values = [], []
            for structure in structures:
                found = _fitted(name, structure)
                steps, value = found.steps.of(found.steps.mixed == (regime == "mixed")), found.plant.margin[regime]
                values.append(value)
                if value is None:
                    cells.append("too few steps")
                    continue
                over, ends = share((steps.residual > -np.log1p(-value)).astype(float), steps.block)
                cells.append(f"{100 * value:.1f} % ({_shown(over, ends)} over)")
            if values[0] is not None and values[-1] is not None:
                told, smaller = told + 1, smaller + (values[-1] < values[0])
            yield informs(f"{name}: {regime}: q99 margin, {' / '.join(structures)}", " / ".join(cells))
    yield informs("q99 margin of the structure chosen is smaller than that of one affine law", f"{smaller} of {told} regimes")


def tensor_parallel() -> Iterator[Row]:
    """A law of TP 1 and TP 2 at TP 4, which it has not seen."""
    traces = {tp: _trace(f"qwen3-32b_tp{tp}") for tp in (1, 2, 4)}
    seen, unseen = {tp: traces[tp] for tp in (1, 2)}, traces[4]
    law = fit_tp(seen)
    plant, rows = law.identified(4), judge(unseen) == KEPT
    found = score(plant, unseen)
    steps = held(unseen, predicted_s(plant, unseen), rows)
    everything, mixed = _both(steps)
    yield at_most(f"qwen3-32b: TP 1 + TP 2 -> TP 4, MAPE, {found.steps} steps", 100 * (found.mape or np.nan), 5.0, "%")
    yield informs(f"qwen3-32b: TP 1 + TP 2 -> TP 4: {TAIL}", everything.tail())
    yield informs(f"qwen3-32b: TP 1 + TP 2 -> TP 4, {mixed.steps} with prefill: MAPE; {TAIL}", f"{mixed.mean:.2f} %; {mixed.tail()}")
    halved = held(unseen, predicted_s(fit(seen[2], structure="regimes"), unseen) / 2, rows)
    yield informs("qwen3-32b: the plant of TP 2, all of it halved, at TP 4: MAPE all", f"{halved.errors().mean:.2f} %")


SWEEP, REAL = {"workload_segment": "sweep"}, {"workload_segment": "real"}


def sweep() -> Iterator[Row]:
    """Fitted to a sweep of three batch sizes, scored on chat: what the sweep did not move must be said, and no sign be wrong."""
    for name in FIT_BARS:
        trace = _trace(name)
        split, plant = Split(trace, trace.matching(SWEEP), trace.matching(REAL)), fit(trace, where=SWEEP)
        said, other = _unmoved(plant), _unmoved(fit(trace, where=REAL))
        yield at_least(f"{name}: sweep: sentences on what did not move, or only together", len(said), 1)
        yield informs(
            f"{name}: sweep: one of them; number of such sentences of a fit to chat", f"{said[0] if said else 'none'}; {len(other)}"
        )
        still = [f"{regime}: {column}" for regime in plant.about["excitation"] for column in _still(split, regime)]
        named = sum(any(text.startswith(f"{what} ") and "cannot be told" in text for text in said) for what in still)
        of = f"{named} of {len(still)}"
        yield Row(
            f"{name}: sweep: sums that stood still, and are named", "all" if still else "", of, named == len(still) if still else None
        )
        least = min(c.value for c in plant.plant.coefficients().values())
        yield at_least(f"{name}: sweep: least coefficient ({plant.plant.structure})", least, 0.0)
        everything, mixed = _both(split.held(predicted_s(plant, trace)))
        shown = f"{everything.mean:.1f} / {mixed.mean:.1f} %; {everything.tail()}"
        yield informs(f"{name}: sweep -> chat: MAPE all / with prefill; {TAIL}", shown)
        theirs = _both(split.held(relative_least_squares(split)))
        shown = f"{theirs[0].mean:.1f} / {theirs[1].mean:.1f} %" + ("; BETTER THAN OURS: all" if theirs[0].mean < everything.mean else "")
        yield informs(f"{name}: sweep -> chat, least squares weighted 1/t, affine, any sign: MAPE all / with prefill", shown)


def _unmoved(plant: IdentifiedPlant) -> list[str]:
    return [text for text in plant.about["warnings"] if "cannot be told from this trace" in text or "moved together" in text]


def _still(split: Split, regime: str) -> list[str]:
    """Sums that stood still in the rows fitted to, by their own spread."""
    mixed = split.sums[:, 2] > 0
    rows = split.fitted & (np.ones(len(mixed), bool) if regime == "all" else mixed == (regime == "mixed"))
    acting = Batch._fields[:2] if regime == "decode" else Batch._fields
    sums = {name: split.sums[rows, i] for i, name in enumerate(acting)}
    return [name for name, values in sums.items() if values.std() < STILL * values.mean() or not values.any()]


def kernels() -> Iterator[Row]:
    """Steps composed from kernel tables: fitted to the black squares of the grid, scored on the white ones."""
    for tp in (1, 2):
        trace = read_trace(shared_data("steps", "llmservingsim", "RTXPRO6000_Llama-3.1-8B", f"tp{tp}", "attention.csv"))
        plant = fit(trace, where={"checkerboard": 0})
        found = score(plant, trace, where={"checkerboard": 1})
        figures = [100 * (x or np.nan) for x in (found.mape_mixed, found.p90_ape, found.max_ape)]
        name = f"RTX PRO 6000, 8B, TP {tp}"
        what, figure = f"{name}: MAPE, {found.steps} points of the other colour", 100 * (found.mape or np.nan)
        yield at_most(what, figure, 6.0, "%")
        kept = f"{found.rows['used']} of {found.rows['read']}"
        yield informs(f"{name}: with prefill, worst decile from, max, rows kept", "{:.1f} %, {:.1f} %, {:.0f} %, ".format(*figures) + kept)


def concurrency() -> Iterator[Row]:
    """TPOT against concurrency: each point of a measured curve from its others, and from the other curves of the table."""
    trace = read_trace(shared_data("steps", "silicon_tpot", "silicon_sample_h100_h200.csv"))
    family, names = curves_of(trace.frame), trace.frame["curve"].n_unique()
    yield informs(
        "TPOT, curves that tell of others; left out, a concurrency comes twice", f"{len(family.curves)}; {names - len(family.curves)}"
    )
    for fewest in (6, 4):
        once = {name: curve for name, curve in family.curves.items() if len(curve.concurrency) >= fewest}
        for words, form, others in (
            ("sqrt, others tell", "sqrt", family),
            ("sqrt, alone", "sqrt", None),
            ("linear, alone", "linear", None),
        ):
            left = [leave_one_out(c.concurrency, c.tpot_s, form=form, family=others, name=name) for name, c in once.items()]
            mean = 100 * np.array([one.error.mean() for one in left])
            between = 100 * np.array([one.error[one.inside].mean() for one in left])
            name = f"TPOT, {len(once)} curves of {fewest} points or more, {words}: point left out, median over curves"
            # an end that is left out is extrapolated by a factor of two: alone, from four points at the most where a curve has five
            what, figure = f"{name}, every point", float(np.median(mean))
            yield at_most(what, figure, 2.2, "%") if others else informs(what, f"{figure:.2f} %")
            yield informs(f"{name}, points between others", f"{np.median(between):.2f} %")
            most = 100 * max(one.error.max() for one in left)
            said = f"{np.quantile(mean, 0.9):.1f} %, {most:.0f} %"
            yield informs(f"{fewest} points or more, {words}: worst decile of curves from, worst point", said)


def splitwise() -> Iterator[Row]:
    """A published table of which a third was never measured."""
    file = shared_data("steps", "splitwise", "perf_model.csv")
    trace, raw = read_trace(file), pl.read_csv(file)
    scaled, apart = (trace.aside.get(reason, 0) // 2 for reason in ("scaled_copy", "not_one_batch"))
    yield Row("splitwise: rows flagged as scaled copies", "420", str(scaled), scaled == 420)
    left = trace.frame.filter(pl.col("hardware") == "h100-80gb-pcap").height
    yield Row("splitwise: rows of h100-80gb-pcap still used", "0", str(left), left == 0)
    deployment = ["model", "hardware", "tensor_parallel"]
    rows = raw.filter(pl.col("hardware") != "h100-80gb-pcap").group_by(deployment).len()
    used = trace.frame.group_by(deployment).agg(used=pl.len() // 2)
    gone = (
        rows.join(used, on=deployment, how="left").with_columns(gone=pl.col("len") - pl.col("used").fill_null(0)).filter(pl.col("gone") > 0)
    )
    those = int(gone.filter((pl.col("model") == "llama2-70b") & (pl.col("tensor_parallel") == 2))["gone"].sum())
    shown = f"{apart}, of which {those}"
    yield Row("splitwise: rows flagged as not one batch, of which llama2-70b at TP 2", "15, of which 15", shown, (apart, those) == (15, 15))


def million() -> Iterator[Row]:
    """A million steps with the structure searched, thrice."""
    reading, fitting, working, structures = [], [], [], set()
    with tempfile.TemporaryDirectory() as folder:
        file = _written(Path(folder), "parquet", 1_000_000)
        for _ in range(3):
            began = time.perf_counter()
            trace = read_trace(file)
            reading.append(time.perf_counter() - began)
            busy = time.process_time()
            structures.add(fit(trace).plant.structure)
            working.append(time.process_time() - busy)
            fitting.append(time.perf_counter() - began - reading[-1])
    about = f"structure searched ({', '.join(structures)}), {len(os.sched_getaffinity(0))} cores, median of 3"
    yield at_most(f"1,000,000 steps fitted, {about}", float(np.median(fitting)), 10.0, "s")
    yield at_most(f"1,000,000 steps read and fitted, {about}", float(np.median(np.add(reading, fitting))), 10.0, "s")
    shown = f"{min(fitting):.1f} s, {max(fitting):.1f} s, {np.median(working):.1f} s, {os.getloadavg()[0]:.1f}"
    yield informs("1,000,000 steps: fit, fastest, slowest, processor time; load of the machine meanwhile", shown)


LAUNCH = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss)
"""
"""A process of its own between this one and the one measured: a child's figure starts from the peak of the one that starts it."""


def memory() -> Iterator[Row]:
    """`headway fit` on twenty million steps, as a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = _written(Path(folder), "parquet", 20_000_000)
        command = [sys.executable, "-m", "headway", "fit", str(file), "--out", str(Path(folder) / "plant.json")]
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", LAUNCH, *command], cwd=ROOT, capture_output=True, text=True, check=True)
        took = time.perf_counter() - began
        status, peak_kib = (int(word) for word in done.stdout.split())
        if status:
            yield Row("20,000,000 rows, Parquet: headway fit ends with", "0", f"{status}: {done.stderr.strip()[-200:]}", False)
            return
        size = f"{file.stat().st_size / GIB:.1f} GiB"
        rows = json.loads((Path(folder) / "plant.json").read_text(encoding="utf-8"))["rows"]
    yield at_most(f"20,000,000 rows, Parquet ({size}): most memory held", peak_kib * 1024 / GIB, 2.0, "GiB")
    shown = f"{took:.0f} s; {rows['read']:,}, {rows['used']:,}"
    yield informs("20,000,000 rows, Parquet: time; rows read, rows fitted to (of a larger trace whole blocks are taken)", shown)


PARTS = {
    "fpm": fpm,
    "coverage": coverage,
    "margin": margin,
    "baselines": baselines,
    "tensor_parallel": tensor_parallel,
    "sweep": sweep,
    "kernels": kernels,
    "concurrency": concurrency,
    "splitwise": splitwise,
    "million": million,
    "memory": memory,
}

if __name__ == "__main__":
    sys.exit(run("identification", PARTS))
