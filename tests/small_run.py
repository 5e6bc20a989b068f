"""A run folder in miniature, with every stage's file, made without chance: for the tests of what reads one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headway.controllers.pi import PILaw
from headway.controllers.policy import Policy
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import Candidate
from headway.experiments.whole_files import write_json
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.signals import Limits, Target
from tests.synthetic_steps import TRUTH, composed, traced

LIMITS = Limits(kv_tokens=100_000, max_seqs=64)
TARGET = Target(ttft_s=1.0, itl_s=0.025)
QUANTILES = ("p50", "p90", "p99", "p999")


def wave(k: int, size: float, period: float) -> np.ndarray:
    """Residuals without chance: the same on every machine."""
    return size * np.sin(2 * np.pi * np.arange(k) / period) + (np.arange(k) % 97 == 0) * 0.1


def plant_json() -> dict[str, Any]:
    rows = {"read": 612, "used": 600, "set_aside": {"gap": 12}}
    heldout = {"steps": 300, "steps_mixed": 80, "mape": 0.021, "mape_decode": 0.017, "mape_mixed": 0.034, "rows": rows, "warnings": []}
    about = {
        "rows": rows,
        "heldout": heldout,
        "warnings": ["mixed: prefill_pairs moved with prefill_tokens (VIF 12): its coefficient is not trustworthy"],
        "sources": [{"file": "logs/steps.csv", "sha256": "ab" * 32, "reader": "steps"}],
        "training": {"blocks": "all", "where": {}, "epsilon": 0.01, "seed": 7},
    }
    noise = Noise(wave(300, 0.02, 50), wave(120, 0.04, 30))
    interval = {"decode.floor": (5.9e-3, 6.1e-3)}
    return IdentifiedPlant(TRUTH, noise, Hull(63, 2e5, 2000, 1e7), {"decode": 0.03, "mixed": None}, interval, LIMITS, about).to_json()


def figures(attainment: float, scale: float) -> dict[str, Any]:
    times = lambda unit: {q: unit * f * scale for q, f in zip(QUANTILES, (1.0, 2.0, 4.0, 8.0), strict=True)}  # noqa: E731
    return {
        "requests": 4000,
        "attainment": attainment,
        "request_attainment": attainment**2,
        "goodput_tps": 2000 * attainment,
        "throughput_tps": 2000.0,
        "ttft_s": times(0.05),
        "itl_s": times(0.005),
        "tpot_s": times(0.006),
        "max_gap_s": 0.06 * scale,
        "shed": 0.0025 if attainment > 0.95 else 0.0,
        "preempted": 3,
        "binding": {"none": 0.8, "kv": 0.0, "running": 0.0, "budget": 0.2},
        "load": "stable",
        "classes": {"default": {"attainment": attainment, "request_attainment": attainment**2, "shed": 0.0}},
    }


def tuning_json() -> dict[str, Any]:
    def side(attainment: float, scale: float, **chosen: float | None) -> dict[str, Any]:
        return {"settings": chosen, "attainment": attainment, "ci95": [attainment - 0.01, None], "figures": figures(attainment, scale)}

    rates = [5.0, 6.5, 8.0, 9.0, 10.0, 11.0, 12.5, 14.0, 16.0]

    def curve(knee: float, steep: float) -> dict[str, list[float]]:
        attained = [1.0 - max(0.0, r - knee) * steep for r in rates]
        return {"attainment": attained, "goodput_tps": [200 * r * a for r, a in zip(rates, attained, strict=True)]}

    return {
        "objective": "attainment",
        "heldout": side(0.99, 1.0, margin=0.15, aging_rate=0.5),
        "best_static": side(0.9, 2.0, token_budget=2048, running_limit=64, timeout=None),
        "best_timeout": side(0.98, 1.5, token_budget=512, running_limit=64, timeout=0.8),
        "untuned": side(0.97, 1.2),
        "gain": 0.1,
        "gain_ci95": [0.08, 0.12],
        "gain_over_timeout": 0.01,
        "gain_over_timeout_ci95": [-0.002, 0.02],
        "bound": None,
        "capacity_rps": None,
        "outcome": "better",
        "load_curve": {"rate_rps": rates, "controller": curve(11, 0.02), "best_static": curve(4, 0.015), "best_timeout": curve(10, 0.02)},
        "tried": 40,
        "effort": {"train_seeds": 8, "seed": 3},
        "warnings": ["extrapolation: steps of up to 70 decoding sequences, the trace held 63"],
    }


def controller_json() -> dict[str, Any]:
    candidate = Candidate(PILaw(margin=0.2), Policy(aging_rate=0.5, running_limit=64.0))
    load = {"spec": "logs/azure.csv", "rate_rps": 10.0, "rows": None, "requests": 800}
    plant = {"file": "plant.json", "sha256": "cd" * 32}
    return ControllerRecord(candidate, (TARGET,), LIMITS, TRUTH, Hull(63, 2e5, 2000, 1e7), plant, load, tuning_json()).to_json()


def validation_json() -> dict[str, Any]:
    share = [0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9995]

    def side(attainment: float, scale: float) -> dict[str, Any]:
        ttft = [scale * x for x in (0.01, 0.03, 0.05, 0.08, 0.1, 0.2, 0.4)]
        itl = [scale * x for x in (0.004, 0.0045, 0.005, 0.007, 0.01, 0.02, 0.04, 0.05)]
        return {**figures(attainment, scale), "distributions": {"share": share, "ttft_s": [*ttft, None], "itl_s": itl}}

    def timeline(base_s: float, spike_s: float) -> dict[str, list[float]]:
        step = [spike_s if k % 50 == 7 else base_s for k in range(600)]
        names = ("decode_requests", "decode_kv_tokens", "prefill_tokens", "prefill_pairs", "prefill_requests", "free_blocks")
        busy = {"binding": [3.0 if 100 <= k < 300 else 0.0 for k in range(600)], "token_budget": [256.0] * 600}
        return {
            "end_s": np.cumsum(step).tolist(),
            "step_time_s": step,
            **busy,
            "running": [9.0] * 600,
            "waiting": [1.0] * 600,
            **{n: [1.0] * 600 for n in names},
        }

    ok = {"name": "p99 ITL", "bar": "within 25 ms + 10 %", "value": 0.02, "ok": True}
    return {
        "schema": "headway/validation/1",
        "engine": "kernels",
        "outcome": "not met",
        "checks": [ok, {"name": "goodput as predicted", "bar": "measured within 10% of predicted", "value": -0.21, "ok": False}],
        "gates": [],
        "target_reached": False,
        "gain": 0.08,
        "gain_ci95": [None, None],
        "runs": 3,
        "controller": {**side(0.985, 1.0), "timeline": timeline(0.018, 0.024)},
        "best_static": {**side(0.91, 2.0), "timeline": timeline(0.012, 0.2)},
        "predicted": {"controller": side(0.99, 1.1), "best_static": side(0.9, 2.2)},
        "drift": {
            "runs": 3,
            "steps": 1800,
            "alarms": [{"run": 2, "step": 41, "steps": 560, "size": 0.12, "lasting": True}],
            "said": [
                "drift alarm at step 41 of run 2: steps took 12 % longer than the plant says, for 560 steps and to the end",
                "steps took 1.3 % longer than predicted in the median",
            ],
        },
        "notes": ["3 paired runs of 20 s on the engine's own clock"],
    }


MANIFEST = {
    "schema": "headway/run/1",
    "request": {
        "traces": ["logs/steps of today.csv"],
        "workload": "logs/azure.csv",
        "target": "ttft=1s,itl=25ms",
        "engine": "kernels",
        "rate_rps": 10.0,
        "rows": [0, 5000],
        "where": {"phase": "decode"},
        "limits": {"kv_tokens": 100000, "block_tokens": 16},
        "epsilon": None,
        "seed": 7,
        "live_s": 20.0,
        "runs": None,
        "effort": {},
    },
    "versions": {"headway": "0.1.0", "python": "3.12.1"},
    "stages": {"fit": {"file": "plant.json", "sha256": "ef" * 32, "seconds": 1.0}},
}


def write_run(folder: Path) -> None:
    """Write the files of every stage but the report."""
    contents = {"plant": plant_json(), "controller": controller_json(), "validation": validation_json(), "manifest": MANIFEST}
    for name, content in contents.items():
        write_json(folder / f"{name}.json", content)
    batch = composed(612)
    measured = TRUTH.step_time_s(batch) * np.exp(wave(612, 0.02, 50))
    traced(batch, measured).frame.write_parquet(folder / "trace.parquet")
