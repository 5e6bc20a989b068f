"""Recorded steps through the runtime, as a script: `python headway_runtime.py gains.json golden.csv`."""

from __future__ import annotations

import csv
import logging
import sys
from pathlib import Path

from headway.engines.runtime import READINGS, Runtime


def replay(runtime: Runtime, golden: Path) -> tuple[int, str]:
    """Feed recorded steps to a controller in its initial state and compare.

    Args:
        runtime: reset first.
        golden: golden.csv beside the gains.

    Returns:
        (rows that agree, the first disagreement in words or "").
    """
    runtime.reset()
    agree = 0
    with golden.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            budget = runtime.update(float.fromhex(row["step_time_s"]), *(float(row[name]) for name in READINGS[1:]))
            states = [float.fromhex(row[f"state_{i}"]) for i in range(len(runtime.state))]
            if budget != int(row["token_budget"]):
                return agree, f"row {agree}: token budget {budget}, expected {row['token_budget']}"
            if any(abs(a - b) > 1e-12 * max(1.0, abs(b)) for a, b in zip(runtime.state, states, strict=True)):
                return agree, f"row {agree}: state {runtime.state}, expected {states}"
            agree += 1
    return agree, ""


if __name__ == "__main__":
    logging.disable()  # the recorded steps hold faults on purpose
    rows, fault = replay(Runtime.from_json(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.write(f"{fault or f'{rows} rows agree'}\n")
    sys.exit(1 if fault or not rows else 0)
