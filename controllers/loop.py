"""The closed loop on any engine: the scheduler composes a step, the engine runs it, its measured duration goes back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headway.controllers.laws import law_init
from headway.controllers.policy import NEXT_STEP, RATE_TPS, pack_policy, pack_targets
from headway.controllers.scheduler import plan, stop
from headway.controllers.simulator import LOG_COLUMNS, STALL, Candidate, record
from headway.models.engine import Engine, Step
from headway.models.goodput import Outcome
from headway.models.plant import Plant
from headway.models.settlement import close_books, outcome_of, settle
from headway.models.signals import SIGNALS, Target
from headway.models.state import RELEASED_IDS, RUNNING_IDS, State, new_state
from headway.models.workload import Workload


def step_of(s: State) -> Step:
    """The composed step as an engine takes it.

    Args:
        s: state after `plan`.

    Returns:
        Step, rows in order of admission.
    """
    e = s.books[0]
    running = s.ids[RUNNING_IDS, : e["n_running"]]
    ids = running[s.req["take"][running] != 0]
    rows = s.req[ids]
    decode = rows["take"] < 0
    context = np.where(decode, rows["prompt"] + rows["emitted"] - 1, rows["computed"])
    return Step(ids, np.abs(rows["take"]).astype(np.int64), context.astype(np.int64), decode, s.ids[RELEASED_IDS, : e["n_released"]].copy())


def drive(
    engine: Engine,
    candidate: Candidate,
    workload: Workload,
    targets: tuple[Target, ...],
    plant: Plant,
    *,
    cut_s: float = 0.0,
    record_steps: int = 1_000_000,
    command: Callable[[np.ndarray, np.ndarray], bool] | None = None,
    progress: Callable[[float, int], None] | None = None,
) -> Outcome:
    """Serve a workload on an engine under a law and a policy.

    Time is the engine's: the sum of what its steps were measured to take. Idle gaps between arrivals are skipped, not
    waited for, so a run takes as long as the engine's own work.

    Args:
        engine: any; it is reset first.
        candidate: law and policy.
        workload: requests.
        targets: one per class.
        plant: for the policy's first estimate of the prefill rate.
        cut_s: end of a run of fixed length; 0 runs until every request has ended [s].
        record_steps: most steps to record.
        command: called before every step with the packed law and the packed policy, which it may change, as an
            excitation does; False ends the run.
        progress: called after every step with the engine's time [s] and the number of requests ended.

    Returns:
        Outcome, with the log of its steps.

    Raises:
        RuntimeError: the scheduler stalled with work to do: a fault of Headway's.
    """
    limits = engine.limits
    p, law, classes = pack_policy(candidate.policy, candidate.law, targets, limits, plant), candidate.law.pack(), pack_targets(targets)
    s = new_state(
        workload.arrival_s, workload.prompt_tokens, workload.output_tokens, workload.class_id, len(targets), limits.blocks, p[RATE_TPS]
    )
    e, signals, log = s.books[0], np.zeros(SIGNALS), np.zeros((0, len(LOG_COLUMNS)))
    rows: list[np.ndarray] = []
    engine.reset()
    law_init(law, s.law)
    while e["done"] < len(workload):
        if e["n_running"] == 0 and e["head"] == e["tail"] and e["arrived"] < len(workload):
            next_s = s.req["arrival_s"][e["arrived"]]
            e["now_s"] = max(e["now_s"], min(next_s, cut_s) if cut_s > 0 else next_s)
        if 0 < cut_s <= e["now_s"]:
            stop(s.req, e, s.ids, p, cut_s)
            break
        if command is not None and not command(law, p):
            break
        if not plan(s.req, s.books, s.ids, s.keys, s.law, p, law, classes, signals):
            if e["stalled"]:
                raise RuntimeError(STALL)
            continue
        y = engine.execute(step_of(s))
        settle(s.req, s.books, s.ids, s.gaps, y, classes, bool(p[NEXT_STEP]))
        if len(rows) < record_steps:
            rows.append(logged(s))
        if progress is not None:
            progress(float(e["now_s"]), int(e["done"]))
    close_books(s.req, s.books, classes)
    return outcome_of(s, np.array(rows) if rows else log)


def logged(s: State) -> np.ndarray:
    """The step that just ended, as the simulator logs it.

    Args:
        s: state after `settle`.

    Returns:
        One row of LOG_COLUMNS, shape (12,).
    """
    row = np.zeros(len(LOG_COLUMNS))
    record(s.books[0], row)
    return row
