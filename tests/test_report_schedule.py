"""Gains that follow the load, in the report and in the workbench: their tables, what they brought, and no number that passes for a constant."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.controllers.gain_schedule import GainSchedule, knots_of
from headway.experiments.whole_files import write_json
from headway.report import page
from headway.report.data import Findings, collect
from headway.report.headline import cards, verdict
from headway.report.panels import Panel, validated_panels
from headway.report.schedule_figures import axis_of, lines_of, schedule_figure
from headway.report.schedule_panels import carried_sentence, of_constants, schedule_parts, schedule_sentence
from headway.report.scheduled import following, names_of, rows_of, schedule_of, shown_at
from headway.report.sections import SECTIONS, opening
from headway.report.tables import gain_table
from headway.report.theme import swaps
from tests.small_plant import Read
from tests.small_run import controller_json, write_run
from tests.small_schedule import NO_BETTER, NONE_SCORED, TRAINED, controller_with, loaded, queued

RECIPE = "poisson:rate=10/s,prompt=400,output=geometric(60)"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "followed"
    write_run(folder)
    write_json(folder / "controller.json", controller_with(queued(), spec=RECIPE))
    return folder


@pytest.fixture(scope="module")
def found(run: Path) -> Findings:
    return collect(run)


def of(found: Findings, controller: dict[str, Any]) -> Findings:
    return dataclasses.replace(found, controller=controller)


def plain(html: str) -> str:
    return html.replace("\N{NO-BREAK SPACE}", " ")


def test_the_sentence_says_what_to_see_what_it_brought_and_how_it_was_trained() -> None:
    assert schedule_sentence(controller_with(queued())) == (
        "Margin, aging rate and chunk follow the load: from an empty queue to 63,500 queued tokens, margin 20.0 % to 6.0 % (before: 20.0 %); aging "
        "rate 0.5 s/s to 0.5 s/s, within 0.5 s/s and 1 s/s (before: 0.5 s/s); chunk 16 tokens to 2,048 tokens (before: no cap). Markers are the "
        "knots, beyond the last of which a gain stays; dotted is the constant before. Better than constants: 92.1 % of the tokens on time against "
        "90.0 %, +2.1 points (+1.2 to +3.0), paired on held-out seeds. On the training seeds it was 94.5 % against 92.0 %. Trained: a table of 8 "
        "knots for each of margin, aging rate and chunk, over the queue; 71 were scored. Exact differences in random directions, as asked. 20 "
        "held-out seeds: the gain's interval is 0.9 % to either side."
    )
    text = schedule_sentence(
        controller_with(loaded(), TRAINED | {"kind": "network", "knots": [8, 4, 4], "names": ["margin", "chunk_tokens"]})
    )
    assert text.startswith(
        "Margin and chunk follow the load: margin 10.0 % to 30.0 % (before: 20.0 %); chunk 32 tokens to 1,448 tokens (before: no cap)."
    )
    assert (
        "Trained: a table of 8 x 4 x 4 knots for each of margin and chunk, that a small network fills over queue, decodes and cache;"
        in text
    )


def test_where_constants_do_as_well_the_sentence_stands_alone(found: Findings) -> None:
    other = of(found, controller_with(None, NO_BETTER))
    (text,) = schedule_parts(other)
    assert isinstance(text, str)
    assert plain(text).startswith(
        "<p>Gains that follow the load were tried, and none is in force. No better than constants: 90.2 % of the tokens on time against 90.0 %, "
        "+0.2 points (\N{MINUS SIGN}0.4 to +0.8), paired on held-out seeds."
    )
    assert text in SECTIONS["gains"][1](other)
    assert "figure-schedule" not in SECTIONS["gains"][1](other)
    unscored = schedule_sentence(controller_with(None, NONE_SCORED))
    assert (
        "No better than constants: no schedule beat them on the training seeds. They put 90.0 % of the tokens on time held out." in unscored
    )
    assert "points" not in unscored
    nothing = NONE_SCORED | {"names": [], "tried": 0, "slopes": "no gain of this candidate can follow the load"}
    assert schedule_sentence(controller_with(None, nothing)).endswith(
        "No better than constants: no gain of this candidate can follow the load."
    )


def test_of_a_capacity_requests_a_second_are_said_and_no_percent() -> None:
    controller = controller_with(queued(), TRAINED | {"constant": 11.5, "schedule": 12.25, "gain": 0.75, "gain_ci95": [0.25, 1.25]})
    controller["tuning"]["objective"] = "capacity"
    text = schedule_sentence(controller)
    assert (
        "Better than constants: 12.2 requests/s carried against 11.5, +0.75 requests/s (+0.25 to +1.25), paired on held-out seeds." in text
    )


def test_a_controller_without_a_schedule_shows_nothing_new(found: Findings) -> None:
    bare = controller_with(None, None)
    assert schedule_of(bare) is None
    for controller in (bare, controller_json(), None):
        assert schedule_parts(dataclasses.replace(found, controller=controller)) == []
    assert carried_sentence(bare) == of_constants(bare) == names_of(bare) == schedule_sentence(bare) == ""
    assert "follow" not in gain_table(bare)


@pytest.mark.parametrize("made", [queued, loaded])
def test_the_figure_draws_the_numbers_that_engines_get(made: Any) -> None:
    schedule, controller = made(), controller_with(made())
    figure: Any = schedule_figure(controller, schedule)
    lines, gains = lines_of(schedule), following(controller)
    assert len(lines) == (1 if made is queued else 6)
    assert lines[-1].says == ("follows the load" if made is queued else "100 % of the running limit, 100 % of the cache")
    curves = [trace for trace in figure.data if trace.name != "constant before"]
    assert len(curves) == len(lines) * len(gains)
    queue = knots_of(schedule.shape)[0]
    for k, gain in enumerate(gains):
        for j, line in enumerate(lines):
            trace = curves[k * len(lines) + j]
            knots = np.asarray(trace.marker.size) > 0
            exact = schedule.at(queue, line.running, line.cache)[k]
            wanted = {"margin": 100 * exact, "aging_rate": exact, "chunk_tokens": np.floor(2**exact * (1 + 1e-9))}[gain.name]
            assert np.allclose(np.asarray(trace.y)[knots], wanted)
            assert np.allclose(np.asarray(trace.customdata)[knots], queue)
            assert np.allclose(np.asarray(trace.x)[knots], np.arange(8))
    assert list(figure.layout.xaxis.ticktext) == ["0", "500", "1.5k", "3.5k", "7.5k", "15.5k", "31.5k", "63.5k"]
    titles = [figure.layout[f"yaxis{k + 1 if k else ''}"].title.text for k in range(len(gains))]
    assert titles == [{"margin": "margin, %", "aging_rate": "aging rate, s/s", "chunk_tokens": "chunk, tokens"}[g.name] for g in gains]
    looks = [(trace.line.color, trace.line.dash, trace.marker.symbol) for trace in curves[: len(lines)]]
    assert len({look[1:] for look in looks}) == len(lines), "told apart without colour"
    assert {trace.name for trace in figure.data if trace.showlegend} == {*(line.name for line in lines), "constant before"}
    constants = {trace.yaxis: set(trace.y) for trace in figure.data if trace.name == "constant before"}
    assert constants == ({"y": {20.0}, "y2": {0.5}} if made is queued else {"y": {20.0}}), "no cap has no line"


def test_what_a_schedule_follows_first_is_what_it_is_drawn_along() -> None:
    by_cache = GainSchedule(("margin",), np.array([0.1, 0.2]).reshape(1, 1, 1, 2))
    figure: Any = schedule_figure(controller_with(by_cache), by_cache)
    assert (axis_of(by_cache), figure.data[0].x[0], figure.data[0].x[-1]) == (2, 0.0, 100.0)
    assert figure.layout.xaxis.title.text == "KV cache in use, % of its blocks"
    assert list(np.asarray(figure.data[0].y)[[0, -1]]) == pytest.approx([10.0, 20.0])
    still = GainSchedule(("margin",), np.full((1, 1, 1, 1), 0.1))
    assert "margin 10.0 % under every load" in schedule_sentence(controller_with(still))
    assert set(schedule_figure(controller_with(still), still).data[0].y) == {10.0}  # type: ignore[union-attr]


def test_shares_are_shown_as_what_they_come_to_and_a_class_name_stays_text() -> None:
    controller = controller_json()
    controller["targets"] = [{**controller["targets"][0], "name": name} for name in ("<b>chat</b>", "batch")]
    controller["policy"]["class_shares"] = {"value": [3.0, 1.0], "unit": "weight, per class"}
    table = np.array([[1.0, 3.0], [1.0, 1.0]]).reshape(2, 2, 1, 1)
    controller["schedule"] = GainSchedule(("share.0", "share.1"), table).to_json()
    schedule = schedule_of(controller)
    assert schedule is not None
    assert shown_at(controller, schedule, np.array([0.0, 500.0]), 0.0, 0.0) == pytest.approx(np.array([[50.0, 75.0], [50.0, 25.0]]))
    assert [gain.constant for gain in following(controller)] == [75.0, 25.0]
    assert rows_of(controller) == {"policy.class_shares": "<b>chat</b> 1 to 3, batch 1, follow the load"}
    text = json.dumps(json.loads(str(schedule_figure(controller, schedule).to_json())))
    assert "<b>" not in text
    assert "&lt;b&gt;" in text
    assert "<b>" not in gain_table(controller)
    alone = copy.deepcopy(controller)
    del alone["schedule"]["gains"]["share.1"]
    one = schedule_of(alone)
    assert one is not None
    assert shown_at(alone, one, 500.0, 0.0, 0.0) == pytest.approx([75.0]), "a class without a table keeps its weight"


def test_no_gain_that_follows_the_load_passes_for_a_plain_number(found: Findings) -> None:
    controller = controller_with(queued(), spec=RECIPE)
    lines = [" ".join(line.split()) for line in Read(gain_table(controller)).lines]
    assert "law.margin | 0.06 to 0.2, follows the load | 1 | 0 to 0.95" in lines
    assert "policy.aging_rate | 0.5 to 1, follows the load | s/s | –" in lines  # noqa: RUF001
    assert any(line.startswith("policy.chunk_tokens | 16 to 2,048, follows the load | tokens") for line in lines)
    assert any(line.startswith("setpoint | 20.0, in an idle engine | ms") for line in lines)
    choice = cards(found)[1]
    assert choice.value == "6.0 to 20.0 %, 0.50 to 1.00 s/s"
    assert choice.notes[-1] == "following the load: margin, aging rate and chunk"
    assert "its constants, before gains followed the load, gain" in verdict(dataclasses.replace(found, validation=None))[1]
    assert "margin, aging rate and chunk follow the load" in SECTIONS["sides"][1](found)


def test_a_law_that_cannot_move_is_told_as_a_fixed_budget(found: Findings) -> None:
    controller = controller_json()
    gains = controller["law"]["gains"] | {"least_tokens": {"value": 2048.0}, "most_tokens": {"value": 2048.0}}
    controller["law"] = controller["law"] | {"gains": gains}
    assert plain(cards(of(found, controller))[1].notes[0]) == "a fixed budget of 2,048 prompt tokens a step"


def test_a_setpoint_that_follows_the_load_has_no_one_line(found: Findings) -> None:
    (panel,) = validated_panels(found)
    assert isinstance(panel, Panel)
    assert not [trace for trace in panel.figure.data if str(trace.name).startswith("setpoint")]  # type: ignore[union-attr]
    assert "The setpoint follows the load" in panel.sentence
    (constant,) = validated_panels(of(found, controller_json()))
    assert isinstance(constant, Panel)
    assert [trace for trace in constant.figure.data if str(trace.name).startswith("setpoint")]  # type: ignore[union-attr]
    assert "with the margin of 20.0 % that its table replaced; in force it lies between 6.0 % and 20.0 %" in plain(
        SECTIONS["margins"][1](found)
    )
    assert of_constants(controller_with(queued().without("margin"))) == ""


def test_report_and_workbench_show_the_same_and_exports_say_what_follows(run: Path, found: Findings) -> None:
    pytest.importorskip("dash", reason="the workbench needs dash: pip install 'headway[web]'")
    from headway.web.app import body
    from headway.web.root import Root
    from headway.web.views import View

    root, said = Root.of(run), schedule_sentence(found.controller)
    shown = {}
    for name in ("loop", "export", "compare"):
        article = body(root, View(root.first, run), name, {}, dark=False)
        shown[name] = json.dumps(
            article.to_plotly_json(), default=lambda c: c.to_plotly_json() if hasattr(c, "to_plotly_json") else list(c), ensure_ascii=False
        )
    assert said in plain(shown["loop"])
    assert '"name": "schedule"' in shown["loop"]
    html = page(found)
    assert said in Read(html).lines
    assert 'id="figure-schedule"' in html
    assert "Margin, aging rate and chunk follow the load: an export holds the tables, or is refused" in shown["export"]
    assert "0.06 to 0.2, follows the load" in plain(shown["export"])
    for figure in Read(html).figures():
        assert set(re.findall(r"#[0-9a-fA-F]{6}", json.dumps(figure))) <= set(swaps())


def test_another_run_beside_it_says_that_its_gains_follow_the_load(run: Path) -> None:
    pytest.importorskip("dash", reason="the workbench needs dash: pip install 'headway[web]'")
    from headway.web.app import body
    from headway.web.root import Root
    from headway.web.views import View

    write_run(run.parent / "constant")
    root = Root.of(run)
    article = str(body(root, View("followed", run), "compare", {"other": "constant"}, dark=False))
    assert "0.06 to 0.2, follows the load" in article.replace("\N{NO-BREAK SPACE}", " ")
    assert "6.0 to 20.0 %, 0.50 to 1.00 s/s" in article.replace("\N{NO-BREAK SPACE}", " ")


def test_a_figure_downloads_with_tokens_and_with_the_axis_of_each_curve() -> None:
    pytest.importorskip("dash", reason="the workbench needs dash: pip install 'headway[web]'")
    from headway.web.cards import figure_table

    schedule = queued()
    rows = figure_table(json.loads(str(schedule_figure(controller_with(schedule), schedule).to_json()))).splitlines()
    assert rows[0] == "curve,queued prompt tokens,value"
    assert any(row.startswith('"follows the load: chunk, tokens",63500.0,2048') for row in rows)
    assert any(row.startswith('"constant before: margin, %",0') for row in rows)


def keys_of(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    return [place for k, v in value.items() for place in ((*before, k), *(keys_of(v, (*before, k)) if isinstance(v, dict) else ()))]


def test_any_key_of_a_schedule_may_be_null_or_absent(found: Findings) -> None:
    whole = controller_with(queued(), spec=RECIPE)
    places = [("schedule", *place) for place in keys_of(whole["schedule"])] + [("tuning", "schedule", *place) for place in keys_of(TRAINED)]
    for place in places:
        for gone in (False, True):
            changed = copy.deepcopy(whole)
            inner: Any = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = None
            if gone:
                del inner[place[-1]]
            other = dataclasses.replace(of(found, changed), steps=None, recorded=None)
            assert opening(other)
            assert SECTIONS["gains"][1](other)
            assert SECTIONS["sides"][1](other)
            assert validated_panels(other)
