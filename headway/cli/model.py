"""The command that makes a model to serve where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.app import app
from headway.cli.options import Json
from headway.cli.terminal import show


@app.command("make-model")
def make_model(
    out: Annotated[Path, typer.Option("--out", help="Folder to make.", metavar="DIR")],
    size: Annotated[str, typer.Option("--size", help="Parameters, such as 17M or 1B.")] = "17M",
    max_len: Annotated[int, typer.Option("--max-len", min=64, help="Longest prompt and output together, in tokens.")] = 8192,
    json: Json = False,
) -> None:
    """Make a Llama with random weights and a tokenizer, to serve where no model hub can be reached.

    Example: headway make-model --size 17M --out llm
    """
    from headway.engines.vllm.made_model import make_model as make

    made = make(out, size, max_len=max_len)
    lines = [
        f"made       {made['parameters'] / 1e6:.1f}M parameters: {made['layers']} layers, width {made['hidden']}, {made['heads']} heads "
        f"({made['kv_heads']} of keys and values), {made['vocab']:,} tokens in the vocabulary",
        f"written    {out}: {', '.join(made['files'])}",
        "note: there are no weights in it; the server draws them: --load-format dummy, which `headway record` and `validate` give by themselves",
        f"next       headway record --engine vllm --model {out}",
    ]
    show(made, lines, as_json=json)
