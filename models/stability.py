"""Can the engine carry this load? From the queue that was seen, and from the load over the capacity that the plant's interval implies."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from headway.models.identified import IdentifiedPlant
from headway.models.outcome import CANCELLED, FINISHED, FUTURE, REJECTED, Outcome
from headway.models.plant import Batch

UNSERVED = 0.05
"""Share of the arriving prompt work that may go unserved before a load counts as more than the engine can carry."""

FEWEST = 64
"""Requests below which a run is too short to say."""

STRETCHES = 8
"""Stretches of a run, after a warm-up of one fifth, over which drift is measured."""

SEEN = {
    "stable": "the runs' own backlog does not grow",
    "unstable": "the runs' own backlog grows",
    "uncertain": "the runs' own backlog does not say whether it grows",
}
"""What the runs show of the prompt work that nobody has served yet, by verdict."""

BUSY = (0.2, 0.8)
"""Part of the requests, by their end, over which a flooded engine's capacity is counted: it has filled, and not begun to drain."""


class Load(NamedTuple):
    """How much of the engine a load takes.

    Args:
        verdict: "stable", "unstable" or "uncertain".
        arriving_rps: requests that arrive [requests/s].
        capacity_rps: that the policy serves when there is always someone waiting [requests/s]; NaN where it was not measured.
        share: arriving / capacity, in (0, inf); NaN where it is not known.
        low: lower end of its interval.
        high: upper end.
    """

    verdict: str
    arriving_rps: float
    capacity_rps: float
    share: float
    low: float
    high: float

    def sentence(self) -> str:
        """The verdict with the numbers that decide it.

        Returns:
            One line, such as "unstable, queue +2.4/s (load 1.24 of capacity)"; where the runs decided and not the capacity, it
            says so.
        """
        if not math.isfinite(self.share):
            return seen_sentence(self.verdict)
        ends = f" [{self.low:.2f}, {self.high:.2f}]" if self.high > self.low else ""
        of = f"load {self.share:.2f}{ends} of a capacity of {self.capacity_rps:.3g}/s"
        grows = self.arriving_rps - self.capacity_rps
        if self.verdict == "unstable" and grows > 0:
            return f"unstable, queue +{grows:.2g}/s ({of})"
        if self.verdict == "uncertain" and self.low <= 1 <= self.high:
            return f"uncertain: its interval holds 1 ({of})"
        # below 1 all over, the runs decide; where they agree with the capacity there is nothing to explain
        return f"stable ({of})" if self.verdict == "stable" else f"{self.verdict}: {SEEN[self.verdict]}, though capacity is enough ({of})"


def seen_sentence(verdict: str) -> str:
    """A verdict that rests on the runs alone.

    Args:
        verdict: "stable", "unstable" or "uncertain", see `load_verdict`.

    Returns:
        One line, such as "stable: the runs' own backlog does not grow (no capacity was measured)".
    """
    return f"{verdict}: {SEEN[verdict]} (no capacity was measured)"


def load_of(arriving_rps: float, capacity_rps: float, slower: float = 0.0, faster: float = 0.0, seen: str = "stable") -> Load:
    """Verdict on a load, from the capacity and how far the plant may be off.

    rho = arriving / capacity, in [rho (1 - faster), rho (1 + slower)]: steps that take longer by a share carry fewer by it

    Above 1 all over, the queue grows. Where the interval holds 1, nobody can say. Below, what was seen in the runs counts.

    Args:
        arriving_rps: requests that arrive [requests/s].
        capacity_rps: served at most, on the plant as fitted [requests/s].
        slower: steps may take longer by this share.
        faster: or shorter by this one, below 1.
        seen: verdict of the runs, see `load_verdict`.

    Returns:
        Load.

    Raises:
        ValueError: a rate that is not positive, or a negative share.

    Example:
        >>> load_of(12.4, 10.0).sentence()
        'unstable, queue +2.4/s (load 1.24 of a capacity of 10/s)'
        >>> load_of(9.5, 10.0, slower=0.2, faster=0.2).verdict
        'uncertain'
        >>> load_of(5.0, 10.0, seen="unstable").sentence()
        "unstable: the runs' own backlog grows, though capacity is enough (load 0.50 of a capacity of 10/s)"
    """
    if not (arriving_rps > 0 and capacity_rps > 0 and slower >= 0 and 0 <= faster < 1):
        raise ValueError(
            f"rates must be positive and shares not negative, got {arriving_rps:g}/s on {capacity_rps:g}/s, +{slower:g} -{faster:g}"
        )
    share = arriving_rps / capacity_rps
    low, high = share * (1 - faster), share * (1 + slower)
    verdict = "unstable" if low > 1 else "uncertain" if high >= 1 else seen
    return Load(verdict, arriving_rps, capacity_rps, share, low, high)


def flooded_rps(outcome: Outcome) -> tuple[float, float]:
    """Requests per second that an engine ends which always has someone waiting.

    (.8 - .2) n / (t_80 - t_20), t_q when a share q of them had ended

    Args:
        outcome: of a run in which all requests arrive at once, or nearly, and none is shed.

    Returns:
        (rate [requests/s], half its 95 % interval as a share, from eight stretches of it); NaN where fewer than 64 ended.
    """
    ends = np.sort(outcome.last_s[outcome.status == FINISHED])
    if len(ends) < FEWEST:
        return float("nan"), float("nan")
    places = np.linspace(BUSY[0] * (len(ends) - 1), BUSY[1] * (len(ends) - 1), STRETCHES + 1).astype(int)
    rates = np.diff(places) / np.maximum(np.diff(ends[places]), 1e-12)
    rate = float((places[-1] - places[0]) / max(ends[places[-1]] - ends[places[0]], 1e-12))
    return rate, float(_student(STRETCHES) * rates.std(ddof=1) / math.sqrt(STRETCHES) / rate)


