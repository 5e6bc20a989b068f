"""Commands that decide and prove: simulate, tune, analyse, validate, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.analysed import analyse_lines
from headway.cli.app import NOT_MET, app
from headway.cli.options import (
    Block,
    Controller,
    Epsilon,
    Json,
    KvTokens,
    MaxLen,
    MaxSeqs,
    MaxTokens,
    OtherTarget,
    OtherWorkload,
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
    load_files,
    not_over_inputs,
    rate_given,
    rows_given,
    sources_of,
)
from headway.cli.served import Model, Serve, VllmEnv
from headway.cli.terminal import progress_bar, show
from headway.cli.words import simulate_lines, tune_lines, validate_lines

HELDOUT_MOST = 40
"""Held-out seeds that tuning looks at, at most, while the gain is not known to a point."""


@app.command()
def simulate(
    plant: Plant,
    workload: Workload,
    target: TargetText,
    controller: Annotated[Path | None, typer.Option("--controller", help="controller.json; without it the stock engine.")] = None,
    policy: Policy = None,
    rate: Rate = None,
    rows: Rows = None,
    requests: Requests = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs, each with its own window and noise.")] = 5,
    kv_tokens: KvTokens = None,
    block: Block = None,
    max_seqs: MaxSeqs = None,
    max_len: MaxLen = None,
    max_tokens: MaxTokens = None,
    epsilon: Epsilon = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Simulate a controller, or the stock engine, on a fitted plant.

    Example: headway simulate plant.json --workload poisson:rate=5/s,prompt=600,output=200 --target ttft=1s,itl=50ms
    """
    from headway.loads import open_load, read_controller, read_plant, with_limits
    from headway.pipeline import simulate_stage
    from headway.policies import parse_policy

    changed, identified = parse_policy(policy or ""), read_plant(plant)
    load = open_load(workload, target, rate_rps=rate_given(rate), rows=rows_given(rows), epsilon=epsilon_given(epsilon))
    limits = with_limits(identified.limits, limits_given(kv_tokens, block, max_seqs, max_len, max_tokens))
    candidate = read_controller(controller).candidate if controller else None
    with progress_bar() as bar:
        data = simulate_stage(
            identified, load, candidate, limits, requests=load.requests(requests), runs=runs, seed=seed, policy=changed, progress=bar
        )
    show(data, simulate_lines(data), as_json=json)


