"""What a step of the exported law costs: against stock vLLM's own scheduler in one process, and as C against Python."""

from __future__ import annotations

import json
import logging
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table import ROOT, Missing, Row, at_least, at_most, environment_python, informs
from headway.controllers.record import ControllerRecord
from headway.engines.export import export_c99, export_python, gains_json
from headway.engines.golden import GOLDEN_COLUMNS
from headway.engines.runtime import Runtime
from headway.models.plant import Batch

SHARES = {64: 4.0, 256: 1.0}
"""Most of stock vLLM's schedule() that update and budget may take, by requests running [%]."""
FASTER = 10.0
"""Least that the generated C must be faster than Python."""
REPETITIONS, READINGS = 7, 2_800
"""Blocks of each side, whose least and largest bound the median at 98 %; readings of the law in all."""
PASSES = 40
"""Replays of the readings in one timing of the C program."""

Reading = tuple[Any, ...]


def cost(record: ControllerRecord) -> Iterator[Row]:
    """Both comparisons; what one of them lacks does not keep the other from being measured.

    Args:
        record: the controller whose law it is.

    Yields:
        Rows.

    Raises:
        Missing: no vLLM or no C compiler here; the rows of the other are out by then.
    """
    logging.getLogger("headway_runtime").setLevel(logging.ERROR)
    readings = {running: closed_loop(record, running) for running in SHARES}
    gaps = []
    parts: tuple[Callable[[ControllerRecord, dict[int, list[Reading]]], Iterator[Row]], ...] = (beside_vllm, as_c)
    for part in parts:
        try:
            yield from part(record, readings)
        except Missing as gap:
            gaps.append(str(gap))
    if gaps:
        raise Missing("; ".join(gaps))


def closed_loop(record: ControllerRecord, running: int) -> list[Reading]:
    """Readings of a loop that the law closes itself: so many decodes in every step, prompts waiting in four of five.

    Contexts are drawn anew for every step, as no engine's are: the search for the largest budget never begins near its answer.

    Args:
        record: law and plant.
        running: requests that decode.

    Returns:
        One reading a step, in the order of the arguments of `Runtime.update`.
    """
    rng, law, found = np.random.default_rng(running), Runtime(gains_json(record, {"verdict": "certified"})), []
    last, kv = (None, 0.0, 0.0, False, 0.0, 0.0, 0.0), float(running * rng.integers(500, 2000))
    for _ in range(READINGS):
        context = float(rng.integers(0, 2000)) if rng.random() < 0.3 else 0.0
        reading = (*last[:4], float(running), *last[4:], kv, context)
        budget, waiting = law.update(*reading), bool(rng.random() < 0.8)
        found.append(reading)
        p = max(float(budget - running), 0.0) if waiting else 0.0
        pairs, n = p * (context + p / 2), float(min(running, budget))
        y = float(record.plant.step_time_s(Batch(n, kv, p, pairs, float(p > 0)))) * float(np.exp(rng.normal(0, 0.05)))
        last, kv = (y, p, n, waiting, kv, pairs, float(p > 0)), float(running * rng.integers(500, 2000))
    if law.faults:
        raise RuntimeError(f"{law.faults} readings of the closed loop are faults to the law: {law.last_fault}")
    return found


