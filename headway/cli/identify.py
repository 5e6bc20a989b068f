"""Commands that measure and identify: record, fit, score."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.app import app
from headway.cli.options import (
    Block,
    Blocks,
    Epsilon,
    Format,
    Json,
    KvTokens,
    MaxLen,
    MaxSeqs,
    MaxTokens,
    Plant,
    Seed,
    Traces,
    Where,
    epsilon_given,
    limits_given,
    where_given,
)
from headway.cli.terminal import percent, progress_bar, show
from headway.cli.words import fit_lines, rows_line, score_lines, warning_lines


@app.command()
def fit(
    traces: Traces,
    out: Annotated[Path, typer.Option("--out", help="Where to write the plant.")] = Path("plant.json"),
    format: Format = "auto",  # the option's own name
    blocks: Blocks = "all",
    where: Where = None,
    kv_tokens: KvTokens = None,
    block: Block = None,
    max_seqs: MaxSeqs = None,
    max_len: MaxLen = None,
    max_tokens: MaxTokens = None,
    epsilon: Epsilon = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Identify a plant from measured steps.

    Example: headway fit steps.csv --kv-tokens 200k --out plant.json
    """
    from headway.pipeline import fit_stage

    with progress_bar() as bar:
        plant, _ = fit_stage(
            traces,
            out,
            format=format,
            blocks=blocks,
            where=where_given(where),
            epsilon=epsilon_given(epsilon) or 0.01,
            limits=limits_given(kv_tokens, block, max_seqs, max_len, max_tokens),
            seed=seed,
            progress=bar,
        )
    data = {k: v for k, v in plant.to_json().items() if k != "residuals"}
    show(data, fit_lines(data, str(out)), as_json=json)


@app.command()
def score(
    plant: Plant,
    traces: Traces,
    format: Format = "auto",
    blocks: Blocks = "all",
    where: Where = None,
    json: Json = False,
) -> None:
    """Score a plant on measured steps.

    Example: headway score plant.json steps.csv --blocks odd
    """
    from headway.pipeline import score_stage

    with progress_bar() as bar:
        result = score_stage(plant, traces, format=format, blocks=blocks, where=where_given(where), progress=bar).to_json()
    lines = [
        *score_lines(result, "scored"),
        rows_line(result["rows"]),
        f"max error  {percent(result['max_ape_all'], 0)} with the rows that were set aside",
    ]
    show(result, [*lines, *warning_lines(result["warnings"])], as_json=json)


@app.command()
def record(
    engine: Annotated[str, typer.Option("--engine", help="What to record: kernels.")] = "kernels",
    out: Annotated[Path, typer.Option("--out", help="Where to write the trace.")] = Path("trace.parquet"),
    preset: Annotated[str, typer.Option("--preset", help="Size of the llm: tiny (CPU) ... 8b (GPU).")] = "tiny",
    steps: Annotated[int, typer.Option("--steps", min=100, help="Steps to record.")] = 2000,
    kv_tokens: KvTokens = None,
    block: Block = None,
    max_seqs: MaxSeqs = None,
    max_len: MaxLen = None,
    max_tokens: MaxTokens = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Record a trace of live kernels under excitation: a random staircase of token budget and running limit.

    Example: headway record --engine kernels --steps 2000 --out trace.parquet
    """
    from headway.engines.live import record_stage

    with progress_bar() as bar:
        result = record_stage(
            engine,
            out,
            preset=preset,
            steps=steps,
            limits=limits_given(kv_tokens, block, max_seqs, max_len, max_tokens),
            seed=seed,
            progress=bar,
        )
    step = result["step_time_s"]
    lines = [
        f"recorded   {result['steps']:,} steps of {result['engine']} ({preset}) on {result['device']}, {result['steps_mixed']:,} with prefill",
        f"step time  p50 {step['p50'] * 1e3:.1f} ms   p99 {step['p99'] * 1e3:.1f} ms",
        f"written    {out}",
    ]
    show(result, lines, as_json=json)
