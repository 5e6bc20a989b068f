"""The workbench without a browser: its pages as components, its addresses, its guard, its uploads."""

from __future__ import annotations

import base64
import json
import os
import shlex
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("dash", reason="the workbench needs dash: pip install 'headway[web]'")

from headway.cli.entry import main
from headway.experiments.run import STAGES
from headway.experiments.whole_files import read_json, write_json
from headway.loads import read_controller
from headway.web import upload
from headway.web.app import application, body
from headway.web.asked import Asked
from headway.web.cards import figure_table
from headway.web.followed import WINDOW, follow, followed_sentence, late_rate
from headway.web.guard import guarded, is_loopback
from headway.web.knobs import knobs_of, moved
from headway.web.markup import components
from headway.web.pages import PAGES
from headway.web.pages.live import followable
from headway.web.pages.loop import look
from headway.web.picks import number_of, picks_of, search_of
from headway.web.root import Root, state_of
from headway.web.views import MOST_KEPT, View, remembered
from tests.small_run import write_run

RECIPE = "poisson:rate=10/s,prompt=400,output=geometric(60)"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """Two runs: one whole, with a recipe for its load; one whose workload has gone."""
    place = tmp_path_factory.mktemp("runs")
    for name in ("whole", "gone"):
        write_run(place / name)
    controller = read_json(place / "whole" / "controller.json")
    write_json(place / "whole" / "controller.json", {**controller, "workload": {**controller["workload"], "spec": RECIPE}})
    return Root.of(place / "whole")


def text_of(component: Any) -> str:
    """All text of components, as a reader meets it."""
    if component is None or isinstance(component, int | float):
        return ""
    if isinstance(component, str):
        return component
    if isinstance(component, list | tuple):
        return " ".join(text_of(c) for c in component)
    return text_of(getattr(component, "children", None))


def shown(root: Root, page: str, run: str = "whole", **picks: str) -> tuple[str, Any]:
    article = body(root, View(run, root.run(run)), page, picks, dark=False)
    return text_of(article), article


@pytest.mark.parametrize("page", PAGES)
def test_every_page_shows_a_whole_run_without_a_fault(root: Root, page: str) -> None:
    text, article = shown(root, page)
    assert PAGES[page].TITLE in text
    assert 'className="fault"' not in str(article).replace("'", '"')
    json.dumps(article.to_plotly_json(), default=lambda c: c.to_plotly_json() if hasattr(c, "to_plotly_json") else list(c))


@pytest.mark.parametrize("page", PAGES)
def test_every_page_of_a_run_that_has_only_a_plant_says_what_is_missing(tmp_path: Path, page: str) -> None:
    write_run(tmp_path / "r")
    for name in ("controller.json", "validation.json", "trace.parquet"):
        (tmp_path / "r" / name).unlink()
    root = Root.of(tmp_path / "r")
    text, _ = shown(root, page, "r")
    assert PAGES[page].TITLE in text
    assert any(word in text for word in ("no ", "not ", "No ")), text


def test_what_goes_wrong_is_a_sentence_on_the_page(root: Root) -> None:
    text, page = shown(root, "loop", "gone")
    assert "The closed loop cannot be simulated here" in text
    assert "azure.csv" in text
    assert "Gain margin" in text
    assert "azure.csv" in shown(root, "goodput", "gone")[0]
    assert 'className="fault"' not in str(page).replace("'", '"')
    assert "There is no page 'nothing'" in shown(root, "nothing")[0]


def test_names_never_lead_out_of_the_root(root: Root, tmp_path: Path) -> None:
    write_run(tmp_path / "outside")
    for name in ("../outside", "/etc", str(tmp_path / "outside"), "whole/../../outside"):
        with pytest.raises(ValueError, match=r"stay inside|no run of that name"):
            root.run(name)
    (root.path / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match="stay inside"):
        root.run("link")
    (root.path / "link").unlink()
    with pytest.raises(ValueError, match="neither a run"):
        Root.of(tmp_path / "nowhere-with-runs" if (tmp_path / "nowhere-with-runs").mkdir() is None else tmp_path)


def test_a_link_holds_the_state_and_nonsense_in_it_is_ignored() -> None:
    picks = {"run": "a b&c", "margin": "0.1"}
    assert picks_of(search_of(picks)) == picks
    assert [number_of({"x": x}, "x", 7.0) for x in ("nan", "1e99", "two", "3")] == [7.0, 7.0, 7.0, 3.0]


