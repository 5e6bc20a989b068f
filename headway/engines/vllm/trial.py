"""A trial on real servers: controller and static settings serve the same arrivals in turn, and every repetition is kept."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import LOG_COLUMNS, NOISE_LENGTH, Candidate, Draw, simulate
from headway.engines.vllm.clients import ClientRun, run_clients
from headway.engines.vllm.outcomes import outcome_of
from headway.engines.vllm.recording import vocabulary
from headway.engines.vllm.server import Server, serving
from headway.engines.vllm.service import read_back
from headway.engines.vllm.starting import Start, limits_of
from headway.engines.vllm.step_rows import read_rows
from headway.experiments.baseline import EARLY, Static
from headway.experiments.validate import FRESH
from headway.experiments.whole_files import read_json, write_json, write_whole
from headway.models.goodput import Outcome
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload, WorkloadSource

Progress = Callable[[str, float], None]


class Arm(NamedTuple):
    """One contender.

    Args:
        name: of its files.
        candidate: as the simulator takes it.
        limits: flags of its server that differ from the trial's, by field of `Limits`.
        record: its controller; None for the stock scheduler, which is observed.
        patience: share of the TTFT target after which its clients give up waiting; None for never.
    """

    name: str
    candidate: Candidate
    limits: Mapping[str, int]
    record: ControllerRecord | None = None
    patience: float | None = None

    @property
    def server(self) -> str:
        """Name of the server that it runs on: arms that differ in their clients alone share one."""
        return "controller" if self.record is not None else f"static-{self.limits.get('max_tokens')}-{self.limits.get('max_seqs')}"


def arms_of(record: ControllerRecord, static: Static, *, early: bool = False, default: bool = True) -> tuple[Arm, ...]:
    """The contenders of a validation.

    Args:
        record: the controller.
        static: best static setting.
        early: also with clients who give up early.
        default: also the engine as it is started by default.

    Returns:
        Controller and best static setting first.
    """
    flags = {"max_tokens": static.token_budget, "max_seqs": static.running_limit}
    stock = {"max_tokens": record.limits.max_tokens, "max_seqs": record.limits.max_seqs}
    arms = [Arm("controller", record.candidate, stock, record), Arm("static", static._replace(timeout=None).candidate(), flags)]
    if early:
        arms.append(Arm("early", static._replace(timeout=EARLY).candidate(), flags, patience=EARLY))
    if default and flags != stock:
        arms.append(Arm("default", Static(stock["max_tokens"], stock["max_seqs"]).candidate(), stock))
    return tuple(arms)


class Run(NamedTuple):
    """One arm in one repetition.

    Args:
        clients: what they saw.
        log: steps, shape (k, LOG_COLUMNS).
        cpu_share: time of the process that runs the model over the steps' time, median; NaN where unknown.
        limits: that its server ran with.
    """

    clients: ClientRun
    log: np.ndarray
    cpu_share: float
    limits: Limits

    def outcome(self, targets: tuple[Target, ...]) -> Outcome:
        """Judged.

        Args:
            targets: one per class.

        Returns:
            Outcome.
        """
        return outcome_of(self.clients, targets, self.log)


def arrivals(source: WorkloadSource, repetition: int, seconds: float) -> Workload:
    """The arrivals of a repetition: of every arm the same.

    Args:
        source: of the workloads.
        repetition: from 0.
        seconds: of arrivals [s].

    Returns:
        Requests that arrive within that time.
    """
    many = int(np.ceil(seconds * source.draw(0, 1000, heldout=True).rate_rps * 1.5)) + 50
    drawn = source.draw(FRESH + repetition, many, heldout=True)
    return drawn.window(0, max(int(np.searchsorted(drawn.arrival_s, seconds)), 1))


class Trial:
    """Servers that stay up for as long as they are needed, one of them under load at a time.

    Args:
        start: how servers are started.
        arms: contenders.
        source: of the workloads.
        targets: one per class.
        seconds: of arrivals in a run [s].
        together: keep the servers of all arms running at once, where nobody's device is too small; else one at a time.
        keep: folder for every run; what is there of the same trial is not run again.
        uncertified: run a law whose certificate is refused.
    """

    def __init__(
        self,
        start: Start,
        arms: Sequence[Arm],
        source: WorkloadSource,
        targets: tuple[Target, ...],
        *,
        seconds: float,
        together: bool = True,
        keep: Path | None = None,
        uncertified: bool = False,
    ) -> None:
        """Nothing is started yet."""
        self.start, self.arms, self.source, self.targets, self.seconds = start, tuple(arms), source, targets, seconds
        self.together, self.keep, self.uncertified = together, keep, uncertified
        self.limits: dict[str, Limits] = {}
        self.vocab = vocabulary(start.model)
        self._servers: dict[str, Server] = {}
        self._stack: ExitStack | None = None

    @contextmanager
    def open(self) -> Iterator[Trial]:
        """Servers end with the block.

        Yields:
            The trial.
        """
        with ExitStack() as stack:
            self._stack = stack
            yield self
        self._servers, self._stack = {}, None

    def workload(self, repetition: int) -> Workload:
        """The arrivals of a repetition: of every arm the same.

        Args:
            repetition: from 0.

        Returns:
            Requests that arrive within the run's length.
        """
        return arrivals(self.source, repetition, self.seconds)

    def run(self, arm: Arm, repetition: int, progress: Callable[[float], None] | None = None) -> Run:
        """One arm in one repetition; a run that was kept is read instead.

        Args:
            arm: contender.
            repetition: from 0.
            progress: called with the share done.

        Returns:
            The run.

        Raises:
            ValueError: a server that does not start or ends.
        """
        name = f"{repetition}-{arm.name}"
        if self.keep is not None and (self.keep / f"{name}.clients.json").exists():
            return kept_run(self.keep, name)
        workload = self.workload(repetition)
        with self._server(arm) as server:
            others = [s.pid for s in self._servers.values()]
            seed = 1000 * repetition + self.arms.index(arm) + 1
            asked = {"targets": self.targets, "patience": arm.patience, "seed": seed, "vocab": self.vocab, "cores": self.start.cores.rest}
            clients = run_clients(server, workload, **asked, also=others, progress=progress)
        rows = read_rows(self.start.trace_of(arm.server)).between(clients.zero_s, clients.zero_s + clients.span_s)
        limits = self.limits[arm.server]
        cpu = rows.columns["worker_cpu_s"] / np.maximum(rows.columns["step_time_s"], 1e-9)
        run = Run(clients, rows.log(clients.zero_s, limits.blocks), float(np.median(cpu)) if len(cpu) else float("nan"), limits)
        if self.keep is not None:
            keep_run(self.keep, name, run)
        return run

    @contextmanager
    def _server(self, arm: Arm) -> Iterator[Server]:
        """The server of an arm: one that runs, or one that is started for this run alone."""
        if arm.server in self._servers and self._servers[arm.server].alive:
            yield self._servers[arm.server]
            return
        mode = "observe" if arm.record is None else "control"
        how = dataclasses.replace(self.start, limits={**self.start.limits, **arm.limits})
        with ExitStack() as alone:
            stack = self._stack if self.together and self._stack is not None else alone
            server = stack.enter_context(serving(how.serving(arm.server, mode, arm.record, uncertified=self.uncertified)))
            self.limits[arm.server] = self._checked(arm, server)
            if stack is not alone:
                self._servers[arm.server] = server
            warm_up(server, self.vocab, self.start.cores.rest)
            yield server

    def _checked(self, arm: Arm, server: Server) -> Limits:
        """The limits that the server says it has: those that were asked for, or the trial would compare something else."""
        found = limits_of(self.start, read_back(server.service, server.log))
        wrong = [f"{k} {getattr(found, k)} instead of {v}" for k, v in arm.limits.items() if getattr(found, k) != v]
        if wrong:
            raise ValueError(f"the server of {arm.name} runs with {', '.join(wrong)}: this version of vLLM does not take the flag as given")
        return found


def warm_up(server: Server, vocab: int, cores: tuple[int, ...]) -> None:
    """Let a server load its kernels and touch its memory before anything counts.

    Args:
        server: to warm.
        vocab: token ids to draw prompts from [tokens].
        cores: for the load generator.
    """
    n = 24
    prompts = np.array([16, 64, 256, 700] * (n // 4), np.int64)
    workload = Workload(np.linspace(0, 1.0, n), prompts, np.full(n, 8, np.int64), np.zeros(n, np.int64), "warm-up")
    run_clients(server, workload, seed=987_654, vocab=vocab, cores=cores)


def keep_run(folder: Path, name: str, run: Run) -> None:
    """Write a run down.

    Args:
        folder: of the trial.
        name: of the run.
        run: to keep.
    """
    buffer = io.BytesIO()
    pl.DataFrame({column: run.log[:, k] for k, column in enumerate(LOG_COLUMNS)}).write_parquet(buffer)
    write_whole(folder / f"{name}.steps.parquet", buffer.getvalue())
    # the clients' file last: it says that the run is complete
    write_json(
        folder / f"{name}.clients.json", {**run.clients.to_json(), "cpu_share": run.cpu_share, "limits": dataclasses.asdict(run.limits)}
    )


def kept_run(folder: Path, name: str) -> Run:
    """Read a run that was kept.

    Args:
        folder: of the trial.
        name: of the run.

    Returns:
        The run.

    Raises:
        ValueError: files that are no run.
    """
    data = read_json(folder / f"{name}.clients.json")
    log = pl.read_parquet(folder / f"{name}.steps.parquet").select(LOG_COLUMNS).to_numpy()
    share = data.get("cpu_share")
    return Run(ClientRun.from_json(data), np.asarray(log, float), float("nan") if share is None else float(share), Limits(**data["limits"]))


def predicted(
    arm: Arm, identified: IdentifiedPlant, workload: Workload, repetition: int, targets: tuple[Target, ...], limits: Limits
) -> Outcome:
    """What the simulator says of an arm on the same arrivals.

    Args:
        arm: contender.
        identified: the plant.
        workload: of the repetition.
        repetition: from 0.
        targets: one per class.
        limits: of its server.

    Returns:
        Outcome.
    """
    decode, mixed = identified.noise.draw(FRESH + repetition, NOISE_LENGTH)
    return simulate(identified, arm.candidate, Draw(workload, decode, mixed), targets, limits, record_steps=3000 if repetition == 0 else 0)


def turns(arms: Sequence[Arm], repetition: int) -> list[Arm]:
    """The order of a repetition: every arm comes first, second, ... equally often.

    Args:
        arms: contenders.
        repetition: from 0.

    Returns:
        The arms, turned round.
    """
    n = len(arms)
    order = [arms[(k + repetition) % n] for k in range(n)]
    return order if (repetition // n) % 2 == 0 else order[::-1]


def as_json(start: Start, arms: Sequence[Arm]) -> dict[str, Any]:
    """What identifies a trial, beside its workload.

    Args:
        start: how servers are started.
        arms: contenders.

    Returns:
        Plain JSON values.
    """
    return {
        "limits": dict(start.limits),
        "flags": start.flags(),
        "arms": [{"name": a.name, "limits": dict(a.limits), "patience": a.patience} for a in arms],
    }
