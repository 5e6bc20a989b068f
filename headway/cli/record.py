"""The command that measures: record a trace under excitation, on live kernels or a vLLM server, or plan what to record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.app import app
from headway.cli.options import (
    Block,
    Epsilon,
    Format,
    Json,
    KvTokens,
    MaxLen,
    MaxSeqs,
    MaxTokens,
    Seed,
    epsilon_given,
    limits_given,
    not_over_inputs,
    trace_files,
)
from headway.cli.served import Model, Serve, VllmEnv, recorded_lines
from headway.cli.terminal import percent, progress_bar, show, table, warning_lines
from headway.units import share

From = Annotated[Path | None, typer.Option("--from", help="Plan: plant.json that says what is known.", metavar="PLANT")]
Trace = Annotated[list[Path] | None, typer.Option("--trace", help="Plan: trace behind it; may be given more than once.", metavar="TRACE")]
Design = Annotated[
    Path | None, typer.Option("--design", help="Record the settings of a plan.json instead of the staircase.", metavar="PLAN")
]
Device = Annotated[Path | None, typer.Option("--device", help="vllm-sim: plant.json that the simulated device is.", metavar="PLANT")]
Url = Annotated[str | None, typer.Option("--url", help="vllm: a server that runs already, its adapter in mode excite; it is left running.")]
StepsFile = Annotated[Path | None, typer.Option("--steps-file", help="vllm: the trace that the adapter of --url writes.", metavar="JSONL")]
Width = Annotated[str, typer.Option("--margin-width", help="Plan: how wide the margin's 95 % interval may be.")]


@app.command()
def record(
    engine: Annotated[str, typer.Option("--engine", help="What to record: kernels, vllm (a real server), vllm-sim.")] = "kernels",
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write the trace, or the plan. [default: trace.parquet, of a plan: plan.json]")
    ] = None,
    preset: Annotated[str, typer.Option("--preset", help="Size of the llm: tiny (CPU) ... 8b (GPU).")] = "tiny",
    steps: Annotated[
        int | None, typer.Option("--steps", min=100, help="Steps to record. [default: 2000, vllm 3000, or what the plan says]")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Record nothing: propose what to record next.")] = False,
    known: From = None,
    traces: Trace = None,
    format: Format = "auto",  # the option's own name
    width: Width = "2%",
    epsilon: Epsilon = None,
    out_plan: Annotated[Path | None, typer.Option("--out-plan", help="Plan: where to write it, as --out.")] = None,
    design: Design = None,
    model: Model = None,
    vllm_env: VllmEnv = None,
    device: Device = None,
    url: Url = None,
    steps_file: StepsFile = None,
    serve: Serve = None,
    kv_tokens: KvTokens = None,
    block: Block = None,
    max_seqs: MaxSeqs = None,
    max_len: MaxLen = None,
    max_tokens: MaxTokens = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Record a trace under excitation, of live kernels or of a vLLM server, or plan one: which inputs, for how many steps.

    Example: headway record --engine vllm --model llm --out trace.parquet
    """
    limits = limits_given(kv_tokens, block, max_seqs, max_len, max_tokens)
    if plan:
        if design is not None:
            raise ValueError("--plan proposes a design and --design runs one; give one of them")
        if out is not None and out_plan is not None:
            raise ValueError(f"--out {out} and --out-plan {out_plan} both say where the plan goes; give one of them")
        option = "--out" if out is not None else "--out-plan"
        _plan(known, traces, preset, limits, steps, width, epsilon, seed, format, option, out or out_plan or Path("plan.json"), json)
        return
    if known is not None or traces or epsilon is not None:
        raise ValueError("--from, --trace and --epsilon say what is known to a plan; add --plan, or leave them out")
    if out_plan is not None:
        raise ValueError(f"--out-plan {out_plan} says where a plan goes; add --plan, or name the trace with --out")
    from headway.engines.live import SERVED, check_engine, record_stage

    check_engine(engine)
    out = out or Path("trace.parquet")
    beside = (out.with_suffix(".engine_config.json"), out.with_suffix(".clients.json")) if out.name else ()
    for written in (out, *beside):
        not_over_inputs("--out", written, [design, device, steps_file])
    if engine in SERVED:
        if design is not None:
            raise ValueError("--design is held on live kernels; a vLLM server draws its own settings: leave it out")
        result = _served(engine, out, model, vllm_env, device, url, steps_file, steps, limits, serve, seed)
        show(result, recorded_lines(result), as_json=json)
        return
    if any(given is not None for given in (model, vllm_env, device, url, steps_file, serve)):
        raise ValueError("--model, --vllm-env, --device, --url, --steps-file and --serve are of vLLM servers; add --engine vllm")
    with progress_bar() as bar:
        result = record_stage(engine, out, preset=preset, steps=steps, limits=limits, seed=seed, design=design, progress=bar)
    step = result["step_time_s"]
    lines = [
        f"recorded   {result['steps']:,} steps of {result['engine']} ({preset}) on {result['device']}, {result['steps_mixed']:,} with prefill",
        *([f"design     {result['settings']} settings of {design}"] if design else []),
        f"step time  p50 {step['p50'] * 1e3:.1f} ms   p99 {step['p99'] * 1e3:.1f} ms",
        f"written    {out}",
    ]
    show(result, lines, as_json=json)


