"""The report: every section is there, says what its figure shows, and asks the network for nothing."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.report import page, write_report
from headway.report.axes import FURTHEST, thinned
from headway.report.cautions import cautions
from headway.report.commands import beyond_options, commands
from headway.report.data import Findings, collect
from headway.report.figures import Curve, tail
from headway.report.headline import verdict
from headway.report.sections import SECTIONS, opening
from headway.report.sentences import capacity_rps, share_above, thinning_sentence
from headway.report.theme import DARK, LIGHT, faint, swaps
from tests.small_plant import IDENTIFIED, Read
from tests.small_run import controller_json, validation_json, write_run

GOLDEN = Path(__file__).parent / "data" / "report" / "text.txt"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder in which every stage has run."""
    folder = tmp_path_factory.mktemp("runs") / "demo"
    write_run(folder)
    return folder


@pytest.fixture(scope="module")
def found(run: Path) -> Findings:
    known = collect(run)
    return dataclasses.replace(known, run=Path("runs/demo"), plant={**known.plant, **copy.deepcopy(IDENTIFIED)})


@pytest.fixture(scope="module")
def html(found: Findings) -> str:
    return page(found)


def test_every_word_of_the_report(html: str) -> None:
    text = "\n".join(line.rstrip() for line in Read(html).lines if line.strip()) + "\n"
    assert text == GOLDEN.read_text(encoding="utf-8"), text


def test_every_section_is_there_in_order(html: str) -> None:
    places = [html.index(f'<section id="{key}"') for key in ("headline", "warnings", *SECTIONS)]
    assert places == sorted(places)
    titles = [title for title, _ in SECTIONS.values()]
    assert [x for x in Read(html).lines if x in titles] == titles * 2  # in the contents, and over their sections
    assert [int(title.split()[0]) for title in titles] == list(range(1, len(titles) + 1))


UNITS = r"ms$|, s$|%|requests|tokens|steps?,|engine steps|rad/step|dB$|deg$|part$|budget|share of"
"""What an axis says of its unit; real and imaginary part have none."""


def test_every_figure_has_a_sentence_and_axes_with_units(html: str) -> None:
    drawn = Read(html).figures()
    assert len(drawn) == 15
    assert len(re.findall(r"<figure id=\"figure-[a-z-]+\"><figcaption>[^<]{30,}</figcaption><div class=\"plot\"", html)) == len(drawn)
    for figure in drawn:
        for name, axis in figure["layout"].items():
            if re.fullmatch(r"[xy]axis\d?", name) and axis.get("showticklabels", True):
                assert re.search(
                    r"ms$|, s$|%|requests|tokens|steps?,|engine steps|rad/step|dB$|deg$|part$|budget|share of", axis["title"]["text"]
                ), (name, axis["title"])


def test_nothing_outside_is_asked_for(html: str) -> None:
    seen = Read(html)
    assert not {"link", "iframe", "img", "object", "embed", "base"} & set(seen.tags)
    assert not [v for _, v in seen.attributes if v and re.match(r"\s*(https?:|//|data:|javascript:)", v)]
    assert all(v is not None and v.startswith("#") for name, v in seen.attributes if name in ("src", "href", "action"))
    assert not re.search(r"@import|url\(", html[html.index("<style>") : html.index("</style>")])
    assert "showSendToCloud: false" in html


def test_the_report_is_one_file_of_bounded_size_and_the_same_each_time(run: Path) -> None:
    path = write_report(run)
    first = path.read_bytes()
    assert path == run / "report.html"
    assert len(first) < 6_000_000
    assert write_report(run).read_bytes() == first
    assert sorted(p.name for p in run.iterdir() if p.name.startswith(".")) == []


HOSTILE = "</script><img src=x onerror=alert(1)>&\"'"


