"""What the report and the workbench show of one run: the same figures, by the same functions, or a sentence where there is none."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.controllers.tracker import TrackerLaw
from headway.experiments.analysis import analyse
from headway.experiments.whole_files import read_json, write_json
from headway.report.data import Findings, collect
from headway.report.goodput_panels import LOOKS, batch_panels, bound_panels, front_panels, not_looked
from headway.report.loop_panels import loop_panels, points_of, simulated_panel, weakest
from headway.report.opened import SHOWN_REQUESTS, Opened, opened
from headway.report.panels import Lack, Panel, trace_panels
from headway.report.sections import SECTIONS
from tests.small_plant import Read
from tests.small_run import write_run

RECIPE = "poisson:rate=10/s,prompt=400,output=geometric(60)"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    write_run(folder)
    controller = read_json(folder / "controller.json")
    write_json(folder / "controller.json", {**controller, "workload": {**controller["workload"], "spec": RECIPE}})
    return folder


@pytest.fixture(scope="module")
def found(run: Path) -> Findings:
    return collect(run)


@pytest.fixture(scope="module")
def known(found: Findings) -> Opened:
    return opened(found.plant, found.controller or {})


def figures_of_report(found: Findings) -> set[str]:
    html = "".join(body(found) for _, body in SECTIONS.values())
    return {value.removeprefix("figure-") for name, value in Read(html).attributes if name == "id" and str(value).startswith("figure-")}  # type: ignore[union-attr]


def test_report_and_workbench_draw_the_same_figures(run: Path, found: Findings) -> None:
    pytest.importorskip("dash", reason="the workbench needs dash: pip install 'headway[web]'")
    from headway.web.app import body
    from headway.web.root import Root
    from headway.web.views import View

    root = Root.of(run)
    names: set[str] = set()
    for page in ("trace", "plant", "loop", "goodput"):
        article = json.dumps(body(root, View(root.first, run), page, {}, dark=False).to_plotly_json(), default=lambda c: c.to_plotly_json() if hasattr(c, "to_plotly_json") else list(c))  # fmt: skip  # noqa: E501
        names |= {part.split('"')[3] for part in article.split('"type": "figure"')[1:]}
    assert names == figures_of_report(found)
    assert {"time-line", "work", "step", "nyquist", "bode", "loop", "batch", "attainment-load", "validated", "ttft-tail"} <= names


def test_the_margins_are_those_of_the_analysis(found: Findings, known: Opened) -> None:
    record, law = known.record, known.record.candidate.law
    for delay in (1, 2):
        seen = weakest(law, known.identified, points_of(law, known.identified, record), delay)
        assert seen is not None
        rows = analyse(record, known.identified, record.targets, record.limits, delay=delay).to_json()["operating_points"]
        least = min(rows, key=lambda row: row["gain_margin_db"])
        assert {name: least[name] for name in seen.margins} == seen.margins
        assert dataclasses.asdict(seen.point).items() <= least.items()
    assert found.controller is not None


def test_the_batch_is_simulated_on_the_same_loads_as_the_loop(known: Opened) -> None:
    assert [len(draw.workload) for draw in known.draws] == [SHOWN_REQUESTS] * 4
    (panel,) = batch_panels(known)
    assert isinstance(panel, Panel)
    figure: Any = panel.figure
    throughput, goodput, own = (np.asarray(trace.y, float) for trace in figure.data)
    assert (goodput <= throughput + 1e-9).all()
    assert goodput[0] < goodput.max(), "one request at a time cannot be best"
    assert own[0] == own[1] > 0
    loop = simulated_panel(known, known.record.candidate)
    assert f"held-out load of {SHOWN_REQUESTS} requests" in loop.sentence  # type: ignore[union-attr]


def test_what_cannot_be_drawn_is_a_sentence(found: Findings, known: Opened) -> None:
    assert trace_panels(None, None) == [Lack("trace.parquet is not there yet.", "trace")]
    rows = found.recorded
    assert rows is not None
    (none,) = trace_panels(rows._replace(reason=np.full(len(rows.reason), "gap")), None)
    assert isinstance(none, Lack)
    assert "Every row" in none.said
    bare = known._replace(draws=[], fault="no such file")
    assert [type(one) for one in (*loop_panels(bare), *batch_panels(bare))] == [Panel, Panel, Panel, Lack, Lack]
    assert loop_panels(bare)[-1].said.endswith("simulated here: no such file. Put the workload's file back, and it is drawn.")  # type: ignore[union-attr]
    broken = {**(found.controller or {}), "law": {"kind": "pi", "gains": None}}
    with pytest.raises(ValueError, match=r"^controller\.json: "):
        opened(found.plant, broken)
    text = SECTIONS["margins"][1](dataclasses.replace(found, controller=broken))
    assert "What has to be computed cannot be: controller.json" in text
    assert "<figure" not in text


def test_an_unstable_loop_has_no_answer(known: Opened) -> None:
    law: Any = known.record.candidate.law
    candidate = known.record.candidate._replace(law=dataclasses.replace(law, ki=9.0))
    wild = known._replace(record=dataclasses.replace(known.record, candidate=candidate))
    first, *others = loop_panels(wild)
    assert isinstance(first, Lack)
    assert "unstable" in first.said
    assert [one.name for one in others if isinstance(one, Panel)] == ["nyquist", "bode", "loop"]


def test_what_was_not_looked_at_is_named_with_its_command(found: Findings) -> None:
    (all_of_it,) = not_looked(found)
    assert isinstance(all_of_it, Lack)
    assert all_of_it.options == "--bound --analyse knee,pareto,plant-error,shift,parts"
    assert "headway tune" in SECTIONS["beside"][1](found)
    controller = copy.deepcopy(found.controller)
    assert controller is not None
    point = {"ttft": {"value": 0.9, "ci95": [0.88, 0.92]}, "itl": {"value": 0.95, "ci95": [None, None]}, "settings": {"margin": 0.2}, "beaten": False}  # fmt: skip  # noqa: E501
    controller["tuning"] |= {
        "pareto": {"points": [point], "static": [], "sentence": "one setting is best on both"},
        "bound": {
            "attainment": 0.999,
            "attained": 0.95,
            "estimate": 0.98,
            "told_whom_to_shed": 0.96,
            "sentence": "the controller attains 95 %",
        },
    }
    other = dataclasses.replace(found, controller=controller)
    (front,), (bound,) = front_panels(other), bound_panels(other)
    assert isinstance(front, Panel)
    assert isinstance(bound, Panel)
    assert front.sentence.startswith("One setting is best on both. Up and to the right")
    figure: Any = bound.figure
    assert list(figure.data[0].x) == pytest.approx([98.0, 96.0, 95.0])
    assert [note.text for note in figure.layout.annotations] == ["bound 99.90 %"]
    assert figure.layout.xaxis.range[1] > 99.9
    (left,) = not_looked(other)
    assert isinstance(left, Lack)
    assert left.options == "--analyse knee,plant-error,shift,parts"
    for field in LOOKS:
        controller["tuning"].setdefault(field, {"sentence": "looked at"})
    assert not_looked(other) == []


def test_a_law_without_a_linear_loop_is_said_to_have_none(known: Opened) -> None:
    assert weakest(known.record.candidate.law, known.identified, points_of(known.record.candidate.law, known.identified, known.record), 1)
    tracker = TrackerLaw(known.identified.plant)
    assert weakest(tracker, known.identified, points_of(tracker, known.identified, known.record), 1) is not None
