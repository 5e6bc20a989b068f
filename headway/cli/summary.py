"""The one screen that a finished run ends with."""

from __future__ import annotations

from typing import Any

from headway.cli.terminal import change, ms, percent, table
from headway.cli.tuned import bound_summary
from headway.cli.words import engine_line, note_lines, rows_line, settings_text, verdict_lines


def summary_lines(data: dict[str, Any]) -> list[str]:
    """One screen for a finished run.

    Args:
        data: as `collected`.

    Returns:
        Lines, the path of the report last.
    """
    plant, tuning, check = data["plant"], data["tuning"], data["validation"]
    held, law = plant["heldout"] or {}, data["gains"]
    margin = law.get("margin", {}).get("value")
    budget_ms, setpoint_ms = 1e3 * data["budget_s"], 1e3 * data["setpoint_s"]
    early, measured = tuning["gain_over_timeout"], "" if check["outcome"] == "invalid" else f"; {change(check['gain'])} {_seen(check)}"
    better = "better" if tuning["outcome"] == "better" else "no better"
    lines = [
        rows_line(plant["rows"]),
        engine_line(plant["engine"]),
        f"plant      error held out {percent(held.get('mape'))} (decode {percent(held.get('mape_decode'))}, "
        f"with prefill {percent(held.get('mape_mixed'))})"
        + (", too much to tune on with confidence" if (held.get("mape") or 0) > DOUBTFUL else ""),
        f"tuned      {_law_text(law, margin, setpoint_ms, budget_ms)}, "
        f"aging rate {data['policy']['aging_rate']['value']:.2g} s/s; {better} than the best static setting",
        f"static     best of its grid: {settings_text(tuning['best_static']['settings'])}",
        *table(_contest(data), indent="           "),
        *_withheld(check),
        f"gain       share of tokens on time {change(tuning['gain'], tuning['gain_ci95'])} over it, predicted on held-out seeds"
        f"{measured}; {change(early)} over it with a queue timeout",
        *bound_summary(tuning),
        *verdict_lines(check),
    ]
    refused = ["the controller may not ship: export/refused.txt says why"] if "export/refused.txt" in data["export"] else []
    notes = [*refused, *tuning["warnings"], *check["notes"], *plant["warnings"]]
    return [*lines, *note_lines(notes, 5), f"report     {data['report']}"]


DOUBTFUL = 0.25
"""Held-out error of a plant above which its conclusions are doubtful."""


def _seen(check: dict[str, Any]) -> str:
    return "simulated again with other seeds" if check["engine"] == "sim" else "measured"


def _first_token(side: dict[str, Any]) -> str:
    """The p99 of TTFT; where it has no point, what it is at least."""
    value, low = side["ttft_s"]["p99"], (side["ci95"]["ttft_s"]["p99"] or [None])[0]
    return f"over {ms(low)}" if value is None and low is not None else ms(value)


def _withheld(check: dict[str, Any]) -> list[str]:
    """Why a p99 of TTFT is not given as a point."""
    why = {check[side]["refused"].get("ttft_s.p99") for side in ("controller", "best_static")} - {None}
    return [f"           (no one value for p99 TTFT: {reason})" for reason in sorted(why)]


def _contest(data: dict[str, Any]) -> list[tuple[str, ...]]:
    check, targets = data["validation"], data["targets"]
    sides = [check["controller"], check["best_static"]]
    expected = [check["predicted"]["controller"], check["predicted"]["best_static"]]
    rows: list[tuple[str, ...]] = [(f"{_seen(check)} (predicted)", "controller", "best static", "promised")]
    one = targets[0] if len(targets) == 1 else None
    promised = {"attainment": percent(1 - one["epsilon"], 0), "itl": ms(one["itl_s"]), "ttft": ms(one["ttft_s"])} if one else {}
    pair = lambda show: [f"{show(s)} ({show(e)})" for s, e in zip(sides, expected, strict=True)]  # noqa: E731
    rows.append(("tokens on time", *pair(lambda s: percent(s["attainment"])), promised.get("attainment", "")))
    rows.append(("clean requests", *pair(lambda s: percent(s["request_attainment"])), ""))
    rows.append(("goodput, tok/s", *pair(lambda s: f"{s['goodput_tps']:,.0f}"), ""))
    if one:
        rows.append(("p99 ITL", *pair(lambda s: ms(s["itl_s"]["p99"])), promised["itl"]))
        rows.append(("p99 TTFT", *pair(_first_token), promised["ttft"]))
    rows.append(("shed", *pair(lambda s: percent(s["shed"])), ""))
    for t in targets if one is None else []:
        for label, key, show, promise in (
            ("on time", "attainment", percent, percent(1 - t["epsilon"], 0)),
            ("p99 ITL", "itl_p99_s", ms, ms(t["itl_s"])),
            ("p99 TTFT", "ttft_p99_s", ms, ms(t["ttft_s"])),
            ("shed", "shed", percent, ""),
        ):
            of = lambda side, t=t: side["classes"].get(t["name"], {})  # noqa: E731
            cells = [f"{show(of(s).get(key))} ({show(of(e).get(key))})" for s, e in zip(sides, expected, strict=True)]
            rows.append((f"{t['name']}: {label}", *cells, promise))
    return rows


def _law_text(law: dict[str, Any], margin: float | None, setpoint_ms: float, budget_ms: float) -> str:
    """What the law steers to: a margin that was chosen, or a late rate from which it finds its own; a budget, where it cannot move."""
    least, most = (law.get(name, {}).get("value") for name in ("least_tokens", "most_tokens"))
    if least and most and least >= most:
        return f"a fixed budget of {most:,.0f} prompt tokens a step"
    if "late_rate" not in law:
        return f"margin {percent(margin)} (a step is steered to {setpoint_ms:.1f} ms of {budget_ms:.1f})"
    beside = f", margin {percent(margin)} beside it" if margin else ""
    return f"late rate {percent(law['late_rate']['value'])}{beside} (the margin is found as it runs, from {setpoint_ms:.1f} ms of {budget_ms:.1f} on)"