def beside_vllm(record: ControllerRecord, readings: dict[int, list[Reading]]) -> Iterator[Row]:
    """Shares of stock vLLM's schedule(), in the environment of scripts/vllm-env.

    Args:
        record: the controller.
        readings: by requests running.

    Yields:
        Rows.
    """
    python = environment_python("vllm-env")
    with tempfile.TemporaryDirectory(prefix="headway-cost-") as place:
        folder = Path(place)
        out = export_python(record, folder / "out", uncertified=True).folder
        job = {"runtime": str(out / "headway_runtime.py"), "gains": str(out / "gains.json"), "repetitions": REPETITIONS}
        (folder / "job.json").write_text(json.dumps(job | {"readings": readings}), encoding="utf-8")
        command = [str(python), "-m", "benchmarks.vllm_steps", str(folder / "job.json"), str(folder / "result.json")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            raise RuntimeError(f"benchmarks.vllm_steps ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
        found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    for running, bar in SHARES.items():
        timed = found[str(running)]
        us = {name: 1e6 * statistics.median(times if isinstance(times, list) else [times]) for name, times in timed.items()}
        shares = [100 * law / stock for law, stock in zip(timed["law"], timed["stock"], strict=True)]
        tag = f"update + budget in Python at {running} running"
        yield at_most(f"{tag}: share of vLLM's schedule(), largest of {REPETITIONS} blocks", max(shares), bar, "%")
        blocks = f"{statistics.median(shares):.2f} %, {min(shares):.2f} to {max(shares):.2f} %"
        figures = f"{us['law']:.1f} (mean {us['law_mean']:.1f}) of {us['stock']:,.0f} us, {blocks}"
        yield informs(f"{tag}: medians, median share, blocks", figures)
        between = f"{us['law_between']:.1f} us, {100 * us['law_between'] / us['stock']:.2f} %"
        yield informs(f"{tag}: single calls, each between two steps of vLLM", between)
        cold = f"{us['law_cold']:.1f} of {us['stock_cold']:,.0f} us, {100 * us['law_cold'] / us['stock_cold']:.2f} %"
        yield informs(f"{tag}: all caches emptied before each call of either", cold)


def as_c(record: ControllerRecord, readings: dict[int, list[Reading]]) -> Iterator[Row]:
    """The generated C against the runtime on the same readings; it must give the same budgets and states.

    The drift monitor, which the C leaves to its engine, is taken out of the Python: both do the same.

    Args:
        record: the controller.
        readings: by requests running.

    Yields:
        Rows.

    Raises:
        Missing: no C compiler.
        RuntimeError: the C does not compile, or acts otherwise: a fault of Headway's.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Missing("no C compiler: neither cc nor gcc nor clang is on the path")
    gains = {name: value for name, value in gains_json(record, {"verdict": "certified"}).items() if name != "drift"}
    with tempfile.TemporaryDirectory(prefix="headway-cost-") as place:
        out = export_c99(record, Path(place) / "out", uncertified=True).folder
        _output(out, compiler, "-std=c99", "-O2", "-ffp-contract=off", "check.c", "-o", "check", "-lm")
        for running, rows in readings.items():
            (out / "steps.csv").write_text(_replayed(Runtime(gains), rows), encoding="utf-8")
            pure, native = [], []
            for _ in range(REPETITIONS):
                pure.append(_python_s(Runtime(gains), rows))
                said = _output(out, "./check", "steps.csv", str(PASSES))
                native.append(1e-9 * float(re.findall(r"([\d.]+) ns an update", said)[0]))
            ratios = [p / c for p, c in zip(pure, native, strict=True)]
            tag = f"generated C at {running} running, {len(rows):,} readings, budgets equal"
            yield at_least(f"{tag}: faster than Python by", statistics.median(ratios), FASTER)
            figures = (
                f"{1e9 * statistics.median(native):.0f} ns, {1e6 * statistics.median(pure):.1f} us, {min(ratios):.0f} to {max(ratios):.0f}"
            )
            yield informs(f"{tag}: C, Python, faster by", figures)


def _python_s(law: Runtime, rows: list[Reading]) -> float:
    """Processor time of one update, as the C program takes its own: the mean over all readings [s]."""
    update = law.update
    began = time.process_time()
    for row in rows:
        update(*row)
    return (time.process_time() - began) / len(rows)


def _replayed(law: Runtime, rows: list[Reading]) -> str:
    """The readings with the runtime's budgets and states, as golden.csv has them."""
    lines = [",".join(GOLDEN_COLUMNS)]
    for row in rows:
        budget = law.update(*row)
        states = [*law.state, 0.0, 0.0, 0.0][:4]
        first = float("nan") if row[0] is None else row[0]
        lines.append(",".join((first.hex(), *(f"{float(x):.17g}" for x in row[1:]), str(budget), *(float(x).hex() for x in states))))
    return "\n".join(lines) + "\n"


def _output(folder: Path, *command: str) -> str:
    """What a command prints that must not fail."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {(done.stdout + done.stderr).strip()}")
    return done.stdout
