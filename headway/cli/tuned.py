"""What tuning found, in words that fit 80 columns: contenders, what is required and kept, the bound, what each part brings, the search."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from headway.cli.sides import CLASS_TAILS, SIDE_ROWS, class_rows, event_rows
from headway.cli.terminal import change, ms, percent, rounded, table, unsigned_zero
from headway.tails import refusals

DRAWN = {"jointly": "jointly, as the fit's bootstrap holds them", "apart": "one coefficient at a time, further apart than the trace allows"}
"""How plants were drawn, by the word of `headway.experiments.robust`; not imported from there, since that would load JAX."""

SOFT, SLIGHT = "estimate, not proved", 5e-4
"""What is said of the estimate; by so much less than the controller attains it is too low."""

WIDTH = 79
"""Columns that are written: a terminal of 80 breaks none of these lines."""

HELD = "\N{NO-BREAK SPACE}"
"""Between a number and its unit while lines are broken."""

INDENT = 11
"""Columns of the word that a line begins with."""

SETTING_UNITS = {
    "tolerance": "x ttft",
    "timeout": "x ttft",
    "aging_rate": "s/s",
    "chunk_tokens": "tokens",
    "running_limit": "requests",
    "lookahead_steps": "steps",
    "prior_output_tokens": "tokens",
    "prior_requests": "requests",
    "prefill_every": "steps",
    "decode_every": "steps",
    "stride": "x ITL budget",
    "priority": "s",
    "memory_price_s": "s/block",
    "shed_cap": "of arrivals",
    "least_tokens": "tokens",
    "most_tokens": "tokens",
    "slew_tokens": "tokens",
    "initial_tokens": "tokens",
    "quantum_tokens": "tokens",
    "slope_s_per_token": "s/token",
    "token_budget": "tokens",
}
"""Unit of a setting, where it has one, as `headway.controllers.record` has it; not imported from there, since that would load JAX."""

TAIL_ROWS = (("TTFT p99", "ttft_s"), ("ITL p99", "itl_s"))
"""Quantiles that are shown; others, and their intervals, are in the report and in the file."""

OBJECTIVES = {"attainment": "of the tokens on time", "requests": "clean requests", "capacity": "capacity"}
"""What a figure is of, by the objective."""

BETTER = "better than constants"
"""Of a schedule that is kept, as `headway.experiments.gain_training` says it; not imported from there, since that would load JAX."""

CONTENDERS = {"controller": "controller", "best_static": "best static", "best_timeout": "+ timeout", "any_static": "any static"}
"""Who has a knee; the last is the best start-up setting of each load."""


def said(word: str, text: str) -> list[str]:
    """A sentence behind its word, broken where a narrow terminal would.

    Args:
        word: that it begins with.
        text: the sentence.

    Returns:
        Lines.

    Example:
        >>> said("knees", "a b")
        ['knees      a b']
    """
    kept = re.sub(r"(?<=\d) (?=(?:ms|s|tokens|requests)\b|%)", HELD, text)
    lines = textwrap.wrap(kept, WIDTH - INDENT, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"{(word, '')[k > 0]:{INDENT - 1}} {line}".replace(HELD, " ") for k, line in enumerate(lines)]


def noted(notes: Sequence[str]) -> list[str]:
    """What should be known besides, broken where a narrow terminal would.

    Args:
        notes: sentences.

    Returns:
        Lines.
    """
    wrap = lambda text: textwrap.wrap(f"note: {text}", WIDTH, subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False)  # noqa: E731
    return [line for text in notes for line in wrap(text)]


def contest_table(sides: Mapping[str, dict[str, Any]]) -> list[str]:
    """Contenders side by side, narrow enough for a terminal of 80 columns.

    Args:
        sides: by heading, each as `headway simulate --json`.

    Returns:
        Lines; why a quantile is refused behind them.
    """
    every, all_of = list(sides.values()), lambda show: tuple(show(s) for s in sides.values())
    rows: list[tuple[str, ...]] = [("", *sides)]
    rows += [(label, *all_of(lambda s, n=name, f=show: f(s[n]))) for label, name, show in SIDE_ROWS if name != "throughput_tps"]
    rows += event_rows(every)
    rows += [(label, *all_of(lambda s, n=name: _p99(s, n))) for label, name in TAIL_ROWS]
    rows.append(("longest gap", *all_of(lambda s: ms(s["max_gap_s"]))))
    shown = {name: _only_p99(side) for name, side in sides.items()}
    return [*table([*rows, *class_rows(every)]), *(line for why in refusals(shown, CLASS_TAILS) for line in said("", why))]


def _p99(side: Mapping[str, Any], name: str) -> str:
    """The 99th percentile; where it has no point, what it is at least."""
    value, ends = side[name]["p99"], ((side.get("ci95") or {}).get(name) or {}).get("p99")
    low = ends[0] if ends else None
    return f"over {ms(low)}" if value is None and low is not None else ms(value)


def _only_p99(side: Mapping[str, Any]) -> dict[str, Any]:
    """What is refused of those quantiles that are shown."""
    mine = lambda refused: {k: v for k, v in (refused or {}).items() if k in CLASS_TAILS}  # noqa: E731
    classes = {name: {**of, "refused": mine(of.get("refused"))} for name, of in (side.get("classes") or {}).items()}
    return {**side, "refused": mine(side.get("refused")), "classes": classes}


def settings_lines(settings: Mapping[str, Any]) -> list[str]:
    """What a person would set.

    Args:
        settings: value by name.

    Returns:
        Lines.
    """
    show = lambda v: f"{v:.4g}" if isinstance(v, float) else f"{v}"  # noqa: E731
    known = [HELD.join([k, show(v), *SETTING_UNITS.get(k.partition(".")[0], "").split()]) for k, v in settings.items() if v is not None]
    return said("settings", ", ".join(known))


def gain_lines(tuning: Mapping[str, Any]) -> list[str]:
    """What was gained over both static settings.

    Args:
        tuning: as `headway tune --json`, without the controller.

    Returns:
        Two lines.
    """
    what = OBJECTIVES[tuning["objective"]]
    return [
        f"gain       {change(tuning['gain'], tuning['gain_ci95'])} {what} over it, held out",
        f"           {change(tuning['gain_over_timeout'], tuning['gain_over_timeout_ci95'])} over it with a queue timeout",
    ]


def bound_lines(tuning: Mapping[str, Any]) -> list[str]:
    """How far the controller is from what nobody exceeds: what is proved, what is estimated, what was run.

    Args:
        tuning: as `headway tune --json`, without the controller.

    Returns:
        Lines; one where the bound was not looked at.
    """
    found = tuning.get("bound")
    if not found:
        return ["bound      not looked at; --bound does"]
    many = f"{found['windows']} window{'s' * (found['windows'] != 1)}"
    values = {
        "attainment": "no policy attains more (proved): {share} of the bound",
        "estimate": f"a scheduler that knows the load ({_estimated(found)})",
    }
    values |= {
        "told_whom_to_shed": "the controller, told whom to shed (a run)",
        "attained": "the controller; all on {many} of {requests:,} requests",
    }
    told = {**found, "share": percent(found["share"]), "many": many}
    lines = [f"{('bound', '')[k > 0]:10} {percent(found[name]):>7}  {text.format(**told)}" for k, (name, text) in enumerate(values.items())]
    return [*lines, *(_out_of_reach(found) if found["ruled_out"] else [])]


def _estimated(found: Mapping[str, Any]) -> str:
    """How the estimate is to be read: it takes a steady mix of steps for granted, which a burst at the right moment beats."""
    return SOFT if found["estimate"] >= found["attained"] - SLIGHT else "estimate, too low here"


def bound_summary(tuning: Mapping[str, Any]) -> list[str]:
    """The same in few words, for the one screen that a run ends with.

    Args:
        tuning: as `headway tune --json`, without the controller.

    Returns:
        One line, two of a target out of reach; none where the bound was not looked at.
    """
    found = tuning.get("bound")
    if not found:
        return []
    about = f"{percent(found['share'])} of what no policy exceeds (proved); one that knows the load: about {percent(found['estimate'])} "
    about += "(estimate)" if _estimated(found) == SOFT else f"({_estimated(found)})"
    asked = f"{100 * found['promise']:g} %"
    out = f"target     OUT OF REACH: no policy attains {asked}; `headway tune --bound` names the smallest change that helps"
    return [f"bound      {about}", *([out] if found["ruled_out"] else [])]


def _out_of_reach(found: Mapping[str, Any]) -> list[str]:
    """A promise that nobody can keep, with the smallest changes that would do, where they were looked for."""
    asked, most = f"{100 * found['promise']:g} %", percent(found["attainment"])
    head = f"OUT OF REACH: no policy attains {asked} on these windows, at most {most}"
    if found["changes"] is None:
        return said("target", f"{head}; --bound names the smallest change that helps")
    if not found["changes"]:
        return said("target", f"{head}; whatever the noise: {found['verdict']}")
    return [
        *said("target", f"{head}; the smallest change with which it is not ruled out:"),
        *(f"{'':{INDENT}}{text}" for text in found["changes"]),
    ]


def part_lines(tuning: Mapping[str, Any]) -> list[str]:
    """What each part of the controller brings.

    Args:
        tuning: as `headway tune --json`, without the controller.

    Returns:
        A small table; nothing where it was not looked at.
    """
    found = tuning.get("ablation")
    if not found:
        return []
    off = f"not in use: {', '.join(found['off'])}"
    if not found["parts"]:
        return said("parts", off)
    rows: list[tuple[str, ...]] = [("what each brings, in points", "tokens on time", "clean")]
    for part in found["parts"]:
        value, (low, high) = part["attainment"]["value"], part["attainment"]["ci95"]
        rows.append((part["part"], f"{_signed(value)} [{_signed(low)}, {_signed(high)}]", _signed(part["clean"]["value"])))
    lines = [*table(rows, indent=" " * INDENT), *(said("", off) if found["off"] else [])]
    return [f"{'parts':{INDENT}}{lines[0][INDENT:]}", *lines[1:]]


def look_lines(tuning: Mapping[str, Any]) -> list[str]:
    """What was looked at because it was asked for: knees, trade-off, plant error, parts that never acted.

    Args:
        tuning: as `headway tune --json`, without the controller.

    Returns:
        Lines.
    """
    lines = []
    knees = (tuning.get("knees") or {}).get("of") or {}
    if knees:
        share = percent(next(iter(knees.values()))["share"], 0)
        rows: list[tuple[str, ...]] = [(f"{share} on time up to, requests/s", "")]
        rows += [(CONTENDERS.get(str(name), str(name)), _knee(one)) for name, one in knees.items()]
        told = table(rows, indent=" " * INDENT)
        lines += [f"{'knees':{INDENT}}{told[0][INDENT:]}", *told[1:]]
    for word, key in (("trade", "pareto"), ("plant off", "plant_error"), ("elsewhere", "shift"), ("acted", "fired")):
        if tuning.get(key):
            lines += said(word, tuning[key]["sentence"])
    return lines


def _knee(one: Mapping[str, Any]) -> str:
    """A knee with its interval, or which end of the search it lies beyond."""
    rate = f"{one['rate_rps']:.3g}"
    if one["outcome"] != "found":
        return f"{one['outcome']} {rate}"
    ends = ["?" if end is None else f"{end:.3g}" for end in one["ci95_rps"]]
    return f"{rate} [{', '.join(ends)}]"


def _signed(share: float | None) -> str:
    """A difference of shares in points."""
    return "?" if share is None or share != share else rounded(100 * share, sign="+")


def schedule_lines(tuning: Mapping[str, Any]) -> list[str]:
    """What gains that follow the load bring over constants, and whether they are kept.

    Args:
        tuning: as `headway tune --json`, without the controller.

    Returns:
        Lines; none where no schedule was asked for.
    """
    found = tuning.get("schedule")
    if not found:
        return []
    if not found["names"]:
        return said("schedule", found["slopes"])
    axes = "the queue" if found["kind"] == "queued" else "queue, decodes and cache"
    *others, last = found["names"]
    names = f"{', '.join(others)} and {last}" if others else last
    kept = f"{names} follow{'' if others else 's'} {axes}" if found["verdict"] == BETTER else f"not kept ({names} over {axes})"
    return [*said("schedule", f"{kept}: {_against_constants(found, tuning['objective'])}"), *said("", found["slopes"])]


def _against_constants(found: Mapping[str, Any], objective: str) -> str:
    """A schedule beside the best constants that the same training found."""
    if found["train_schedule"] == found["train_constant"]:
        return f"none of {found['tried']} schedules did better in training than the best constants"
    (low, high), capacity = found["gain_ci95"], objective == "capacity"
    show = (lambda x: f"{x:.3g}") if capacity else percent
    moved = (lambda x: "?" if x is None or x != x else unsigned_zero(f"{x:+.2g}")) if capacity else _signed
    what = "requests/s carried" if capacity else OBJECTIVES[objective]
    points = f"{moved(found['gain'])}{'' if capacity else ' points'} [{moved(low)}, {moved(high)}]"
    return f"{show(found['schedule'])} {what}, {show(found['constant'])} with the best constants, {points}, held out"


def required_lines(tuning: Mapping[str, Any]) -> list[str]:
    """Requirements, and what became of them on the held-out seeds.

    Args:
        tuning: as `headway tune --json`, without the controller.

    Returns:
        One line each.
    """
    mark = lambda one: "kept" if one["kept"] else "NOT kept"  # noqa: E731
    return [f"required   {one['said']}: {mark(one)}, held out" for one in tuning.get("required") or []]


def search_lines(tuning: Mapping[str, Any]) -> list[str]:
    """How it was looked for: held-out seeds, slopes, other plants, what was taken over from one that was interrupted.

    Args:
        tuning: as `headway tune --json`, without the controller.

    Returns:
        Lines; each sentence once.
    """
    lines = said("held out", tuning["heldout_said"]) if tuning.get("heldout_said") else []
    for sentence in dict.fromkeys(tuning.get("slopes") or []):
        lines += said("slopes", sentence)
    robust = tuning.get("robust")
    if robust:
        of = "all runs" if robust["tail"] is None else f"the worst {percent(robust['tail'], 0)} of the runs"
        drawn = f", drawn {DRAWN[robust['drawn']]}" if robust.get("drawn") in DRAWN else ""
        lines += said(
            "robust",
            f"on {robust['plants']} other plants that the trace allows{drawn}, mean of {of}: {percent(robust['controller'])}, "
            f"best static {percent(robust['best_static'])}",
        )
    for what, of in (("search", tuning), ("training of the schedule", tuning.get("schedule") or {})):
        if of.get("resumed"):
            lines.append(f"resumed    {of['resumed']} answers of an interrupted {what} were taken over")
    return lines
