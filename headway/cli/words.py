"""Results in words: what each command says to a person."""

from __future__ import annotations

from typing import Any

from headway.cli.fitted import binding_lines, coefficient_lines, ends_text, structure_lines
from headway.cli.served import compared_lines, others_lines
from headway.cli.sides import side_table
from headway.cli.terminal import change, ms, percent, warning_lines
from headway.cli.tuned import (
    bound_lines,
    contest_table,
    gain_lines,
    look_lines,
    noted,
    part_lines,
    required_lines,
    said,
    schedule_lines,
    search_lines,
    settings_lines,
)
from headway.notes import ordered


def rows_line(rows: dict[str, Any]) -> str:
    """What became of the rows.

    Args:
        rows: {"read", "used", "set_aside"}.

    Returns:
        One line.
    """
    aside = ", ".join(f"{n:,} {reason}" for reason, n in rows["set_aside"].items())
    return f"rows       {rows['read']:,} read, {rows['used']:,} used" + (f"; set aside: {aside}" if aside else ", none set aside")


def score_lines(score: dict[str, Any], title: str) -> list[str]:
    """Errors of a plant.

    Args:
        score: as `headway score --json`.
        title: what was scored.

    Returns:
        Lines.
    """
    lines = [
        f"{title:10} error {percent(score['mape'])} on {score['steps']:,} steps (decode {percent(score['mape_decode'])}, mixed "
        f"{percent(score['mape_mixed'])} on {score['steps_mixed']:,}); median {percent(score['median_ape'])}, one in ten above "
        f"{percent(score['p90_ape'])}, max {percent(score['max_ape'], 0)}"
    ]
    held = []
    for regime in ("decode", "mixed"):
        value, ends = score["coverage90"][regime]["value"], score["coverage90"][regime]["ci95"]
        if value is not None:
            held.append(f"{percent(value, 0)}{ends_text(ends, 0)} of the {regime} steps")
    return [*lines, *([f"coverage   the 90 % band holds {', '.join(held)}"] if held else [])]


FINDINGS = 10
"""Findings that a fit shows unless all are asked for."""


def fit_lines(data: dict[str, Any], out: str | None, *, every: bool = False) -> list[str]:
    """A fitted plant.

    Args:
        data: content of plant.json.
        out: where it was written.
        every: show every finding.

    Returns:
        Lines.
    """
    known = data.get("margin_ci95") or {}
    margins = [f"{r} {percent(v)}{ends_text(known.get(r))}" for r, v in data["margin"].items()]
    late = percent((data.get("training") or {}).get("epsilon", 0.01), 0)
    lines = [*structure_lines(data), *coefficient_lines(data["coefficients"]), rows_line(data["rows"])]
    if data["heldout"]:
        lines += score_lines(data["heldout"], "held out")
    lines += [f"margin     {', '.join(margins)}, for at most {late} of the steps late", *binding_lines(data), engine_line(data["engine"])]
    return [*lines, *note_lines(data["warnings"], 10**6 if every else FINDINGS, "with --all"), *([f"written    {out}"] if out else [])]


def engine_line(engine: dict[str, Any]) -> str:
    """The engine's limits as they were taken.

    Args:
        engine: of plant.json or controller.json.

    Returns:
        One line.
    """
    return (
        f"engine     KV {engine['kv_tokens']:,} tokens in blocks of {engine['block_tokens']}, at most {engine['max_seqs']} requests, "
        f"{engine['max_tokens']:,} tokens a step, {engine['max_len']:,} tokens a request"
    )


def counted(n: int, noun: str) -> str:
    """A number of things.

    Args:
        n: how many.
        noun: of one; more take an s.

    Returns:
        Such as "1 run", or "2 runs".
    """
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def found_text(check: dict[str, Any]) -> str:
    """What a check found, in its unit.

    Args:
        check: of validation.json.

    Returns:
        A word or two.
    """
    value, name = check["value"], check["name"]
    if value is None:
        return "nothing"
    if check.get("unit") == "points":
        return f"{100 * value:+.1f} points"
    if check.get("unit"):
        return ms(value) if check["unit"] == "s" else f"{value:,.0f} {check['unit']}"
    if name.startswith("p99 ITL"):
        return ms(value)
    if name.startswith("prompts met"):
        return f"{value:.0f} steps"
    if name.startswith("the engine"):
        return f"{value:.2f} times"
    signed = name.endswith("as predicted") or name.startswith("no worse")
    return change(value) if signed else percent(value)


def note_lines(notes: list[str], most: int, where: str = "in the report") -> list[str]:
    """Notes as lines, those that can change a decision first.

    Args:
        notes: sentences.
        most: lines to show; the others are counted.
        where: they are found.

    Returns:
        Lines.
    """
    notes = ordered(notes)
    left = len(notes) - most
    return [*warning_lines(notes[:most]), *([f"note: {left} more {where}"] if left > 0 else [])]


def simulate_lines(data: dict[str, Any]) -> list[str]:
    """A simulation.

    Args:
        data: as `headway simulate --json`.

    Returns:
        Lines.
    """
    words = {
        "none": "by nothing",
        "kv": "by the KV cache",
        "running": "by the running limit",
        "budget": "by the token budget",
        "deferred": "by admission",
    }
    bound = ", ".join(f"{percent(share)} {words[name]}" for name, share in data["binding"].items())
    lines = [
        f"{data['requests']:,} requests in {counted(data['runs'], 'run')}, load {data['load_text']}",
        *side_table({"": data}),
        f"steps bound: {bound}",
    ]
    return [*lines, *beside_lines(data), *warning_lines(data["warnings"])]


