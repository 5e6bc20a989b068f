"""The frame round every page: which run, which page, the drop place for a trace, and where the page goes."""

from __future__ import annotations

from importlib import resources
from urllib.parse import quote

from dash import dcc, html

from headway.report.theme import LIGHT, variables
from headway.web.cards import labelled
from headway.web.pages import PAGES
from headway.web.picks import search_of
from headway.web.root import Root, state_of

WORKLOAD = "poisson:rate=5/s,prompt=600,output=200"
TARGET = "ttft=1s,itl=50ms"
WAITING = "Working. The first simulation after an install compiles the engine, which takes about a minute."


def frame() -> html.Div:
    """What stays while pages change.

    Returns:
        Component.
    """
    drop = dcc.Upload(
        html.Div(["drop a trace here, or ", html.Button("choose a file", type="button", className="small")]),
        id="upload", className="drop", multiple=False, max_size=64 << 20,
    )  # fmt: skip
    made = html.Details(
        [
            html.Summary("a run from a trace"),
            html.Div(
                [
                    drop,
                    html.Div([html.Label("workload", htmlFor="new-workload"), dcc.Input(id="new-workload", value=WORKLOAD, type="text")]),
                    html.Div([html.Label("target", htmlFor="new-target"), dcc.Input(id="new-target", value=TARGET, type="text")]),
                    html.Div(id="upload-said", role="status"),
                ],
                className="new",
            ),
        ],
        className="make",
    )
    return html.Div(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="dark", data=False),
            dcc.Store(id="job"),
            dcc.Interval(id="job-tick", interval=700, disabled=True),
            dcc.Store(id="start"),
            html.Header(
                [
                    html.Div([html.A("Headway", href="/", className="brand"), html.Div(id="run", className="chooser")], className="bar"),
                    labelled(html.Nav(id="nav"), "pages"),
                    made,
                ]
            ),
            html.Main(dcc.Loading(html.Div(id="page"), delay_show=400, custom_spinner=html.P(WAITING, className="soft")), id="main"),
        ],
        className="workbench",
    )  # fmt: skip


def navigation(name: str, run: str) -> list[dcc.Link]:
    """Links to the pages.

    Args:
        name: of the page that is shown.
        run: that is shown.

    Returns:
        Components.
    """
    query = search_of({"run": run})
    look = lambda key: "here" if key == name else ""  # noqa: E731
    return [dcc.Link(module.TITLE, href=f"/{key}{query}", className=look(key)) for key, module in PAGES.items()]


def chooser(root: Root, run: str, page: str) -> html.Details:
    """The runs to choose from, the one that is shown on top.

    Args:
        root: where they are.
        run: that is shown.
        page: that stays while the run changes.

    Returns:
        Component.
    """
    rows = [
        html.Li(
            dcc.Link([html.Span(name), html.Span(state_of(root.path / name), className="soft")], href=f"/{page}{search_of({'run': name})}")
        )
        for name in root.names()
    ]
    shown = html.Summary([html.Span("run", className="soft"), html.Strong(run), html.Span(state_of(root.path / run), className="soft")])
    return html.Details([shown, html.Ul(rows)], className="runs")


def icon() -> str:
    """The sign of the page's tab, within the page: an icon with an address is fetched anew with every move of a slider.

    Returns:
        Address that holds the picture, as it stands in an attribute: goodput that rises, stands, and falls behind its setpoint.
    """
    drawn = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'><rect width='16' height='16' rx='3' fill='{LIGHT['tuned']}'/>"
        "<path d='M3 13 10 4.5 13 12' fill='none' stroke='#fff' stroke-width='2' stroke-linejoin='round' stroke-linecap='round'/></svg>"
    )
    return f"data:image/svg+xml,{quote(drawn)}"


def document() -> str:
    """The page that Dash fills, with the report's look.

    Returns:
        HTML with Dash's placeholders.
    """
    report = (resources.files("headway.report") / "assets" / "report.css").read_text(encoding="utf-8")
    own, script = ((resources.files("headway.web") / "assets" / f"workbench.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n{%metas%}\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<title>{%title%}</title>\n'
        f'<link rel="icon" href="{icon()}">\n{{%css%}}\n'
        f"<style>\n{variables()}{report}{own}</style>\n</head>\n<body>\n"
        "{%app_entry%}\n<footer>\n{%config%}\n{%scripts%}\n{%renderer%}\n</footer>\n"
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )
