"""Goodput: against load, against batch, per class, and how far from what no policy can exceed."""

from __future__ import annotations

from typing import Any

from dash import html

from headway.experiments.batches import BatchCurve, batch_curve
from headway.report.commands import commands
from headway.report.data import dig
from headway.report.figures import against_load
from headway.report.goodput_figures import against_batch, batch_sentence, bound_bars
from headway.report.sentences import attainment_sentence, goodput_sentence
from headway.report.tables import side_table
from headway.report.text import number, percent
from headway.web.asked import Asked
from headway.web.cards import command_card, figure_card, note, side_by_side
from headway.web.markup import components
from headway.web.views import View, remembered

TITLE = "Goodput"
SEEDS = 4
NAMES = {"heldout": "tuned controller", "best_static": "best static", "best_timeout": "static + queue timeout"}


def page(asked: Asked) -> list[Any]:
    """The page.

    Args:
        asked: the run, and what the URL says.

    Returns:
        Components.
    """
    view, dark = asked.view, asked.dark
    if not view.has("tune"):
        return [note("This run has no controller yet; goodput appears once it is tuned.")]
    found = view.findings()
    tuning = dig(found.controller, "tuning") or {}
    body: list[Any] = []
    curve = tuning.get("load_curve") or {}
    if curve.get("rate_rps") and None not in curve["rate_rps"]:
        marks = {"tuned_rps": found.tuned_rps, "hull_rps": dig(curve, "hull_rps")}
        epsilon = found.epsilon if found.epsilon is not None else 0.01
        first = against_load(curve, measure="attainment", epsilon=epsilon, **marks)
        second = against_load(curve, measure="goodput_tps", **marks)
        body.append(
            side_by_side(
                [
                    figure_card("attainment-load", first, attainment_sentence(curve, epsilon), dark=dark),
                    figure_card("goodput-load", second, goodput_sentence(curve, found.tuned_rps), dark=dark),
                ]
            )
        )
    else:
        body.append(note("The controller was tuned without a look at other loads."))
    batch, controller_tps = remembered(("batch", *view.stamp("fit", "tune")), lambda: _batch(view))
    body.append(figure_card("batch", against_batch(batch, controller_tps), batch_sentence(batch, controller_tps), dark=dark))
    bound = number(dig(tuning, "bound", "attainment"))
    values = {name: float(tuning[key]["attainment"]) for key, name in NAMES.items() if dig(tuning, key, "attainment") is not None}
    if bound is not None and values:
        own = values.get(NAMES["heldout"], 0.0)
        said = f"The controller reaches {percent(own / bound)} of the bound, which no policy can exceed on this plant, load and target."
        body.append(figure_card("bound", bound_bars(values, bound), said, dark=dark))
    groups = {
        "tuning, held-out seeds, predicted": {name: tuning[key]["figures"] for key, name in NAMES.items() if dig(tuning, key, "figures")}
    }
    body.append(html.Section([html.H2("Per class and in all"), *components(side_table(groups, "What became of the promise"))]))
    return [*body, command_card(commands(view.path, found.manifest)["tune"])]


def _batch(view: View) -> tuple[BatchCurve, float | None]:
    record = view.record()
    settings = (record.tuning.get("best_static") or {}).get("settings") or {}
    budget = int(settings.get("token_budget") or record.limits.max_tokens)
    return batch_curve(view.identified(), view.drawn(SEEDS), record.targets, record.limits, budget, beside=record.candidate)
