"""What must not be overlooked: failed conditions, extrapolation, rows set aside, requests shed. Nothing is left out."""

from __future__ import annotations

from headway.cli.words import found_text
from headway.identification.rows import REASONS
from headway.notes import DOUBTS, gravity, ordered
from headway.report.data import Findings, dig
from headway.report.figures import CONTENDERS
from headway.report.sentences import capacity_rps
from headway.report.text import between, change, count, number, percent


def cautions(found: Findings) -> list[tuple[bool, str]]:
    """What must not be overlooked.

    Args:
        found: the run.

    Returns:
        (whether it puts the result in question, sentence), the grave ones first; notes that end alike are one.
    """
    grave = [*_of_verdict(found), *_of_tuning(found)]
    if found.refusal:
        grave.append(f"the controller may not be exported: {found.refusal}")
    notes = [*_of_rows(found), *_of_shedding(found)]
    for source, label in ((found.plant, "plant"), (dig(found.controller, "tuning"), "tuning")):
        for text in ordered(list(filter(None, dig(source, "warnings") or []))):
            (grave if gravity(text) <= DOUBTS else notes).append(f"{label}: {text}")
    notes += [f"validation: {text}" for text in dig(found.validation, "notes") or []]
    return [(True, text) for text in dict.fromkeys(grave)] + [(False, text) for text in dict.fromkeys(notes)]


def _of_verdict(found: Findings) -> list[str]:
    data = found.validation
    if data is None:
        return []
    text = []
    for kind, words in (("gates", "the experiment cannot say anything"), ("checks", "the promise of tuning did not hold")):
        for check in filter(None, data.get(kind) or []):
            if not check.get("ok"):
                value = "" if number(check.get("value")) is None else f"; found {found_text({'name': '', **check})}"
                text.append(f"{words}: {check.get('name')} ({check.get('bar')}{value})")
    attained = number(dig(data, "controller", "attainment"))
    if data.get("target_reached") is False and (attained is None or 1 - attained > (found.epsilon or 0)):
        share = percent(None if attained is None else 1 - attained)
        text.append(f"target not reached at this load: {share} of the owed tokens were late or never came, {percent(found.epsilon)} may be")
    if dig(data, "drift", "alarms"):
        text += [f"validation: {said}" for said in (dig(data, "drift", "said") or [])[:1]]
    return text


def _of_tuning(found: Findings) -> list[str]:
    tuning = dig(found.controller, "tuning")
    text = []
    if dig(tuning, "outcome") not in (None, "better"):
        text.append(
            f"tuning found nothing better than the best static setting: gain {change(dig(tuning, 'gain'))}{between(dig(tuning, 'gain_ci95'))}"
        )
    early, ends = number(dig(tuning, "gain_over_timeout")), dig(tuning, "gain_over_timeout_ci95")
    low = number(ends[0]) if isinstance(ends, list) and len(ends) == 2 else early
    if early is not None and low is not None and low <= 0:
        settings = dig(tuning, "best_timeout", "settings") or {}
        how = (
            f"a static token budget of {count(settings.get('token_budget'))} with a queue timeout"
            if settings
            else "a static setting with a queue timeout"
        )
        text.append(f"{how} does as well at the tuned load: the controller gains {change(early)}{between(ends)} over it")
    own, untuned = (number(dig(tuning, *side, "attainment")) for side in (("heldout",), ("untuned",)))
    if own is not None and untuned is not None and untuned >= own:
        text.append(
            f"the controller straight from the fit does as well on held-out seeds: attainment {percent(untuned, 2)} against {percent(own, 2)}"
        )
    text += _of_load(found)
    for side, label in (("controller", "with the controller"), ("best_static", "with the best static setting")):
        if dig(found.validation, side, "load") == "unstable":
            text.append(
                f"{label} the load is more than can be carried: over 5 % of the arriving prompt work is never served, queued or shed"
                + _in_numbers(found, side)
            )
        elif dig(found.validation, side, "load") == "uncertain":
            text.append(f"{label} nobody can say whether the load can be carried, so no TTFT is given as a point{_in_numbers(found, side)}")
    return text


def _in_numbers(found: Findings, side: str) -> str:
    said = dig(found.validation, side, "load_text")
    return f" ({said})" if said and said != dig(found.validation, side, "load") else ""


def _of_load(found: Findings) -> list[str]:
    """A controller that is best where it was tuned may still give way at a lighter overload than a static setting."""
    curve, epsilon = dig(found.controller, "tuning", "load_curve"), found.epsilon
    rates = dig(curve, "rate_rps")
    if not rates or None in rates or epsilon is None:
        return []
    reach = {name: capacity_rps(rates, dig(curve, name, "attainment") or [None], epsilon) or 0.0 for name in CONTENDERS}
    words = lambda rps: f"up to {rps:.1f}/s" if 0 < rps < max(rates) else "at all loads shown" if rps else "at none of the loads shown"  # noqa: E731
    better = [name for name in ("best_static", "best_timeout") if reach[name] > 1.02 * reach["controller"]]
    own = f"as load grows the controller gives way first: it keeps {percent(1 - epsilon, 0)} of the tokens on time {words(reach['controller'])}"
    return [own + "".join(f", {CONTENDERS[name][0]} {words(reach[name])}" for name in better)] if better else []


def _of_rows(found: Findings) -> list[str]:
    rows = dig(found.plant, "rows") or {}
    aside = dig(rows, "set_aside") or {}
    read = f"{count(rows.get('read'))} rows of the trace read, {count(rows.get('used'))} used for the fit"
    if not rows:
        return []
    if not aside:
        return [f"{read}, none set aside"]
    return [read] + [
        f"{count(n)} {'row' if n == 1 else 'rows'} set aside as {reason}: {REASONS.get(reason, 'no reason known')}"
        for reason, n in aside.items()
    ]


def _of_shedding(found: Findings) -> list[str]:
    text = []
    sides = (("controller", "controller"), ("best_static", "best static setting"))
    for side, label in sides:
        shed = (
            number(dig(found.validation, side, "shed"))
            if found.validation
            else number(dig(found.controller, "tuning", "heldout" if side == "controller" else side, "shed"))
        )
        if shed:
            how = (
                f" (triage: {dig(found.controller, 'policy', 'triage')})"
                if side == "controller" and dig(found.controller, "policy", "triage")
                else ""
            )
            text.append(f"the {label} shed {percent(shed)} of the requests{how}; their tokens count as late")
    return text
