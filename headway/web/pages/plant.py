"""Plant: measured against predicted, residuals, the ladder of structures, coefficients and what they mean."""

from __future__ import annotations

from typing import Any

from dash import html

from headway.report.commands import commands
from headway.report.data import REGIMES, dig
from headway.report.figures import measured_against_predicted, residual_distribution, residuals_in_order
from headway.report.identified import binding_table, coefficient_table, diagnostic_table, ladder_table
from headway.report.sentences import fit_sentence, margin_sentence, order_sentence
from headway.web.asked import Asked
from headway.web.cards import command_card, figure_card, note, side_by_side
from headway.web.markup import components

TITLE = "Plant"


def page(asked: Asked) -> list[Any]:
    """The page.

    Args:
        asked: the run, and what the URL says.

    Returns:
        Components.
    """
    view, dark = asked.view, asked.dark
    found = view.findings()
    steps, margins = found.steps, dig(found.plant, "margin") or {}
    body: list[Any] = [html.P(f"Structure {found.plant.get('structure')}.", className="about")]
    if steps is None:
        body.append(note("The trace is not in this run, so its steps cannot be drawn; the tables are complete."))
    else:
        fits, margin_figures = [], []
        for regime in REGIMES:
            mine, band = steps.of(regime), found.band(regime)
            if not mine.any():
                body.append(note(f"The trace holds no {regime} step."))
                continue
            said = fit_sentence(steps, regime, band, dig(found.plant, "heldout", f"mape_{regime}"))
            fitted = measured_against_predicted(steps.predicted_s[mine], steps.measured_s[mine], regime=regime, band=band)
            fits.append(figure_card(f"fit-{regime}", fitted, said, dark=dark))
            residual, margin = steps.residual[mine], margins.get(regime)
            ends = dig(found.plant, "margin_ci95", regime)
            said = margin_sentence(residual, regime, margin, dig(found.plant, "training", "epsilon"), ends)
            spread = residual_distribution(residual, regime=regime, margin=margin, band=found.band(regime))
            margin_figures.append(figure_card(f"margin-{regime}", spread, said, dark=dark))
        order = residuals_in_order(steps.place, steps.residual, steps.mixed)
        body += [side_by_side(fits), figure_card("residuals", order, order_sentence(steps), dark=dark), side_by_side(margin_figures)]
    sections = {
        "Ladder of structures": ladder_table(found.plant),
        "Coefficients": coefficient_table(found.plant),
        "What binds": binding_table(found.plant),
        "Diagnostics": diagnostic_table(found.plant),
    }
    body += [html.Section([html.H2(title), *components(text)]) for title, text in sections.items() if text]
    return [*body, command_card(commands(view.path, found.manifest)["fit"])]