def _served(
    engine: str,
    out: Path,
    model: Path | None,
    place: Path | None,
    device: Path | None,
    url: str | None,
    steps_file: Path | None,
    steps: int | None,
    limits: dict[str, int],
    serve: list[str] | None,
    seed: int,
) -> dict[str, Any]:
    from headway.engines.vllm.stages import record_vllm, serve_flags

    with progress_bar() as bar:
        return record_vllm(
            engine,
            out,
            model=model,
            place=place,
            plant=device,
            url=url,
            steps_file=steps_file,
            steps=steps,
            limits=limits,
            flags=serve_flags(serve),
            seed=seed,
            progress=bar,
        )


def _plan(
    known: Path | None,
    traces: list[Path] | None,
    preset: str,
    limits: dict[str, int],
    steps: int | None,
    width: str,
    epsilon: str | None,
    seed: int,
    format: str,
    option: str,
    out: Path,
    json: bool,
) -> None:
    from headway.planning import plan_stage

    not_over_inputs(option, out, [known, *trace_files(traces or [])])
    with progress_bar() as bar:
        result = plan_stage(
            out,
            plant=known,
            traces=traces or [],
            preset=preset,
            limits=limits,
            steps=steps,
            margin_width=share(width),
            epsilon=epsilon_given(epsilon) or 0.01,
            seed=seed,
            format=format,
            progress=bar,
        )
    show(result, plan_lines(result), as_json=json)


def plan_lines(plan: dict[str, Any]) -> list[str]:
    """A plan in words.

    Args:
        plan: as `headway record --plan --json`.

    Returns:
        Lines.
    """
    rows = [("settings: budget / limit / prompt / output", "steps", "share", "mixed", "to")]
    for s in plan["settings"]:
        name = " / ".join(f"{s[k]:,}" for k in ("token_budget", "running_limit", "prompt_tokens", "output_tokens"))
        rows.append((name, f"{s['steps']:,}", percent(s["steps"] / plan["steps"]), percent(s["mixed"], 0), s["purpose"]))
    numbers = [("standard errors", "now", "after the plan", "after the staircase", "of", "unit")]
    for name, n in plan["numbers"].items():
        now, after, stairs = (_error(n[k], n["value"]) for k in ("now", "after", "staircase"))
        numbers.append((name, now, after, stairs, f"{n['value']:.3g}", n["unit"]))
    took = plan["time_s"]
    lines = [
        f"plan       {plan['steps']:,} steps, {plan['steps_mixed']:,} of them with prefill, {len(plan['settings'])} settings"
        + (f"; about {_long(took)}, compiling apart" if took is not None else ""),
        *table(rows),
        *table(numbers),
        f"worth      a step of the staircase tells {percent(plan['efficiency']['staircase'], 0)} of one of the plan, "
        f"of a uniform grid {percent(plan['efficiency']['grid'], 0)}",
        *_margin_lines(plan),
        *warning_lines(plan["warnings"]),
    ]
    return [*lines, *([f"written    {plan['out']}"] if plan["out"] else []), *(f"next       {command}" for command in plan["next"])]


def _margin_lines(plan: dict[str, Any]) -> list[str]:
    margin = plan["margin"]
    asked = f"within {percent(margin['asked_width'])} at epsilon {percent(margin['epsilon'])}"
    lines = [f"margin     {asked} needs {margin['steps_needed']:,} steps of this plan"]
    for regime in ("decode", "mixed"):
        m = margin[regime]
        reached = "no interval yet" if m["width"] is None or m["width"] == float("inf") else f"this plan gives {percent(m['width'])}"
        lines.append(f"           {regime:6} {m['steps']:,} steps for a margin of {percent(m['margin'])}; {reached}")
    return lines


def _error(error: float | None, value: float) -> str:
    if error is None:
        return "unknown"
    return percent(error / value) if value > 0 else f"{error:.2g}"


def _long(time_s: float) -> str:
    return f"{time_s:.0f} s" if time_s < 120 else f"{time_s / 60:.0f} min" if time_s < 7200 else f"{time_s / 3600:.1f} h"