def test_sliders_begin_where_the_controller_stands_and_move_its_gains(root: Root) -> None:
    record = View("whole", root.run("whole")).record()
    knobs = knobs_of(record.candidate, record.limits)
    same = moved(record.candidate, knobs, {k.name: k.place + 4e-5 for k in knobs})  # as an address rounds it
    assert (same.candidate, same.options(), same.said) == (record.candidate, "", "")
    margin: Any = moved(record.candidate, knobs, {"margin": 0.4})
    assert float(margin.candidate.law.margin) == 0.4
    assert margin.options() == " --gains margin=0.4"
    slow: Any = moved(record.candidate, knobs, {"response": 2.0, "robustness": 70.0})
    quick: Any = moved(record.candidate, knobs, {"response": 1.0, "robustness": 70.0})
    assert slow.candidate.law.ki < quick.candidate.law.ki
    assert "phase margin" in moved(record.candidate, knobs, {"response": 0.05, "robustness": 84.0}).said
    capped: Any = moved(record.candidate, knobs, {"chunk_tokens": 6.0, "aging_rate": 1.5})
    assert float(capped.candidate.policy.chunk_tokens) == 64.0
    assert capped.options() == " --policy aging_rate=1.5,chunk_tokens=64"
    assert {k.name: k.shown(11.0) for k in knobs}["chunk_tokens"] == "2,048 tokens"


