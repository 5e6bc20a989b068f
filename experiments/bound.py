"""An upper bound on attainment and goodput that no policy can beat on this plant, workload and target.

A linear program that every run satisfies, whoever schedules it, told the whole workload and the noise in advance: what it attains
at most, every policy attains at most. Definitions and proof are in docs/theory.md, "The bound".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.experiments.blocks import Blocks
from headway.experiments.demand import Demand, demand_of
from headway.experiments.envelope import envelope
from headway.models.identified import IdentifiedPlant
from headway.models.outcome import CLEAN_SHARE
from headway.models.signals import Limits, Target
from headway.models.workload import Workload

ROUNDS = 6
"""Programs solved for the ratio, at most; each gives a valid bound."""
CLOSE = 2e-4
"""The ratio is found to this."""
REGIMES = {False: "decode", True: "mixed"}


class Bound(NamedTuple):
    """What no policy can exceed.

    Args:
        attainment: tokens on time / tokens owed, in [0, 1].
        goodput_tps: tokens on time per second [tokens/s].
        request_attainment: share of clean requests, in [0, 1].
        served: share of each request that the best relaxed schedule serves, shape (n,): 1, 0 or between; NaN for those not counted.
        said: what the bound gives away, in sentences.
    """

    attainment: float
    goodput_tps: float
    request_attainment: float
    served: np.ndarray
    said: tuple[str, ...]

    def share(self, attainment: float) -> str:
        """A result beside the bound.

        Args:
            attainment: that was reached, in [0, 1].

        Returns:
            "x % of the bound".
        """
        return f"{100 * attainment / max(self.attainment, 1e-12):.1f} % of the bound"


def upper_bound(
    identified: IdentifiedPlant,
    workload: Workload,
    targets: tuple[Target, ...],
    limits: Limits,
    cut_s: float = 0.0,
    *,
    factors: tuple[np.ndarray, np.ndarray] | None = None,
    bin_s: float | None = None,
) -> Bound:
    """The most that any policy can attain on one workload.

    max (sum L x + F) / (sum L + sum O + F) over the relaxation, by Dinkelbach's method; F tokens are given away

    Without `factors` it holds for every noise that `identified.noise` can draw: each step takes at least the smallest residual times
    the plant. With them it holds for the runs with just these, as `headway.controllers.simulator.Draw` has them, and is tighter. It
    holds run by run, not on average, and for a policy that knows arrivals, lengths and noise beforehand.

    Args:
        identified: the plant with its residuals.
        workload: requests.
        targets: one per class.
        limits: of the engine.
        cut_s: end of a run of fixed length; 0 for a run until every request has ended [s].
        factors: noise of the run's steps, decode-only and with prefill, each of shape (k,); None for any that can be drawn.
        bin_s: width of a time bin; narrower is tighter and slower; None chooses it [s].

    Returns:
        Bound.

    Not an estimate of what can be reached: the true optimum lies below it, and without knowing the future further still.

    Source:
        Dinkelbach, On nonlinear fractional programming, 1967; the relaxation is Headway's own, proved in docs/theory.md.
    """
    demand, relaxed = relaxation_of(identified, workload, targets, limits, cut_s, factors=factors, bin_s=bin_s)
    attainment, point = _ratio(demand, relaxed)
    n, given = len(demand.rows), demand.given_requests
    clean = relaxed.requests(1 - CLEAN_SHARE) + given if n else given
    everyone = n + given + demand.lost_requests
    served = np.full(len(workload), np.nan)
    served[demand.rows] = point
    return Bound(
        attainment=attainment,
        goodput_tps=_goodput_tps(demand, relaxed, workload, cut_s),
        request_attainment=float(np.clip(clean / max(everyone, 1), 0.0, 1.0)) if everyone else 1.0,
        served=served,
        said=_said(demand, relaxed, len(workload)),
    )


def relaxation_of(
    identified: IdentifiedPlant,
    workload: Workload,
    targets: tuple[Target, ...],
    limits: Limits,
    cut_s: float = 0.0,
    *,
    factors: tuple[np.ndarray, np.ndarray] | None = None,
    drawn: bool = True,
    apart: bool = False,
    bin_s: float | None = None,
) -> tuple[Demand, Blocks]:
    """The program behind the bound.

    Args:
        identified: the plant with its residuals.
        workload: requests.
        targets: one per class.
        limits: of the engine.
        cut_s: as in `upper_bound` [s].
        factors: as in `upper_bound`.
        drawn: whether the factors' order counts; else only the smallest does.
        apart: whether prompts have an engine of their own.
        bin_s: as in `upper_bound` [s].

    Returns:
        (what the requests need, the program).
    """
    if factors is None:
        residuals = {False: identified.noise.decode, True: identified.noise.mixed}
        least = {mixed: float(np.exp(min(r.min(), np.inf))) if len(r) else 1.0 for mixed, r in residuals.items()}
        known = None
    else:
        known = {False: np.asarray(factors[0], float), True: np.asarray(factors[1], float)}
        least = {mixed: float(z.min()) for mixed, z in known.items()}
    below = envelope(identified.plant, limits)
    if len(below.kinds) == 1 or not any(not k.mixed for k in below.kinds):  # one law for all steps: the smaller factor of the two
        least = dict.fromkeys(least, min(least.values()))
        known = None if known is None else dict.fromkeys(known, np.minimum(known[False], known[True]))
    demand = demand_of(workload, targets, limits, below, least, cut_s, known)
    known = known if drawn else None
    shared = workload.prefix is not None and limits.prefix_cache == "on"
    return demand, Blocks(demand, below, limits, least, cut_s, factors=known, shared=shared, apart=apart, bin_s=bin_s)


def attainable(demand: Demand, relaxed: Blocks, promise: float) -> bool:
    """Whether the bound leaves room for a promise; one program, where the bound itself takes several.

    Args:
        demand: what the requests need.
        relaxed: the program.
        promise: attainment wanted, in [0, 1].

    Returns:
        False if no policy can attain it.
    """
    if not len(demand.rows):
        return demand.given >= promise * (demand.given + demand.lost)
    return relaxed.tokens(promise).value + demand.given * (1 - promise) >= -1e-9 * max(demand.asked, 1.0)


def _ratio(demand: Demand, relaxed: Blocks) -> tuple[float, np.ndarray]:
    """Dinkelbach: (A + F) / (B + F) <= r + max(g(r), 0) / least denominator, for every r."""
    n, free = len(demand.rows), demand.given
    if not n:
        return (free / (free + demand.lost) if free + demand.lost > 0 else 1.0), np.zeros(0)
    least = free + (demand.asked if relaxed.cut_s == 0 else demand.lost + n)
    best, price, served = 1.0, 0.95, np.zeros(n)
    for _ in range(ROUNDS):
        found = relaxed.tokens(price)
        over = found.value + free * (1 - price)
        best, served = min(best, price + max(over, 0.0) / least), found.served
        ratio = (served @ demand.output + free) / (demand.asked + found.owed + free)
        if best - ratio < CLOSE or abs(ratio - price) < 1e-9:
            break
        price = float(np.clip(ratio, 0.0, 1.0))
    return float(np.clip(best, 0.0, 1.0)), served


def _goodput_tps(demand: Demand, relaxed: Blocks, workload: Workload, cut_s: float) -> float:
    """Tokens on time per second. A run in which all can be refused may end early: every end is looked at."""
    most = demand.given + (max(relaxed.tokens(0.0).value, 0.0) if len(demand.rows) else 0.0)
    begin_s = float(workload.arrival_s[0])
    if cut_s > 0 and (workload.arrival_s > cut_s).any():  # somebody is still to come: the run goes on to the cut
        return most / max(cut_s - begin_s, 1e-9)
    order = np.argsort(demand.earliest_s)
    by_then = np.minimum(np.cumsum(demand.earliest_tokens[order]), most)
    return float(np.max(by_then / np.maximum(demand.earliest_s[order] - begin_s, 1e-9), initial=0.0))


def _said(demand: Demand, relaxed: Blocks, requests: int) -> tuple[str, ...]:
    """What is given away, in sentences."""
    least = ", ".join(f"{REGIMES[mixed]} {z:.3f}" for mixed, z in relaxed.least.items())
    said = [f"every step takes at least the plant's time times the smallest noise factor ({least})"]
    if demand.given_requests:
        said.append(
            f"{demand.given_requests} of {requests} requests count as on time at no cost: their client may leave, they wait for another's end, "
            f"or their last token is not due before the run ends"
        )
    if demand.lost_requests:
        said.append(f"{demand.lost_requests} requests can be served by no policy: they never fit, or their first token cannot come in time")
    if not demand.steady.all():
        said.append(
            f"later tokens of {int((~demand.steady).sum())} requests cost nothing in it: to compute them anew is cheaper than to decode"
        )
    if relaxed.cut_s > 0:
        said.append("a first token just before the cut lowers what a late request owes; the bound allows for it")
    said += [f"left out of the plant: {text}" for text in relaxed.below.left_out]
    return tuple(said)
