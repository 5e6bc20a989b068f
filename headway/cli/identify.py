"""Commands that identify: fit, score."""

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
    hardware_given,
    limits_given,
    not_over_inputs,
    trace_files,
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
    structure: Annotated[str, typer.Option("--structure", help="Structure of the plant; auto chooses on steps left out.")] = "auto",
    llm: Annotated[str | None, typer.Option("--llm", help="Model that ran, such as qwen3-32b: the plant is held against it.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="Accelerator that it ran on, such as h200.")] = None,
    tp: Annotated[int, typer.Option("--tp", min=1, help="Accelerators that share each layer.")] = 1,
    every: Annotated[bool, typer.Option("--all", help="Show every finding, not only the gravest.")] = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Identify a plant from measured steps.

    Example: headway fit steps.csv --kv-tokens 200k --out plant.json
    """
    from headway.pipeline import fit_stage

    not_over_inputs("--out", out, trace_files(traces))
    with progress_bar() as bar:
        plant, _ = fit_stage(
            traces,
            out,
            format=format,
            blocks=blocks,
            where=where_given(where),
            epsilon=epsilon_given(epsilon) or 0.01,
            limits=limits_given(kv_tokens, block, max_seqs, max_len, max_tokens),
            structure=structure,
            hardware=hardware_given(llm, device, tp),
            seed=seed,
            progress=bar,
        )
    data = {k: v for k, v in plant.to_json().items() if k != "residuals"}
    show(data, fit_lines(data, str(out), every=every), as_json=json)


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
    from headway.identification.score import shift_sentence
    from headway.pipeline import score_stage

    with progress_bar() as bar:
        result = score_stage(plant, traces, format=format, blocks=blocks, where=where_given(where), progress=bar).to_json()
    lines = [
        *score_lines(result, "scored"),
        *([f"shift      {text}"] if (text := shift_sentence(result)) else []),
        rows_line(result["rows"]),
        f"max error  {percent(result['max_ape_all'], 0)} with the rows that were set aside",
    ]
    show(result, [*lines, *warning_lines(result["warnings"])], as_json=json)