@pytest.mark.parametrize("places", [{}, {"margin": 0.3137, "delay": 2.0}, {"response": 0.9111, "robustness": 61.7, "chunk_tokens": 7.3}])
def test_the_command_shown_gives_the_margins_of_the_page(
    root: Root, places: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = look(View("whole", root.run("whole")), places)
    program, *words = shlex.split(found.command)
    monkeypatch.chdir(tmp_path)
    assert program == "headway"
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["operating_points"]
    least = min(rows, key=lambda row: row["gain_margin_db"])
    assert {name: least[name] for name in found.margins} == found.margins
    assert ("--gains" in found.command) == bool(places.keys() - {"delay"})
    written = tmp_path / "moved.json"
    assert written.exists() == ("--out" in found.command) == bool(places.keys() - {"delay"})
    if written.exists():
        record = View("whole", root.run("whole")).record()
        knobs = knobs_of(record.candidate, record.limits)
        assert read_controller(written).candidate == moved(record.candidate, knobs, places).candidate


def test_figures_move_with_the_sliders(root: Root) -> None:
    view = View("whole", root.run("whole"))
    tight, loose = (look(view, {"margin": m}) for m in (0.5, 0.0))
    said = lambda looked, name: looked.panels[name].sentence  # noqa: E731
    assert said(tight, "loop") != said(loose, "loop")
    assert set(tight.panels) == {"step", "nyquist", "bode", "loop"}
    assert said(look(view, {"delay": 2.0}), "nyquist") != said(look(view, {}), "nyquist")
    assert "--delay 2" in look(view, {"delay": 2.0}).command


def test_the_report_and_the_page_say_the_same(root: Root) -> None:
    from headway.report.data import collect
    from headway.report.identified import coefficient_table

    found = collect(root.run("whole"))
    parts = components(coefficient_table(found.plant))
    assert text_of(parts) in shown(root, "plant")[0]
    assert components("<script>alert(1)</script><p>a &lt;b&gt;</p>")[-1].children == ["a <b>"]
    assert components("<script>alert(1)</script>") == ["alert(1)"]


def test_a_figure_downloads_as_the_numbers_it_shows() -> None:
    figure = {
        "data": [{"name": "one", "x": [1, 2], "y": [3, None]}, {"x": {"dtype": "f8", "bdata": base64.b64encode(np.array([1.5]).tobytes()).decode()}, "y": [2]}],
        "layout": {"xaxis": {"title": {"text": "load, requests/s"}}, "yaxis": {"title": {"text": "goodput"}}},
    }  # fmt: skip
    assert figure_table(figure) == 'curve,"load, requests/s",goodput\none,1,3\ncurve 2,1.5,2\n'


def test_only_loopback_names_are_answered_and_others_need_the_token(root: Root) -> None:
    client = application(root).server.test_client()
    assert client.get("/", headers={"Host": "localhost:8050"}).status_code == 200
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
    policy = client.get("/", headers={"Host": "127.0.0.1"}).headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    with pytest.raises(ValueError, match="--token"):
        application(root, host="0.0.0.0")
    other = application(root, host="0.0.0.0", token="secret").server.test_client()
    assert other.get("/").status_code == 401
    assert other.get("/?token=wrong").status_code == 401
    assert other.get("/?token=secret").status_code == 302
    assert other.get("/").status_code == 200
    assert [is_loopback(h) for h in ("127.0.0.8", "::1", "localhost", "0.0.0.0", "10.0.0.1", "host")] == [True] * 3 + [False] * 3
    assert guarded.__doc__


def test_nothing_on_the_page_comes_from_elsewhere(root: Root) -> None:
    text = application(root).server.test_client().get("/", headers={"Host": "localhost"}).get_data(as_text=True)
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


def test_what_is_made_for_one_page_holds_up_no_other(tmp_path: Path) -> None:
    begun, go_on, made = threading.Event(), threading.Event(), []

    def slow() -> str:
        made.append("slow")
        begun.set()
        assert go_on.wait(20)
        return "slow result"

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(remembered, (tmp_path, "slow"), slow)
        assert begun.wait(20)
        assert remembered((tmp_path, "quick"), lambda: "quick result") == "quick result", "another key does not wait"
        second = pool.submit(remembered, (tmp_path, "slow"), slow)
        with pytest.raises(FutureTimeout):
            second.result(0.2)
        go_on.set()
        assert first.result(20) == second.result(20) == "slow result"
    assert made == ["slow"], "made once"
    assert remembered((tmp_path, "slow"), lambda: "made anew") == "slow result"


def test_an_error_is_not_remembered_and_frees_who_waits(tmp_path: Path) -> None:
    def refused() -> str:
        raise ValueError("not yet")

    for _ in range(2):
        with pytest.raises(ValueError, match="not yet"):
            remembered((tmp_path, "broken"), refused)
    assert remembered((tmp_path, "broken"), lambda: "mended") == "mended"
    nested = lambda: remembered((tmp_path, "inner"), lambda: "inner") + " and outer"  # noqa: E731
    assert remembered((tmp_path, "outer"), nested) == "inner and outer"
    for k in range(MOST_KEPT):
        assert remembered((tmp_path, k), lambda k=k: k) == k
    assert remembered((tmp_path, "broken"), lambda: "made anew") == "made anew", "what was longest unused has gone"


def data_url(content: bytes) -> str:
    return "data:text/csv;base64," + base64.b64encode(content).decode()


def test_an_upload_stays_below_the_root_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("../../evil.csv", "..\\evil.csv", "/etc/evil.csv", "...", ""):
        place = upload.kept(tmp_path, name, data_url(b"x"))
        assert place.resolve().parent == tmp_path / "uploads"
    first, again, other = (upload.kept(tmp_path, "t.csv", data_url(c)) for c in (b"a", b"a", b"b"))
    assert first == again != other
    monkeypatch.setattr(upload, "MOST_BYTES", 10)
    with pytest.raises(ValueError, match="by path"):
        upload.kept(tmp_path, "t.csv", data_url(b"y" * 100))
    for broken in ("", "data:text/csv,abc", "data:text/csv;base64,@@@"):
        with pytest.raises(ValueError, match=r"no file|broken"):
            upload.kept(tmp_path, "t.csv", broken)
    for load in ("--rate=1", "a\nb", "../../etc/passwd", "azure:/etc/passwd@8/s", "poisson:rate=5/s,lengths=/etc/passwd"):
        with pytest.raises(ValueError, match="workload must be"):
            upload.begin(tmp_path, first, load, "ttft=1s,itl=50ms")
    with pytest.raises(ValueError, match="target must be written out"):
        upload.begin(tmp_path, first, RECIPE, "/etc/classes.toml")


def test_a_broken_upload_ends_with_the_sentence_of_the_command(tmp_path: Path) -> None:
    trace = upload.kept(tmp_path, "broken.csv", data_url(b"a;b;c\n1;2;3\n"))
    job = upload.begin(tmp_path, trace, RECIPE, "ttft=1s,itl=50ms")
    assert job.command.startswith("headway run --trace ")
    deadline = time.monotonic() + 60
    while (found := upload.standing(job.name)) and not found.fault and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found is not None
    assert "separated by ';'" in found.fault
    assert not found.finished
    assert upload.standing("nobody") is None


def test_a_growing_trace_is_followed_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    rows = [{"step": k, "step_time_s": 0.02 if k % 4 else 0.03, "token_budget": 256, "mode": "control"} for k in range(400)]
    path.write_text('{"headway_trace": 1, "engine": "vllm"}\n' + "".join(json.dumps(r) + "\n" for r in rows) + '{"step": 400, "step_t')
    found = follow(path)
    assert (len(found.step), found.step[-1], found.mode) == (400, 399, "control")
    assert late_rate(found, 0.025)[-1] == pytest.approx(0.25)
    assert late_rate(found, 0.025)[0] == 1.0
    assert f"of the last {WINDOW}" in followed_sentence(found, 0.025)
    with path.open("a") as stream:
        stream.write('ime_s": 0.5}\n')
    assert follow(path).step_time_s[-1] == 0.5
    table = tmp_path / "steps.csv"
    table.write_text("step,step_time_s\n1,0.5\n2,nan\n3,0.7\n4,0.")
    assert follow(table).step_time_s.tolist() == [0.5, 0.7]
    assert "holds no row" in follow(tmp_path / "empty.csv" if (tmp_path / "empty.csv").write_text("a,b\n") else table).fault
    assert "cannot be read" in follow(tmp_path / "absent.jsonl").fault


def test_what_can_be_followed_lies_below_the_root(root: Root, tmp_path: Path) -> None:
    outside = tmp_path / "outside.jsonl"
    outside.write_text('{"step_time_s": 1}\n')
    (root.path / "link.jsonl").symlink_to(outside)
    (root.path / "whole" / "steps.jsonl").write_text('{"step": 1, "step_time_s": 0.02}\n')
    os.utime(root.path / "whole" / "steps.jsonl")
    assert followable(root) == ["whole/steps.jsonl"]
    text, _ = shown(root, "live")
    assert "The last 1 steps" in text
    view = View("whole", root.run("whole"))
    assert Asked(view, {}, False, root).root is root
    (root.path / "link.jsonl").unlink()
    (root.path / "whole" / "steps.jsonl").unlink()


def test_tables_that_hold_no_steps_are_not_offered_and_those_of_the_run_come_first(root: Root) -> None:
    files = {
        "sw/sweep.csv": "margin,attainment,itl_p99_s\n0.1,0.9,0.02\n",
        "sw/runs.jsonl": '{"at": {"margin": 0.4}, "runs": [[1.0]]}\n',
        "sw/empty.csv": "",
        "whole/steps.csv": "step,step_time_s\n1,0.02\n",
        "sw/later.jsonl": '{"schema": "a heading"}\n{"step": 1, "step_time_s": 0.02}\n',
    }
    for k, (name, text) in enumerate(files.items()):
        (root.path / name).parent.mkdir(exist_ok=True)
        (root.path / name).write_text(text)
        os.utime(root.path / name, (2e9 + k, 2e9 + k))
    try:
        assert followable(root) == ["sw/later.jsonl", "whole/steps.csv"]
        assert followable(root, "whole") == ["whole/steps.csv", "sw/later.jsonl"]
        text, _ = shown(root, "live")
        assert "sweep.csv" not in text
        assert "whole/steps.csv --out plant.json" in " ".join(text.split())
    finally:
        for name in files:
            (root.path / name).unlink()
        (root.path / "sw").rmdir()
    assert "No trace is being written" in shown(root, "live")[0]


def test_a_refused_controller_is_exported_against_its_certificate_only_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "r")
    refused = {"verdict": "refused", "reason": "no room for one prompt token", "numbers": {}}
    for place in ("headway.engines.certified", "headway.web.pages.export"):
        monkeypatch.setattr(f"{place}.certificate_of", lambda record: refused)
    text, article = shown(Root.of(tmp_path / "r"), "export", "r")
    assert text.count("no room for one prompt token") == 1
    assert "refused: " not in text.lower()
    cards = [part for part in article.children if getattr(part, "className", "") == "command"]
    plain, other = (" ".join(text_of(card).split()) for card in cards)
    assert plain.startswith("the same at the command line headway export")
    assert "--uncertified" not in plain
    assert other.startswith("against the certificate: writes it all the same")
    assert other.endswith("--uncertified")


def test_a_met_promise_without_a_certificate_is_said_so_in_the_list_of_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "r")
    validation = read_json(tmp_path / "r" / "validation.json")
    write_json(tmp_path / "r" / "validation.json", {**validation, "outcome": "met"})
    known = read_json(tmp_path / "r" / "manifest.json")
    write_json(tmp_path / "r" / "manifest.json", {**known, "stages": {stage: {} for stage in STAGES}})
    assert state_of(tmp_path / "r") == "finished, met"
    (tmp_path / "r" / "export").mkdir(exist_ok=True)
    (tmp_path / "r" / "export" / "refused.txt").write_text("refused: no room")
    assert state_of(tmp_path / "r") == "finished, met, not certified"
