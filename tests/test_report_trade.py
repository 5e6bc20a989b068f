"""The figures and tables of what can be had beside one number say what their files say, gaps in them included."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from headway.experiments.ablation import Ablation, Worth
from headway.experiments.fired import Fired, Part
from headway.experiments.knee import ABOVE, FOUND, Knee
from headway.experiments.pareto import KINDS, front_of
from headway.experiments.plant_error import Off, PlantError
from headway.experiments.shift import Shift, Shifted
from headway.experiments.statistics import Estimate
from headway.experiments.whole_files import without_nan
from headway.report.text import NONE, change
from headway.report.trade import (
    ablation_sentence,
    ablation_table,
    error_table,
    fired_table,
    front_figure,
    knee_table,
    ladder_figure,
    points,
    reach_sentence,
    shift_table,
)
from tests.test_pareto import tried

LEAD = Estimate(0.02, 0.01, 0.03)


def written(value: Any) -> Any:
    """As it comes back from a file."""
    return json.loads(json.dumps(without_nan(value), allow_nan=False))


def plain(text: str) -> str:
    """Without spaces that do not break."""
    return text.replace("\xa0", " ")


def test_the_figure_holds_both_fronts_with_their_intervals() -> None:
    sides = [tried(KINDS[0], 0.9, 0.95, spread=0.01), tried(KINDS[0], 0.95, 0.9, spread=0.01), tried(KINDS[1], 0.8, 0.85, spread=0.01)]
    front = front_of(sides, list, [])
    figure: Any = front_figure(written(front.to_json()))
    ours, theirs = figure.data
    assert list(ours.x) == pytest.approx([100 * p.ttft.value for p in front.points])
    assert list(ours.error_y.array) == pytest.approx([100 * (p.itl.high - p.itl.value) for p in front.points])
    assert list(ours.error_x.arrayminus) == pytest.approx([100 * (p.ttft.value - p.ttft.low) for p in front.points])
    assert list(theirs.y) == pytest.approx([100 * front.static[0].itl.value])
    assert ours.text[0] == "ttft 0.9, itl 0.95"
    empty: Any = front_figure({})
    assert len(empty.data) == 2, "an empty file is an empty figure"


def off(part: str, error: float, low: float = 0.01) -> Off:
    return Off(part, error, Estimate(0.95, 0.94, 0.96), Estimate(0.93, math.nan, math.nan), Estimate(0.02, low, 0.03))


def test_plant_error_is_a_ladder_and_a_table() -> None:
    rows = [
        off("floor", 0.03),
        off("slopes", -0.1),
        off("all", 0.0),
        off("all", 0.1, -0.01),
        off("drawn", math.nan),
        off("drawn", math.nan),
    ]
    error = written(PlantError(rows, 0.0, 0.1, 0.5, ["plants are drawn jointly"]).to_json())
    figure: Any = ladder_figure(error)
    assert [list(trace.x) for trace in figure.data] == [[0.0, 10.0]] * 2
    assert any(note.text == "lead lost" for note in figure.layout.annotations)
    text = plain(error_table(error))
    assert text.count("<tr>") == 1 + 5
    for cell in (
        "floor +3 %",
        f"slopes {change(-0.1, 0)}",
        "all times +10 %",
        "95.0 % [94.0, 96.0]",
        ">93.0 %<",
        "+2.0 [\N{MINUS SIGN}1.0, 3.0]",
    ):
        assert cell in text
    assert "2 drawn from the intervals" in text
    assert "Plants are drawn jointly." in text, "how they were drawn"
    assert "least +2.0 points; above 0 on 50 %" in text


def test_other_traffic_is_a_table_with_the_most_harm_first() -> None:
    whole = Estimate(0.95, 0.94, 0.96)
    rows = [
        Shifted("bursts", "arrivals in bursts", 9.5, whole, whole, Estimate(0.0, -0.01, 0.01)),
        Shifted(
            "waves",
            "a rate that swings",
            8.0,
            Estimate(0.76, 0.7, 0.8),
            whole,
            Estimate(-0.2, -0.3, -0.1),
            "the fallback would attain more",
        ),
    ]
    text = plain(shift_table(written(Shift(rows, ["longer prompts: none"]).to_json())))
    assert text.count("<tr>") == 1 + 2
    assert text.index("a rate that swings: the fallback would attain more") < text.index("arrivals in bursts")
    for cell in (
        "9.5 req/s",
        "76.0 % [70.0, 80.0]",
        f"{change(-0.2)} [\N{MINUS SIGN}30.0, \N{MINUS SIGN}10.0]",
        "Not tried: longer prompts: none.",
    ):
        assert cell in text


def test_a_knee_outside_what_was_searched_shows_no_interval() -> None:
    found = Knee(FOUND, 0.99, Estimate(14.1, 13.5, math.nan), (1.0, 80.0), 0, (), 8)
    beyond = Knee(ABOVE, 0.99, Estimate(80.0, math.nan, math.nan), (1.0, 80.0), 0, (), 8)
    text = plain(knee_table(written({"a": found.to_json(), "b": beyond.to_json()}), {"a": "the controller"}))
    assert "the controller" in text
    assert f"14.1 [13.5, {NONE}]" in text
    assert ">above 80<" in text
    assert "99 % of the owed tokens" in text


def test_parts_that_are_on_are_shown_with_what_they_bring() -> None:
    parts = [
        Part("triage by slack", True, 54, "requests shed", 1.0, LEAD, LEAD),
        Part("aging", True, None, "", 0.0, Estimate(0.0, 0.0, 0.0), Estimate(0.0, 0.0, 0.0)),
        Part("stride", False, None, "", None, None, None),
    ]
    text = plain(fired_table(written(Fired(parts, 4).to_json())))
    assert "54 requests shed" in text
    assert "+2.0 [1.0, 3.0]" in text
    assert ">never<" in text
    assert "stride" not in text


def test_a_difference_that_is_not_known_is_a_dash() -> None:
    assert points(None) == points({"value": None}) != ""
    assert points({"value": 0.01, "ci95": [None, None]}) == "+1.0"


def test_what_parts_bring_is_a_table_and_a_sentence() -> None:
    def worth(part: str, value: float, low: float, high: float) -> Worth:
        return Worth(part, f"no {part}", 0.9, Estimate(value, low, high), Estimate(value / 2, low, high))

    found = Ablation(
        0.95,
        (worth("triage", 0.06, 0.05, 0.07), worth("order", -0.02, -0.03, -0.01), worth("budget law", 0.001, -0.01, 0.02)),
        ("admission",),
        False,
        20,
    )
    data = written(found.to_json())
    text = plain(ablation_table(data))
    for cell in (
        "no triage",
        "90.0 %",
        "+6.0 [5.0, 7.0]",
        "+3.0 [5.0, 7.0]",
        "Not in use: admission",
        "95.0 %",
        "same 20 held-out workloads",
    ):
        assert cell in text
    assert ablation_sentence(data) == (
        "what brings tokens in time is triage (+6.0 points); tokens are lost by order (\N{MINUS SIGN}2.0 points); no difference is shown for budget law"
    )
    assert ablation_sentence({}) == "no part is in use that could be taken out"


def test_a_target_out_of_reach_is_a_sentence() -> None:
    bound = {"ruled_out": True, "promise": 0.99, "attainment": 0.41, "changes": None}
    assert reach_sentence({**bound, "ruled_out": False}) == ""
    assert plain(reach_sentence(bound)).endswith("at most 41.0 %; `headway tune --bound` names the smallest change that helps")
    assert reach_sentence({**bound, "changes": ["at 3 requests/s", "with 2 replicas"]}).endswith(
        "ruled out at 3 requests/s, or with 2 replicas"
    )
    assert reach_sentence({**bound, "changes": [], "verdict": "99 % is not ruled out"}).endswith(
        "whatever the noise, 99 % is not ruled out"
    )
