"""Recording on a real vLLM: budget and running limit are drawn at random inside it, under a load that never lets it run dry."""

from __future__ import annotations

import io
import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from headway.engines.vllm.clients import ClientRun, run_clients
from headway.engines.vllm.environment import QUIET, version
from headway.engines.vllm.server import Server, log_end, serving
from headway.engines.vllm.service import Service, read_back
from headway.engines.vllm.starting import Start, limits_of
from headway.engines.vllm.step_rows import StepRows, read_rows
from headway.experiments.excite import excitation_workload
from headway.experiments.whole_files import write_json, write_whole
from headway.models.signals import Limits

Progress = Callable[[str, float], None]

WAITING_SHARE = 1.5
"""Requests on their way, as a share of the running limit: some always wait, few enough that the server is not busy with them."""
STEPS_PER_REQUEST = 2
"""Requests are prepared for so many steps each, far more than they make; the recording ends with its steps, not with its requests."""
ROWS_LOOK_S = 1.0
SAFE_VOCAB = 8_000
"""Token ids that any model has."""


def record_served(start: Start, *, steps: int, seed: int = 0, progress: Progress | None = None) -> tuple[StepRows, ClientRun, Limits, str]:
    """Start a server that excites itself, load it until it has made so many steps, and stop it.

    Args:
        start: how.
        steps: wanted [steps].
        seed: of excitation and load.
        progress: called with a label and a fraction.

    Returns:
        (its steps; what the load's clients saw; the limits it ran with; vLLM's version).

    Raises:
        ValueError: it does not start, or its trace holds too little.
    """
    how = start.serving("record", "excite", seed=seed)
    trace = start.trace_of("record")
    with serving(how, progress) as server:
        found = read_back(server.service, server.log)
        limits = limits_of(start, found)
        workload = excitation_workload(seed, max(steps // STEPS_PER_REQUEST, 200), limits.max_len, limits.max_tokens)
        counter = Counter(trace, steps, progress)
        run = run_clients(
            server,
            workload,
            outstanding=max(int(WAITING_SHARE * limits.max_seqs), 2),
            seed=seed,
            vocab=vocabulary(start.model),
            cores=start.cores.rest,
            enough=counter.enough,
        )
    rows = read_rows(trace)
    if len(rows) < min(steps, 100):
        raise ValueError(f"only {len(rows)} steps were recorded of {steps}; {log_end(how.log)}")
    return rows, run, limits, found.version or version(start.place)


def attached(
    url: str, steps_file: Path, model: Path | None, *, steps: int, seed: int = 0, progress: Progress | None = None
) -> tuple[StepRows, ClientRun, Limits, str]:
    """Load a server that runs already, with the adapter in mode excite, until it has made so many steps; it is left running.

    Args:
        url: its address.
        steps_file: the trace that its adapter writes.
        model: folder of its model, which says the vocabulary; None draws token ids below SAFE_VOCAB.
        steps: wanted [steps].
        seed: of the load.
        progress: called with a label and a fraction.

    Returns:
        As `record_served`.

    Raises:
        ValueError: it does not answer, does not excite, or its trace holds too little.
    """
    server = Server(Service(url), 0, None, False, 0.0)
    before = read_rows(steps_file)
    if before.header.get("mode") != "excite":
        raise ValueError(
            f"{steps_file}: the adapter runs in mode {before.header.get('mode')}, a recording needs excite; start the server so"
        )
    given = {k: int(v) for k, v in before.header.get("limits", {}).items()}
    found = read_back(server.service, given=given)
    limits = replace(found.as_limits(), scheduling="async" if before.header.get("async") else "sync")
    workload = excitation_workload(seed, max(steps // STEPS_PER_REQUEST, 200), limits.max_len, limits.max_tokens)
    counter = Counter(steps_file, len(before) + steps, progress)
    many = max(int(WAITING_SHARE * limits.max_seqs), 2)
    vocab = vocabulary(model) if model is not None else SAFE_VOCAB
    run = run_clients(server, workload, outstanding=many, seed=seed, vocab=vocab, enough=counter.enough)
    rows = read_rows(steps_file).between(run.zero_s, run.zero_s + run.span_s)
    if len(rows) < min(steps, 100):
        raise ValueError(f"{steps_file}: only {len(rows)} steps of {steps} were recorded; does this server write it, on this machine?")
    return rows, run, limits, found.version or str(before.header.get("version"))


class Counter:
    """Counts the lines of a growing file, reading each once.

    Args:
        path: of the file.
        wanted: lines that are enough.
        progress: called with a label and a fraction.
    """

    def __init__(self, path: Path, wanted: int, progress: Progress | None) -> None:
        """Nothing was read yet."""
        self.path, self.wanted, self.progress, self.at, self.lines = path, wanted, progress, 0, 0

    def enough(self) -> bool:
        """Look again.

        Returns:
            Whether there are as many as wanted.
        """
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self.at)
                new = file.read()
            self.at, self.lines = self.at + len(new), self.lines + new.count(b"\n")
        if self.progress:
            self.progress("recording vLLM", min(self.lines / self.wanted, 1.0))
        return self.lines > self.wanted


def vocabulary(model: Path) -> int:
    """Token ids of a model.

    Args:
        model: its folder.

    Returns:
        How many [tokens].

    Raises:
        ValueError: its configuration does not say.
    """
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        return int((config.get("text_config") or config)["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{model / 'config.json'} does not say its vocab_size; is it the folder of a model?") from None


def record_in_process(
    start: Start, *, steps: int, seed: int = 0, timeout_s: float = 900.0, progress: Progress | None = None
) -> tuple[StepRows, dict[str, Any]]:
    """Record without a server: scheduler and model in one process with one OpenMP thread, so that its CPU time is the model's.

    Args:
        start: how.
        steps: wanted [steps].
        seed: of excitation and load.
        timeout_s: longest that it may take [s].
        progress: called with a label and a fraction.

    Returns:
        (its steps; limits by field [tokens, requests]).

    Raises:
        ValueError: vLLM ended with an error, or takes too long.
    """
    how = start.serving("in-process", "excite", seed=seed, clock="cpu")
    trace, home = start.trace_of("in-process"), start.folder / "in-process"
    most, longest = start.limits["max_tokens"], start.limits["max_len"]
    workload = excitation_workload(seed, max(steps // STEPS_PER_REQUEST, 200), longest, most)
    job = {"model": str(start.model), "flags": dict(how.flags), "additional": dict(how.additional), "steps": steps, "seed": seed}
    job |= {"vocab": vocabulary(start.model), "outstanding": int(WAITING_SHARE * start.limits["max_seqs"])}
    job |= {"prompt_tokens": workload.prompt_tokens.tolist(), "output_tokens": workload.output_tokens.tolist()}
    write_json(home / "job.json", job)
    script = Path(__file__).with_name("in_process.py")
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": ":".join(str(f.resolve()) for f in how.folders),
    }
    # -P: the script's own folder stays off the path, or files beside it would stand in for packages of their names
    command = [start.place / "bin" / "python", "-P", script, home / "job.json"]
    counter = Counter(trace, steps, progress)
    with how.log.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**_environment(), **QUIET, **variables}, start_new_session=True
        )
        end = time.monotonic() + timeout_s
        try:
            while process.poll() is None:
                counter.enough()
                if time.monotonic() > end:
                    raise ValueError(f"vLLM did not record {steps} steps within {timeout_s:.0f} s; {log_end(how.log)}")
                time.sleep(ROWS_LOOK_S)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if process.returncode:
        raise ValueError(f"vLLM ended with {process.returncode}; {log_end(how.log)}")
    rows = read_rows(trace)
    return rows, {k: int(v) for k, v in rows.header.get("limits", {}).items()}


def _environment() -> dict[str, str]:
    import os

    return {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}


def write_recording(out: Path, rows: StepRows, limits: Mapping[str, int], run: ClientRun | None = None) -> dict[str, Any]:
    """Write a recording: the step table, the engine's limits beside it, and what the clients saw.

    Args:
        out: parquet file.
        rows: the steps.
        limits: of the engine, by field [tokens, requests].
        run: of the clients; None without.

    Returns:
        {"out", "clients"}: names of the files, None where there is none.
    """
    buffer = io.BytesIO()
    pl.DataFrame(rows.table()).write_parquet(buffer)
    write_whole(out, buffer.getvalue())
    # the trace's reader looks for the engine's limits here
    write_json(out.with_suffix(".engine_config.json"), {"headway": dict(limits)})
    clients = None
    if run is not None:
        clients = out.with_suffix(".clients.json")
        write_json(clients, run.to_json())
    return {"out": str(out), "clients": None if clients is None else str(clients)}


def host_share(rows: StepRows) -> float:
    """Time between steps, as a share of all: the scheduler's and the server's own, in which the model stands still.

    Args:
        rows: the steps.

    Returns:
        In [0, 1].
    """
    period, took = rows.columns["period_s"], rows.columns["step_time_s"]
    return float(1 - took.sum() / period.sum()) if len(rows) and period.sum() > 0 else float("nan")
