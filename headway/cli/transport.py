"""The command that splits requests' time between the engine and the way to it: transport."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.app import app
from headway.cli.options import Epsilon, Json, epsilon_given
from headway.cli.terminal import ms, percent, progress_bar, show, table, warning_lines
from headway.units import duration_s

CLOCKS = {"auto": "auto", "same": "same_clock", "symmetric": "symmetric"}
"""What --clock may be, and the library's word for it."""

REJECTED = 5
"""Rejected durations that are shown; --json lists more, and all are counted."""


@app.command()
def transport(
    client: Annotated[Path, typer.Argument(help="What a load generator wrote.", metavar="CLIENT")],
    engine: Annotated[Path | None, typer.Argument(help="The engine's stamps of the same requests.", metavar="ENGINE")] = None,
    itl: Annotated[str | None, typer.Option("--itl", help="Promised gap between tokens, such as 25ms.")] = None,
    ttft: Annotated[str | None, typer.Option("--ttft", help="Promised time to first token, such as 1s.")] = None,
    rtt: Annotated[str | None, typer.Option("--rtt", help="Round trip of the network, where known, such as 2ms.")] = None,
    clock: Annotated[str, typer.Option("--clock", help="What decides the clocks' offset: auto, same or symmetric.")] = "auto",
    format: Annotated[str, typer.Option("--format", help="Format of CLIENT; auto looks at the content.")] = "auto",
    epsilon: Epsilon = None,
    json: Json = False,
) -> None:
    """Split requests' time between engine and transport, and take transport off a promise.

    Example: headway transport guidellm.json spans.json --ttft 2s --itl 30ms
    """
    from headway.transport import transport_stage

    if clock not in CLOCKS:
        raise ValueError(f"--clock must be one of {', '.join(CLOCKS)}, got {clock}")
    times = {name: None if text is None else duration_s(text) for name, text in (("itl_s", itl), ("ttft_s", ttft), ("rtt_s", rtt))}
    with progress_bar():
        data = transport_stage(client, engine, **times, assume=CLOCKS[clock], quantile=1 - (epsilon_given(epsilon) or 0.01), format=format)
    show(data, transport_lines(data), as_json=json)


def transport_lines(data: dict[str, Any]) -> list[str]:
    """A split of requests' time.

    Args:
        data: as `headway transport --json`.

    Returns:
        Lines.
    """
    lines = [*_read_lines(data), *_figure_lines(data)]
    if data["clock"] is not None:
        lines += [*_clock_lines(data), *_split_lines(data)]
    return [*lines, *_promise_lines(data), *warning_lines(data["warnings"])]


def _read_lines(data: dict[str, Any]) -> list[str]:
    rows, status = data["rows"], data["statuses"]
    lines = [
        f"requests   {rows['client']:,} read ({data['formats']['client']}): " + ", ".join(f"{n:,} {word}" for word, n in status.items())
    ]
    if data["clock"] is not None and data["formats"]["engine"]:
        lines.append(
            f"           {rows['engine']:,} of the engine ({data['formats']['engine']}), {rows['matched']:,} matched by {data['matched_by']}"
        )
    if data["clock"] is not None:
        lines.append(f"           {rows['used']:,} used, {data['rejected']:,} rejected for a duration below zero")
    shown = data["rejected_durations"][:REJECTED]
    lines += [f"           rejected: {one['request_id']}, {one['what']} {one['value_s'] * 1e3:+.2f} ms" for one in shown]
    lines += [f"           set aside: {count:,} {reason}" for reason, count in data["set_aside"].items()]
    return lines