def test_what_a_user_wrote_stays_text(found: Findings) -> None:
    plain = page(found)
    controller, validation, manifest = controller_json(), validation_json(), copy.deepcopy(found.manifest)
    controller["workload"]["spec"] = controller["law"]["kind"] = HOSTILE
    controller["targets"] = [{**controller["targets"][0], "name": name} for name in (HOSTILE, "b")]
    controller["tuning"]["warnings"] = validation["notes"] = [HOSTILE]
    validation["engine"] = validation["outcome"] = HOSTILE
    plant = copy.deepcopy(found.plant)
    plant["diagnostics"]["sentences"]["drift"] = plant["warnings"] = [HOSTILE]
    plant["ladder"][0]["name"] = plant["binding"][0]["point"] = plant["binding"][0]["sentence"] = HOSTILE
    validation["controller"]["classes"] = {HOSTILE: {"attainment": 1.0}, "b": {"attainment": 0.5}}
    manifest["request"]["workload"] = manifest["versions"]["python"] = HOSTILE
    parts = {"plant": plant, "controller": controller, "validation": validation, "manifest": manifest}
    hostile = page(dataclasses.replace(found, run=Path(f"runs/{HOSTILE}"), **parts))
    tags = Read(hostile).tags
    assert "img" not in tags
    own = lambda read: read.tags.count("script") - len(read.figures())  # noqa: E731  # a law of that name has no margins to draw
    assert own(Read(hostile)) == own(Read(plain))
    assert not [a for a, _ in Read(hostile).attributes if a.startswith("on")]
    assert all("<img" not in json.dumps(figure) for figure in Read(hostile).figures())


@pytest.mark.parametrize(
    ("without", "words"),
    [
        (
            ("trace.parquet",),
            {
                "trace": "headway run --resume RUN",
                "plant": '<a href="#trace">section 1</a>',
                "residuals": '<a href="#trace">section 1</a>',
            },
        ),
        (
            ("validation.json",),
            {
                "tails": "headway validate RUN/controller.json --engine kernels",
                "loop": "validation.json is not there yet",
                "sides": "headway validate",
            },
        ),
        (
            ("validation.json", "controller.json"),
            {
                "load": "headway tune RUN/plant.json --workload logs/azure.csv",
                "margins": "headway tune RUN/plant.json",
                "gains": "controller.json is not there yet",
            },
        ),
        (
            ("validation.json", "controller.json", "trace.parquet", "manifest.json"),
            {"load": "--workload WORKLOAD --target TARGET", "trace": "headway run --trace logs/steps.csv"},
        ),
    ],
)
def test_a_stage_that_has_not_run_is_named_with_its_command(
    run: Path, tmp_path: Path, without: tuple[str, ...], words: dict[str, str]
) -> None:
    for file in run.iterdir():
        if file.name not in without and file.name != "report.html":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    part = dataclasses.replace(collect(tmp_path), run=Path("RUN"))
    opening(part)
    bodies = {key: body(part) for key, (_, body) in SECTIONS.items()}
    for key, said in words.items():
        assert said in bodies[key].replace("\N{NO-BREAK SPACE}", " ")
    assert write_report(tmp_path).exists()


