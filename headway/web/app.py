"""The application: from an address to a page, from a slider to its figures. Pages are in `headway.web.pages`."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import plotly
from dash import ALL, MATCH, Dash, Input, Output, State, ctx, html, no_update
from dash.fingerprint import build_fingerprint
from flask import Flask

from headway.report.panels import Panel
from headway.report.text import held
from headway.web import upload
from headway.web.asked import Asked
from headway.web.cards import COMMAND_COPY, COMMAND_TEXT, CSV_BUTTON, CSV_FILE, GRAPH, PNG_BUTTON, figure_table, in_palette, note, words_of
from headway.web.frame import chooser, document, frame, navigation
from headway.web.guard import guarded
from headway.web.knobs import knobs_of
from headway.web.pages import PAGES, live, loop
from headway.web.picks import picks_of, search_of
from headway.web.root import Root
from headway.web.views import View

DARK = """function(_) { return window.matchMedia && window.matchMedia('(prefers-color-scheme: dark)').matches; }"""
SAVE_PNG = """function(n, id) {
  if (!n) { return window.dash_clientside.no_update; }
  const all = Array.from(document.querySelectorAll('.js-plotly-plot'));
  const own = all.find(e => e.closest('[id]') && e.closest('[id]').id.includes('"' + id.name + '"'));
  if (own) { window.Plotly.downloadImage(own, {format: 'png', scale: 2, filename: 'headway-' + id.name, width: own.clientWidth, height: own.clientHeight}); }
  return window.dash_clientside.no_update;
}"""
PLOTLY = "package_data/plotly.min.js"
"""Dash asks for it only once a page with a figure has come: it is asked for at once, and comes while the server still reads the run."""

QUIET_S, NOBODY_S = 1.0, 20.0
"""How long nobody may have asked for anything before the simulator is compiled behind the first page, and how long that page is waited
for where nobody comes [s]."""
ASKED_S = "HEADWAY_ASKED_S"
"""Where the server notes when it was last asked for anything."""

IN_ADDRESS = """function(places, ids) {
  const here = new URLSearchParams(window.location.search);
  ids.forEach((id, k) => { if (places[k] !== null && places[k] !== undefined) { here.set(id.name, String(+places[k].toFixed(4))); } });
  window.history.replaceState(null, '', window.location.pathname + '?' + here.toString());
  return window.dash_clientside.no_update;
}"""
"""Sliders write themselves into the address without a new page: a link shows the same picture."""


def application(root: Root, *, host: str = "127.0.0.1", token: str | None = None) -> Dash:
    """The workbench over a folder of runs.

    Args:
        root: the folder.
        host: that will be listened on, for the guard.
        token: that a reader must bring; None on loopback.

    Returns:
        The application; its server is `.server`.

    Raises:
        ValueError: an address that others can reach, without a token.
    """
    server = Flask("headway")
    guarded(server, host, token)
    server.before_request(lambda: server.config.update({ASKED_S: time.monotonic()}))
    app = Dash(
        "headway",
        server=server,  # pyright: ignore[reportArgumentType]  # dash says bool or function, and takes a Flask
        title="Headway",
        update_title="",
        serve_locally=True,
        suppress_callback_exceptions=True,
        include_assets_files=False,
        add_log_handler=False,
        external_scripts=[{"src": plotly_address(), "defer": "defer"}],
    )
    app.index_string = document()
    app.layout = frame()
    _pages(app, root)
    _sliders(app, root)
    _following(app, root)
    _downloads(app)
    _uploads(app, root)
    return app


def plotly_address() -> str:
    """Where the page gets plotly.js: the server's own copy, under a name that changes with it, so that a browser may keep it.

    Returns:
        Address, without the host.
    """
    file = Path(plotly.__file__).parent / PLOTLY
    return f"/_dash-component-suites/plotly/{build_fingerprint(PLOTLY, plotly.__version__, int(file.stat().st_mtime))}"


def _pages(app: Dash, root: Root) -> None:
    app.clientside_callback(DARK, Output("dark", "data"), Input("start", "data"))

    @app.callback(
        Output("page", "children"), Output("nav", "children"), Output("run", "children"),
        Input("url", "pathname"), Input("url", "search"), Input("dark", "data"),
    )  # fmt: skip
    def _show(pathname: str | None, search: str | None, dark: bool) -> Any:
        picks, name = picks_of(search), (pathname or "/").strip("/") or next(iter(PAGES))
        try:
            view = View(picks.get("run") or root.first, root.run(picks.get("run")))
        except ValueError as refused:
            return note(str(refused), "fault"), navigation(name, root.first), chooser(root, root.first, name)
        return body(root, view, name, picks, bool(dark)), navigation(name, view.name), chooser(root, view.name, name)


def body(root: Root, view: View, name: str, picks: dict[str, str], dark: bool) -> Any:
    """One page; what goes wrong is a sentence on it.

    Args:
        root: where the runs are.
        view: the run.
        name: of the page.
        picks: from the URL.
        dark: whether the page is dark.

    Returns:
        Components.
    """
    module = PAGES.get(name)
    if module is None:
        return note(f"There is no page {name!r}; the pages are {', '.join(PAGES)}.", "fault")
    try:
        return html.Article([html.H1(module.TITLE), *module.page(Asked(view, picks, dark, root))], id=f"page-{name}")
    except ValueError as refused:
        return html.Article([html.H1(module.TITLE), note(str(refused), "fault")], id=f"page-{name}")


def _sliders(app: Dash, root: Root) -> None:
    places = Input({"type": "knob", "name": ALL}, "value")

    @app.callback(
        Output({"type": GRAPH, "name": ALL}, "figure"),
        Output({"type": "sentence", "name": ALL}, "children"),
        Output({"type": "knob-value", "name": ALL}, "children"),
        Output("loop-said", "children"),
        Output("loop-said", "className"),
        Output({"type": COMMAND_TEXT, "name": loop.COMMAND}, "children"),
        Output({"type": COMMAND_COPY, "name": loop.COMMAND}, "content"),
        places,
        State({"type": "knob", "name": ALL}, "id"),
        State({"type": GRAPH, "name": ALL}, "id"),
        State("url", "search"),
        State("dark", "data"),
        prevent_initial_call=True,
    )
    def _move(values: list[float], ids: list[Any], graphs: list[Any], search: str, dark: bool) -> Any:
        picks = picks_of(search)
        view = View(picks.get("run") or root.first, root.run(picks.get("run")))
        at = {i["name"]: float(v) for i, v in zip(ids, values, strict=True)}
        found = loop.look(view, at)
        knobs = {k.name: k for k in (*knobs_of(view.record().candidate, view.record().limits), loop.DELAY)}
        panels = [one if isinstance(one := found.panels.get(g["name"]), Panel) else None for g in graphs]
        figures = [in_palette(one.figure, bool(dark)) if one else no_update for one in panels]
        sentences = [held(one.sentence) if one else no_update for one in panels]
        shown = [knobs[i["name"]].shown(at[i["name"]]) for i in ids]
        return figures, sentences, shown, found.said, "fault" if found.said else "hidden", words_of(found.command), found.command

    app.clientside_callback(
        IN_ADDRESS, Output("loop-said", "title"), places, State({"type": "knob", "name": ALL}, "id"),
        prevent_initial_call=True,
    )  # fmt: skip

    @app.callback(
        Output({"type": "knob", "name": ALL}, "value"), Input("as-tuned", "n_clicks"), State({"type": "knob", "name": ALL}, "id"),
        State("url", "search"), prevent_initial_call=True,
    )  # fmt: skip
    def _back(clicks: int | None, ids: list[Any], search: str) -> Any:
        if not clicks:
            return [no_update] * len(ids)
        picks = picks_of(search)
        record = View("", root.run(picks.get("run"))).record()
        knobs = {k.name: k.place for k in (*knobs_of(record.candidate, record.limits), loop.DELAY)}
        return [knobs[i["name"]] for i in ids]


def _following(app: Dash, root: Root) -> None:
    @app.callback(
        Output("live-body", "children"), Input("live-tick", "n_intervals"), State("live-file", "data"), State("url", "search"),
        State("dark", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def _tick(_count: int, name: str, search: str, dark: bool) -> Any:
        picks = picks_of(search)
        view = View(picks.get("run") or root.first, root.run(picks.get("run")))
        return live.body(root, view, name, bool(dark))


def _downloads(app: Dash) -> None:
    @app.callback(
        Output({"type": CSV_FILE, "name": MATCH}, "data"), Input({"type": CSV_BUTTON, "name": MATCH}, "n_clicks"),
        State({"type": GRAPH, "name": MATCH}, "figure"), prevent_initial_call=True,
    )  # fmt: skip
    def _csv(clicks: int | None, figure: dict[str, Any]) -> Any:
        if not clicks or not isinstance(ctx.triggered_id, dict):
            return no_update
        return {"content": figure_table(figure), "filename": f"headway-{ctx.triggered_id['name']}.csv", "type": "text/csv"}

    app.clientside_callback(
        SAVE_PNG, Output({"type": PNG_BUTTON, "name": MATCH}, "title"), Input({"type": PNG_BUTTON, "name": MATCH}, "n_clicks"),
        State({"type": PNG_BUTTON, "name": MATCH}, "id"), prevent_initial_call=True,
    )  # fmt: skip


def _uploads(app: Dash, root: Root) -> None:
    @app.callback(
        Output("job", "data"), Output("job-tick", "disabled"), Output("upload-said", "children"),
        Input("upload", "contents"), State("upload", "filename"), State("new-workload", "value"), State("new-target", "value"),
        prevent_initial_call=True,
    )  # fmt: skip
    def _begin(content: str | None, filename: str | None, workload: str | None, target: str | None) -> Any:
        if not content:
            return no_update, no_update, no_update
        try:
            job = upload.begin(root.path, upload.kept(root.path, filename or "trace", content), workload or "", target or "")
        except ValueError as refused:
            return None, True, note(str(refused), "fault")
        return job.name, False, [html.Progress(value="0", max="1"), html.Code(job.command)]

    @app.callback(
        Output("upload-said", "children", allow_duplicate=True), Output("job-tick", "disabled", allow_duplicate=True),
        Output("url", "href"), Input("job-tick", "n_intervals"), State("job", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def _watch(_count: int, name: str | None) -> Any:
        found = upload.standing(name) if name else None
        if found is None:
            return no_update, True, no_update
        if found.fault:
            return note(found.fault, "fault"), True, no_update
        if found.finished:
            return html.P(f"{found.name} is there."), True, f"/trace{search_of({'run': found.name})}"
        return [html.Progress(value=str(found.share), max="1"), html.Span(f" {found.label}, {found.share:.0%}")], False, no_update


def warm(root: Root, server: Flask) -> threading.Thread:
    """Read the first run while the browser opens, and compile the simulator while the reader looks at the first page.

    Args:
        root: where the runs are.
        server: of the application.

    Returns:
        The thread, started.
    """

    def work() -> None:
        view = View(root.first, root.run(None))
        if view.has("trace"):
            view.recording()  # for the first page, which is on its way: it waits for this and does not begin anew
        if view.has("tune"):
            _until_quiet(server)
            loop.page(Asked(view, {}, False, root))

    thread = threading.Thread(target=_quietly, args=(work,), daemon=True)
    thread.start()
    return thread


def _until_quiet(server: Flask) -> None:
    """Leave the processor to the first page, from its first request to its last."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < NOBODY_S:
        asked_s = server.config.get(ASKED_S)
        if asked_s is not None and time.monotonic() - asked_s > QUIET_S:
            return
        time.sleep(0.1)


def _quietly(work: Any) -> None:
    """What goes wrong while warming up is said on the page that needs it."""
    try:
        work()
    except (ValueError, RuntimeError):
        return