def _figure_lines(data: dict[str, Any]) -> list[str]:
    """The client's own figures, each with the formula it stands for."""
    spread = lambda q: f"p50 {ms(q['p50'])}   p90 {ms(q['p90'])}   p99 {ms(q['p99'])}"  # noqa: E731
    known = lambda q: q["p50"] is not None  # noqa: E731
    lines = [f"TTFT       {spread(data['ttft_s'])}"] if known(data["ttft_s"]) else []
    tpot = data["tpot_s"]
    if known(tpot):
        left = ", ".join(f"{n:,} {word}" for word, n in tpot["requests"].items() if n and word != "measured")
        lines.append(f"TPOT       {spread(tpot)}   of {tpot['requests']['measured']:,} requests" + (f" ({left})" if left else ""))
        lines.append(f"           = {tpot['formula']}")
    for name, own in data["other_formulas"].items():
        if known(own):
            lines += [f"           {name}: p50 {ms(own['p50'])} = {own['formula']}"]
    lines += [f"token gap  {spread(data['token_gap_s'])}"] if known(data["token_gap_s"]) else []
    lines += [f"chunk gap  {spread(data['chunk_gap_s'])}   (between chunks, not tokens)"] if known(data["chunk_gap_s"]) else []
    return lines


def _clock_lines(data: dict[str, Any]) -> list[str]:
    clock = data["clock"]
    low, high = clock["offset_bounds_s"]
    bound = {
        (True, True): lambda: f"between {_offset(low)} and {_offset(high)}",
        (True, False): lambda: f"at least {_offset(low)}",
        (False, True): lambda: f"at most {_offset(high)}",
    }[low is not None, high is not None]()
    ci = clock["drift_ci95_ppm"]
    drift = "not told by so few stamps, taken as 0" if ci[0] is None else f"{clock['drift_ppm']:+.1f} ppm [{ci[0]:+.1f}, {ci[1]:+.1f}]"
    if ci[0] is not None and clock["drift_ppm"] == 0 and clock["assumption"] != "same_clock":
        drift = f"taken as 0: the stamps only say [{ci[0]:+.0f}, {ci[1]:+.0f}] ppm"
    elif ci[0] is not None and clock["assumption"] == "same_clock":
        drift = f"taken as 0, the stamps say [{ci[0]:+.1f}, {ci[1]:+.1f}] ppm"
    return [
        f"clocks     client less engine {_offset(clock['offset_s'])}; the stamps alone say {bound}",
        f"           drift {drift}",
        f"           {clock['means']}",
    ]


def _offset(value_s: float) -> str:
    """An offset with its sign; of clocks that count from other instants, only its size is shown."""
    return f"{value_s:+,.3f} s" if abs(value_s) >= 10 else f"{value_s * 1e3:+.2f} ms"


def _split_lines(data: dict[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = [("where the time goes", "share of E2E", "p50", "p99")]
    for part in data["split"]:
        share = part["share_e2e"]
        rows.append((part["name"], "-" if share != share else percent(share, 2), ms(part["p50_s"]), ms(part["p99_s"])))
    return [*table(rows), "  (host: the engine's own time outside queue, prefill and decode)"]


def _promise_lines(data: dict[str, Any]) -> list[str]:
    """What transport takes off each promise, and what is left."""
    at = f"p{100 * data['quantile']:g}"
    first, gap = data["ttft_transport_s"], data["itl_transport_s"]
    lines = [f"transport  off a TTFT promise: {ms(first)} ({at} of both ways, free of the clocks' offset)"] if first is not None else []
    head = "transport  " if first is None else "           "
    if gap is not None:
        lines.append(f"{head}off an ITL promise: {ms(gap)} ({at}; {data['itl_transport_from']})")
    else:
        lines.append(f"{head}off an ITL promise: unknown ({data['itl_transport_from']})")
    promised = data["promised"]
    if data["budget_s"] is not None:
        lines.append(f"budget     {data['budget_s'] * 1e3:.1f} ms a step = {ms(promised['itl_s'])} promised - {ms(gap)}")
    if data["first_token_s"] is not None:
        head = "budget     " if data["budget_s"] is None else "           "
        lines.append(
            f"{head}{ms(data['first_token_s'])} to the first token at the engine = {ms(promised['ttft_s'])} promised - {ms(first)}"
        )
    if gap is not None and data["budget_s"] is not None and data["first_token_s"] is not None:
        # a target holds one transport: what the first token loses beyond it is taken off the TTFT
        left = data["first_token_s"] + gap
        lines.append(f"           as a target: ttft={left * 1e3:.1f}ms,itl={promised['itl_s'] * 1e3:g}ms,transport={gap * 1e3:.2f}ms")
    return lines
