"""What goodput hangs on, as figures with their sentences: the load, the batch, the tail; and what can be had beside one number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.experiments.batches import batch_curve
from headway.report.data import Findings, dig, distribution_of
from headway.report.figures import CONTENDERS, Curve, against_load, tail
from headway.report.goodput_figures import against_batch, batch_sentence, bound_bars
from headway.report.opened import Opened
from headway.report.panels import NOT_TUNED, NOT_VALIDATED, Lack, Panel, Shown, unsimulated
from headway.report.sentences import attainment_sentence, goodput_sentence, itl_sentence, ttft_sentence
from headway.report.text import escape, number, sentence
from headway.report.trade import (
    ablation_sentence,
    ablation_table,
    error_table,
    fired_table,
    front_figure,
    knee_table,
    ladder_figure,
    reach_sentence,
    shift_table,
)

LOOKS = {
    "bound": ("the distance to the bound that no policy exceeds", "--bound", ""),
    "ablation": ("what each part brings", "", ""),
    "knees": ("the knees", "--analyse", "knee"),
    "pareto": ("the Pareto front of first tokens against gaps", "--analyse", "pareto"),
    "plant_error": ("the lead under plant error", "--analyse", "plant-error"),
    "shift": ("traffic that it was not tuned on", "--analyse", "shift"),
    "fired": ("which parts acted", "--analyse", "parts"),
}
"""Field of a tuning: what it holds, and the option of `headway tune` that asks for it with its name there."""


def load_panels(found: Findings) -> list[Shown]:
    """Attainment and goodput against load.

    Args:
        found: the run.

    Returns:
        Two panels.
    """
    if found.controller is None:
        return [NOT_TUNED]
    curve = dig(found.controller, "tuning", "load_curve")
    if not dig(curve, "rate_rps") or None in curve["rate_rps"]:
        return [Lack("The controller was tuned without a look at other loads.", "tune")]
    epsilon = found.epsilon if found.epsilon is not None else 0.01
    marks = {"tuned_rps": found.tuned_rps, "hull_rps": dig(curve, "hull_rps")}
    return [
        Panel("attainment-load", against_load(curve, measure="attainment", epsilon=epsilon, **marks), attainment_sentence(curve, epsilon)),
        Panel("goodput-load", against_load(curve, measure="goodput_tps", **marks), goodput_sentence(curve, found.tuned_rps)),
    ]


def tail_panels(found: Findings) -> list[Shown]:
    """TTFT and ITL distributions, measured and predicted, against the target.

    Args:
        found: the run.

    Returns:
        Two panels.
    """
    data = found.validation
    if data is None:
        return [NOT_VALIDATED]
    parts: list[Shown] = []
    for name, key in (("TTFT", "ttft_s"), ("ITL", "itl_s")):
        curves = _curves(data, key)
        targets = {str(t.get("name")): float(t[key]) for t in found.targets if t.get(key)}
        said = ttft_sentence(data, list(targets.values())) if name == "TTFT" else itl_sentence(data, max(targets.values(), default=None))
        figure = tail(curves, name=name, targets_s=targets) if curves else None
        parts.append(Panel(f"{name.lower()}-tail", figure, said) if figure else Lack(f"No {name} was measured.", "validate"))
    return parts


def _curves(data: Any, key: str) -> Sequence[Curve]:
    found = []
    for contender in ("best_static", "controller"):
        for predicted, side in ((False, dig(data, contender)), (True, dig(data, "predicted", contender))):
            share, value = distribution_of(side, key)
            if share:
                found.append(Curve(contender, share, value, predicted))
    return found


def batch_panels(found: Opened) -> list[Shown]:
    """Throughput and goodput of a stock engine against its running limit, beside the tuned controller.

    Args:
        found: plant, controller and loads.

    Returns:
        One panel.
    """
    record = found.record
    if not found.draws:
        return [unsimulated("Goodput against batch", found)]
    settings = (record.tuning.get("best_static") or {}).get("settings") or {}
    budget = int(settings.get("token_budget") or record.limits.max_tokens)
    curve, own_tps = batch_curve(found.identified, found.draws, record.targets, record.limits, budget, beside=record.candidate)
    return [Panel("batch", against_batch(curve, own_tps), batch_sentence(curve, own_tps))]


def bound_panels(found: Findings) -> list[Shown]:
    """The distance to the bound.

    Args:
        found: the run.

    Returns:
        One panel; nothing where it was not computed.
    """
    bound = dig(found.controller, "tuning", "bound")
    if number(dig(bound, "attainment")) is None or number(dig(bound, "attained")) is None:
        return []
    return [Panel("bound", bound_bars(bound), sentence(bound.get("sentence") or "The controller beside the bound"))]


def front_panels(found: Findings) -> list[Shown]:
    """First tokens in time against their tokens in time: the Pareto front of the controller and that of the static settings.

    Args:
        found: the run.

    Returns:
        One panel; nothing where it was not computed.
    """
    front = dig(found.controller, "tuning", "pareto")
    if not isinstance(front, Mapping):
        return []
    said = sentence(front.get("sentence") or "What can be had of both promises")
    if not front.get("points") and not front.get("static"):
        return [Lack(said)]
    return [Panel("front", front_figure(front), f"{said} {HOLLOW}")]


HOLLOW = "Up and to the right is better; bars are 95 % intervals on held-out seeds, and a hollow point is beaten there by another."


def error_panels(found: Findings) -> list[Shown]:
    """The lead under plant error.

    Args:
        found: the run.

    Returns:
        One panel; nothing where it was not computed.
    """
    error = dig(found.controller, "tuning", "plant_error")
    if not dig(error, "rows"):
        return []
    return [Panel("ladder", ladder_figure(error), sentence(error.get("sentence") or "The lead on plants that are off"))]


def not_looked(found: Findings) -> list[Shown]:
    """What was not looked at beside the result of tuning, and how to.

    Args:
        found: the run, tuned.

    Returns:
        One sentence, or none.
    """
    absent = [row for field, row in LOOKS.items() if not dig(found.controller, "tuning", field)]
    if not absent:
        return []
    words = [what for what, _, _ in absent]
    listed = " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    names = ",".join(name for _, option, name in absent if option == "--analyse")
    options = ["--bound"] * any(option == "--bound" for _, option, _ in absent) + [f"--analyse {names}"] * bool(names)
    return [Lack(f"Not computed: {listed}.", "tune", " ".join(options))]


def beside_parts(found: Findings) -> list[Shown | str]:
    """What one number hides: the bound, what parts bring, the knees, both promises, the lead under plant error, other traffic, dead parts.

    Args:
        found: the run, tuned.

    Returns:
        Figures, tables and sentences in order, the latter two as HTML; what was not looked at is named last, with the command that does.
    """
    bound, ablation, knees, error, other, acted = (
        dig(found.controller, "tuning", key) for key in ("bound", "ablation", "knees", "plant_error", "shift", "fired")
    )
    told = lambda text: f"<p>{escape(sentence(text))}</p>" if text else ""  # noqa: E731
    parts: list[Shown | str] = [*bound_panels(found), told(reach_sentence(bound or {}))]
    if ablation:
        parts.append(told(ablation_sentence(ablation)) + ablation_table(ablation))
    if dig(knees, "of"):
        parts.append(
            knee_table(knees["of"], {name: look[0] for name, look in CONTENDERS.items()} | {"any_static": "any static, at each load"})
        )
    parts += [*front_panels(found), *error_panels(found)]
    if error:
        parts.append(error_table(error))
    if other:
        parts.append(told(other.get("sentence")) + shift_table(other))
    if acted:
        parts.append(told(acted.get("sentence")) + fired_table(acted))
    return [part for part in (*parts, *not_looked(found)) if part]
