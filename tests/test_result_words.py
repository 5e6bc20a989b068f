"""Figures in the words of the terminal: a sweep's table, and a loop that noise does not move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.cli.analysed import analyse_lines
from headway.cli.sweep import sweep_lines
from headway.cli.terminal import change, rounded

NUMBERS: dict[str, Any] = {
    "gain_margin_db": 30.1,
    "phase_margin_deg": 86.0,
    "disk_margin_db": 25.6,
    "response_steps": 47.0,
    "noise_gain": 1.0,
    "cycle_tokens": 19.0,
    "cycle_allowed_tokens": 21.0,
    "cycle_steps": 100.0,
    "noise_swing_tokens": 291.0,
    "noise_changes_per_50_steps": 47.1,
    "still_quantum_tokens": 110.0,
}


def analysed(**numbers: float) -> list[str]:
    numbers = NUMBERS | numbers
    row = {"verdict": "certified", "numbers": numbers}
    data = {"verdict": "certified", "law": "tracker", "reasons": ["a limit cycle"], "operating_points": [], "notes": []}
    return [
        line for line in analyse_lines({**data, "certificate": {"by_delay": {"1": row}, "numbers": numbers}}) if line.startswith("noise")
    ]


def test_a_budget_that_noise_moves_has_a_quantum_and_one_that_is_still_needs_none() -> None:
    moved = (
        "noise      under +-10 % the budget moves within 291 tokens, 47.1 times in 50 steps; a quantum of 110 tokens would hold it still"
    )
    assert analysed() == [moved]
    still = analysed(noise_swing_tokens=0.0, noise_changes_per_50_steps=0.0, still_quantum_tokens=89.0)
    assert still == ["noise      under +-10 % the budget does not move"]


@pytest.mark.parametrize(
    ("value", "ends", "text"),
    [
        (-0.0004, [-0.0004, 0.0004], "0.0 % [0.0, 0.0]"),
        (0.0123, [-0.01, None], "+1.2 % [-1.0, ?]"),
        (-0.0006, [None, None], "-0.1 %"),
        (float("nan"), [None, None], "-"),
        (None, [None, None], "-"),
    ],
)
def test_a_change_has_a_sign_where_it_is_one(value: float | None, ends: list[float | None], text: str) -> None:
    assert change(value, ends) == text
    assert [rounded(-0.4, 0), rounded(-12345.0, 0), rounded(-0.0, 2, "+")] == ["0", "-12,345", "0.00"]


def test_a_sweep_shows_no_minus_zero(tmp_path: Path) -> None:
    side = {"heldout": 1.0, "heldout_ci95": [-0.0, 1.0], "settings": {"token_budget": 512, "running_limit": 64}}
    best = {**side, "at": {"margin": 0.1}, "trained": 1.0, "gain": -0.0002, "gain_ci95": [-0.0004, 0.0002]}
    data = {"objective": "attainment", "combinations": 2, "best": [{**best, "figures": {"itl_p99_s": 0.02, "shed": -0.0}}]}
    lines = sweep_lines({**data, "best_static": side, "dead": [], "front": None, "notes": []}, tmp_path)
    assert "0.0 % [0.0, 0.0]" in lines[2]
    assert "-0" not in "".join(lines[:4])
