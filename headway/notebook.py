"""Headway in a notebook: the stages as functions, `headway.fit(...)` and its like, whose results show themselves.

Nothing is computed here. Each function is the command of the same name without its files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from headway.beside import parse_looks
from headway.cli.decide import HELDOUT_MOST
from headway.cli.options import hardware_given, rows_given
from headway.cli.terminal import progress_bar
from headway.cli.words import simulate_lines
from headway.experiments.run import STAGES
from headway.experiments.tune import Effort
from headway.experiments.whole_files import read_json, without_nan
from headway.loads import Load, open_load, read_controller, read_plant, with_limits
from headway.models.identified import IdentifiedPlant
from headway.notebook_options import EngineLimits, Source, count_of, effort_of, epsilon_of, file_of, limits_of, rate_of, words_of
from headway.notebook_results import FittedPlant, Told, TunedController, listed
from headway.pipeline import fit_stage, simulate_stage, tune_stage
from headway.policies import parse_policy
from headway.requirements import parse_requirements, parse_robust


def fit(
    *traces: Source,
    format: str = "auto",
    blocks: str = "all",
    where: Mapping[str, str] | None = None,
    epsilon: str | float | None = None,
    structure: str = "auto",
    llm: str | None = None,
    device: str | None = None,
    tp: int = 1,
    seed: int = 0,
    **limits: Unpack[EngineLimits],
) -> FittedPlant:
    """Identify a plant from measured steps, as `headway fit`.

    Args:
        *traces: trace files.
        format: of the files; "auto" looks at the content.
        blocks: "all", "even" or "odd" blocks of 200 rows.
        where: wanted value by column.
        epsilon: share of the steps that may be late, such as "1%".
        structure: of the plant; "auto" chooses on steps left out.
        llm: model that ran, such as "qwen3-32b": the plant is held against it.
        device: accelerator that it ran on.
        tp: accelerators that share each layer.
        seed: of the bootstrap.
        **limits: of the engine, see `EngineLimits` [tokens, requests].

    Returns:
        The plant.

    Raises:
        ValueError: no trace, or one that cannot be read or fitted.
    """
    if not traces:
        raise ValueError('fit needs a trace; write for example headway.fit("steps.csv")')
    files = [Path(file_of(one, "trace files, one by one", 'headway.fit("steps.csv", "more.csv")')) for one in traces]
    count_of("tp", tp)
    count_of("seed", seed, least=0)
    words_of('format="auto", blocks="even"', format=format, blocks=blocks, structure=structure, llm=llm, device=device)
    if where is not None and not isinstance(where, Mapping):
        raise ValueError(f'where must be a mapping by column, got {where!r}; write for example where={{"source": "w0"}}')
    with progress_bar() as bar:
        identified, trace = fit_stage(
            files,
            None,
            format=format,
            blocks=blocks,
            where=where,
            epsilon=epsilon_of(epsilon) or 0.01,
            limits=limits_of(**limits),
            structure=structure,
            hardware=hardware_given(llm, device, tp),
            seed=seed,
            progress=bar,
        )
    content = without_nan(identified.to_json())
    # as it would be read again: a notebook and the commands go on from the same digits
    return FittedPlant(IdentifiedPlant.from_json(content), content, trace)


def simulate(
    plant: FittedPlant | Source,
    workload: Source,
    target: Source,
    *,
    controller: TunedController | Source | None = None,
    policy: str | None = None,
    rate: str | float | None = None,
    rows: str | None = None,
    requests: int | None = None,
    runs: int = 5,
    epsilon: str | float | None = None,
    seed: int = 0,
    **limits: Unpack[EngineLimits],
) -> Told:
    """Simulate the stock engine, or a controller, on a plant, as `headway simulate`.

    Args:
        plant: fitted, or its file.
        workload: file or recipe.
        target: text such as "ttft=1s,itl=25ms", or a TOML file of classes.
        controller: tuned, or its file; None is the stock engine.
        policy: whom to serve, as `--policy` takes it.
        rate: mean rate to rescale the arrivals to, such as "12/s"; a number is requests a second.
        rows: of the workload file, such as "0:5000".
        requests: per run; None for about two minutes of arrivals.
        runs: each with its own window and noise.
        epsilon: share of the tokens that may be late.
        seed: of the first run.
        **limits: of the engine, see `EngineLimits` [tokens, requests].

    Returns:
        What became of the promise.

    Raises:
        ValueError: something given that cannot be understood, or that cannot be.
    """
    _checked(workload, target, requests, seed, policy=policy, rows=rows)
    count_of("runs", runs)
    load = open_load(str(workload), str(target), rate_rps=rate_of(rate), rows=rows_given(rows), epsilon=epsilon_of(epsilon))
    chosen = controller if isinstance(controller, TunedController | None) else open_controller(controller)
    return simulated(plant_of(plant), load, chosen, policy=policy, requests=requests, runs=runs, seed=seed, **limits)


def tune(
    plant: FittedPlant | Source,
    workload: Source,
    target: Source,
    *,
    objective: str = "attainment",
    free: str | None = None,
    policy: str | None = None,
    require: str | None = None,
    robust: str | None = None,
    bound: bool | None = None,
    analyse: str | None = None,
    rate: str | float | None = None,
    rows: str | None = None,
    requests: int | None = None,
    epsilon: str | float | None = None,
    effort: Mapping[str, Any] | None = None,
    seed: int = 0,
    **limits: Unpack[EngineLimits],
) -> TunedController:
    """Tune margin, aging rate, chunk and gains against the best static setting, as `headway tune`.

    Args:
        plant: fitted, or its file.
        workload: file or recipe.
        target: text such as "ttft=1s,itl=25ms", or a TOML file of classes.
        objective: "attainment", "requests" or "capacity".
        free: numbers that may move beside margin and aging rate, by comma; None for those of parts that are on.
        policy: whom to serve, as `--policy` takes it.
        require: what has to be kept as well, such as "class.chat>=95%,shed<=2%".
        robust: "mean" or "cvar:25%": tune for plants that the trace allows as well.
        bound: True for the distance to the bound on more and longer windows, False for none; None for two short windows.
        analyse: what to look at beside the result, by comma: knee, pareto, plant-error, shift, parts; or all.
        rate: mean rate to rescale the arrivals to, such as "12/s"; a number is requests a second.
        rows: of the workload file, such as "0:5000".
        requests: per run; None for about two minutes of arrivals.
        epsilon: share of the tokens that may be late.
        effort: fields of `headway.experiments.problem.Effort` that differ from the command's.
        seed: of everything that is drawn.
        **limits: of the engine, see `EngineLimits` [tokens, requests].

    Returns:
        The controller, or the static setting where nothing better was found.

    Raises:
        ValueError: something given that cannot be understood, or that cannot be.
    """
    _checked(workload, target, requests, seed, free=free, policy=policy, require=require, robust=robust, analyse=analyse, rows=rows)
    changed = effort_of(effort, vars(Effort()))
    own = plant_of(plant)
    load = open_load(str(workload), str(target), rate_rps=rate_of(rate), rows=rows_given(rows), epsilon=epsilon_of(epsilon))
    bounds = with_limits(own.identified.limits, limits_of(**limits))
    spent: dict[str, Any] = {"requests": load.requests(requests), "seed": seed, "heldout_most": HELDOUT_MOST, **changed}
    with tempfile.TemporaryDirectory() as folder, progress_bar() as bar:
        _, record = tune_stage(
            own.save(Path(folder) / STAGES["fit"]),  # the record holds this file's name and hash, as `save` writes it again
            own.identified,
            load,
            bounds,
            None,
            objective=objective,
            effort=Effort(**spent),
            free=tuple(name.strip() for name in free.split(",") if name.strip()) if free else None,
            policy=parse_policy(policy or ""),
            require=parse_requirements(require or ""),
            robust=None if robust is None else parse_robust(robust, seed),
            wanted=parse_looks(analyse, bound),
            progress=bar,
        )
    return TunedController(record, own)


def open_plant(path: Source) -> FittedPlant:
    """Read a plant.json.

    Args:
        path: of the file.

    Returns:
        The plant, without its trace.

    Raises:
        ValueError: no file of a plant.
    """
    path = file_of(path, "a plant, or its plant.json", 'headway.open_plant("plant.json")')
    return FittedPlant(read_plant(Path(path)), read_json(Path(path)))


def open_controller(path: Source, plant: FittedPlant | Source | None = None) -> TunedController:
    """Read a controller.json and the plant that it was tuned on.

    Args:
        path: of the file.
        plant: that it was tuned on; None for the plant.json beside it.

    Returns:
        The controller.

    Raises:
        ValueError: no file of a controller, or none of its plant.
    """
    path = file_of(path, "a controller, or its controller.json", 'headway.open_controller("controller.json")')
    record = read_controller(Path(path))
    beside = Path(path).parent / str(record.plant_file.get("file") or STAGES["fit"])
    return TunedController(record, plant_of(beside if plant is None else plant))


def simulated(
    plant: FittedPlant,
    load: Load,
    controller: TunedController | None,
    *,
    policy: str | None = None,
    requests: int | None = None,
    runs: int = 5,
    seed: int = 0,
    **limits: Unpack[EngineLimits],
) -> Told:
    """Simulate on a load that is resolved already.

    Args:
        plant: that says how long a step takes.
        load: workload and targets.
        controller: tuned; None is the stock engine.
        policy: whom to serve, as `--policy` takes it.
        requests: per run; None for about two minutes of arrivals.
        runs: each with its own window and noise.
        seed: of the first run.
        **limits: of the engine, see `EngineLimits` [tokens, requests].

    Returns:
        What became of the promise.

    Raises:
        ValueError: something given that cannot be understood, or that cannot be.
    """
    count_of("runs", runs)
    count_of("requests", requests)
    count_of("seed", seed, least=0)
    words_of('policy="order=edf"', policy=policy)
    from headway.report.tables import side_table
    from headway.report.tails import side_notes

    bounds = with_limits(plant.identified.limits if controller is None else controller.record.limits, limits_of(**limits))
    candidate = None if controller is None else controller.record.candidate
    told: dict[str, Any] = {"requests": load.requests(requests), "runs": runs, "seed": seed, "policy": parse_policy(policy or "")}
    with progress_bar() as bar:
        data = simulate_stage(plant.identified, load, candidate, bounds, **told, progress=bar)
    group = {"simulated": {"stock engine" if controller is None else "controller": data}}
    html = side_table(group, "What became of the promise") + side_notes(group) + listed(data["warnings"])
    return Told(data, tuple(simulate_lines(data)), html)


def plant_of(given: FittedPlant | Source) -> FittedPlant:
    """A plant, or the one in a file.

    Args:
        given: either.

    Returns:
        The plant.
    """
    return given if isinstance(given, FittedPlant) else open_plant(given)


def _checked(workload: Any, target: Any, requests: Any, seed: Any, **texts: Any) -> None:
    """Refuse what no load can be made of, and what is no text, before anything is read."""
    file_of(workload, "a workload, a file or a recipe", '"poisson:rate=5/s,prompt=600,output=200"')
    file_of(target, "a target, text or a TOML file", '"ttft=1s,itl=25ms"')
    count_of("requests", requests)
    count_of("seed", seed, least=0)
    examples = {
        "free": 'free="chunk_tokens"',
        "policy": 'policy="order=edf"',
        "require": 'require="shed<=2%"',
        "robust": 'robust="mean"',
        "analyse": 'analyse="knee"',
        "rows": 'rows="0:5000"',
    }
    for name, value in texts.items():
        words_of(examples[name], **{name: value})
