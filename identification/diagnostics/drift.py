"""Did the engine change while it was measured? A slope of the residual over the steps, and the steps at which it jumped."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from headway.identification.diagnostics.correlation import settled, spread
from headway.identification.structures.intervals import block_length

FEWEST = 400
"""Steps of a stream below which nothing is said of it [steps]."""
DRAWS = 400
"""Bootstrap draws of the slope."""
MOST_MEANS = 240
"""Block means that a stream is reduced to at most, for the change points."""
LEAST_MEAN = 20
"""Steps behind one mean at least [steps]."""
SIDE = 4
"""Block means on either side of a change at least."""
LIMIT = 1.85
"""Largest CUSUM of a stream without a change, as a Brownian bridge: exceeded in 2 of 1,000; more than 1.63 (1 %), since its scale is estimated."""
SURE = 1.5
"""Slope over half of its 95 % interval from which on it is said: one false alarm in 300 instead of 20."""
NOTICED = 0.02
"""Slope times length, or change, below which a significant one is not said: a margin holds more."""
SPELL_LIMIT = 2.35
"""The same for a spell that ends again: the range of a Brownian bridge."""
CLEAREST = 1e6
"""Statistic of a change without any noise beside it."""
JUMP = 0.08
"""Change of the step time from which on other findings on the residuals are taken for its consequences."""
WANDER_STEPS = 200
"""Steps over which the residual is averaged to see it wander [steps]."""
WANDER = 0.06
"""Range of these averages from which on it is said, if they hold half of the residual's spread."""
MOST_CHANGES = 12
"""Change points of a stream at most, the clearest."""
LISTED = 16
"""Streams that are listed at most."""


class Change(NamedTuple):
    """A step at which the residual's level changed.

    Args:
        row: number of the first row of the new level, in the arrays given.
        step: the same as number of the step.
        size: change of the step time at equal composition, a share.
        statistic: CUSUM over its limit's scale; `LIMIT` is the threshold.
    """

    row: int
    step: int
    size: float
    statistic: float


class Slow(NamedTuple):
    """A sustained run of slow steps: a throttle, another tenant, or a longer change of the engine.

    Args:
        first: row of the first step, in the arrays given.
        last: row of the last step.
        first_step: the same as numbers of the steps.
        last_step: of the last.
        size: how much slower than the steps around it, a share.
    """

    first: int
    last: int
    first_step: int
    last_step: int
    size: float


def drift(residual: np.ndarray, stream: np.ndarray, step: np.ndarray, *, seed: int = 0) -> tuple[dict[str, Any], list[str]]:
    """Slope and change points of the residual, per stream.

    The slope's interval is a bootstrap over blocks. Change points by binary segmentation of block means: a split counts
    if its CUSUM exceeds that of a process with the noise's own first-order correlation, sqrt(var / (1 - rho)^2) per mean.
    Where a straight line explains a stream as well as all its splits, there is a slope and no change point.

    Args:
        residual: log(measured / predicted) of the used rows, in time order within each stream, shape (k,).
        stream: number of the source of each row, shape (k,), ascending.
        step: number of the step of each row, for people, shape (k,).
        seed: of the bootstrap.

    Returns:
        ({"streams": [{"stream", "steps", "slope_per_1000", "ci95", "wanders", "changes": [...], "slow": [...]}], "not_tested":
        streams with too few steps}; what there is to say, one sentence each). Slopes and sizes are shares of the step
        time, rows count in the arrays given.

    Source:
        Vostrikova, Detecting disorder in multidimensional random processes, 1981 (binary segmentation); Page, Continuous
        inspection schemes, 1954 (CUSUM).
    """
    numbers, starts = np.unique(stream, return_index=True)
    ends = np.append(starts, len(stream))[1:]
    several = len(numbers) > 1
    listed, said, skipped = [], [], 0
    for number, start, end in zip(numbers.tolist(), starts.tolist(), ends.tolist(), strict=True):
        if end - start < FEWEST:
            skipped += 1
            continue
        found, more = _stream(residual[start:end], step[start:end], start, np.random.default_rng([seed, number, 0xD1F7]))
        listed.append({"stream": number, **found})
        said += [f"stream {number}: {text}" if several else text for text in more]
    if len(said) > LISTED:
        said = [*said[:LISTED], f"{len(said) - LISTED} more findings on drift are in the diagnostics of the plant"]
    return {"streams": listed, "not_tested": skipped}, said


