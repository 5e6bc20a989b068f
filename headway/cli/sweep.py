"""The command that runs every combination of some values: sweep."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

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
    Plant,
    Policy,
    Rate,
    Requests,
    Rows,
    Seed,
    TargetText,
    Workload,
    epsilon_given,
    limits_given,
    rate_given,
    rows_given,
)
from headway.cli.terminal import change, ms, percent, progress_bar, rounded, show, table, warning_lines
from headway.cli.words import settings_text


@app.command()
def sweep(
    plant: Plant,
    workload: Workload,
    target: TargetText,
    free: Annotated[
        str,
        typer.Option(
            "--free",
            help="Numbers and their values: margin=0:0.4:9,chunk_tokens=128,512,2048. low:high:count lies evenly, sizes by factors.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the sweep; the same command goes on with one that was killed.")] = Path(
        "sweep"
    ),
    objective: Annotated[str, typer.Option("--objective", help="What the best are best in: attainment or requests.")] = "attainment",
    policy: Policy = None,
    front: Annotated[
        bool, typer.Option("--front", help="Also what can be had of first tokens and gaps at once, beside static settings.")
    ] = False,
    ray: Annotated[bool, typer.Option("--ray", help="Run on Ray, started on this machine, instead of processes.")] = False,
    address: Annotated[
        str | None, typer.Option("--address", help="Run on this Ray cluster: auto for the one of this machine, or HOST:PORT.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes. [default: one per core]")] = None,
    runs: Annotated[int, typer.Option("--runs", min=2, help="Training runs of each combination.")] = 8,
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
    """Run every combination of some values, on all cores or on a Ray cluster, and rank them. It can be killed and goes on.

    Example: headway sweep plant.json --workload azure.csv --rate 13/s --target ttft=1s,itl=25ms --free margin=0:0.4:9
    """
    from headway.experiments.problem import Effort
    from headway.experiments.scaleout import ray_missing
    from headway.loads import open_load, read_plant, with_limits
    from headway.policies import parse_policy
    from headway.sweeping import sweep_stage

    on_ray = ray or address is not None
    if on_ray and ray_missing():
        sys.stderr.write(f"headway: {ray_missing()}\n")  # now, and not only once it has run
    changed, identified = parse_policy(policy or ""), read_plant(plant)
    load = open_load(workload, target, rate_rps=rate_given(rate), rows=rows_given(rows), epsilon=epsilon_given(epsilon))
    limits = with_limits(identified.limits, limits_given(kv_tokens, block, max_seqs, max_len, max_tokens))
    with progress_bar() as bar:
        data = sweep_stage(
            plant,
            identified,
            load,
            limits,
            out,
            free,
            objective=objective,
            effort=Effort(requests=load.requests(requests), seed=seed, train_seeds=runs),
            policy=changed,
            front=front,
            where="ray" if on_ray else "processes",
            address=address,
            workers=workers,
            progress=bar,
        )
    show(data, sweep_lines(data, out), as_json=json)


def sweep_lines(data: dict[str, Any], out: Path) -> list[str]:
    """A sweep in words.

    Args:
        data: content of sweep.json.
        out: its folder.

    Returns:
        Lines: the best, the static setting beside them, what changed nothing.
    """
    what = "tokens on time" if data["objective"] == "attainment" else "clean requests"
    span = lambda value, ends: f"{percent(value)} [{rounded(100 * ends[0])}, {rounded(100 * ends[1])}]"  # noqa: E731
    names = list(data["best"][0]["at"])
    rows = [("", *names, f"{what}, held out", "trained", "over best static", "p99 ITL", "shed")]
    for k, best in enumerate(data["best"], 1):
        figures = best["figures"]
        rows.append(
            (
                f"{k}",
                *(f"{best['at'][name]:.6g}" for name in names),
                span(best["heldout"], best["heldout_ci95"]),
                percent(best["trained"]),
                change(best["gain"], best["gain_ci95"]),
                ms(figures["itl_p99_s"]),
                percent(figures["shed"]),
            )
        )
    static = data["best_static"]
    dead = [f"changes nothing here, at no value of the others: {', '.join(data['dead'])}"] if data["dead"] else []
    traded = [f"trade      {data['front']['sentence']}"] if data["front"] else []
    return [
        f"swept      {data['combinations']:,} combinations, ranked by training runs; {len(data['best'])} best on held-out ones:",
        *table(rows),
        f"static     best of its grid: {settings_text(static['settings'])}, {span(static['heldout'], static['heldout_ci95'])}",
        *traded,
        *warning_lines([*dead, *data["notes"]]),
        f"written    {out}: sweep.csv (a row per combination), sweep.parquet (a row per run), sweep.json",
    ]
