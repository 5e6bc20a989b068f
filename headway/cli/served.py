"""Options and words of the commands that start a vLLM server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.terminal import change, ms, percent, warning_lines

Model = Annotated[
    Path | None, typer.Option("--model", help="vllm: folder of the model. [default: one of 17M random weights, made for it]", metavar="DIR")
]
VllmEnv = Annotated[
    Path | None,
    typer.Option("--vllm-env", help="vllm: environment that holds it. [default: HEADWAY_VLLM, else .venv-vllm]", metavar="DIR"),
]
Serve = Annotated[
    list[str] | None,
    typer.Option("--serve", help="vllm: a further flag of vllm serve, as name=value; may be given more than once.", metavar="FLAG"),
]


def recorded_lines(result: dict[str, Any]) -> list[str]:
    """A recording on vLLM in words.

    Args:
        result: of `headway.engines.vllm.stages.record_vllm`.

    Returns:
        Lines.
    """
    step, sent = result["step_time_s"], ", ".join(f"{n:,} {name}" for name, n in result["requests"].items())
    return [
        f"recorded   {result['steps']:,} steps of {result['engine']} on {result['device']}, {result['steps_mixed']:,} with prefill",
        f"step time  p50 {ms(step['p50'])}   p99 {ms(step['p99'])} from start to start; {percent(result['host_share'])} of it between steps",
        f"load       requests: {sent}",
        *warning_lines(result["notes"]),
        f"written    {result['out']}, {result['clients']}" + (f"; log and adapter in {result['folder']}" if result["folder"] else ""),
        f"next       headway fit {result['out']} --out plant.json",
    ]


def compared_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Measured against predicted, figure by figure, of the controller.

    Args:
        rows: `compared` of validation.json.

    Returns:
        Lines; none without rows.
    """
    lines = []
    for row in rows:
        if row["side"] != "controller" or row["measured"] is None:
            continue
        shown = ms if row["what"].endswith("_s") else (lambda x: f"{x:.4g}") if row["what"].endswith("_tps") else percent
        ends = "" if row["ci95"] is None else f" [{shown(row['ci95'][0])}, {shown(row['ci95'][1])}]"
        off = "" if row["off"] is None else f", {change(row['off'])}"
        lines.append(f"  {row['what']:20} measured {shown(row['measured'])}{ends}, predicted {shown(row['predicted'])}{off}")
    return ["controller, over the runs:", *lines] if lines else []


def others_lines(others: dict[str, Any]) -> list[str]:
    """Further contenders in words.

    Args:
        others: of validation.json.

    Returns:
        One line each.
    """
    words = {"default": "default flags", "early": "best static, clients give up early"}
    return [
        f"{words.get(name, name)}: on time {percent(side['measured']['attainment'])}, clean requests "
        f"{percent(side['measured']['request_attainment'])}, predicted {percent(side['predicted']['attainment'])} and "
        f"{percent(side['predicted']['request_attainment'])}"
        for name, side in others.items()
    ]