def beside_lines(data: dict[str, Any]) -> list[str]:
    """Goodput as others define it, fairness, and where the steps' time went.

    Args:
        data: figures of one side.

    Returns:
        Lines.
    """
    others = ", ".join(f"{name} {percent(v)}" for name, v in data["others"].items() if v is not None and not name.endswith("_rps"))
    worst, even = data["fairness"]["worst_class"], data["fairness"]
    lines = [f"others' goodput: {others}"] if others else []
    if len(data["classes"]) > 1 and worst is not None:
        lines.append(f"worst class: {worst} {percent(even['worst_attainment'])}, Jain's index over classes {even['jain_classes']:.3f}")
    if data.get("resources"):
        time = data["resources"]["time"]
        parts = [f"{percent(share)} {TIME_WORDS[name]}" for name, share in sorted(time.items(), key=lambda x: -x[1]) if share >= 0.005]
        lines.append(f"steps' time: {', '.join(parts)}")
    return lines


TIME_WORDS = {
    "floor": "floor",
    "decode_requests": "decodes",
    "decode_kv_tokens": "KV read",
    "prefill_tokens": "prefill tokens",
    "prefill_pairs": "prompt attention",
    "prefill_requests": "prompts",
}
"""Parts of a step's time in words."""


def settings_text(settings: dict[str, Any]) -> str:
    """Settings of a static engine in words.

    Args:
        settings: as in tuning's best_static.

    Returns:
        A phrase.
    """
    text = f"{settings.get('token_budget')} tokens, {settings.get('running_limit')} requests"
    return text + (f", queue timeout {settings['timeout']:g} x ttft" if settings.get("timeout") else "")


def tune_lines(tuning: dict[str, Any], out: str | None) -> list[str]:
    """A tuning result.

    Args:
        tuning: as `headway tune --json`, without the controller.
        out: where the controller was written.

    Returns:
        Lines.
    """
    sides = {
        "tuned": tuning["heldout"],
        "best static": tuning["best_static"],
        "+ timeout": tuning["best_timeout"],
        "untuned": tuning["untuned"],
    }
    better = "better" if tuning["outcome"] == "better" else "no better"
    lines = [
        f"outcome    {better} than the best static setting ({settings_text(tuning['best_static']['settings'])})",
        *gain_lines(tuning),
        *settings_lines(tuning["heldout"]["settings"]),
        *contest_table({name: s["figures"] for name, s in sides.items()}),
    ]
    if tuning["capacity_rps"]:
        lines += said("capacity", ", ".join(f"{k} {v:.2f}/s" for k, v in tuning["capacity_rps"].items()))
    lines += [*required_lines(tuning), *bound_lines(tuning), *part_lines(tuning), *look_lines(tuning)]
    lines += [*schedule_lines(tuning), *search_lines(tuning)]
    return [*lines, *noted(tuning["warnings"]), *([f"written    {out}"] if out else [])]


def validate_lines(data: dict[str, Any], out: str | None) -> list[str]:
    """A validation.

    Args:
        data: content of validation.json.
        out: where it was written.

    Returns:
        Lines.
    """
    sides = {
        "controller": data["controller"],
        "predicted": data["predicted"]["controller"],
        "best static": data["best_static"],
        "its prediction": data["predicted"]["best_static"],
    }
    mark = lambda check: "yes" if check["ok"] else "NO "  # noqa: E731
    lines = [f"outcome    {data['outcome']} on engine {data['engine']}, {counted(data['runs'], 'run')} each", *side_table(sides)]
    lines += [f"  {mark(c)}  {c['name']}: {c['bar']}; found {found_text(c)}" for c in [*data["gates"], *data["checks"]]]
    lines.append(f"gain       share of tokens on time {change(data['gain'], data['gain_ci95'])} over the best static setting")
    lines += [*verdict_lines(data), *drift_lines(data.get("drift"))]
    lines += [*others_lines(data.get("others") or {}), *compared_lines(data.get("compared") or [])]
    return [*lines, *warning_lines(data["notes"]), *([f"written    {out}"] if out else [])]


def drift_lines(drift: dict[str, Any] | None) -> list[str]:
    """Whether the engine behaved as its plant says while it was validated.

    Args:
        drift: of validation.json; None where no step was recorded.

    Returns:
        Lines.
    """
    return [f"{('plant', '')[k > 0]:10} {text}" for k, text in enumerate((drift or {}).get("said") or [])]


def verdict_lines(data: dict[str, Any]) -> list[str]:
    """Target and prediction, each with what decided.

    Args:
        data: content of validation.json.

    Returns:
        Two lines, or one where the run can say nothing.
    """
    if data["outcome"] == "invalid":
        broken = "; ".join(f"{g['name']}: {g['bar']}; found {found_text(g)}" for g in data["gates"] if not g["ok"])
        return [f"verdict    INVALID, this run says nothing. It needs: {broken}"]
    said = lambda c: f"{c['name']} {found_text(c)} ({c['bar']})"  # noqa: E731
    missed = [c for c in data["checks"] if not c["ok"]]
    of_target = [said(c) for c in missed if c.get("part") == "target" or c["name"].startswith(("on time", "p99 ITL"))]
    others = [text for c in missed if (text := said(c)) not in of_target]
    return [
        "target     " + ("NOT reached: " + "; ".join(of_target) if of_target else "reached"),
        "prediction " + ("did NOT hold: " + "; ".join(others) if others else "held"),
    ]
