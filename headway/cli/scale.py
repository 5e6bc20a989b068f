"""The command that predicts a plant at another tensor-parallel size: scale."""

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
    Traces,
    epsilon_given,
    limits_given,
    not_over_inputs,
    trace_files,
)
from headway.cli.terminal import percent, progress_bar, show, table
from headway.cli.words import fit_lines


@app.command()
def scale(
    traces: Traces,
    to: Annotated[int, typer.Option("--to", min=1, help="Tensor-parallel size to predict.")],
    tp: Annotated[
        str | None, typer.Option("--tp", help="Size of each trace, such as 1,2. [default: from the engine's configuration]")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Where to write the plant.")] = Path("plant.json"),
    format: Format = "auto",  # the option's own name
    kv_heads: Annotated[int | None, typer.Option("--kv-heads", min=1, help="Heads of the KV cache: it divides among so many.")] = None,
    kv_tokens: KvTokens = None,
    block: Block = None,
    max_seqs: MaxSeqs = None,
    max_len: MaxLen = None,
    max_tokens: MaxTokens = None,
    epsilon: Epsilon = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Predict a plant at another tensor-parallel size from traces at two or more.

    Example: headway scale tp1.csv tp2.csv --to 4 --out plant.json
    """
    from headway.scaling import scale_stage

    not_over_inputs("--out", out, trace_files(traces))
    with progress_bar() as bar:
        plant, _ = scale_stage(
            traces,
            to,
            out,
            tps=_sizes_given(tp),
            format=format,
            epsilon=epsilon_given(epsilon) or 0.01,
            limits=limits_given(kv_tokens, block, max_seqs, max_len, max_tokens),
            kv_heads=kv_heads,
            seed=seed,
            progress=bar,
        )
    data = {k: v for k, v in plant.to_json().items() if k != "residuals"}
    show(data, [*_law_lines(data["tp"]), *fit_lines(data, str(out))], as_json=json)


def _sizes_given(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise ValueError(f"--tp must be sizes of at least 1 joined by commas, got {text!r}; write for example --tp 1,2")
    return [int(part) for part in parts]


def _law_lines(law: dict[str, Any]) -> list[str]:
    rows = [("coefficient", "on one device", "on endlessly many")]
    for regime in ("decode", "mixed"):
        rows += [(f"{regime}.{name}", f"{c['alone']:.4g}", f"{c['limit']:.4g}") for name, c in law[regime]["terms"].items()]
    forms = [f"{law[r]['form']} ({percent(law[r]['errors'][law[r]['form']])})" for r in ("decode", "mixed")]
    return [
        f"law        from tp {', '.join(str(tp) for tp in law['from'])} to tp {law['to']}; decode: {forms[0]}, mixed: {forms[1]}",
        *table(rows),
    ]