@app.command()
def tune(
    plant: Plant,
    workload: Workload,
    target: TargetText,
    objective: Annotated[str, typer.Option("--objective", help="attainment, requests or capacity.")] = "attainment",
    out: Annotated[Path, typer.Option("--out", help="Where to write the controller.")] = Path("controller.json"),
    free: Annotated[
        str | None,
        typer.Option(
            "--free",
            help="Numbers that may move, by comma, such as late_rate,stride,share.chat,priority.chat; all is every number that can act. "
            "margin and aging_rate always may. [default: those of parts that are on]",
        ),
    ] = None,
    policy: Policy = None,
    require: Annotated[
        str | None,
        typer.Option(
            "--require",
            help="What has to be kept as well, by comma: floors attainment, clean, fair (worst class), class.NAME; ceilings shed, ttft_p99, "
            "itl_p99, also of one class as shed.NAME: class.chat>=95%,shed<=2%,ttft_p99<=2s.",
        ),
    ] = None,
    robust: Annotated[
        str | None, typer.Option("--robust", help="Tune for plants that the trace allows as well: mean, or cvar:25%, its worst runs.")
    ] = None,
    bound: Annotated[
        bool | None,
        typer.Option(
            "--bound/--no-bound",
            help="Distance to the bound on longer and more windows, and the smallest change of a target out of reach; or none. "
            "[default: two short windows]",
        ),
    ] = None,
    look: Annotated[
        str | None,
        typer.Option("--analyse", help="Look at more beside the result, by comma: knee, pareto, plant-error, shift, parts; or all."),
    ] = None,
    gradient: Annotated[
        str, typer.Option("--gradient", help="auto, fluid or exact: where the slopes come from; the fluid's pass a gate first.")
    ] = "auto",
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule", help="Train gains that follow the load, kept if held-out seeds speak for them: queued, load or network."
        ),
    ] = None,
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
    """Tune margin, aging rate, chunk and gains for goodput, against the best static setting.

    Example: headway tune plant.json --workload azure.csv --rate 13/s --target ttft=1s,itl=25ms
    """
    from headway.beside import parse_looks
    from headway.experiments.tune import Effort
    from headway.loads import open_load, read_plant, with_limits
    from headway.pipeline import tune_stage
    from headway.policies import parse_policy
    from headway.requirements import parse_requirements, parse_robust

    not_over_inputs("--out", out, [plant, *load_files(workload, target)])
    changed, identified, wanted = parse_policy(policy or ""), read_plant(plant), parse_looks(look, bound)
    asked = {"require": parse_requirements(require or ""), "robust": None if robust is None else parse_robust(robust, seed)}
    load = open_load(workload, target, rate_rps=rate_given(rate), rows=rows_given(rows), epsilon=epsilon_given(epsilon))
    limits = with_limits(identified.limits, limits_given(kv_tokens, block, max_seqs, max_len, max_tokens))
    names = tuple(n.strip() for n in free.split(",") if n.strip()) if free else None
    effort = Effort(requests=load.requests(requests), seed=seed, heldout_most=HELDOUT_MOST, gradient=gradient)
    told = {"objective": objective, "effort": effort, "free": names, "policy": changed, "wanted": wanted, "schedule": schedule, **asked}
    with progress_bar() as bar:
        _, record = tune_stage(plant, identified, load, limits, out, **told, progress=bar)  # pyright: ignore[reportArgumentType]
    show({"controller": record.to_json(), **record.tuning}, tune_lines(record.tuning, str(out)), as_json=json)


@app.command()
def analyse(
    controller: Controller,
    plant: Plant,
    delay: Annotated[
        list[int] | None,
        typer.Option("--delay", min=1, help="Steps from a command to its measurement; may be given more than once. [default: 1 and 2]"),
    ] = None,
    gains: Annotated[
        str | None, typer.Option("--gains", help="Look at the law with other numbers, as name=value by comma: margin=20%,ki=0.1.")
    ] = None,
    policy: Policy = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the controller with these numbers and a new certificate, to validate or export it.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 if the law is refused.")] = False,
    json: Json = False,
) -> None:
    """Stability margins and limit cycles of the loop over the plant's operating points, and the certificate.

    Example: headway analyse controller.json plant.json --delay 2 --gains margin=20%
    """
    from headway.experiments.analysis import analyse as analysis
    from headway.experiments.certificate import REFUSED
    from headway.experiments.whole_files import write_json
    from headway.gains import by_hand, parse_gains, with_gains
    from headway.loads import read_controller, read_plant
    from headway.policies import parse_policy

    if out is not None:
        not_over_inputs("--out", out, [controller, plant])
    record, identified = read_controller(controller), read_plant(plant)
    if out is not None:
        not_over_inputs("--out", out, sources_of(record, controller), why=f"{controller} was tuned on")
    moved, served = parse_gains(gains or "", record.candidate.law), parse_policy(policy or "")
    delays, candidate = tuple(sorted(set(delay or (1, 2)))), with_gains(record.candidate, moved, served)
    data = analysis(candidate, identified, record.targets, record.limits, delay=delays).to_json()
    written = []
    if out is not None:
        changed = by_hand(record, identified, moved, served, delays=tuple(sorted({1, 2, *delays})))
        write_json(out, changed.to_json())
        written = [f"written    {out}; `headway validate {out} --plant {plant}` runs it"]
    show(data, [*analyse_lines(data), *written], as_json=json)
    if check and data["verdict"] == REFUSED:
        raise typer.Exit(NOT_MET)


