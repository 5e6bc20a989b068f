"""The command that compares topologies: pools."""

from __future__ import annotations

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
from headway.cli.terminal import percent, progress_bar, show, warning_lines
from headway.cli.words import side_table
from headway.units import duration_s


@app.command()
def pools(
    plant: Plant,
    workload: Workload,
    target: TargetText,
    replicas: Annotated[int, typer.Option("--replicas", min=2, help="Engines in all; the workload is that of all together.")] = 4,
    transfer: Annotated[
        str, typer.Option("--transfer", help="Time on a prefill replica's link per prompt token, such as 40us/token.")
    ] = "0s/token",
    latency: Annotated[str, typer.Option("--latency", help="Beside that, for each request, such as 2ms.")] = "0s",
    dispatch: Annotated[str, typer.Option("--dispatch", help="round_robin or least_loaded.")] = "round_robin",
    policy: Policy = None,
    rate: Rate = None,
    rows: Rows = None,
    requests: Requests = None,
    runs: Annotated[int, typer.Option("--runs", min=2, help="Held-out runs, each with its own window and noise.")] = 20,
    kv_tokens: KvTokens = None,
    block: Block = None,
    max_seqs: MaxSeqs = None,
    max_len: MaxLen = None,
    max_tokens: MaxTokens = None,
    epsilon: Epsilon = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Mixed replicas against every split into a prefill pool and a decode pool: what would help where no policy does.

    Example: headway pools plant.json --workload azure.csv --rate 40/s --target ttft=1s,itl=25ms --replicas 4 --transfer 40us/token
    """
    import dataclasses

    from headway.experiments.topologies import EFFORT, compare_topologies
    from headway.experiments.tune import Problem
    from headway.loads import open_load, read_plant, with_limits
    from headway.policies import parse_policy

    changed, identified = parse_policy(policy or ""), read_plant(plant)
    load = open_load(workload, target, rate_rps=rate_given(rate), rows=rows_given(rows), epsilon=epsilon_given(epsilon))
    limits = with_limits(identified.limits, limits_given(kv_tokens, block, max_seqs, max_len, max_tokens))
    problem = Problem(identified, load.source, load.targets, limits)
    effort = dataclasses.replace(EFFORT, heldout_seeds=runs, requests=load.requests(requests, identified, limits), seed=seed)
    base = problem.untuned(problem.draws(effort, heldout=False), changed)
    with progress_bar() as bar:
        data = compare_topologies(
            problem,
            replicas,
            transfer_s_per_token=transfer_given(transfer),
            transfer_latency_s=duration_s(latency),
            dispatch=dispatch,
            effort=effort,
            candidate=base,
            progress=bar,
        ).to_json()
    data["warnings"] += load.notes
    show(data, pools_lines(data), as_json=json)


def transfer_given(text: str) -> float:
    """Time per token from the command line.

    Args:
        text: such as "40us/token".

    Returns:
        Time [s/token].

    Raises:
        ValueError: a text that is no time per token.

    Example:
        >>> transfer_given("2ms/token")
        0.002
    """
    time, slash, unit = text.partition("/")
    if not slash or unit.strip() != "token":
        raise ValueError(f"--transfer must be a time per token, got {text!r}; write for example 40us/token")
    return duration_s(time)


def pools_lines(data: dict[str, Any]) -> list[str]:
    """Topologies side by side, with the verdict.

    Args:
        data: as `headway pools --json`.

    Returns:
        Lines.
    """
    from headway.experiments.statistics import Estimate

    sides = {one["name"]: one for one in (data["mixed"], *data["splits"])}
    lines = [f"{data['mixed']['requests']:,} requests, {data['replicas']} engines", *side_table(sides)]
    for name, one in sides.items():
        words = ", ".join(f"{k.replace('_', ' ')} {v:g}" if isinstance(v, float | int) else f"{k} {v}" for k, v in one["setting"].items())
        low, high = one["gain_ci95"]
        gain = "" if name == data["mixed"]["name"] else f"; {Estimate(one['gain'], low, high).in_percent()}"
        lines.append(f"{name:10} {percent(one['attainment'])} on time{gain}; {words.replace('name ', '', 1)}")
    return [*lines, f"verdict    {data['sentence']}", *warning_lines(data["warnings"])]
