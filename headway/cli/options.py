"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.units import rate_rps as parse_rate
from headway.units import row_range, share, tokens

if TYPE_CHECKING:
    from headway.controllers.record import ControllerRecord

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")]
KvTokens = Annotated[str | None, typer.Option("--kv-tokens", help="Engine: size of the KV cache in tokens, such as 200k.")]
Block = Annotated[int | None, typer.Option("--block", help="Engine: tokens in one cache block.")]
MaxSeqs = Annotated[int | None, typer.Option("--max-seqs", help="Engine: start-up limit of running requests.")]
MaxLen = Annotated[str | None, typer.Option("--max-len", help="Engine: longest prompt and output together, such as 32k.")]
MaxTokens = Annotated[str | None, typer.Option("--max-tokens", help="Engine: start-up limit of tokens in one step.")]
Rate = Annotated[str | None, typer.Option("--rate", help="Rescale the arrivals to this mean rate, such as 12/s.")]
Rows = Annotated[str | None, typer.Option("--rows", help="Take only these rows of the workload file, such as 0:5000.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything that is drawn.")]
Epsilon = Annotated[str | None, typer.Option("--epsilon", help="Share that may be late, such as 1%. [default: 1%]")]
Workload = Annotated[
    str,
    typer.Option(
        "--workload", help="Workload file, or what to draw: poisson:rate=5/s,prompt=600,output=200, closed:clients=64,think=2s,..."
    ),
]
OtherWorkload = Annotated[str | None, typer.Option("--workload", help="Another workload than the controller was tuned for.")]
TargetText = Annotated[
    str,
    typer.Option("--target", help="What clients were promised: ttft=1s,itl=25ms,transport=2ms,level=request, or a TOML file of classes."),
]
OtherTarget = Annotated[str | None, typer.Option("--target", help="Another target than the controller was tuned for.")]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="Whom to serve, as name=value by comma: order=fcfs|edf|slack, triage=none|defer|reject|timeout|degrade, "
        "admission=none|myopic|lookahead, phases=mixed|prefill_first|decode_first, preemption=recompute|swap, aging_rate, tolerance, "
        "estimate, timeout, degrade=2, prefill_every=8, decode_every=4, stride=0.5, memory_price_s=1ms, and by class class_shares=3:1, "
        "priority_s=500ms:0s.",
    ),
]
Requests = Annotated[int | None, typer.Option("--requests", min=20, help="Requests per run. [default: about 120 s of arrivals]")]
Blocks = Annotated[str, typer.Option("--blocks", help="Rows to use: all, even or odd blocks of 200.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        help="Use only rows with column=value, or column=low:high for numbers (both ends in it, either may be left out); "
        "may be given more than once.",
    ),
]
Format = Annotated[str, typer.Option("--format", help="Format of the trace; auto looks at the content.")]
Traces = Annotated[list[Path], typer.Argument(help="Trace files.", metavar="TRACE...")]
Plant = Annotated[Path, typer.Argument(help="plant.json of headway fit.", metavar="PLANT")]
Controller = Annotated[Path, typer.Argument(help="controller.json of headway tune.", metavar="CONTROLLER")]


def limits_given(
    kv_tokens: str | None, block: int | None, max_seqs: int | None, max_len: str | None, max_tokens: str | None
) -> dict[str, int]:
    """Engine limits from the command line.

    Args:
        kv_tokens: size text [tokens].
        block: tokens in a block [tokens].
        max_seqs: requests.
        max_len: size text [tokens].
        max_tokens: size text [tokens].

    Returns:
        Those that were given, by field of `Limits`.

    Raises:
        ValueError: a text that is no size.
    """
    given: dict[str, Any] = {
        "kv_tokens": None if kv_tokens is None else tokens(kv_tokens),
        "block_tokens": block,
        "max_seqs": max_seqs,
        "max_len": None if max_len is None else tokens(max_len),
        "max_tokens": None if max_tokens is None else tokens(max_tokens),
    }
    return {k: v for k, v in given.items() if v is not None}


COMPARISON = re.compile(r"\s*(\w+)\s*([<>])=?\s*([^<>=\s]*)\s*")
"""A comparison as other languages write it."""


def where_given(texts: list[str] | None) -> dict[str, str]:
    """Row filters from the command line.

    Args:
        texts: each "column=value" or "column=low:high".

    Returns:
        Value, or range as it was written, by column.

    Raises:
        ValueError: a text without "=", a comparison, or a column given twice.
    """
    found: dict[str, str] = {}
    for text in texts or []:
        column, equal, value = text.partition("=")
        compared = COMPARISON.fullmatch(text)
        if compared:
            name, sign, end = compared.groups()
            fix = f"{name}={end}:" if sign == ">" else f"{name}=:{end}"
            raise ValueError(f"--where takes column=value or column=low:high, got {text!r}; write --where {fix} (the end is in it)")
        if not equal or not column.strip():
            raise ValueError(
                f"--where must be column=value, got {text!r}; write for example --where workload_segment=real, or --where decode_requests=16:64"
            )
        if column.strip() in found:
            raise ValueError(f"--where names column {column.strip()!r} twice; one value or one range per column")
        found[column.strip()] = value.strip()
    return found


