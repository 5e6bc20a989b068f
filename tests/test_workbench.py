"""The workbench and the report in Chromium: pages without a complaint, sliders that move figures, uploads, and axe-core's eye.

Every page is photographed at both widths, light and dark, and the report as well, also as it is printed. Where HEADWAY_ARTEFACTS names
a folder the pictures are kept there, PAGE-WIDTH-light.png and so on; else they go with the test's temporary folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="the workbench needs dash: pip install 'headway[web]'")
pytest.importorskip("playwright", reason="browser tests need playwright, which the developer's extra brings")

from benchmarks.browser import WIDTHS, browser, chromium, drags, opened, photographed, served, tab
from headway.experiments.whole_files import read_json, write_json
from headway.report import write_report
from headway.web.pages import PAGES
from tests.small_run import write_run
from tests.small_schedule import TRAINED, controller_with, loaded, queued

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="no Chromium on the path; Debian: apt-get install chromium"),
]
RECIPE = "poisson:rate=10/s,prompt=400,output=geometric(60)"
GRAVE = ("serious", "critical")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        write_run(place / name)
        controller = read_json(place / name / "controller.json")
        write_json(place / name / "controller.json", {**controller, "workload": {**controller["workload"], "spec": RECIPE}})
    for name, gains, kind in (("followed", queued(), "queued"), ("loaded", loaded(), "load")):
        write_run(place / name)
        trained = TRAINED | {"kind": kind, "names": list(gains.names), "knots": list(gains.shape)}
        write_json(place / name / "controller.json", controller_with(gains, trained, RECIPE))
    steps = [
        {"step": k, "step_time_s": 0.02 + 0.01 * (k % 40 == 7), "token_budget": 256, "setpoint_s": 0.02, "margin": 0.2} for k in range(900)
    ]
    (place / "live").mkdir()
    (place / "live" / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return place


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with served(runs / "one") as found:
        yield found


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = os.environ.get("HEADWAY_ARTEFACTS")
    return Path(kept) if kept else tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as made:
        yield made


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", WIDTHS)
def test_every_page_opens_without_a_complaint_and_fits_its_window(address: str, chrome: Any, kind: str, dark: bool, pictures: Path) -> None:
    page, complaints = tab(chrome, WIDTHS[kind], dark=dark)
    for name in PAGES:
        opened(page, address, name)
        picture = pictures / f"{name}-{WIDTHS[kind]}-{'dark' if dark else 'light'}.png"
        photographed(page, picture)
        assert picture.stat().st_size > 10_000
        assert page.locator(".fault").count() == 0, page.locator(".fault").first.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[kind]
    assert complaints == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", WIDTHS)
def test_the_report_is_drawn_whole_and_fits_its_window(runs: Path, chrome: Any, kind: str, dark: bool, pictures: Path) -> None:
    page, complaints = tab(chrome, WIDTHS[kind], dark=dark)
    page.goto(write_report(runs / "one").as_uri())
    photographed(page, pictures / f"report-{WIDTHS[kind]}-{'dark' if dark else 'light'}.png")
    assert page.locator("figure .main-svg").count() >= page.locator("figure").count() > 15
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[kind]
    if kind == "desktop" and not dark:
        page.pdf(path=str(pictures / "report.pdf"), format="A4")
        assert (pictures / "report.pdf").read_bytes().startswith(b"%PDF")
    assert complaints == []


@pytest.mark.parametrize(
    ("run", "kind", "dark"),
    [("followed", "desktop", False), ("followed", "phone", True), ("loaded", "desktop", True), ("loaded", "phone", False)],
)
def test_gains_that_follow_the_load_are_drawn_in_both_and_fit_their_window(
    address: str, runs: Path, chrome: Any, run: str, kind: str, dark: bool, pictures: Path
) -> None:
    page, complaints = tab(chrome, WIDTHS[kind], dark=dark)
    look = f"{run}-{WIDTHS[kind]}-{'dark' if dark else 'light'}.png"
    for name in ("loop", "export", "compare"):
        opened(page, address, f"{name}?run={run}")
        photographed(page, pictures / f"{name}-{look}")
        assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[kind]
        assert "follow" in page.locator("main").inner_text()
        if name == "loop":
            assert page.locator("[id*='\"schedule\"'] .main-svg").count() > 0
    page.goto(write_report(runs / run).as_uri())
    photographed(page, pictures / f"report-{look}")
    assert page.locator("#figure-schedule .main-svg").count() > 0
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[kind]
    assert complaints == []


def test_a_slider_moves_the_figures_and_writes_itself_into_the_address(address: str, chrome: Any) -> None:
    page, complaints = tab(chrome, WIDTHS["desktop"])
    opened(page, address, "loop")
    before = page.locator("figcaption").all_inner_texts()
    shown = page.locator('[id*="knob-value"]').all_inner_texts()
    drags(page, "margin", 1)
    assert page.locator('[id*="knob-value"]').all_inner_texts() != shown
    assert page.locator("figcaption").all_inner_texts() != before
    assert "margin=0.2" in page.url
    command = page.locator(".command code").first.inner_text()
    assert "--gains margin=0.2" in command
    page.goto(page.url)
    page.wait_for_selector(".js-plotly-plot .main-svg")
    assert page.locator('[id*="knob-value"]').all_inner_texts() != shown
    page.get_by_role("button", name="as tuned").click()
    page.wait_for_function("texts => JSON.stringify([...document.querySelectorAll('[id*=\"knob-value\"]')].map(e => e.innerText)) === texts", arg=str(shown).replace("'", '"').replace(", ", ","))  # fmt: skip  # noqa: E501
    assert complaints == []


def test_a_figure_is_saved_as_csv_and_as_a_picture(address: str, chrome: Any) -> None:
    page, _ = tab(chrome, WIDTHS["desktop"])
    opened(page, address, "goodput")
    for button, suffix, start in (("CSV", "csv", b"curve,"), ("PNG", "png", b"\x89PNG")):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=button, exact=True).first.click()
        assert waiting.value.suggested_filename.endswith(suffix)
        assert Path(waiting.value.path()).read_bytes().startswith(start)


def test_the_dark_page_is_dark_and_its_figures_too(address: str, chrome: Any) -> None:
    page, _ = tab(chrome, WIDTHS["desktop"], dark=True)
    opened(page, address, "plant")
    page.wait_for_function("getComputedStyle(document.body).backgroundColor === 'rgb(18, 22, 27)'")
    page.wait_for_function("document.querySelector('.js-plotly-plot')._fullLayout.paper_bgcolor === '#12161b'")


def dropped(page: Any, file: Path) -> None:
    page.locator("details.make > summary").click()
    page.locator("#upload input[type=file]").set_input_files(str(file))


def test_a_broken_file_is_refused_in_the_words_of_the_command(address: str, chrome: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.csv"
    broken.write_text("a;b;c\n1;2;3\n")
    page, complaints = tab(chrome, WIDTHS["desktop"])
    opened(page, address, "trace")
    dropped(page, broken)
    page.wait_for_selector("#upload-said .fault", timeout=60_000)
    assert "its first line is separated by ';': write it with commas" in page.locator("#upload-said .fault").inner_text()
    assert complaints == []


def test_a_measured_trace_that_is_dropped_becomes_a_run(address: str, chrome: Any, shared_data: Path, runs: Path) -> None:
    page, complaints = tab(chrome, WIDTHS["desktop"])
    opened(page, address, "trace")
    page.locator("details.make > summary").click()
    page.locator("#new-workload").fill("poisson:rate=8/s,prompt=600,output=100")
    page.locator("#new-target").fill("ttft=1s,itl=25ms")
    page.locator("details.make > summary").click()
    dropped(page, shared_data / "steps" / "fpm_vllm0201_b300" / "qwen3-32b_tp4.fpm_detail.csv")
    page.wait_for_selector("#upload-said progress", timeout=60_000)
    page.wait_for_url("**/trace?run=*", timeout=300_000)
    page.wait_for_function("[...document.querySelectorAll('figcaption')].some(e => e.innerText.startsWith('6,899 steps'))")
    assert (runs / "qwen3-32b_tp4.fpm_detail" / "report.html").exists()
    assert complaints == []


def test_axe_finds_nothing_grave(address: str, chrome: Any, runs: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core comes with the developer's extra").Axe()
    found = []
    for dark in (False, True):
        page, _ = tab(chrome, WIDTHS["desktop"], dark=dark)
        for name in PAGES:
            opened(page, address, name)
            grave = [fault for fault in axe.run(page).response["violations"] if fault["impact"] in GRAVE]
            found += [(name, dark, fault["id"], fault["nodes"][0]["html"][:160]) for fault in grave]
        page.goto(write_report(runs / "one").as_uri())
        grave = [fault for fault in axe.run(page).response["violations"] if fault["impact"] in GRAVE]
        found += [("report", dark, fault["id"], fault["nodes"][0]["html"][:160]) for fault in grave]
    assert found == []
