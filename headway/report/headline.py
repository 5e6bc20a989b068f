"""The verdict in one line and the three numbers that matter, as far as the run has come."""

from __future__ import annotations

from typing import Any, NamedTuple

from headway.report.data import Findings, dig
from headway.report.scheduled import following, names_of, ranges, schedule_of
from headway.report.text import between, change, count, given, number, percent, time


class Card(NamedTuple):
    """One of the numbers that matter.

    Args:
        title: what it is.
        value: the number.
        notes: what stands beside it, one line each.
    """

    title: str
    value: str
    notes: list[str]


def about(found: Findings) -> str:
    """What was served and what was promised.

    Args:
        found: the run.

    Returns:
        One line; empty before tuning.
    """
    if found.controller is None:
        return ""
    spec, rate = dig(found.controller, "workload", "spec"), number(dig(found.controller, "workload", "rate_rps"))
    promises = []
    for t in found.targets:
        transport = f", transport {given(t['transport_s'])}" if t.get("transport_s") else ""
        name = f"{t.get('name')}: " if len(found.targets) > 1 else ""
        promises.append(f"{name}TTFT {given(t.get('ttft_s'))}, ITL {given(t.get('itl_s'))}{transport}")
    # a generator spec is shown whole, of a file only the name
    load = (str(spec).replace(",", ", ") if "=" in str(spec) else str(spec).rsplit("/", 1)[-1]) + (
        f" at {rate:g}/s" if rate is not None else ""
    )
    return f"Workload {load}. Target {'; '.join(promises)}; {percent(found.epsilon, 0)} of the tokens may be late."


def verdict(found: Findings) -> tuple[str, str, str]:
    """The outcome, as far as the run has come.

    Args:
        found: the run.

    Returns:
        (word, sentence, "good", "bad" or "open").
    """
    data, tuning = found.validation, dig(found.controller, "tuning")
    if data is not None:
        outcome, runs = str(data.get("outcome")), data.get("runs")
        own, static = (percent(dig(data, side, "attainment")) for side in ("controller", "best_static"))
        sides = f"{own} of the owed tokens on time, the best static setting {static}"
        how = f"on engine {data.get('engine')}" + (f" in {runs} paired run{'s' * (runs != 1)}" if isinstance(runs, int) else "")
        again = data.get("engine") == "sim"  # nothing was measured: the plant was simulated with other noise and arrivals
        seen = "Simulated again with other noise and arrivals" if again else "Measured"
        text = f"{seen} {how}, the controller put {sides}: a gain of {change(data.get('gain'))}{between(data.get('gain_ci95'))}."
        if outcome == "invalid":
            text = f"The validation {how} cannot say anything: a condition of the experiment itself failed (see below)."
        if outcome == "met" and uncertified(found):
            return f"{outcome}, {UNCERTIFIED}", f"{text} {REFUSED_SAID}", "open"
        return outcome, text, "good" if outcome == "met" else "bad"
    if found.controller is not None:
        outcome = str(dig(tuning, "outcome") or "tuned")
        gain = f"{change(dig(tuning, 'gain'))}{between(dig(tuning, 'gain_ci95'))}"
        who = "the controller gains" if schedule_of(found.controller) is None else "its constants, before gains followed the load, gain"
        text = f"Tuned and not yet validated. On held-out seeds {who} {gain} over the best static setting, as predicted."
        if outcome == "better" and uncertified(found):
            return f"{outcome}, {UNCERTIFIED}", f"{text} {REFUSED_SAID}", "open"
        return outcome, text, "open"
    return "identified", "There is a plant and no controller yet.", "open"


UNCERTIFIED = "not certified"
REFUSED_SAID = "Its certificate is refused, so it is not exported (see below)."


def uncertified(found: Findings) -> bool:
    """Whether the controller may not ship, however well it does.

    Args:
        found: the run.

    Returns:
        True where its export or its certificate was refused.
    """
    return found.refusal is not None or dig(found.controller, "tuning", "certificate", "verdict") == "refused"


def cards(found: Findings) -> list[Card]:
    """Plant error, what tuning chose, and what came of it.

    Args:
        found: the run.

    Returns:
        Three cards.
    """
    return [_error(found), _choice(found), _result(found)]


def _error(found: Findings) -> Card:
    score = dig(found.plant, "heldout") or {}
    notes = [f"decode {percent(score.get('mape_decode'))}, mixed {percent(score.get('mape_mixed'))}"]
    if score.get("steps") is not None:
        notes.append(f"mean over {count(score['steps'])} steps it had not seen")
    return Card("Plant error, held out", percent(score.get("mape")), notes)


def _choice(found: Findings) -> Card:
    record = found.controller
    budget, setpoint = number(dig(record, "budget_s")), number(dig(record, "setpoint_s"))
    margin = number(dig(record, "law", "gains", "margin", "value"))
    if margin is None and budget and setpoint is not None:
        margin = 1 - setpoint / budget
    aging = number(dig(record, "policy", "aging_rate", "value"))
    if record is None:
        return Card("Margin and aging rate", percent(None), ["not tuned yet"])
    low_high = {gain.name: ends for gain, ends in zip(following(record), _ends(record), strict=True)}
    worded = percent(margin) if "margin" not in low_high else "{:.1f} to {:.1f} %".format(*low_high["margin"])
    rate = "" if aging is None else f", {aging:.2f} s/s"
    rate = rate if "aging_rate" not in low_high else ", {:.2f} to {:.2f} s/s".format(*low_high["aging_rate"])
    least, most = (number(dig(record, "law", "gains", name, "value")) for name in ("least_tokens", "most_tokens"))
    steered = f"setpoint {time(setpoint)} of a budget of {given(budget)}" + (", in an idle engine" if "margin" in low_high else "")
    notes = [
        f"a fixed budget of {count(most)} prompt tokens a step" if least and most and least >= most else steered,
        f"law {dig(record, 'law', 'kind')}, order {dig(record, 'policy', 'order')}",
    ]
    return Card("Tuned margin, aging rate", worded + rate, notes + ([f"following the load: {names_of(record)}"] if low_high else []))


def _ends(record: Any) -> list[tuple[float, float]]:
    schedule = schedule_of(record)
    return ranges(record, schedule) if schedule else []


def _result(found: Findings) -> Card:
    data = found.validation
    tuning = dig(found.controller, "tuning")
    own, static = (dig(data, s) for s in ("controller", "best_static"))
    if data is None:
        own, static = dig(tuning, "heldout"), dig(tuning, "best_static")
    if not own:
        return Card("Attainment", percent(None), ["nothing served yet"])
    attained = lambda a, b: f"{percent(dig(a, 'attainment'))} : {percent(dig(b, 'attainment'))}"  # noqa: E731
    delivered = lambda a, b: f"{count(dig(a, 'goodput_tps'))} : {count(dig(b, 'goodput_tps'))} tokens/s"  # noqa: E731
    notes = [f"goodput {delivered(own, static)}"]
    if data is None and schedule_of(found.controller) is not None:
        notes.append("of its constants, before gains followed the load")
    ours, theirs = dig(data, "predicted", "controller"), dig(data, "predicted", "best_static")
    if ours and theirs:
        notes = [f"predicted {attained(ours, theirs)}", *notes, f"predicted {delivered(ours, theirs)}"]
    return Card("Attainment, controller : best static" + ("" if data else " (predicted)"), attained(own, static), notes)
