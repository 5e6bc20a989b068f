"""What can be had beside one number: what is out of reach, what parts bring, first tokens against gaps, knees, plant error, what never fired."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from headway.report.axes import blank, mark
from headway.report.data import dig
from headway.report.figures import CONTENDERS
from headway.report.tables import table
from headway.report.text import NONE, change, count, digits, number, percent, signed
from headway.report.theme import LIGHT

FRONTS = (("points", "tuned controller", "tuned", "circle", "solid"), ("static", "static settings", "static", "square", "dash"))
"""Fronts of a file: key, label, role of the colour, marker, dash."""


def front_figure(front: Mapping[str, Any]) -> go.Figure:
    """First tokens in time against their tokens in time: both fronts, with their intervals on held-out seeds.

    Args:
        front: as `headway.experiments.pareto.Front.to_json`.

    Returns:
        The figure; a point that another beats for certain on held-out seeds is hollow.
    """
    figure = blank(400)
    for key, name, role, symbol, dash in FRONTS:
        points = front.get(key) or []
        x, y = ([percent_of(dig(p, promise, "value")) for p in points] for promise in ("ttft", "itl"))
        bars = {}
        for axis, promise in (("error_x", "ttft"), ("error_y", "itl")):
            above, below = ([reach(dig(p, promise), end) for p in points] for end in (1, 0))
            bars[axis] = {"type": "data", "array": above, "arrayminus": below, "thickness": 1, "width": 0, "color": LIGHT[role]}
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines+markers",
            name=name,
            line={"color": LIGHT[role], "width": 1.5, "dash": dash},
            marker={"size": 8, "color": LIGHT[role], "symbol": [f"{symbol}-open" if p.get("beaten") else symbol for p in points]},
            text=[settings_of(p.get("settings") or {}) for p in points],
            hovertemplate=name + "<br>%{x:.1f} % of first tokens, %{y:.1f} % of tokens<br>%{text}<extra></extra>",
            **bars,
        )
    figure.update_xaxes(title_text="first tokens in time, % of requests")
    figure.update_yaxes(title_text="tokens in time, % of those owed to them")
    return figure


def ladder_figure(error: Mapping[str, Any]) -> go.Figure:
    """Held-out attainment of both contenders against how much slower steps are than fitted.

    Args:
        error: as `headway.experiments.plant_error.PlantError.to_json`.

    Returns:
        The figure.
    """
    figure = blank(340)
    rows = [r for r in error.get("rows") or [] if r.get("part") == "all"]
    x = [percent_of(r.get("error")) for r in rows]
    for key, contender in (("controller", "controller"), ("static", "best_static")):
        name, role, dash, symbol = CONTENDERS[contender]
        above, below = ([reach(r.get(key), end) for r in rows] for end in (1, 0))
        figure.add_scatter(
            x=x,
            y=[percent_of(dig(r, key, "value")) for r in rows],
            mode="lines+markers",
            name=name,
            line={"color": LIGHT[role], "width": 2.5, "dash": dash},
            marker={"size": 8, "symbol": symbol},
            error_y={"type": "data", "array": above, "arrayminus": below, "thickness": 1, "width": 3, "color": LIGHT[role]},
            hovertemplate=f"{name}<br>steps %{{x:+.0f}} %: %{{y:.1f}} %<extra></extra>",
        )
    lost = number(error.get("lost_at"))
    if lost is not None:
        figure.add_vline(x=100 * lost, line={"color": LIGHT["soft"], "width": 1.5, "dash": "dot"})
        mark(figure, "lead lost", x=100 * lost, y=0.02, xanchor="left", yanchor="bottom", colour=LIGHT["soft"])
    figure.update_xaxes(title_text="steps slower than fitted, %")
    figure.update_yaxes(title_text="attainment, % of owed tokens")
    return figure


def error_table(error: Mapping[str, Any]) -> str:
    """Every plant that was off by a known share.

    Args:
        error: as `headway.experiments.plant_error.PlantError.to_json`.

    Returns:
        HTML; plants drawn from the intervals are one row.
    """
    names = {"floor": "floor", "slopes": "slopes", "all": "all times"}
    spoken = lambda e: f"{percent(dig(e, 'value'))}{span_of(e)}"  # noqa: E731
    rows = error.get("rows") or []
    cells = [
        (f"{names[r['part']]} {change(r.get('error'), 0)}", spoken(r.get("controller")), spoken(r.get("static")), points(r.get("lead")))
        for r in rows
        if r.get("part") in names
    ]
    held = number(error.get("drawn_held"))
    if held is not None:
        drawn = [number(dig(r, "lead", "value")) for r in rows if r.get("part") == "drawn"]
        worst = min((x for x in drawn if x is not None), default=None)
        text = NONE if worst is None else f"least {signed(100 * worst)} points; above 0 on {percent(held, 0)}"
        cells.append((f"{len(drawn)} drawn from the intervals", "", "", text))
    notes = "".join(f" {text[:1].upper()}{text[1:]}." for text in error.get("notes") or [])
    about = f"Held-out attainment on plants that are not the one fitted.{notes}"
    return table(("plant off by", "controller", "best static", "lead"), cells, about)


def shift_table(shift: Mapping[str, Any]) -> str:
    """Traffic that the controller was not tuned on.

    Args:
        shift: as `headway.experiments.shift.Shift.to_json`.

    Returns:
        HTML, the traffic that does it most harm first.
    """
    rows = sorted(shift.get("rows") or [], key=lambda r: number(dig(r, "gain", "value")) or 0.0)
    spoken = lambda e: f"{percent(dig(e, 'value'))}{span_of(e)}"  # noqa: E731
    cells = [
        (
            f"{r.get('words') or NONE}{': ' + r['note'] if r.get('note') else ''}",
            f"{digits(r.get('rate_rps'))} req/s",
            spoken(r.get("controller")),
            spoken(r.get("fallback")),
            f"{change(dig(r, 'gain', 'value'))}{span_of(r.get('gain'))}",
        )
        for r in rows
    ]
    notes = "".join(f" Not tried: {text}." for text in shift.get("skipped") or [])
    about = f"Held-out attainment under other traffic, at the load of each of which the static setting attains 95 %.{notes}"
    return table(("other traffic", "at", "controller", "static fallback", "gain"), cells, about)


def knee_table(knees: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """The highest load that each carries.

    Args:
        knees: by name, each as `headway.experiments.knee.Knee.to_json`.
        names: what is shown for each name.

    Returns:
        HTML.
    """
    cells = []
    for key, one in knees.items():
        rate, ends = number(one.get("rate_rps")), one.get("ci95_rps") or [None, None]
        where = {"below": "below ", "above": "above "}.get(str(one.get("outcome")), "")
        known = [NONE if number(end) is None else f"{end:.3g}" for end in ends]
        interval = f" [{', '.join(known)}]" if not where and known != [NONE, NONE] else ""
        cells.append((names.get(key, key), NONE if rate is None else f"{where}{rate:.3g}{interval}"))
    share = next((percent(one.get("share"), 0) for one in knees.values()), NONE)
    return table(("", "requests/s"), cells, f"Knee: highest load at which {share} of the owed tokens are on time.")


def fired_table(fired: Mapping[str, Any]) -> str:
    """What of the controller acted, and what each part brings.

    Args:
        fired: as `headway.experiments.fired.Fired.to_json`.

    Returns:
        HTML; parts that are off are left out.
    """
    cells = []
    for part in fired.get("parts") or []:
        if part.get("on"):
            times = number(part.get("times"))
            counted = NONE if times is None else f"{times:,.0f} {part.get('unit') or ''}".rstrip()
            brings = (points(part.get(key)) for key in ("brings", "brings_clean"))
            cells.append((str(part.get("name")), "yes" if part.get("fired") else "never", counted, *brings))
    about = "Brings: with the part less without it, on the same arrivals. Parts do not add up: without one the others do more."
    return table(("part", "acted", "counted", "attainment it brings", "clean requests it brings"), cells, about)


def ablation_table(ablation: Mapping[str, Any]) -> str:
    """What each part of the controller brings.

    Args:
        ablation: as `headway.experiments.ablation.Ablation.to_json`.

    Returns:
        HTML.
    """
    cells = [
        (str(p.get("part")), str(p.get("instead")), percent(p.get("without")), points(p.get("attainment")), points(p.get("clean")))
        for p in ablation.get("parts") or []
    ]
    off = ablation.get("off") or []
    about = (
        f"What parts bring, in points: the whole controller ({percent(ablation.get('attainment'))}) less the controller with one part replaced, on the "
        f"same {count(ablation.get('draws'))} held-out workloads. They do not add up." + (f" Not in use: {', '.join(off)}." if off else "")
    )
    return table(("part", "replaced by", "attainment then", "attainment it brings", "clean requests it brings"), cells, about)


def ablation_sentence(ablation: Mapping[str, Any]) -> str:
    """Which parts the held-out workloads show to help, and which not.

    Args:
        ablation: as `headway.experiments.ablation.Ablation.to_json`.

    Returns:
        One sentence.
    """
    helping, harming, unsure = [], [], []
    for part in ablation.get("parts") or []:
        value, ends = number(dig(part, "attainment", "value")), dig(part, "attainment", "ci95") or [None, None]
        low, high = number(ends[0]), number(ends[1])
        name = str(part.get("part"))
        if value is not None and low is not None and low > 0:
            helping.append((value, f"{name} ({signed(100 * value)} points)"))
        elif value is not None and high is not None and high < 0:
            harming.append((value, f"{name} ({signed(100 * value)} points)"))
        else:
            unsure.append(name)
    said = [
        f"{word} {', '.join(text for _, text in sorted(some, reverse=True))}"
        for word, some in (("what brings tokens in time is", helping), ("tokens are lost by", harming))
        if some
    ]
    said += [f"no difference is shown for {', '.join(unsure)}"] if unsure else []
    return "; ".join(said) or "no part is in use that could be taken out"


def reach_sentence(bound: Mapping[str, Any]) -> str:
    """Whether the promise can be kept at all, and the smallest changes with which the bound allows it.

    Args:
        bound: as `headway.experiments.distance.Distance.to_json`.

    Returns:
        One sentence; empty where the bound rules nothing out.
    """
    if not bound.get("ruled_out"):
        return ""
    asked, changes = percent(bound.get("promise"), 0), bound.get("changes")
    said = f"the target is out of reach: no policy attains {asked} of the tokens in time on these windows, at most {percent(bound.get('attainment'))}"
    if changes is None:
        return f"{said}; `headway tune --bound` names the smallest change that helps"
    if not changes:
        return f"{said}; whatever the noise, {bound.get('verdict')}"
    return f"{said}; by the bound it is no longer ruled out {', or '.join(changes)}"


def percent_of(value: Any) -> float | None:
    """A share as a number of percent.

    Args:
        value: share; anything else is none.

    Returns:
        In percent.
    """
    known = number(value)
    return None if known is None else 100 * known


def reach(estimate: Any, end: int) -> float:
    """How far an interval reaches from its value.

    Args:
        estimate: {"value", "ci95"}.
        end: 0 for below, 1 for above.

    Returns:
        In percent; 0 where it is not known.
    """
    value, ends = number(dig(estimate, "value")), dig(estimate, "ci95")
    to = number(ends[end]) if isinstance(ends, list) and len(ends) == 2 else None
    return 0.0 if value is None or to is None else 100 * abs(to - value)


def span_of(estimate: Any) -> str:
    """The interval of a share.

    Args:
        estimate: {"value", "ci95"}.

    Returns:
        Such as " [91.0, 93.2]"; empty where it is not known.
    """
    ends = [number(end) for end in dig(estimate, "ci95") or []]
    if len(ends) != 2 or None in ends:
        return ""
    return " [" + ", ".join(signed(100 * end, ".1f") for end in ends if end is not None) + "]"


def points(estimate: Any) -> str:
    """A difference of shares.

    Args:
        estimate: {"value", "ci95"}.

    Returns:
        In points with its interval.
    """
    value = number(dig(estimate, "value"))
    return NONE if value is None else f"{signed(100 * value)}{span_of(estimate)}"


def settings_of(settings: Mapping[str, Any]) -> str:
    """Settings in a line.

    Args:
        settings: value by name.

    Returns:
        Names with their values, those that are known.
    """
    known = {name: number(value) for name, value in settings.items()}
    return ", ".join(f"{name} {value:.4g}" for name, value in known.items() if value is not None)
