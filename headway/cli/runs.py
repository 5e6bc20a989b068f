"""Commands over a run folder: run, report, demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.app import app
from headway.cli.options import (
    Block,
    Epsilon,
    Json,
    KvTokens,
    MaxLen,
    MaxSeqs,
    MaxTokens,
    Policy,
    Rate,
    Requests,
    Rows,
    Seed,
    Where,
    epsilon_given,
    limits_given,
    not_over_inputs,
    rate_given,
    rows_given,
    where_given,
)
from headway.cli.summary import summary_lines
from headway.cli.terminal import progress_bar, show


@app.command()
def run(
    trace: Annotated[list[Path] | None, typer.Option("--trace", help="Trace file; may be given more than once.")] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload", help="Workload file, or what to draw: poisson:rate=5/s,prompt=600,output=200, closed:clients=64,think=2s,..."
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="What clients were promised: ttft=1s,itl=25ms, or a TOML file of classes.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Run folder, new.")] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the run in this folder; needs no other option.", metavar="RUN")
    ] = None,
    engine: Annotated[str, typer.Option("--engine", help="What to validate on: sim or kernels.")] = "sim",
    objective: Annotated[str, typer.Option("--objective", help="attainment, requests or capacity.")] = "attainment",
    policy: Policy = None,
    where: Where = None,
    rate: Rate = None,
    rows: Rows = None,
    requests: Requests = None,
    kv_tokens: KvTokens = None,
    block: Block = None,
    max_seqs: MaxSeqs = None,
    max_len: MaxLen = None,
    max_tokens: MaxTokens = None,
    epsilon: Epsilon = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """The whole way: fit, tune, validate, export, report. One file per stage in the run folder.

    Example: headway run --trace steps.csv --workload azure.csv --rate 13/s --target ttft=1s,itl=25ms --out RUN
    """
    from headway.experiments.run import RunFolder
    from headway.whole import Request, run_all

    if resume is not None:
        folder, request = resume, Request.of_folder(RunFolder(resume))
    else:
        given = {"--trace": trace, "--workload": workload, "--target": target, "--out": out}
        missing = [name for name, value in given.items() if not value]
        if not trace or not workload or not target or not out:
            raise ValueError(f"run needs {', '.join(missing)}; or --resume RUN to go on with one")
        span = rows_given(rows)
        folder = out
        request = Request(
            traces=tuple(map(str, trace)),
            workload=workload,
            target=target,
            engine=engine,
            objective=objective,
            where=where_given(where),
            rate_rps=rate_given(rate),
            rows=None if span is None else (span.start or 0, span.stop),
            requests=requests,
            limits=limits_given(kv_tokens, block, max_seqs, max_len, max_tokens),
            epsilon=epsilon_given(epsilon),
            seed=seed,
            policy=policy,
        )
    with progress_bar() as bar:
        data = run_all(folder, request, resume=resume is not None, progress=bar)
    show(data, summary_lines(data), as_json=json)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    perfetto: Annotated[
        Path | None,
        typer.Option("--perfetto", help="Write the validation's steps as well, as Chrome trace JSON for Perfetto.", metavar="FILE"),
    ] = None,
    json: Json = False,
) -> None:
    """Write the report of a run folder anew.

    Example: headway report RUN --perfetto steps.json
    """
    from headway.experiments.run import MANIFEST, STAGES, RunFolder
    from headway.report import write_report
    from headway.report.perfetto import write_perfetto

    if not run.is_dir():
        raise ValueError(f"{run}: no such run folder; `headway run --out {run} ...` makes one")
    told, lines = {}, []
    if perfetto is not None:
        asked = RunFolder(run).manifest()
        read = [run / name for name in (*STAGES.values(), MANIFEST)]
        not_over_inputs("--perfetto", perfetto, [*read, *asked.get("inputs", {}), *asked.get("request", {}).get("traces", [])])
        steps = write_perfetto(run, perfetto)
        told = {"perfetto": str(perfetto), "steps": steps}
        lines = [
            f"written    {perfetto}: {', '.join(f'{n:,} steps of the {side}' for side, n in steps.items())}; open it in ui.perfetto.dev"
        ]
    path = write_report(run)
    folder = RunFolder(run)
    if folder.manifest():
        folder.finish("report", 0.0)
    show({"report": str(path), **told}, [f"written    {path}", *lines], as_json=json)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Run folder, new or of an earlier demo.")] = Path("runs/demo"),
    engine: Annotated[str, typer.Option("--engine", help="What to validate on: kernels (live, on this machine) or sim.")] = "kernels",
    json: Json = False,
) -> None:
    """The main job on the trace that comes with Headway: fit, tune, close the loop on live kernels, report.

    Example: headway demo
    """
    from headway.demo import run_demo

    with progress_bar() as bar:
        data = run_demo(out, engine, progress=bar)
    show(data, summary_lines(data), as_json=json)
