"""At which level is a promise made? What a share of late tokens means per request and for the p99 of the ITL, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headway.models.compiled import compiled_making
from headway.models.goodput import CLEAN_SHARE, tokens_owed
from headway.models.signals import LEVELS, Target
from headway.models.workload import Workload

EXACT_TOKENS = 8192
"""Output length up to which late tokens are counted out; beyond it their number is taken as normal [tokens]."""
LENGTHS = 256
"""Different output lengths that a distribution is cut down to at most."""
HALVINGS = 60
"""Halvings of the logarithm of the late share, from 1e-12 to 1."""


class Lateness(NamedTuple):
    """How late tokens come, beside how many there are.

    Args:
        gap: share of gaps over the target, in [0, 1]; NaN where none was seen.
        correlation: of lateness from one token of a request to its next, in [0, 1); 0 is independent, near 1 comes in long runs.
        owed_per_late: tokens that a late gap owes on average, at least 1 [tokens].
    """

    gap: float = float("nan")
    correlation: float = 0.0
    owed_per_late: float = 1.0


class Levels(NamedTuple):
    """One promise at every level. All shares are of requests whose first token came in time.

    Args:
        level: that the target names: "token", "request" or "p99_itl".
        epsilon: as the target states it, at that level.
        token: share of owed tokens that may be late: the epsilon of the loop.
        gap: share of gaps between tokens that may exceed the ITL target.
        request_clean: share of requests with at least 99 % of their owed tokens on time, which is what level "request" promises.
        request_no_late: share of requests without a single late token.
        itl_quantile: quantile of the gaps that the ITL target is: .99 where it is the p99.
        output_tokens: median output of a request [tokens].
        late: how late tokens were taken to come.
        token_no_late: share of owed tokens that would be left if level "request" allowed no late token at all; NaN at other levels.
    """

    level: str
    epsilon: float
    token: float
    gap: float
    request_clean: float
    request_no_late: float
    itl_quantile: float
    output_tokens: float
    late: Lateness
    token_no_late: float

    def sentence(self) -> str:
        """What this target means at the other levels.

        Returns:
            One sentence.
        """
        what = {
            "token": f"{_percent(self.token)} of the tokens may be late",
            "request": f"{_percent(self.request_clean)} of the requests are clean (at least {CLEAN_SHARE:.0%} of their tokens on time)",
            "p99_itl": f"the ITL target is the {_quantile(self.itl_quantile)} of all gaps",
        }
        rest = [text for level, text in what.items() if level != self.level]
        rest.append(f"{_percent(self.request_no_late)} of the requests have no late token at all")
        runs = 1.0 / (1.0 - self.late.correlation)
        how = "late tokens taken as independent" if runs < 1.005 else f"late tokens in runs of {runs:.2g} on average"
        named = {"token": "per token", "request": "per request", "p99_itl": "on the p99 of the ITL"}[self.level]
        own = what[self.level] if self.level != "request" else f"{_percent(self.epsilon)} of the requests may be less than clean"
        if self.level == "request":
            rest.append(
                f"read as not one late token in {_percent(1 - self.epsilon)} of the requests, it would be {_percent(self.token_no_late)} of the tokens"
            )
        return (
            f"The target is {named}: {own}. That is: {'; '.join(rest)} (outputs of {self.output_tokens:,.0f} tokens at the median, {how})."
        )


def levels(epsilon: float, level: str, output_tokens: Any, *, late: Lateness | None = None) -> Levels:
    """What an epsilon at one level is at the others.

    gap share v, a late gap owes m tokens:  token share = v m / (1 - v + v m)
    late gaps of a request form a two-state Markov chain: P(late | on time before) = v (1 - rho), P(late | late before) = v + rho (1 - v)
    no late token:  sum_n P(n) (1 - v) (1 - v (1 - rho))^(n - 1), which is (1 - v)^n for rho = 0
    clean:  sum_n P(n) P(X_n <= .01 n / (m - .01 (m - 1))),  X_n the late gaps among n

    "90 % of requests clean" leaves .36 % of the tokens of 150-token outputs; without any late token it would leave .07 %.
    Runs of late tokens leave more requests untouched, but those that are touched lose more: for short outputs, where one or
    two late tokens are allowed, correlation makes a request level harder to keep, not easier.

    Args:
        epsilon: in (0, 1).
        level: "token", share of owed tokens late; "request", share of requests that are not clean; "p99_itl", share of gaps
            over the target.
        output_tokens: a sample of output lengths, shape (n,), at least 1 [tokens].
        late: how late tokens come; None takes them as independent and barely late.

    Returns:
        The levels.

    Raises:
        ValueError: epsilon, correlation or owed tokens out of range, an unknown level, or no output length.

    Example:
        >>> one = levels(0.1, "request", [150])
        >>> round(100 * one.token, 2), round(100 * levels(0.01, "token", [150]).request_no_late)
        (0.36, 22)
    """
    late = late or Lateness()
    lengths, weights = _lengths(output_tokens)
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon must be in (0, 1), got {epsilon:g}; write 0.01 for 1 %")
    if not (0 <= late.correlation < 1 and late.owed_per_late >= 1):
        raise ValueError(f"correlation must be in [0, 1) and owed_per_late at least 1, got {late.correlation:g} and {late.owed_per_late:g}")
    m, rho = late.owed_per_late, late.correlation
    spare = 1 - CLEAN_SHARE
    allowed = np.floor(spare * lengths / (m - spare * (m - 1)) + 1e-9)
    clean = lambda gap: float(weights @ _at_most(lengths, allowed, gap, rho))  # noqa: E731
    spotless = lambda gap: float(weights @ ((1 - gap) * (1 - gap * (1 - rho)) ** (lengths - 1)))  # noqa: E731
    tokens = lambda gap: gap * m / (1 - gap + gap * m)  # noqa: E731
    if level == "token":
        gap = epsilon / (m * (1 - epsilon) + epsilon)
    elif level == "p99_itl":
        gap = epsilon
    elif level == "request":
        gap = _share_that_keeps(clean, 1 - epsilon)
    else:
        raise ValueError(f"unknown level {level!r}; this version knows {', '.join(LEVELS)}")
    return Levels(
        level=level,
        epsilon=epsilon,
        token=tokens(gap),
        gap=gap,
        request_clean=clean(gap),
        request_no_late=spotless(gap),
        itl_quantile=1 - gap,
        output_tokens=float(np.median(np.asarray(output_tokens, float))),
        late=late,
        token_no_late=tokens(_share_that_keeps(spotless, 1 - epsilon)) if level == "request" else float("nan"),
    )


def levels_of(target: Target, workload: Workload, *, class_id: int = 0, late: Lateness | None = None) -> Levels:
    """The levels of a target, with the outputs of its class.

    Args:
        target: of the class.
        workload: whose outputs count; those of all classes, where it holds none of this one.
        class_id: index of the class.
        late: how late tokens come; None takes them as independent.

    Returns:
        The levels.
    """
    mine = workload.output_tokens[workload.class_id == class_id]
    return levels(target.epsilon, target.level, mine if len(mine) else workload.output_tokens, late=late)


def token_epsilon(target: Target, workload: Workload, *, class_id: int = 0, late: Lateness | None = None) -> float:
    """Share of owed tokens that may be late so that a target is kept at the level it names.

    Args:
        target: of the class.
        workload: whose outputs count.
        class_id: index of the class.
        late: how late tokens come; None takes them as independent.

    Returns:
        Epsilon per token, in (0, 1); the target's own where its level is "token".
    """
    return target.epsilon if target.level == "token" else levels_of(target, workload, class_id=class_id, late=late).token


def lateness(gap_s: Any, itl_s: float, *, request: Any = None, weight: Any = None) -> Lateness:
    """How late tokens come, from measured gaps.

    rho = (P(late | late before) - v) / (1 - v), over consecutive gaps of the same request, at least 0

    Durations of engine steps serve as well, with the decoding requests as their weight: whoever decodes sees every step.

    Args:
        gap_s: gaps in the order in which they came, request by request, shape (k,) [s].
        itl_s: target [s].
        request: which request each gap belongs to, shape (k,); None takes them for one.
        weight: how many tokens saw the gap, shape (k,); None counts each once.

    Returns:
        Share of late gaps, their correlation, and what they owe. Where fewer than two gaps follow a late one, correlation is 0.

    Example:
        >>> lateness([0.02, 0.03, 0.08, 0.02, 0.02, 0.02], 0.025).owed_per_late
        2.0
    """
    gaps = np.asarray(gap_s, float)
    weights = np.ones(len(gaps)) if weight is None else np.asarray(weight, float)
    late = (gaps > itl_s).astype(float)
    total, much = float(weights.sum()), float(weights @ late)
    if total <= 0 or much <= 0:
        return Lateness(0.0 if total > 0 else float("nan"))
    share = much / total
    same = np.ones(max(len(gaps) - 1, 0), bool) if request is None else np.asarray(request)[1:] == np.asarray(request)[:-1]
    after = weights[1:] * late[:-1] * same
    rho = 0.0
    if np.count_nonzero(after) >= 2 and share < 1:
        rho = (float(after @ late[1:]) / float(after.sum()) - share) / (1 - share)
    owed = sum(float(w) * float(tokens_owed(float(g), itl_s)) for g, w in zip(gaps[late > 0], weights[late > 0], strict=True))
    return Lateness(share, min(max(rho, 0.0), 0.999), max(owed / much, 1.0))


def _share_that_keeps(kept: Callable[[float], float], least: float) -> float:
    """The largest share of late gaps with which what is kept reaches `least`; what is kept falls as the share grows."""
    low, high = math.log(1e-12), 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(math.exp(middle)) >= least else (low, middle)
    return math.exp(low)


def _lengths(output_tokens: Any) -> tuple[np.ndarray, np.ndarray]:
    """Ascending lengths and the share of requests that have them."""
    found = np.sort(np.asarray(output_tokens, float).ravel())
    if len(found) == 0 or not (np.isfinite(found).all() and found[0] >= 1):
        raise ValueError("output_tokens must hold at least one length, each at least 1; take those of the workload")
    values, counts = np.unique(found, return_counts=True)
    if len(values) > LENGTHS:
        values, counts = np.unique(np.round([part.mean() for part in np.array_split(found, LENGTHS)]), return_counts=True)
    return values, counts / counts.sum()


def _at_most(lengths: np.ndarray, allowed: np.ndarray, share: float, correlation: float) -> np.ndarray:
    """P(at most so many late gaps) for each length."""
    short = lengths <= EXACT_TOKENS
    found = np.ones(len(lengths))
    if short.any():
        found[short] = _counted(lengths[short], allowed[short], share, correlation)
    for i in np.flatnonzero(~short):
        mean, spread = lengths[i] * share, math.sqrt(lengths[i] * share * (1 - share) * (1 + correlation) / (1 - correlation))
        found[i] = 0.5 * math.erfc((mean - allowed[i] - 0.5) / max(spread, 1e-300) / math.sqrt(2))
    return found


@compiled_making
def _counted(lengths, allowed, share, correlation):
    """The number of late gaps counted out gap by gap: chances by how many were late so far and whether the last one was."""
    most = int(allowed.max())
    good, bad = np.zeros(most + 2), np.zeros(most + 2)
    good[0], bad[min(1, most + 1)] = 1.0 - share, share
    fresh, again = share * (1.0 - correlation), share + correlation * (1.0 - share)
    found, i, n = np.zeros(len(lengths)), 0, 1.0
    while i < len(lengths):
        while i < len(lengths) and lengths[i] <= n:
            for x in range(int(allowed[i]) + 1):
                found[i] += good[x] + bad[x]
            i += 1
        for x in range(most, -1, -1):
            bad[x + 1], good[x + 1] = good[x] * fresh + bad[x] * again, good[x + 1] * (1.0 - fresh) + bad[x + 1] * (1.0 - again)
        good[0], bad[0] = good[0] * (1.0 - fresh) + bad[0] * (1.0 - again), 0.0
        n += 1.0
    return found


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _quantile(share: float) -> str:
    return f"p{100 * share:.5g}"