@app.command()
def validate(
    controller: Controller,
    engine: Annotated[
        str, typer.Option("--engine", help="sim (exact simulator), kernels (live, on this machine), vllm (a real server), vllm-sim.")
    ] = "sim",
    plant: Annotated[Path | None, typer.Option("--plant", help="Measure on this plant instead of the controller's own.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Where to write the result.")] = Path("validation.json"),
    workload: OtherWorkload = None,
    target: OtherTarget = None,
    rate: Rate = None,
    requests: Requests = None,
    runs: Annotated[int | None, typer.Option("--runs", min=1, help="Repetitions. [default: 20, live 3]")] = None,
    length: Annotated[str, typer.Option("--length", help="Length of a live run on the engine's clock, such as 20s.")] = "20s",
    preset: Annotated[str, typer.Option("--preset", help="Size of the llm behind live kernels.")] = "tiny",
    model: Model = None,
    vllm_env: VllmEnv = None,
    serve: Serve = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", help="vllm: folder of the runs; those it holds are not repeated. [default: beside --out]")
    ] = None,
    early: Annotated[
        bool, typer.Option("--early", help="vllm: also the best static setting with clients who give up at .8 of TTFT.")
    ] = False,
    kv_tokens: KvTokens = None,
    block: Block = None,
    max_seqs: MaxSeqs = None,
    max_len: MaxLen = None,
    max_tokens: MaxTokens = None,
    json: Json = False,
) -> None:
    """Close the loop on an engine and hold measured against predicted. Exits 1 unless the outcome is "met".

    Example: headway validate controller.json --engine kernels
    """
    from headway.engines.live import SERVED, live_engine
    from headway.loads import load_of, read_controller, with_limits
    from headway.pipeline import validate_stage
    from headway.units import duration_s

    not_over_inputs("--out", out, [controller, plant, *load_files(workload, target)])
    record = read_controller(controller)
    not_over_inputs("--out", out, sources_of(record, controller), why=f"{controller} was tuned on")
    load = load_of(record, workload=workload, rate_rps=rate_given(rate), target=target)
    limits = with_limits(record.limits, limits_given(kv_tokens, block, max_seqs, max_len, max_tokens))
    told: dict[str, Any] = {
        "plant": plant,
        "load": load,
        "record": record,
        "limits": limits,
        "runs": runs or (20 if engine == "sim" else 3),
    }
    with progress_bar() as bar:
        if engine in SERVED:
            from headway.engines.vllm.stages import serve_flags, validate_vllm

            told |= {"model": model, "place": vllm_env, "flags": serve_flags(serve), "keep": keep, "early": early}
            data = validate_vllm(engine, controller, out, seconds=duration_s(length), progress=bar, **told).to_json()
        else:
            live = live_engine(engine, preset=preset, limits=limits, progress=bar)
            many = requests or int(record.workload.get("requests") or 1000)
            found = validate_stage(controller, out, engine=live, requests=many, cut_s=duration_s(length), progress=bar, **told)
            data = found.to_json()
    show(data, validate_lines(data, str(out)), as_json=json)
    if data["outcome"] != "met":
        raise typer.Exit(NOT_MET)


@app.command()
def export(
    controller: Controller,
    out: Annotated[Path, typer.Option("--out", help="New folder to write to.")],
    engine: Annotated[
        str,
        typer.Option(
            "--engine", help="json, python, c99, vllm, vllm-flags, sglang-flags, trtllm-flags, vllm-ascend, sglang or transformers."
        ),
    ] = "json",
    version: Annotated[
        str | None, typer.Option("--engine-version", help="Flags only: version that will run, such as 0.32.0. [default: the newest known]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that holds something; other files in it stay.")] = False,
    uncertified: Annotated[
        bool, typer.Option("--uncertified", help="Write a controller whose certificate is refused; it is said in what is written.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a controller for use outside Headway.

    Example: headway export controller.json --engine python --out gains
    """
    from headway.engines.export import RECORD_FILES
    from headway.loads import read_controller
    from headway.pipeline import export_stage

    if engine in RECORD_FILES:
        not_over_inputs("--out", out / RECORD_FILES[engine], [controller], fix=f"name another folder, such as {out / engine}")
    data = export_stage(read_controller(controller), engine, out, force=force, uncertified=uncertified, version=version)
    show(data, [f"written    {out}: {', '.join(data['files'])}", *[f"note: {n}" for n in data["warnings"]]], as_json=json)
