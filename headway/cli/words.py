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
        f"error      mean {percent(score['mape'])}   median {percent(score['median_ape'])}   worst decile from {percent(score['p90_ape'])}   "
        f"max {percent(score['max_ape'], 0)}",
        f"           decode {percent(score['mape_decode'])}   mixed {percent(score['mape_mixed'])}",
    ]
    for regime in ("decode", "mixed"):
        value, ci = cover[regime]["value"], cover[regime]["ci95"]
        if value is not None:
            span = f" [{percent(ci[0], 0)}, {percent(ci[1], 0)}]" if ci and ci[0] is not None else ""
            lines.append(f"coverage   90 % band of {regime} steps holds {percent(value, 0)}{span}")
    return lines


def fit_lines(data: dict[str, Any], out: str | None) -> list[str]:
    """A fitted plant.

    Args:
        data: content of plant.json.
        out: where it was written.

    Returns:
        Lines.
    """
    rows = [("coefficient", "value", "95 % interval", "unit")]
    for name, c in data["coefficients"].items():
        ci = c["ci95"]
        rows.append((name, f"{c['value']:.4g}", f"[{ci[0]:.3g}, {ci[1]:.3g}]" if ci else "-", c["unit"]))
    margin = data["margin"]
    lines = [f"plant      {data['structure']}", *table(rows), rows_line(data["rows"])]
    if data["heldout"]:
        lines += score_lines(data["heldout"], "held out")
    lines.append(f"margin     decode {percent(margin['decode'])}   mixed {percent(margin['mixed'])}   (what the residuals call for)")
    return [*lines, *warning_lines(data["warnings"]), *([f"written    {out}"] if out else [])]


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
    return table(rows)


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
    what = {"attainment": "attainment", "requests": "clean requests", "capacity": "capacity"}[tuning["objective"]]
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
        "predicted ": data["predicted"]["best_static"],
    }
    mark = lambda check: "yes" if check["ok"] else "NO "  # noqa: E731
    value = lambda check: "" if check["value"] is None else f" ({check['value']:.4g})"  # noqa: E731
    lines = [f"outcome    {data['outcome']} on engine {data['engine']}, {data['runs']} runs each", *side_table(sides)]
    lines += [f"  {mark(c)}  {c['name']}: {c['bar']}{value(c)}" for c in [*data["gates"], *data["checks"]]]
    ci = data["gain_ci95"]
    span = f" [{ci[0] * 100:+.1f}, {ci[1] * 100:+.1f}]" if ci[0] is not None else ""
    lines.append(f"gain       attainment {data['gain'] * 100:+.1f} %{span} over the best static setting, measured")
    lines.append(
        "target     "
        + ("reached: no more than epsilon late" if data["target_reached"] else "not reached: more than epsilon late at this load")
    )
    return [*lines, *warning_lines(data["notes"]), *([f"written    {out}"] if out else [])]


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
