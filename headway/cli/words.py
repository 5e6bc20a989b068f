"""Results in words: what each command says to a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headway.cli.terminal import ms, percent, table, warning_lines


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
    cover = score["coverage90"]
    lines = [
        f"{title:10} {score['steps']:,} steps, {score['steps_mixed']:,} of them with prefill",
        f"error      mean {percent(score['mape'])}   median {percent(score['median_ape'])}   one in ten above {percent(score['p90_ape'])}   "
        f"max {percent(score['max_ape'], 0)}",
        f"           decode {percent(score['mape_decode'])}   mixed {percent(score['mape_mixed'])}",
    ]
    for regime in ("decode", "mixed"):
        value, ci = cover[regime]["value"], cover[regime]["ci95"]
        if value is not None:
            span = f" [{percent(ci[0], 0)}, {percent(ci[1], 0)}]" if ci and ci[0] is not None else ""
            lines.append(f"coverage   90 % band of {regime} steps holds {percent(value, 0)}{span}")
    return lines


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
    rows = [("coefficient", "value", "95 % interval", "unit")]
    for name, c in data["coefficients"].items():
        ci = c["ci95"]
        if c["value"] == 0 and ci is None and data["structure"] == "curved":
            continue  # a term that does not act in this plant
        rows.append((name, f"{c['value']:.4g}", f"[{ci[0]:.3g}, {ci[1]:.3g}]" if ci else "-", c["unit"]))
    margin = data["margin"]
    lines = [*structure_lines(data), *table(rows), rows_line(data["rows"])]
    if data["heldout"]:
        lines += score_lines(data["heldout"], "held out")
    lines.append(
        "margin     " + "   ".join(f"{r} {_with_interval(margin[r], data.get('margin_ci95', {}).get(r))}" for r in ("decode", "mixed"))
    )
    lines += [f"{'binds' if i == 0 else '':10} {point['point']}: {point['sentence']}" for i, point in enumerate(data.get("binding") or [])]
    lines.append(engine_line(data["engine"]))
    return [*lines, *note_lines(data["warnings"], 10**6 if every else FINDINGS, "with --all"), *([f"written    {out}"] if out else [])]


def _with_interval(value: float | None, ends: list[float] | None) -> str:
    return percent(value) + (f" [{percent(ends[0])}, {percent(ends[1])}]" if value is not None and ends else "")


def structure_lines(data: dict[str, Any]) -> list[str]:
    """The structure of a plant, and what each rung that was taken is worth on steps left out.

    Args:
        data: content of plant.json.

    Returns:
        Lines.
    """
    lines = [f"plant      {data['structure']}"]
    for rung in data.get("ladder") or []:
        if rung["taken"] and rung["after"] < rung["before"]:
            change = f"{percent(rung['before'])} to {percent(rung['after'])}"
            lines.append(f"           {rung['name']}: {rung['regime']} error {change} ({rung['errors']:.1f} standard errors)")
    return lines


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


SIDE_ROWS = (
    ("attainment", "attainment", percent),
    ("clean requests", "request_attainment", percent),
    ("goodput, tok/s", "goodput_tps", lambda x: f"{x:,.0f}"),
    ("throughput, tok/s", "throughput_tps", lambda x: f"{x:,.0f}"),
    ("shed", "shed", percent),
)


def side_table(sides: dict[str, dict[str, Any]]) -> list[str]:
    """Figures of several contenders side by side.

    Args:
        sides: by heading, each as `headway simulate --json`.

    Returns:
        Lines.
    """
    rows: list[tuple[str, ...]] = [("", *sides)] if any(sides) else []
    rows += [(label, *(show(s[name]) for s in sides.values())) for label, name, show in SIDE_ROWS]
    for label, name in (("TTFT", "ttft_s"), ("ITL", "itl_s")):
        for q, word in (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")):
            rows.append((f"{label} {word}", *(ms(s[name][q]) for s in sides.values())))
    rows.append(("longest gap", *(ms(s["max_gap_s"]) for s in sides.values())))
    return table([*rows, *class_rows(list(sides.values()))])


def class_rows(sides: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Attainment, tails and shed share of each class, where there are several.

    Args:
        sides: each as `headway simulate --json`.

    Returns:
        Rows for `table`; none for a single class.
    """
    names = list(dict.fromkeys(name for s in sides for name in s["classes"]))
    if len(names) < 2:
        return []
    rows = []
    for name in names:
        of = [s["classes"].get(name, {}) for s in sides]
        rows += [
            (f"{name}: attainment", *(percent(c.get("attainment")) for c in of)),
            (f"{name}: clean requests", *(percent(c.get("request_attainment")) for c in of)),
            (f"{name}: p99 ITL", *(ms(c.get("itl_p99_s")) for c in of)),
            (f"{name}: p99 TTFT", *(ms(c.get("ttft_p99_s")) for c in of)),
            (f"{name}: shed", *(percent(c.get("shed")) for c in of)),
        ]
    return rows


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
    if name.startswith("p99 ITL"):
        return ms(value)
    if name.startswith("prompts met"):
        return f"{value:.0f} steps"
    if name.startswith("the engine"):
        return f"{value:.2f} times"
    signed = name.endswith("as predicted") or name.startswith("no worse")
    return f"{100 * value:+.1f} %" if signed else percent(value)