def test_without_a_plant_there_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"plant\.json: no such file.*`headway fit TRACE --out .*plant\.json` makes one$") as error:
        write_report(tmp_path)
    assert "\n" not in str(error.value)
    (tmp_path / "plant.json").write_text("[]")
    with pytest.raises(ValueError, match="expected a JSON object, found list"):
        write_report(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["plant.json"]


def places(value: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    return [place for k, v in value.items() for place in ((*before, k), *(places(v, (*before, k)) if isinstance(v, dict) else ()))]


WHOLE = (("plant", IDENTIFIED), ("controller", controller_json()), ("validation", validation_json()))
PLACES = [(name, place) for name, value in WHOLE for place in places(value)]


@settings(max_examples=14)
@given(st.sampled_from(PLACES), st.booleans())
def test_any_key_may_be_null_or_absent(found: Findings, where: tuple[str, tuple[str, ...]], gone: bool) -> None:
    name, place = where
    changed = copy.deepcopy(getattr(found, name))
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = None
    if gone:
        del inner[place[-1]]
    other = dataclasses.replace(found, **{name: changed}, steps=None, recorded=None)
    assert opening(other)
    assert all(body(other) for _, body in SECTIONS.values())


def test_steps_that_admission_bound_have_a_row_where_there_are_any(found: Findings) -> None:
    label = "steps bound by admission"
    side = SECTIONS["sides"][1]
    assert label not in side(found)
    changed = copy.deepcopy(found.validation)
    assert changed is not None
    changed["controller"]["binding"]["deferred"] = 0.125
    text = side(dataclasses.replace(found, validation=changed)).replace("\N{NO-BREAK SPACE}", " ")
    row = text[text.index(label) :].split("</tr>")[0]
    assert re.findall(r"<td>([^<]*)</td>", row)[0] == "12.5 %"


def test_the_parts_of_the_policy_in_force_are_shown_each_class_by_its_name(found: Findings) -> None:
    controller = copy.deepcopy(found.controller)
    assert controller is not None
    targets = [{**controller["targets"][0], "name": name} for name in ("chat", "batch <b>")]
    parts = {
        "phases": "decode_first",
        "prefill_every": {"value": 6.0, "unit": "steps"},
        "class_shares": {"value": [3.0, 1.0], "unit": "weight, per class"},
        "priority_s": {"value": [0.5, None, 1.0], "unit": "s, per class"},
    }
    controller |= {"targets": targets, "policy": {**controller["policy"], **parts}}
    lines = Read(page(dataclasses.replace(found, controller=controller))).lines
    for row in (
        "policy.phases | decode_first | choice | –",  # noqa: RUF001
        "policy.prefill_every | 6 | steps | –",  # noqa: RUF001
        "policy.class_shares | chat 3, batch <b> 1 | weight, per class | –",  # noqa: RUF001
        "policy.priority_s | 0 0.5, 1 –, 2 1 | s, per class | –",  # noqa: RUF001
    ):
        assert row in [" ".join(line.split()).replace("| |", "|  |") for line in lines], row


def test_the_report_says_when_the_engine_left_its_plant(found: Findings) -> None:
    alarm = "drift alarm at step 41 of run 2"
    assert any(grave and alarm in text for grave, text in cautions(found))
    quiet = copy.deepcopy(found.validation)
    assert quiet is not None
    quiet["drift"] |= {"alarms": [], "said": ["no drift alarm in 1,800 steps of 3 runs"]}
    other = dataclasses.replace(found, validation=quiet)
    assert not any("drift alarm" in text for _, text in cautions(other))
    assert "No drift alarm in" in SECTIONS["loop"][1](other)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return float(np.dot([0.2126, 0.7152, 0.0722], [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]))


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_can_be_read(palette: dict[str, str]) -> None:
    contrast = lambda a, b: (max(luminance(a), luminance(b)) + 0.05) / (min(luminance(a), luminance(b)) + 0.05)  # noqa: E731
    for text in ("ink", "soft", "good", "bad"):
        assert contrast(palette[text], palette["card"]) >= 4.5, text
    for line in ("tuned", "static", "timeout", "decode", "mixed"):
        assert contrast(palette[line], palette["paper"]) >= 3, line


def test_every_colour_of_a_figure_has_a_dark_form(html: str) -> None:
    assert len(swaps()) == len(LIGHT)
    assert faint("#0072b2", 0.5) == "#0072b280"
    for figure in Read(html).figures():
        text = json.dumps(figure)
        assert set(re.findall(r"#[0-9a-fA-F]{6}", text)) <= set(swaps())
        assert not re.search(r"rgba?\(|\"(white|black|gr[ae]y|red|blue)\"", text)


@settings(max_examples=30)
@given(st.integers(1, 9000), st.integers(0, 99))
def test_points_left_out_are_never_the_ones_that_the_plant_misses(k: int, seed: int) -> None:
    residual = np.random.default_rng(seed).normal(size=k)
    shown = thinned(residual)
    assert len(shown) <= 4000
    assert (np.diff(shown) > 0).all()
    assert len(shown) == k or set(np.argsort(-np.abs(residual))[:FURTHEST]) <= set(shown)
    assert (thinning_sentence(k, len(shown)) == "") == (k <= 4000)


@pytest.mark.parametrize(
    ("attainment", "held"),
    [([1.0, 1.0], np.inf), ([0.9, 0.8], None), ([1.0, 0.98], 1.5), ([1.0, None], 1.0), ([], np.inf)],
)
def test_the_load_up_to_which_a_promise_is_kept(attainment: list[float | None], held: float | None) -> None:
    assert capacity_rps([1.0, 2.0], attainment, 0.01) == (None if held is None else pytest.approx(held))


def test_the_share_above_a_level_counts_what_never_came() -> None:
    side = {"distributions": {"share": [0.0, 0.5, 0.9, 1.0], "ttft_s": [1.0, 2.0, 3.0, None]}}
    assert share_above(side, "ttft_s", 1.5) == pytest.approx(0.75)
    assert share_above(side, "ttft_s", 9.0) == pytest.approx(0.1)
    assert share_above(side, "ttft_s", None) is None
    assert share_above(side, "itl_s", 1.0) is None
    assert share_above({"distributions": {"share": [0.0, 0.9995], "itl_s": [1.0, 2.0]}}, "itl_s", 3.0) == pytest.approx(0.0005)


def test_what_puts_the_result_in_question_comes_first(found: Findings) -> None:
    validation, controller = validation_json(), controller_json()
    validation |= {
        "outcome": "invalid",
        "gates": [{"name": "prompts met decodes", "bar": "at least 50 steps with both", "value": 3.0, "ok": False}],
    }
    validation["best_static"]["load"] = "unstable"
    controller["tuning"] |= {"outcome": "no better", "gain": -0.01, "gain_ci95": [-0.02, 0.0]}
    curve = controller["tuning"]["load_curve"]
    curve["controller"], curve["best_static"] = curve["best_static"], curve["controller"]
    worse = dataclasses.replace(found, validation=validation, controller=controller, refusal="the loop is not stable")
    listed = cautions(worse)
    assert [grave for grave, _ in listed] == sorted((grave for grave, _ in listed), reverse=True)
    text = "\n".join(t for grave, t in listed if grave)
    for said in (
        "prompts met decodes (at least 50 steps with both; found 3 steps)",
        "nothing better than the best static setting",
        "not stable",
        "gives way first: it keeps 99 % of the tokens on time at none of the loads shown, best static up to 11.5/s",
        "may not be exported: the loop",
        "extrapolation",
    ):
        assert said in text
    assert verdict(worse)[::2] == ("invalid", "bad")
    assert verdict(dataclasses.replace(worse, validation=None))[::2] == ("no better", "open")
    assert verdict(dataclasses.replace(worse, validation=None, controller=None))[0] == "identified"


def test_a_met_promise_without_a_certificate_is_no_clean_success(found: Findings) -> None:
    met = dataclasses.replace(found, validation={**validation_json(), "outcome": "met"})
    assert verdict(met)[::2] == ("met", "good")
    controller = controller_json()
    controller["tuning"]["certificate"] = {"verdict": "refused", "reason": "no room"}
    for refused in (dataclasses.replace(met, refusal="refused: no room"), dataclasses.replace(met, controller=controller)):
        word, said, tone = verdict(refused)
        assert (word, tone) == ("met, not certified", "open")
        assert said.endswith("Its certificate is refused, so it is not exported (see below).")
    tuned = dataclasses.replace(met, controller=controller, validation=None)
    assert verdict(tuned)[::2] == ("better, not certified", "open")


def test_commands_say_what_they_can_and_no_more() -> None:
    plain = commands(Path("RUN"), {})
    assert plain["run"] == "headway run --trace TRACE --workload WORKLOAD --target TARGET --out RUN"
    assert plain["tune"] == "headway tune RUN/plant.json --workload WORKLOAD --target TARGET --out RUN/controller.json"
    assert beyond_options({}) == ""
    request = {"traces": ["a.csv"], "engine": "sim", "effort": {"sobol": 32}, "runs": 2, "live_s": 9.0}
    demo = commands(Path("my runs/1"), {"request": request, "demo": True})
    assert demo["run"] == "headway demo --engine sim --out 'my runs/1'"
    assert (
        demo["validate"]
        == "headway validate 'my runs/1'/controller.json --engine sim --runs 2 --length 9s --out 'my runs/1'/validation.json"
    )
    assert "--effort" not in commands(Path("RUN"), {"request": request})["run"]
    assert beyond_options({"request": request}) == "begun from Python, with effort sobol=32"


def test_each_class_has_its_target_marked() -> None:
    curve = Curve("controller", [0.0, 0.5, 0.99], [0.1, 0.2, 0.5])
    figure = tail([curve], name="TTFT", targets_s={"chat": 1.0, "batch <b>": 5.0})
    assert [a.text for a in figure.layout.annotations] == ["target chat", "target batch &lt;b&gt;"]
    assert [s.x0 for s in figure.layout.shapes] == [1000.0, 5000.0]
    assert figure.layout.xaxis.range[1] > np.log10(5000)
