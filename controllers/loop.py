"""The closed loop on any engine: the scheduler composes a step, the engine runs it, its measured duration goes back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headway.controllers.compose import book_shares
from headway.controllers.laws import law_init
from headway.controllers.policy import HAS_SHARES, RATE_TPS, pack_targets
from headway.controllers.queue import next_arrival_s
from headway.controllers.scheduled import follow_load, pack_candidate, scheduled
from headway.controllers.scheduler import plan, stop
from headway.controllers.simulator import LOG_COLUMNS, STALL, Candidate, fresh_state, habits_of, record
from headway.models.engine import Engine, Step
from headway.models.goodput import Outcome
from headway.models.plant import Plant
from headway.models.settlement import close_books, outcome_of, settle
from headway.models.signals import SIGNALS, Target
from headway.models.state import RELEASED_IDS, RUNNING_IDS, State
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
    released = s.ids[RELEASED_IDS, : e["n_released"]].copy()
    return Step(ids, np.abs(rows["take"]).astype(np.int64), context.astype(np.int64), decode, released, int(e["moved"]))


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
        candidate: law, policy and gains.
        workload: requests.
        targets: one per class.
        plant: for the policy's first estimate of the prefill rate.
        cut_s: end of a run of fixed length; 0 runs until every request has ended [s].
        record_steps: most steps to record.
        command: called before every step with the packed law and the packed policy, the gains of the load put in force; it
            may change both, as an excitation does. False ends the run.
        progress: called after every step with the engine's time [s] and the number of requests ended.

    Returns:
        Outcome, with the log of its steps.

    Raises:
        ValueError: limits of an asynchronous engine: here a step is composed when the last has ended; or gains that cannot be followed.
        RuntimeError: the scheduler stalled with work to do: a fault of Headway's.
    """
    limits = engine.limits
    if limits.scheduling != "sync":
        raise ValueError(
            f"scheduling must be 'sync' where steps are run one after the other, got {limits.scheduling!r}; simulate it instead"
        )
    (p, law, schedule), classes = pack_candidate(candidate, targets, limits, plant), pack_targets(targets)
    s = fresh_state(workload, len(targets), limits, p[RATE_TPS])
    e, signals, log, habits = s.books[0], np.zeros(SIGNALS), np.zeros((0, len(LOG_COLUMNS))), habits_of(p)
    rows: list[np.ndarray] = []
    engine.reset()
    law_init(law, s.law)
    while e["done"] < len(workload):
        if e["n_running"] + e["n_waiting"] == 0:
            next_s = next_arrival_s(s.req, e, s.keys)
            e["now_s"] = max(e["now_s"], min(next_s, cut_s) if cut_s > 0 else next_s)
        if 0 < cut_s <= e["now_s"]:
            stop(s.req, e, s.ids, s.keys, p, classes, s.units, s.unit_ids, cut_s)
            break
        if scheduled(schedule):
            follow_load(e, schedule, p, law, classes)
        if command is not None and not command(law, p):
            break
        if not plan(s.req, s.books, s.ids, s.keys, s.units, s.unit_ids, s.law, p, law, classes, signals):
            if e["stalled"]:
                raise RuntimeError(STALL)
            continue
        y = engine.execute(step_of(s))
        settle(s.req, s.books, s.ids, s.keys, s.units, s.unit_ids, s.gaps, y, classes, habits)
        if p[HAS_SHARES] > 0:
            book_shares(e, p, len(targets))
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