GRAVE = (
    "extrapolation",
    "does better",
    "not the best of its grid",
    "may not ship",
    "nothing",
    "not trustworthy",
    "times what the embedded",
)
"""Words of the notes that should be read first."""


def note_lines(notes: list[str], most: int, where: str = "in the report") -> list[str]:
    """Notes as lines, those that can change a decision first.

    Args:
        notes: sentences.
        most: lines to show; the others are counted.
        where: they are found.

    Returns:
        Lines.
    """
    notes = list(dict.fromkeys(notes))
    notes.sort(key=lambda text: not any(word in text for word in GRAVE))
    left = len(notes) - most
    return [*warning_lines(notes[:most]), *([f"note: {left} more {where}"] if left > 0 else [])]


def simulate_lines(data: dict[str, Any]) -> list[str]:
    """A simulation.

    Args:
        data: as `headway simulate --json`.

    Returns:
        Lines.
    """
    words = {"none": "by nothing", "kv": "by the KV cache", "running": "by the running limit", "budget": "by the token budget"}
    bound = ", ".join(f"{percent(share)} {words[name]}" for name, share in data["binding"].items())
    lines = [f"{data['requests']:,} requests in {data['runs']} runs, load {data['load']}", *side_table({"": data}), f"steps bound: {bound}"]
    return [*lines, *warning_lines(data["warnings"])]


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
    low, high = tuning["gain_ci95"]
    early = tuning["gain_over_timeout_ci95"]
    what = {"attainment": "share of tokens on time", "requests": "clean requests", "capacity": "capacity"}[tuning["objective"]]
    settings = "   ".join(
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in tuning["heldout"]["settings"].items() if v is not None
    )
    lines = [
        f"outcome    {tuning['outcome']} than the best static setting ({settings_text(tuning['best_static']['settings'])})"
        if tuning["outcome"] == "better"
        else f"outcome    no better than the best static setting ({settings_text(tuning['best_static']['settings'])})",
        f"gain       {what} {tuning['gain'] * 100:+.1f} % [{low * 100:+.1f}, {high * 100:+.1f}] over it, held out; "
        f"{tuning['gain_over_timeout'] * 100:+.1f} % [{early[0] * 100:+.1f}, {early[1] * 100:+.1f}] over it with a queue timeout",
        f"settings   {settings}",
        *side_table({name: s["figures"] for name, s in sides.items()}),
    ]
    if tuning["capacity_rps"]:
        lines.append("capacity   " + "   ".join(f"{k} {v:.2f}/s" for k, v in tuning["capacity_rps"].items()))
    return [*lines, *warning_lines(tuning["warnings"]), *([f"written    {out}"] if out else [])]


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
    lines = [f"outcome    {data['outcome']} on engine {data['engine']}, {data['runs']} runs each", *side_table(sides)]
    lines += [f"  {mark(c)}  {c['name']}: {c['bar']}; found {found_text(c)}" for c in [*data["gates"], *data["checks"]]]
    ci = data["gain_ci95"]
    span = f" [{ci[0] * 100:+.1f}, {ci[1] * 100:+.1f}]" if ci[0] is not None else ""
    lines.append(f"gain       share of tokens on time {data['gain'] * 100:+.1f} %{span} over the best static setting")
    lines += verdict_lines(data)
    return [*lines, *warning_lines(data["notes"]), *([f"written    {out}"] if out else [])]


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
    missed = [f"{c['name']} {found_text(c)} ({c['bar']})" for c in data["checks"] if not c["ok"]]
    of_target = [m for m in missed if m.startswith(("on time", "p99 ITL"))]
    others = [m for m in missed if m not in of_target]
    return [
        "target     " + ("NOT reached: " + "; ".join(of_target) if of_target else "reached"),
        "prediction " + ("did NOT hold: " + "; ".join(others) if others else "held"),
    ]


def analyse_lines(data: dict[str, Any]) -> list[str]:
    """A loop analysis.

    Args:
        data: as `headway analyse --json`.

    Returns:
        Lines.
    """
    show = lambda x, unit: "-" if x is None else f"{x:.1f}{unit}"  # noqa: E731
    heading = ("decode requests", "KV tokens", "prefill tokens", "gain margin", "phase margin", "delay margin")
    rows = [heading, *(_point(p, show) for p in data["operating_points"])]
    verdict = "certified" if data["certified"] else "refused"
    worst = ", ".join(
        f"{word} margin {show(data[name], unit)}"
        for word, name, unit in (
            ("gain", "gain_margin_db", " dB"),
            ("phase", "phase_margin_deg", " deg"),
            ("delay", "delay_margin_steps", " steps"),
        )
    )
    return [
        f"loop       {verdict}; worst: {worst}",
        *(table(rows) if len(rows) > 1 else []),
        *warning_lines([*data["reasons"], *data.get("notes", [])]),
    ]


def _point(p: dict[str, Any], show: Callable[[float | None, str], str]) -> tuple[str, ...]:
    load = (f"{p['decode_requests']:,.0f}", f"{p['decode_kv_tokens']:,.0f}", f"{p['prefill_tokens']:,.0f}")
    return (*load, show(p["gain_margin_db"], " dB"), show(p["phase_margin_deg"], " deg"), show(p["delay_margin_steps"], " steps"))