def plant_interval(identified: IdentifiedPlant, batch: Batch) -> tuple[float, float]:
    """How far the plant may be off over these steps, as its coefficients' intervals imply.

    T = sum_k t(batch_k);  slower = sqrt(sum_i (T(c_i high) - T)^2) / T, faster alike: coefficients taken as independent

    Args:
        identified: the plant with its intervals.
        batch: sums of the steps, arrays of shape (k,).

    Returns:
        (slower, faster) as shares of the time; (0, 0) where the plant has no intervals or there is no step.

    It is not the scatter of single steps, which averages out, nor what a plant of the wrong structure gets wrong.
    """
    known = {name: c.value for name, c in identified.plant.coefficients().items()}
    total = lambda plant: float(np.asarray(plant.step_time_s(batch), float).sum())  # noqa: E731
    own = total(identified.plant)
    if own <= 0:
        return 0.0, 0.0
    up, down = 0.0, 0.0
    for name, ends in identified.interval.items():
        for end in ends:
            if name not in known or not math.isfinite(end):
                continue
            moved = total(type(identified.plant).from_coefficients(known | {name: max(end, 0.0)})) / own - 1
            up, down = up + max(moved, 0.0) ** 2, down + min(moved, 0.0) ** 2
    return math.sqrt(up), min(math.sqrt(down), 0.99)


def load_verdict(outcome: Outcome) -> str:
    """Whether prompt work that nobody serves grows by more than a twentieth of what arrives, which no longer queue would absorb.

    The backlog counts arrived prompt tokens whose request has no first token yet; shed requests stay in it, so a policy
    cannot pass for stable by shedding. Its drift is measured over eight stretches after a warm-up of one fifth.

    Args:
        outcome: of one run.

    Returns:
        "stable", "unstable", or "uncertain" where the interval of the drift holds both or the run is too short to say.
    """
    return _verdict(backlog_drift(outcome, np.ones(len(outcome.status), bool)))


def queue_verdict(outcomes: list[Outcome]) -> str:
    """As `load_verdict`, of the queue alone: who was shed no longer waits. It says whether TTFT depends on how long a run was.

    Args:
        outcomes: runs, whose stretches are taken together.

    Returns:
        "stable", "unstable" or "uncertain".
    """
    drifts = [found for o in outcomes if len(found := backlog_drift(o, o.status < REJECTED))]
    return _verdict(np.concatenate(drifts) if drifts else np.zeros(0))


def backlog_drift(outcome: Outcome, kept: np.ndarray) -> np.ndarray:
    """How fast unserved prompt work grows, as a share of what arrives.

    Args:
        outcome: of one run.
        kept: which requests count, shape (n,), bool; of them those that arrived, and whose client did not leave in time.

    Returns:
        Shape (8,), or (0,) where the run is too short to say.
    """
    left = (outcome.status == CANCELLED) & np.isnan(outcome.ttft_s)
    rows = np.flatnonzero(kept & (outcome.status != FUTURE) & ~left)
    rows = rows[np.argsort(outcome.arrival_s[rows], kind="stable")]
    if len(rows) < FEWEST:
        return np.zeros(0)
    arrival_s, prompts = outcome.arrival_s[rows], outcome.prompt_tokens[rows]
    times = np.linspace(arrival_s[len(rows) // 5], arrival_s[-1], STRETCHES + 1)
    if times[-1] <= times[0]:
        return np.zeros(0)
    served_s = arrival_s + np.where(np.isnan(outcome.ttft_s[rows]), np.inf, outcome.ttft_s[rows])
    order = np.argsort(served_s)
    at = lambda work, when: np.concatenate([[0.0], np.cumsum(work)])[np.searchsorted(when, times, side="right")]  # noqa: E731
    arrived = at(prompts, arrival_s)
    backlog = arrived - at(prompts[order], served_s[order])
    return np.diff(backlog) / max((arrived[-1] - arrived[0]) / STRETCHES, 1e-9)


def _verdict(drift: np.ndarray) -> str:
    if len(drift) < 2:
        return "uncertain"
    mean, half = drift.mean(), _student(len(drift)) * drift.std(ddof=1) / math.sqrt(len(drift))
    if mean > UNSERVED and mean - half > 0:
        return "unstable"
    return "stable" if mean <= UNSERVED and mean + half < 3 * UNSERVED else "uncertain"


def agreed(verdicts: list[str]) -> str:
    """What more than half of the runs say.

    Args:
        verdicts: one per run.

    Returns:
        "stable", "unstable", or "uncertain" where there is no such majority.
    """
    return next((v for v in ("stable", "unstable") if 2 * verdicts.count(v) > len(verdicts)), "uncertain")


def _student(n: int) -> float:
    """97.5 % point of Student's t of n values, to 2 % from 7 degrees of freedom on."""
    return 1.96 + 2.8 / (n - 1)
