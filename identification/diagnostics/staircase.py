"""Does the step time bend, climb in steps or jump with the tokens of a step, where the plant runs straight?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from headway.identification.diagnostics.correlation import autoregression, chance, explained, filtered, sampled, settled, spread, whole
from headway.identification.row_filter import column_range

BINS = 30
"""Bins of tokens at most."""
FEWEST = 10
"""Steps of a bin at least [steps]."""
LEVEL = 0.005
"""Share of false alarms that the test of one regime allows."""
MISSED = 0.03
"""Mean residual of a bin from which on a significant lack of fit is said: a smaller one costs no margin."""
JUMP = 0.05
"""Smallest jump between neighbouring numbers of tokens that is named."""
JUMP_SPREADS = 4.0
"""The same in standard errors of the difference of the two means."""
CLIFF = 0.2
"""Jump from which on it may be worth a cap on what may run."""
ROOM = 0.5
"""Share of a token budget that prompts must be left beside the decodes for the budget to be proposed."""
FEWEST_TO_FIT = 100
"""Steps of a range of tokens from which on it is named as one to fit alone: a margin of one late step in a hundred needs them [steps]."""
NAMED = 5
"""Jumps that are named at most, the largest."""


class Jump(NamedTuple):
    """A place where the step time jumps.

    Args:
        below_tokens: the largest number of tokens seen below it [tokens].
        above_tokens: the smallest seen above it [tokens].
        size: change of the step time over the plant's across it, a share.
    """

    below_tokens: float
    above_tokens: float
    size: float


def staircase(
    residual: np.ndarray,
    mixed: np.ndarray,
    stream: np.ndarray,
    tokens: np.ndarray,
    *,
    decode_requests: np.ndarray | None = None,
    max_seqs: int | None = None,
    structures: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Lack-of-fit test of the residual against the tokens that a step runs, per regime, and where it jumps.

    F test of the means of bins of tokens, residual and bins filtered by the residual's own autoregression.

    Args:
        residual: log(measured / predicted) of the used rows, in time order within each stream, shape (k,).
        mixed: whether the step has prefill, shape (k,), bool.
        stream: number of the source of each row, shape (k,).
        tokens: decode requests plus prefill tokens of the step, shape (k,) [tokens].
        decode_requests: of the step, shape (k,) [requests]; None where they are not known apart.
        max_seqs: most requests that the engine runs at once; None where nobody said: the trace's own then.
        structures: what to say of other structures, by regime; None says nothing.

    Returns:
        ({regime: {"steps", "p", "share", "bins": [[from, to, steps, mean residual]], "jumps": [[below, above, size]]}};
        what there is to say, one sentence each). A regime with too few steps or one number of tokens is None.

    Source:
        Fisher, The goodness of fit of regression formulae, 1922 (lack of fit against groups).
    """
    rows, stretch, said = sampled(stream)
    result: dict[str, Any] = {}
    for regime, mask in (("decode", ~mixed[rows]), ("mixed", mixed[rows])):
        chosen = rows[mask]
        result[regime] = found = _regime(residual[chosen], stretch[mask], tokens[chosen])
        if found and found["p"] < LEVEL and max(abs(row[3]) for row in found["bins"]) >= MISSED:
            requests = None if decode_requests is None else decode_requests[chosen]
            advice = (structures or {}).get(regime, "")
            said = [*said, _said(regime, found, tokens[chosen], requests, advice) + _cap(regime, found, decode_requests, max_seqs)]
    return result, said


def _regime(residual: np.ndarray, stretch: np.ndarray, tokens: np.ndarray) -> dict[str, Any] | None:
    number = _bins(tokens)
    count = int(number.max()) + 1 if len(number) else 0
    if count < 3:
        return None
    values = settled(residual)
    means = np.bincount(number, values) / np.bincount(number)
    # the noise's own correlation, not the one that the missing shape makes
    phi = autoregression(values - means[number], stretch)
    good = whole(stretch, len(phi))
    members = (number[:, None] == np.arange(1, count)).astype(float)
    found = explained(filtered(values, phi)[good], np.ones((int(good.sum()), 0)), filtered(members, phi)[good])
    bins = []
    for b in range(count):
        here = number == b
        bins.append([float(tokens[here].min()), float(tokens[here].max()), int(here.sum()), float(np.median(residual[here]))])
    significant = found.p < LEVEL
    jumps = _jumps(residual, tokens) if significant else []
    return {"steps": len(tokens), "p": found.p, "share": found.share, "bins": bins, "jumps": [list(jump) for jump in jumps]}