def slow_rows(found: dict[str, Any], rows: int) -> np.ndarray:
    """Rows that lie in a sustained run of slow steps.

    Args:
        found: the first result of `drift`.
        rows: length of the arrays that it was given.

    Returns:
        Mask of shape (rows,), bool.
    """
    mask = np.zeros(rows, bool)
    for stream in found["streams"]:
        for run in stream["slow"]:
            mask[run["first"] : run["last"] + 1] = True
    return mask


def levels(found: dict[str, Any], residual: np.ndarray, stream: np.ndarray, mixed: np.ndarray) -> np.ndarray:
    """How much of each residual is a change of level or a slope that was said: what else is asked of residuals is asked without it.

    A jump that stays in them looks like memory from step to step, and like a term that is missing or bent, wherever the load
    before and after it differed: one cause, many findings.

    Args:
        found: the first result of `drift`.
        residual: as it was given, shape (k,).
        stream: likewise, shape (k,).
        mixed: whether each step held prefill, shape (k,), bool.

    Returns:
        Log of how far its level, or its place on the slope, lies from the plant, shape (k,); zero where nothing was said.
    """
    out = np.zeros(len(residual))
    for one in found["streams"]:
        rows = np.flatnonzero(stream == one["stream"])
        large = [change["row"] for change in one["changes"] if abs(change["size"]) > NOTICED]
        if large:
            for part in np.split(rows, np.searchsorted(rows, large)):
                for side in (part[mixed[part]], part[~mixed[part]]):
                    out[side] = np.median(residual[side]) if len(side) else 0.0
        elif _slopes(one):
            out[rows] = one["slope_per_1000"] * (np.arange(len(rows)) - (len(rows) - 1) / 2) / 1000
    return out


def jumped(found: dict[str, Any]) -> bool:
    """Whether the engine changed so much that the plant is a mean of two: what else its residuals show may follow from that.

    Args:
        found: the first result of `drift`.

    Returns:
        True for a change of at least `JUMP`.
    """
    return any(abs(change["size"]) >= JUMP for one in found["streams"] for change in one["changes"])


def _slopes(found: dict[str, Any]) -> bool:
    """Whether a slope is sure and large enough to be said."""
    half = (found["ci95"][1] - found["ci95"][0]) / 2
    return abs(found["slope_per_1000"]) >= SURE * half and abs(found["slope_per_1000"] * found["steps"] / 1000) >= NOTICED


def _stream(residual: np.ndarray, step: np.ndarray, start: int, rng: np.random.Generator) -> tuple[dict[str, Any], list[str]]:
    size = spread(residual)
    value = settled(residual) * (size if size > 0 else 1.0)
    slope, low, high = _slope(value, rng)
    changes = _changes(value)
    # steps of a stair that a line explains as well are no changes: the engine drifted
    changes = [] if changes and _straight(value, [row for row, _ in changes]) else changes
    levels = np.array([np.median(part) for part in np.split(residual, [row for row, _ in changes])])
    named = [
        Change(start + row, int(step[row]), float(np.expm1(levels[i + 1] - levels[i])), statistic)
        for i, (row, statistic) in enumerate(changes)
    ]
    slow = _slow([0, *(row for row, _ in changes), len(residual)], levels, step, start)
    found = {
        "steps": len(residual),
        "slope_per_1000": slope,
        "ci95": [low, high],
        "wanders": _wander(value, size),
        "changes": [change._asdict() for change in named],
        "slow": [run._asdict() for run in slow],
    }
    return found, _said(found, named, slow)


