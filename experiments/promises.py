"""Runs with both promises apart: whose first token was on time, and of their tokens those that came in time.

They multiply: the share of owed tokens whose request met its TTFT, times the share of those that were on time, is attainment.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.controllers.policy import RATE_TPS, pack_targets
from headway.controllers.scheduled import Packed, pack_candidate
from headway.controllers.simulator import STALL, Candidate, Draw, fresh_state, run_to_end
from headway.models.goodput import FINISHED, REJECTED
from headway.models.identified import IdentifiedPlant
from headway.models.measures import MEASURES, measure
from headway.models.plant import Plant
from headway.models.signals import Limits, Target

TTFT_MET, ITL_MET, COLUMNS = MEASURES, MEASURES + 1, MEASURES + 2
"""Places behind the measures: share of requests whose first token was on time; of the tokens that those owe, the share that
was on time, NaN where no first token was."""

NAMES = (
    "attainment",
    "request_attainment",
    "goodput_tps",
    "throughput_tps",
    "shed",
    "itl_p99_s",
    "max_gap_s",
    "steps",
    "on_time_tokens",
    "owed_tokens",
    "end_s",
    "ttft_met",
    "itl_met",
)
"""What the columns hold, in order."""


def promised_runs(
    identified: IdentifiedPlant,
    candidates: list[Candidate],
    draws: list[Draw],
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    truth: Plant | None = None,
) -> np.ndarray:
    """Every candidate on every draw, one run after the other: the measures of `evaluate`, and both promises apart.

    ttft = requests whose first token was on time / requests that are decided
    itl = sum on time / sum owed, over requests whose first token was on time

    A request that was shed missed its first token, so ttft pays for whoever sheds. Of requests that missed it no token counts
    as on time, whatever the gaps: their part of the loss belongs to ttft, and itl says what those got who were served in time.

    Args:
        identified: the plant that the policy believes in, as fitted.
        candidates: laws with policies.
        draws: workloads with noise.
        targets: one per class.
        limits: of the engine.
        truth: what steps really take; None for the plant as fitted.

    Returns:
        Shape (candidates, draws, COLUMNS).

    Raises:
        RuntimeError: the scheduler stalled with work to do: a fault of Headway's.
    """
    found = np.zeros((len(candidates), len(draws), COLUMNS))
    classes, steps = pack_targets(targets), (truth or identified.plant).pack()
    log = np.zeros((0, 12))
    for q, candidate in enumerate(candidates):
        policy, law, schedule = pack_candidate(candidate, targets, limits, identified.plant)
        for m, drawn in enumerate(draws):
            s = fresh_state(drawn.workload, len(targets), limits, policy[RATE_TPS])
            own = Packed(policy.copy(), law.copy(), schedule)
            if not run_to_end(*s, *own, classes, steps, drawn.decode, drawn.mixed, 0.0, log):
                raise RuntimeError(STALL)
            measure(s.req, s.books, s.gaps, classes, found[q, m])
            found[q, m, [TTFT_MET, ITL_MET]] = _apart(s.req)
    return found


class Runs(NamedTuple):
    """`promised_runs` as a function of the candidates alone: what is sent to a worker once.

    Args:
        identified: the plant as fitted.
        draws: workloads with noise.
        targets: one per class.
        limits: of the engine.
    """

    identified: IdentifiedPlant
    draws: list[Draw]
    targets: tuple[Target, ...]
    limits: Limits

    def __call__(self, candidates: list[Candidate]) -> np.ndarray:
        """Every candidate on every draw.

        Args:
            candidates: laws with policies.

        Returns:
            Shape (candidates, draws, COLUMNS).
        """
        return promised_runs(self.identified, candidates, self.draws, self.targets, self.limits)


def _apart(req: np.ndarray) -> tuple[float, float]:
    """Both promises of one run whose books are closed."""
    status, owed = req["status"], req["owed"]
    decided = (owed > 0) | (status == FINISHED) | (status >= REJECTED)
    met = (req["met"] > 0) & decided
    due = owed[met].sum()
    itl = float(req["on_time"][met].sum() / due) if due > 0 else float("nan")
    return float(met.sum() / max(decided.sum(), 1)), itl