def _bins(tokens: np.ndarray) -> np.ndarray:
    """Number of each row's bin: equal tokens share one, and each holds enough rows."""
    values, back, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    wanted = max(FEWEST, -(-len(tokens) // BINS))
    number, bins, held = np.zeros(len(values), int), 0, 0
    for i, count in enumerate(counts.tolist()):
        number[i], held = bins, held + count
        if held >= wanted:
            bins, held = bins + 1, 0
    # a last bin that did not fill joins the one before it
    return np.minimum(number, max(bins - 1, 0))[back]


def _jumps(residual: np.ndarray, tokens: np.ndarray) -> list[Jump]:
    """Largest differences of mean residual between the rows just above and just below a number of tokens."""
    order = np.argsort(tokens, kind="stable")
    sorted_tokens, value = tokens[order], residual[order]
    n = len(value)
    width = max(FEWEST, n // 60)
    edges = np.flatnonzero(np.diff(sorted_tokens) > 0) + 1
    edges = edges[(edges >= FEWEST) & (edges <= n - FEWEST)]
    if len(edges) == 0:
        return []
    sums, squares = np.concatenate([[0.0], np.cumsum(value)]), np.concatenate([[0.0], np.cumsum(value**2)])
    low, high = np.maximum(edges - width, 0), np.minimum(edges + width, n)
    below, above = (sums[edges] - sums[low]) / (edges - low), (sums[high] - sums[edges]) / (high - edges)
    inner = (squares[high] - squares[low]) - (edges - low) * below**2 - (high - edges) * above**2
    error = np.sqrt(np.maximum(inner, 0.0) / (high - low - 2) * (1 / (edges - low) + 1 / (high - edges)))
    step = above - below
    # a bend has a slope everywhere: only what stands out of the usual difference is a jump
    size = np.maximum(np.abs(step), 1e-12)
    clear = (size > np.log1p(JUMP)) & (size > JUMP_SPREADS * np.maximum(error, 1e-12)) & (size > 3 * spread(step))
    found: list[Jump] = []
    taken = np.zeros(n + 1, bool)
    for i in np.argsort(-size):
        if len(found) == NAMED or not clear[i]:
            break
        if not taken[edges[i]]:
            taken[max(edges[i] - 2 * width, 0) : edges[i] + 2 * width] = True
            below_tokens, above_tokens = float(sorted_tokens[edges[i] - 1]), float(sorted_tokens[edges[i]])
            found.append(Jump(below_tokens, above_tokens, float(np.expm1(step[i]))))
    return found


def _said(regime: str, found: dict[str, Any], tokens: np.ndarray, requests: np.ndarray | None, advice: str) -> str:
    means = [row[3] for row in found["bins"]]
    missed = f"the plant misses steps by {np.expm1(min(means)):+.0%} to {np.expm1(max(means)):+.0%} along their tokens"
    head = f"{regime}: {missed} (lack of fit, {chance(found['p'])})"
    jumps = sorted(found["jumps"], key=lambda jump: jump[1])
    if not jumps:
        worst = found["bins"][int(np.argmax(np.abs(means)))]
        return (
            f"{head}, most between {worst[0]:,.0f} and {worst[1]:,.0f}: the step time bends where the plant runs straight; "
            f"fit only the range that the engine runs in ({_option(regime, worst, tokens, requests)}){'; ' * bool(advice)}{advice}"
        )
    first, *others = (f"{above:,.0f} tokens ({size:+.0%})" for _, above, size in jumps)
    word = f"a staircase or {'cliffs' if others else 'a cliff'} at {first}" + "".join(f" and {other}" for other in others)
    return f"{head}: {word}, which this plant does not hold (captured graph sizes)"


def _option(regime: str, worst: list[Any], tokens: np.ndarray, requests: np.ndarray | None) -> str:
    """How to take the steps that the plant misses most: no column holds all tokens of a step, so by those of its regime."""
    here = (tokens >= worst[0]) & (tokens <= worst[1])
    if requests is None or here.sum() < FEWEST_TO_FIT:
        return "--where COLUMN=LOW:HIGH"
    name, values = ("decode_requests", requests) if regime == "decode" else ("prefill_tokens", tokens - requests)
    return f"{column_range(name, float(values[here].min()), float(values[here].max()))} takes these"


def _cap(regime: str, found: dict[str, Any], decode_requests: np.ndarray | None, max_seqs: int | None) -> str:
    """What a cap below the largest jump would cost: a budget that decodes use up starves the prompts."""
    highest = max(found["jumps"], key=lambda jump: jump[2], default=(0.0, 0.0, 0.0))
    if highest[2] < CLIFF:
        return ""
    cap = highest[0]
    if regime == "decode":
        return f"; a running limit of {cap:,.0f} stays below it, but lets requests wait: {_shows('max-seqs', cap)}"
    if max_seqs is not None:
        most, source = float(max_seqs), "max_seqs"
    elif decode_requests is not None:
        most, source = float(decode_requests.max()), "the most of the trace"
    else:
        return f"; a token budget of {cap:,.0f} stays below it, but pays only if it leaves room for prompts: {_shows('max-tokens', cap)}"
    left = max(cap - most, 0.0)
    room = f"{left:,.0f} tokens" if left else "none"
    beside = f"leaves {room} for prompts beside {most:,.0f} decode requests ({source})"
    if left < ROOM * cap:
        return f"; no token budget below it is advised: {cap:,.0f} {beside}; {_shows('max-tokens', cap)}"
    return f"; a token budget of {cap:,.0f} stays below it and {beside}; {_shows('max-tokens', cap)}"


def _shows(option: str, cap: float) -> str:
    return f"`headway simulate PLANT --{option} {cap:.0f}` shows what that costs (this plant leaves the cliff out)"