def _slope(value: np.ndarray, rng: np.random.Generator) -> tuple[float, float, float]:
    """Least-squares slope per 1,000 steps and its 95 % interval, over blocks of steps drawn around the line."""
    n = len(value)
    place = (np.arange(n) - (n - 1) / 2) / 1000
    slope = float(place @ value / (place @ place))
    left = value - value.mean() - slope * place
    length = min(max(2 * block_length(left), 1), n // 8)
    count = n // length
    sums = np.concatenate([[0.0], np.cumsum(left)])
    firsts = rng.integers(0, n - length + 1, (DRAWS, count))
    means = (sums[firsts + length] - sums[firsts]) / length
    middle = (np.arange(count) * length + (length - 1) / 2 - (count * length - 1) / 2) / 1000
    drawn = means @ middle / (middle @ middle)
    # few blocks: the normal quantile of their spread, widened as Student's is
    half = 1.96 * float(drawn.std()) * (1 + 2.5 / count)
    return slope, slope - half, slope + half


def _straight(value: np.ndarray, rows: list[int]) -> bool:
    """Whether a line explains the means of a stream better than levels between these rows (BIC; a level costs its row as well)."""
    n = len(value)
    length = max(LEAST_MEAN, -(-n // MOST_MEANS))
    count = n // length
    means = value[: count * length].reshape(count, length).mean(axis=1)
    place = np.arange(count) - (count - 1) / 2
    line = means - means.mean() - place * float(place @ means) / float(place @ place)
    # a mean that a change falls into belongs to neither side
    at = np.clip(np.asarray(rows) // length, 0, count - 1)
    clean = np.setdiff1d(np.arange(count), at)
    level = np.searchsorted(at, clean)
    left = np.concatenate([means[clean[level == k]] - means[clean[level == k]].mean() for k in np.unique(level)])
    power = [max(float(part @ part) / len(part), 1e-18) for part in (line, left)]
    return bool(count * np.log(power[0] / power[1]) < (2 * len(rows) + 1 - 2) * np.log(count))


def _wander(value: np.ndarray, size: float) -> list[float] | None:
    """Lowest and highest average over spells of steps, where these averages hold half of the residual's spread."""
    count = len(value) // WANDER_STEPS
    if count < 4 or size <= 0:
        return None
    means = value[: count * WANDER_STEPS].reshape(count, WANDER_STEPS).mean(axis=1)
    return [float(means.min()), float(means.max())] if means.std() > 0.5 * value.std() else None


def _wandering(range_of_means: list[float] | None) -> list[str]:
    if range_of_means is None or range_of_means[1] - range_of_means[0] < WANDER:
        return []
    low, high = np.expm1(range_of_means)
    return [
        f"over spells of {WANDER_STEPS} steps the engine wanders from {low:+.0%} to {high:+.0%} of what the plant says: something that no column "
        "holds moves slowly (heat, memory, the mix of requests); record longer, and keep the controller's feedback on"
    ]


def _changes(value: np.ndarray) -> list[tuple[int, float]]:
    """Rows at which the level changes and by how clear a statistic, in order."""
    n = len(value)
    length = max(LEAST_MEAN, -(-n // MOST_MEANS))
    count = n // length
    means = value[: count * length].reshape(count, length).mean(axis=1)
    found: list[tuple[int, float]] = []
    left = [(0, count)]
    while left and len(found) < 4 * MOST_CHANGES:
        low, high = left.pop()
        cuts, statistic = _split(means[low:high])
        found += [(low + cut, statistic) for cut in cuts]
        bounds = [low, *(low + cut for cut in cuts), high]
        left += list(itertools.pairwise(bounds)) if cuts else []
    found = sorted(sorted(found, key=lambda pair: -pair[1])[:MOST_CHANGES])
    bounds = [0, *(cut for cut, _ in found), count]
    refined = []
    for i, (cut, statistic) in enumerate(found, 1):
        low, high = max(bounds[i - 1], cut - 2 * SIDE) * length, min(bounds[i + 1], cut + 2 * SIDE) * length
        refined.append((low + _steepest(value[low:high], length), statistic))
    return refined


def _split(means: np.ndarray) -> tuple[list[int], float]:
    """The cut of a run of means that its CUSUM shows, or the two ends of a spell; none within chance."""
    n = len(means)
    if n < 2 * SIDE:
        return [], 0.0
    path = np.concatenate([[0.0], np.cumsum(means - means.mean())])
    at = SIDE + int(np.argmax(np.abs(path[SIDE : n - SIDE + 1])))
    statistic = _statistic(means, [at], abs(float(path[at])))
    if statistic > LIMIT:
        return [at], statistic
    # a spell: the largest difference along the path, its ends apart and off the run's own ends
    ends = np.array([0, *range(SIDE, n - SIDE + 1), n])
    apart = ends[None, :] - ends[:, None] >= SIDE
    rise = np.where(apart, np.abs(path[ends][None, :] - path[ends][:, None]), -1.0)
    first, last = divmod(int(np.argmax(rise)), len(ends))
    cuts = [int(cut) for cut in (ends[first], ends[last]) if 0 < cut < n]
    statistic = _statistic(means, cuts, float(rise[first, last]))
    return (cuts, statistic) if statistic > SPELL_LIMIT else ([], 0.0)


def _statistic(means: np.ndarray, cuts: list[int], height: float) -> float:
    """Height of the path over that of a process with the noise's own correlation."""
    n = len(means)
    # the scale within the parts: over the whole run a change would pass for noise
    left = np.concatenate([part - part.mean() for part in np.split(means, cuts)])
    power = float(left @ left)
    if power <= 1e-18 * n:
        return CLEAREST if height > 1e-9 else 0.0
    rho = float(left[1:] @ left[:-1]) / power
    # each fitted mean takes from the correlation about (1 + 3 rho) / n
    rho = min(max(rho + (len(cuts) + 1) * (1 + 3 * max(rho, 0.0)) / n, 0.0), 0.95)
    scale = np.sqrt(power / (n - len(cuts) - 1) * (1 + rho) / (1 - rho))
    return min(height / float(scale * np.sqrt(n)), CLEAREST)


def _steepest(value: np.ndarray, margin: int) -> int:
    """Where in a window the level changes: the extreme of its CUSUM, off the ends by the steps behind a mean."""
    path = np.abs(np.cumsum(value - value.mean()))
    margin = min(margin, (len(value) - 1) // 2)
    return margin + int(np.argmax(path[margin : len(value) - margin])) + 1


def _slow(bounds: list[int], levels: np.ndarray, step: np.ndarray, start: int) -> list[Slow]:
    """Inner parts that are slower than both parts beside them."""
    found = []
    for i in range(1, len(levels) - 1):
        size = float(np.expm1(levels[i] - max(levels[i - 1], levels[i + 1])))
        if size > NOTICED:
            first, last = bounds[i], bounds[i + 1] - 1
            found.append(Slow(start + first, start + last, int(step[first]), int(step[last]), size))
    return found


def _said(found: dict[str, Any], changes: list[Change], slow: list[Slow]) -> list[str]:
    large = [change for change in changes if abs(change.size) > NOTICED]
    low, high = found["ci95"]
    total = found["slope_per_1000"] * found["steps"] / 1000
    if not large:
        if not _slopes(found):
            return _wandering(found["wanders"])
        word = "slower" if total > 0 else "faster"
        return [
            f"the engine grew {word} by {abs(found['slope_per_1000']):.1%} per 1,000 steps ({low:+.1%} to {high:+.1%}), {abs(total):.0%} over the "
            "trace, at equal composition (heat, memory, cache); record longer, and do not trust coefficients of inputs that rose with it"
        ]
    biggest = max(large, key=lambda change: abs(change.size))
    several = f", the largest of {len(large)} changes" if len(large) > 1 else ""
    if slow and biggest.row in [row for run in slow for row in (run.first, run.last + 1)]:
        run = max(slow, key=lambda r: r.size)
        return [
            f"steps {run.first_step:,} to {run.last_step:,} took {run.size:.0%} longer than those around them at equal composition{several}: "
            "a throttle, another tenant, or a load that the plant misses; look what ran then, or leave them out (a column, and --where)"
        ]
    word = "slower" if biggest.size > 0 else "faster"
    return [
        f"from step {biggest.step:,} on the engine is {abs(biggest.size):.0%} {word} at equal composition{several}: a throttle, another tenant, "
        "a restart, or a load that the plant misses; fit the parts apart (a column, and --where)"
    ]
