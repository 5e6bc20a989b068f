"""Numbers in the report: each with its unit or a word, a zero without a sign, and of a floor and a ceiling the one that acts."""

from __future__ import annotations

from headway.report.tables import gain_table, settings_table
from headway.report.text import change, count, digits, percent, time
from headway.report.trade import points
from tests.small_plant import Read
from tests.small_run import controller_json


def test_a_floor_above_its_ceiling_says_which_of_them_acts() -> None:
    controller = controller_json()
    gains = {"least_tokens": {"value": 450.0, "unit": "tokens"}, "most_tokens": {"value": 81.0, "unit": "tokens"}}
    rows = lambda: "\n".join(Read(gain_table({**controller, "law": {"kind": "tracker", "gains": gains}})).lines)  # noqa: E731
    assert "law.least_tokens | 450, but 81 acts: the floor gives way to most_tokens | tokens" in rows()
    gains["least_tokens"]["value"] = 64.0
    assert "law.least_tokens | 64 | tokens" in rows()


def test_every_row_of_settings_and_numbers_has_a_unit_or_a_word() -> None:
    tuning = controller_json()["tuning"]
    tuning["best_timeout"]["settings"] = {"token_budget": 512, "timeout": 0.8, "priority.chat": 0.5, "margin": 0.1}
    html = settings_table({"static + timeout": tuning["best_timeout"]})
    assert [line for line in Read(html).lines if "|" in line] == [
        "setting | static + timeout | unit",
        "token_budget | 512 | tokens",
        "timeout | 0.8 | share of ttft",
        "priority.chat | 0.5 | s",
        "margin | 0.1 | 1",
    ]
    cells = [[cell.strip() for cell in line.split("|")] for line in Read(gain_table(controller_json())).lines if line.count("|") == 3]
    assert len(cells) > 20
    assert all(unit for _, _, unit, _ in cells), cells


def test_a_rounded_zero_has_no_sign() -> None:
    assert [percent(-0.0), percent(-1e-9), change(-0.0), change(1e-9), time(-1e-9), count(-0.2), digits(-0.0)] == [
        "0 %",
        "0.00000 %",
        "0 %",
        "0.00000 %",
        "0.00 ms",
        "0",
        "0",
    ]
    assert points({"value": -0.0002, "ci95": [-0.0004, 0.0001]}) == "0.0 [0.0, 0.0]"