def rate_given(text: str | None) -> float | None:
    """Rate from the command line.

    Args:
        text: such as "12/s".

    Returns:
        Rate [requests/s], None if not given.

    Raises:
        ValueError: a text that is no rate.
    """
    return None if text is None else parse_rate(text)


def rows_given(text: str | None) -> slice | None:
    """Row range from the command line.

    Args:
        text: such as "0:5000".

    Returns:
        Slice, None if not given.

    Raises:
        ValueError: a text that is no range.
    """
    return None if text is None else row_range(text)


def epsilon_given(text: str | None) -> float | None:
    """Epsilon from the command line.

    Args:
        text: such as "1%" or "0.01".

    Returns:
        In (0, 1), None if not given.

    Raises:
        ValueError: a text that is no share, or one outside (0, 1).
    """
    if text is None:
        return None
    value = share(text)
    if not 0 < value < 1:
        raise ValueError(f"--epsilon must be in (0, 1), got {text}; write 1% for one late token in a hundred")
    return value


def hardware_given(llm_name: str | None, device_name: str | None, tp: int) -> Any:
    """What the engine ran, and on what, from the command line.

    Args:
        llm_name: a model that is known; None where it was not given.
        device_name: an accelerator that is known; None where it was not given.
        tp: accelerators that share each layer.

    Returns:
        `headway.identification.hardware.points.Hardware`.

    Raises:
        ValueError: an unknown name; the message holds the nearest. Or a tp that the model's heads do not divide by, or that
            says nothing because no model is named.
    """
    from headway.identification.hardware.devices import device
    from headway.identification.hardware.llms import llm
    from headway.identification.hardware.points import Hardware

    model = None if llm_name is None else llm(llm_name)
    if model is None and device_name is None and tp > 1:
        raise ValueError(f"--tp {tp} says nothing without the model that was shared; give --llm as well, or leave it out")
    if model is not None and model.heads % tp:
        raise ValueError(f"--tp {tp}: the {model.heads} heads of {model.name} do not divide by it; write 1, 2, 4 or 8")
    return Hardware(model, None if device_name is None else device(device_name), tp)


def not_over_inputs(
    option: str, out: Path, inputs: Iterable[Path | str | None], *, why: str = "this command reads", fix: str = "name another file"
) -> None:
    """Refuse to write over a file that the same command reads: a trace cannot be recorded twice.

    Args:
        option: the output's, for the message.
        out: where the result is to go; a link is followed.
        inputs: files that are read, or texts that may name one; None where one was not given.
        why: what the inputs are, for the message.
        fix: what to do, for the message.

    Raises:
        ValueError: both are one file.
    """
    for path in inputs:
        # os.path, because a Path raises where a text is too long for a file name
        if path is not None and os.path.exists(path) and out.exists() and os.path.samefile(out, path):
            raise ValueError(f"{option} {out} would be written over {path}, which {why}; {fix}")


def load_files(workload: str | None, target: str | None) -> list[Path | str]:
    """What is read for a workload and a target, for `not_over_inputs`.

    Args:
        workload: a file, what is said of one, or what to draw; None where it was not given.
        target: what was promised, or a TOML file of it; None where it was not given.

    Returns:
        The workload's files, and the target's text, which may name one.
    """
    from headway.workloads import files_of

    return [*(files_of(workload) if workload else []), *([target] if target else [])]


def trace_files(traces: Iterable[Path]) -> list[Path]:
    """What is read for traces, for `not_over_inputs`: the engine's configuration beside each, and tables that are read together.

    Args:
        traces: files or folders, as they were given.

    Returns:
        Files; not every one need exist.
    """
    from headway.identification.readers.llmservingsim import table_of

    found: list[Path] = []
    for trace in (Path(table_of(str(given))) for given in traces):
        parts = trace.name.split(".") if trace.name else []
        found += [trace, *(trace.with_name(".".join(parts[:n]) + ".engine_config.json") for n in range(len(parts), 0, -1))]
        if trace.name and trace.with_name("dense.csv").is_file():  # LLMServingSim's
            above = trace.resolve().parent.parent
            found += [trace.with_name(name) for name in ("dense.csv", "per_sequence.csv", "meta.yaml", "config.json")]
            found += [above / "meta.yaml", above / "config.json", *(above / "vllm_run").glob("*")]
    return found


def sources_of(record: ControllerRecord, controller: Path) -> list[Path]:
    """What a controller was tuned on and is validated with, for `not_over_inputs`.

    Args:
        record: the controller.
        controller: its file: its plant is looked for beside it.

    Returns:
        Files; not every one need exist.
    """
    from headway.workloads import files_of

    plant = controller.parent / str(record.plant_file.get("file") or "plant.json")
    return [plant, *files_of(str(record.workload.get("spec") or ""))]
