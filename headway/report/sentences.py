"""What each figure shows, said in words that are computed from its data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headway.report.axes import FURTHEST, MOST_POINTS, distribution_range, step_axis_end, thinned
from headway.report.data import Steps, dig, distribution_of
from headway.report.figures import BLOCK
from headway.report.text import between, change, count, given, number, percent, time
from headway.tails import tail

FEW = 10
"""Requests in the last thousandth below which a p99.9 is hardly known."""


def fit_sentence(steps: Steps, regime: str, band: tuple[float, float] | None, heldout: float | None) -> str:
    """What the scatter of measured against predicted shows.

    Args:
        steps: the trace against the plant.
        regime: "decode" or "mixed".
        band: the plant's 90 % band; None if unknown.
        heldout: mean error of the regime on blocks that a fit had not seen; None if unknown.

    Returns:
        Sentences.
    """
    residual = steps.residual[steps.of(regime)]
    if len(residual) == 0:
        return f"The trace holds no {regime} step."
    error = np.abs(np.expm1(-residual))
    text = f"{regime.capitalize()}: half of the {count(len(residual))} steps lie within {percent(np.median(error))} of the prediction"
    text += f", nine in ten within {percent(np.quantile(error, 0.9))}."
    if band is not None:
        inside = np.mean((residual >= band[0]) & (residual <= band[1]))
        text += f" The 90 % band holds {percent(inside)}."
    far = residual[np.argmax(np.abs(residual))]
    text += f" The furthest took {percent(abs(math.expm1(far)))} {'longer' if far > 0 else 'less'} than predicted."
    if heldout is not None:
        text += f" On blocks that the fit had not seen, the mean error is {percent(heldout)}."
    return text + thinning_sentence(len(residual), len(thinned(residual)))


def thinning_sentence(total: int, shown: int) -> str:
    """The rule by which points were left out, where some were.

    Args:
        total: points there are.
        shown: points drawn.

    Returns:
        A sentence with a space before it; empty if all are drawn.
    """
    if shown >= total:
        return ""
    every = math.ceil((total - FURTHEST) / (MOST_POINTS - FURTHEST))
    ordinal = {2: "second", 3: "third"}.get(every, f"{every}th")
    return f" Drawn are the {FURTHEST} steps furthest from the line and every {ordinal} of the others, {count(shown)} in all."


def order_sentence(steps: Steps) -> str:
    """Whether the plant drifts over the trace.

    Args:
        steps: the trace against the plant.

    Returns:
        Sentences.
    """
    residual = steps.residual
    quarter = max(len(residual) // 4, 1)
    ends = [math.expm1(float(np.median(part))) for part in (residual[:quarter], residual[-quarter:])]
    spread = math.expm1(float(np.subtract(*np.quantile(residual, [0.75, 0.25]))))
    verdict = (
        "more than the middle half of the steps scatters: the engine drifted"
        if abs(ends[1] - ends[0]) > spread
        else "no drift beyond the scatter"
    )
    text = f"The median residual is {change(ends[0])} in the first quarter of the trace and {change(ends[1])} in the last: {verdict}."
    middle = [math.expm1(float(np.median(residual[i : i + BLOCK]))) for i in range(0, len(residual), BLOCK)]
    text += f" Medians over {BLOCK} steps lie between {change(min(middle))} and {change(max(middle))}."
    if steps.total > steps.rows.get("read", steps.total):
        text += f" Of {count(steps.total)} rows, {count(steps.rows['read'])} in blocks spread evenly over the trace were looked at."
    return text


def margin_sentence(residual: np.ndarray, regime: str, margin: float | None, epsilon: float | None, ends: Any = None) -> str:
    """What margin the residuals call for.

    Args:
        residual: log(measured / predicted), shape (k,).
        regime: "decode" or "mixed".
        margin: as fitted; None where it is not known.
        epsilon: share of steps that the margin allows over the budget; None if unknown.
        ends: [low, high] of its 95 % interval; None if unknown.

    Returns:
        Sentences.
    """
    if len(residual) == 0:
        return f"The trace holds no {regime} step."
    if margin is None:
        return f"{regime.capitalize()}: too few steps to say what margin they call for."
    text = f"{regime.capitalize()}: {percent(epsilon, 0)} of the steps take more than {percent(1 / (1 - margin) - 1)} longer than predicted"
    text += f", which calls for a margin of {percent(margin)}{between(ends, percent)}."
    low, high = distribution_range(residual, margin)
    beyond = int(np.sum((100 * np.expm1(residual) < low) | (100 * np.expm1(residual) > high)))
    return text + (f" {count(beyond)} {'step lies' if beyond == 1 else 'steps lie'} beyond the ends of the axis." if beyond else "")


def capacity_rps(rates: Sequence[float], attainment: Sequence[float | None], epsilon: float) -> float | None:
    """Load up to which a contender keeps its promise, between the loads tried by straight lines.

    Args:
        rates: ascending, shape (k,) [requests/s].
        attainment: at each, shape (k,).
        epsilon: share that may be late.

    Returns:
        Load [requests/s]; None if it fails at the lightest load, infinity if it holds at the heaviest.
    """
    for k, value in enumerate(attainment):
        if value is None or value < 1 - epsilon:
            before = attainment[k - 1] if k else None
            if before is None or value is None:
                return rates[k - 1] if k else None
            return rates[k - 1] + (rates[k] - rates[k - 1]) * (before - (1 - epsilon)) / (before - value)
    return math.inf


def attainment_sentence(curve: Mapping[str, Any], epsilon: float) -> str:
    """Up to which load each contender keeps its promise.

    Args:
        curve: the load curve.
        epsilon: share that may be late.

    Returns:
        A sentence.
    """

    def reach(name: str) -> str:
        held = capacity_rps(curve["rate_rps"], dig(curve, name, "attainment") or [], epsilon)
        if held is None:
            return "at none of the loads shown"
        return f"at all loads shown, up to {max(curve['rate_rps']):.1f}/s" if math.isinf(held) else f"up to {held:.1f}/s"

    others = [("best_static", "the best static setting"), ("best_timeout", "the static setting with a queue timeout")]
    parts = [f"{label} {reach(name)}" for name, label in others if dig(curve, name, "attainment")]
    return (
        f"The tuned controller keeps {percent(1 - epsilon, 0)} of the tokens on time {reach('controller')}"
        + "".join(f", {p}" for p in parts)
        + "."
    )


def goodput_sentence(curve: Mapping[str, Any], tuned_rps: float | None) -> str:
    """What each contender delivers at the tuned load and at the heaviest.

    Args:
        curve: the load curve.
        tuned_rps: load that was tuned for [requests/s]; None if unknown.

    Returns:
        Sentences.
    """
    rates = curve["rate_rps"]

    def at(k: int) -> str:
        own, static, early = (
            number((dig(curve, n, "goodput_tps") or [None] * len(rates))[k]) for n in ("controller", "best_static", "best_timeout")
        )
        text = f"{count(own)} tokens/s on time"
        for value, label in ((static, "static"), (early, "static with a queue timeout")):
            if value is not None:
                text += f", {label} {count(value)}" + (
                    f" ({change(own / value - 1)} for the controller)" if own is not None and value > 0 else ""
                )
        return text

    tuned = min(range(len(rates)), key=lambda k: abs(rates[k] - (tuned_rps if tuned_rps is not None else rates[-1])))
    text = f"At the {'tuned load' if tuned_rps is not None else 'load'} of {rates[tuned]:.1f}/s the controller delivers {at(tuned)}."
    return text if tuned == len(rates) - 1 else f"{text} At the heaviest load shown, {rates[-1]:.1f}/s: {at(len(rates) - 1)}."


def ttft_sentence(validation: Mapping[str, Any], targets_s: Sequence[float]) -> str:
    """When first tokens came.

    Args:
        validation: content of validation.json.
        targets_s: TTFT targets [s].

    Returns:
        Sentences.
    """
    p99 = lambda *side: tail(dig(validation, *side), "ttft_s", "p99", time)  # noqa: E731
    text = f"Of the requests that were served, 99 % had their first token within {p99('controller')} with the controller"
    text += f" (predicted {p99('predicted', 'controller')}) and within {p99('best_static')} with the best static setting"
    text += f" (predicted {p99('predicted', 'best_static')}); the target is {' or '.join(given(t) for t in targets_s)}."
    why = dig(validation, "controller", "refused", "ttft_s.p99")
    if why:
        text = f"No p99 of the TTFT is given for the controller: {why}. The target is {' or '.join(given(t) for t in targets_s)}."
    for side, label in (("controller", "controller"), ("best_static", "static setting")):
        shed = number(dig(validation, side, "shed"))
        if shed:
            text += f" The {label} shed {percent(shed)}: its curve ends there."
    requests = number(dig(validation, "controller", "requests"))
    if requests is not None and requests / 1000 < FEW:
        last = "one request or less" if requests < 1500 else f"{requests / 1000:.0f} requests"
        text += f" With {count(requests)} requests, the last 0.1 % is {last}: read p99.9 with care."
    return text


def itl_sentence(validation: Mapping[str, Any], target_s: float | None) -> str:
    """How long clients waited between tokens.

    Args:
        validation: content of validation.json.
        target_s: longest gap promised [s]; None if unknown.

    Returns:
        Sentences.
    """
    p99 = lambda *side: tail(dig(validation, *side), "itl_s", "p99", time)  # noqa: E731
    text = f"99 % of the gaps are within {p99('controller')} with the controller (predicted {p99('predicted', 'controller')})"
    text += f" and within {p99('best_static')} with the best static setting (predicted {p99('predicted', 'best_static')})."
    over = [_above(dig(validation, side), target_s) for side in ("controller", "best_static")]
    if target_s is not None and all(over):
        text += f" Longer than the target of {given(target_s)} are {over[0]} against {over[1]} of the gaps."
    longest = [dig(validation, side, "max_gap_s") for side in ("controller", "best_static")]
    return text + f" The longest lasted {time(longest[0])} against {time(longest[1])}."


def share_above(side: Any, name: str, level_s: float | None) -> float | None:
    """Share of a distribution above a level.

    Args:
        side: of validation.json.
        name: "ttft_s" or "itl_s".
        level_s: [s]; None if unknown.

    Returns:
        The share, as exact as the curve, and no less than what lies beyond its end; None if it cannot be said.
    """
    shares, values = distribution_of(side, name)
    known = [(s, v) for s, v in zip(shares, values, strict=True) if v is not None]
    if level_s is None or not known:
        return None
    if known[-1][1] <= level_s:
        return 1 - known[-1][0]
    return 1 - float(np.interp(level_s, [v for _, v in known], [s for s, _ in known], left=0.0))


def _above(side: Any, level_s: float | None) -> str:
    share = share_above(side, "itl_s", level_s)
    if share is None:
        return ""
    return percent(share) if share > 1 - max(distribution_of(side, "itl_s")[0]) else f"at most {percent(share)}"


def loop_sentence(timeline: Mapping[str, Any], other: Mapping[str, Any], budget_s: float | None, setpoint_s: float | None) -> str:
    """Whether the loop held the step.

    Args:
        timeline: of the controller.
        other: of the best static setting; may be empty.
        budget_s: longest step that keeps the ITL promise [s]; None if unknown.
        setpoint_s: what the loop steers to [s]; None if unknown.

    Returns:
        Sentences.
    """
    step_s, bound = np.asarray(timeline["step_time_s"], float), np.asarray(timeline.get("binding") or [], float) == 3
    text = f"In the {count(len(step_s))} steps recorded"
    if budget_s is not None:
        text += f", {percent(np.mean(step_s > budget_s))} took longer than the budget of {given(budget_s)} with the controller"
        if other.get("step_time_s"):
            text += f" and {percent(np.mean(np.asarray(other['step_time_s'], float) > budget_s))} with the best static setting"
    if bound.any():
        text += (
            f"; the token budget was the limit in {percent(np.mean(bound))}, and those took {time(np.median(step_s[bound]))} in the median"
        )
        text += f" against a setpoint of {time(setpoint_s)}" if setpoint_s is not None else ""
    elif len(bound):
        text += "; the token budget was never the limit"
    text += "."
    above = int(np.sum(1e3 * np.asarray(other.get("step_time_s") or [], float) > step_axis_end(timeline, budget_s=budget_s, other=other)))
    if above:
        longest = time(max(other["step_time_s"]))
        text += f" {count(above)} {'step' if above == 1 else 'steps'} of the static setting, up to {longest}, {'lies' if above == 1 else 'lie'} above the axis."
    return text + " Drag the strip at the bottom to move through the run."
