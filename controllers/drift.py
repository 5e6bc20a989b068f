"""Does the engine still behave as its plant says? Every prediction is paired with its measurement, and a CUSUM watches them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from headway.models.compiled import compiled

SLOW, VARIANCE, BLOCKS, UP, DOWN, ALARM, UP_SUM, UP_ROWS, DOWN_SUM, DOWN_ROWS, ROWS, RAISED, SKIPPED = 0, 1, 2, *range(12, 22)
"""Places in the state: slow part of the residual; variance of what is left of it; five numbers for each of the two lengths of
blocks (variance, sum, rows and last mean of a block, number of blocks); the two CUSUMs; the alarm; sum and number of residuals
behind each CUSUM; steps seen, alarms raised, readings skipped."""
DRIFT_STATE = 22
"""Numbers of state."""
SHORT_BLOCK, LONG_BLOCK = 20.0, 200.0
"""Steps in the blocks whose means tell how far the residual wanders by itself: one and ten memories of its slow part [steps]."""
FORGET_STEP, FORGET_BLOCK = 0.002, 0.01
"""Weight of one step and of one block in their variances: slow, so that a slowdown does not become the norm it is held against."""
BELIEF_STEPS, BELIEF_BLOCKS = 100.0, 20.0
"""Steps and blocks that the first belief of the spread counts for."""
SPIKE = 3.0
"""Standard deviations beyond which a step counts as no more: a spike is not a slowdown."""
MOST = 1.5
"""Of the limit: where a CUSUM stops to grow, so that an alarm of an hour clears as fast as one of a minute."""
CLEAR = 0.25
"""Of the limit: where an alarm ends."""

RANGES = {
    "slowdown": (0.0, 10.0),
    "memory": (0.0, 0.9999),
    "gain": (1e-6, 1.0),
    "reference": (0.0, 10.0),
    "limit": (1e-6, 1e6),
    "spread": (1e-6, 10.0),
}
"""Least and greatest value of each number of the monitor."""


@dataclasses.dataclass(frozen=True)
class DriftMonitor:
    """Page's two-sided CUSUM of the log residual, whitened by its own slow part.

    r = log(measured / predicted),  e = r - memory x,  x := memory x + gain clip(e, +-3 s)
    up   := max(0, up + e / s - k),  down := max(0, down - e / s - k)
    k = max(reference, gain_0 log(1 + slowdown) / (2 s)),  gain_0 = (1 - memory) / (1 - memory (1 - gain))

    An alarm is raised where a CUSUM passes `limit` and ends where it is back at a quarter of it. s is the largest of three
    spreads that the monitor measures itself: of e from step to step, and of its means over 20 and 200 steps times sqrt(20) and
    sqrt(200), so that an engine that wanders by itself is held against its wandering. Means are measured against the mean
    before, and slowly: a lasting shift moves them once. Steps are whitened because half of what tells a slowdown from the
    residual's own slow movement is in its first ten steps. The second form of k keeps shifts below half of `slowdown` silent on
    engines so quiet that one would show. AR(1) whitening by the correlation at lag one was refused: noise that is partly white
    hides how slow the rest of it moves, and with the limit that keeps false alarms as rare the alarm comes after 61 steps
    instead of 18.

    Args:
        slowdown: change of the step time that must be found, a share.
        memory: correlation from step to step of the residual's slow part, in [0, 1).
        gain: of the filter that follows it, in (0, 1].
        reference: k, in spreads.
        limit: of the CUSUM; see benchmarks/drift.py for what it costs in steps and in false alarms.
        spread: of the residual, as first believed.

    Source:
        Page, Continuous inspection schemes, 1954; Basseville and Nikiforov, Detection of Abrupt Changes, 1993 (whitening).

    Example:
        >>> monitor = DriftMonitor()
        >>> state = monitor.init()
        >>> for _ in range(40):
        ...     state, alarm = monitor.update(state, 0.020, 0.024)
        >>> alarm, monitor.sentence(state)[:49]
        (1, 'steps take 20 % longer than the plant says, for 4')
    """

    slowdown: float = 0.12
    memory: float = 0.95
    gain: float = 0.2
    reference: float = 0.3
    limit: float = 13.0
    spread: float = 0.05

    def check(self) -> None:
        """Refuse numbers that no monitor could work with.

        Raises:
            ValueError: one that is out of range, with its value.
        """
        for name, (low, high) in RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} of the drift monitor must be in [{low:g}, {high:g}], got {getattr(self, name)}")

    def pack(self) -> tuple[float, ...]:
        """The numbers as `drift_step` reads them.

        Returns:
            The fields in order.
        """
        return (self.slowdown, self.memory, self.gain, self.reference, self.limit, self.spread)

    def init(self) -> list[float]:
        """State before the first step.

        Returns:
            DRIFT_STATE numbers.
        """
        state = [0.0] * DRIFT_STATE
        state[VARIANCE] = state[BLOCKS] = state[BLOCKS + 5] = self.spread**2
        return state

    def update(self, state: Sequence[float], predicted_s: float, step_time_s: float) -> tuple[list[float], int]:
        """Pair one prediction with its measurement. Plain Python; `drift_step` is the compiled form of the same lines.

        Args:
            state: as from `init` or the last `update`; not changed.
            predicted_s: what the plant said of this very step [s].
            step_time_s: what it took [s]; a reading that is no positive number is skipped and counted.

        Returns:
            (state, alarm): 1 slower than the plant says, -1 faster, 0 as it says.
        """
        after = list(state)
        return after, int(_plain(self.pack(), after, float(predicted_s), float(step_time_s)))

    def sentence(self, state: Sequence[float]) -> str:
        """What an engineer on call is told.

        Args:
            state: of the monitor.

        Returns:
            One sentence; empty without an alarm.
        """
        if state[ALARM] == 0:
            return ""
        size, steps = shift(state)
        if state[ALARM] > 0:
            return (
                f"steps take {100 * size:.0f} % longer than the plant says, for {steps:,} steps: a throttle (look at clocks and power), another "
                "tenant of the device, or another version or load than was fitted; if it stays, record a trace and run `headway fit` on it"
            )
        return (
            f"steps take {-100 * size:.0f} % less than the plant says, for {steps:,} steps: the plant is of a slower engine, and what it gained "
            "is not used; if it stays, record a trace and run `headway fit` on it"
        )


def shift(state: Sequence[float]) -> tuple[float, int]:
    """How far the engine is from its plant, since its CUSUM last stood at zero.

    Args:
        state: of the monitor.

    Returns:
        (change of the step time as a share, positive is slower; steps that it has lasted). Zeros without an alarm.
    """
    if state[ALARM] == 0:
        return 0.0, 0
    total, rows = (state[UP_SUM], state[UP_ROWS]) if state[ALARM] > 0 else (state[DOWN_SUM], state[DOWN_ROWS])
    return math.expm1(total / max(rows, 1.0)), int(rows)


@compiled
def drift_step(numbers, state, predicted_s, step_time_s):
    """Compiled form of `DriftMonitor.update`; `drift_step.py_func` is the same in plain Python and takes lists.

    Args:
        numbers: as from `DriftMonitor.pack`, shape (6,).
        state: changed in place, shape (DRIFT_STATE,).
        predicted_s: [s].
        step_time_s: [s].

    Returns:
        The alarm: 1 slower, -1 faster, 0 as the plant says.
    """
    slowdown, memory, gain, reference, limit = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    if not (0.0 < step_time_s < math.inf and 0.0 < predicted_s < math.inf):
        state[SKIPPED] += 1.0
        return state[ALARM]
    residual = math.log(step_time_s) - math.log(predicted_s)
    left = residual - memory * state[SLOW]
    most = SPIKE * math.sqrt(state[VARIANCE])
    left = min(max(left, -most), most)
    state[SLOW] = memory * state[SLOW] + gain * left
    state[ROWS] += 1.0
    if state[UP] < limit / 2.0 and state[DOWN] < limit / 2.0:
        state[VARIANCE] += max(FORGET_STEP, 1.0 / (state[ROWS] + BELIEF_STEPS)) * (left * left - state[VARIANCE])
        state[VARIANCE] = max(state[VARIANCE], 1e-12)
    scale = math.sqrt(max(state[VARIANCE], state[BLOCKS], state[BLOCKS + 5]))
    k = max(reference, 0.5 * math.log1p(slowdown) * (1.0 - memory) / (1.0 - memory * (1.0 - gain)) / scale)
    state[UP] = min(max(state[UP] + left / scale - k, 0.0), MOST * limit)
    state[DOWN] = min(max(state[DOWN] - left / scale - k, 0.0), MOST * limit)
    seen = min(max(residual, -1.0), 1.0)
    state[UP_SUM], state[UP_ROWS] = (state[UP_SUM] + seen, state[UP_ROWS] + 1.0) if state[UP] > 0.0 else (0.0, 0.0)
    state[DOWN_SUM], state[DOWN_ROWS] = (state[DOWN_SUM] + seen, state[DOWN_ROWS] + 1.0) if state[DOWN] > 0.0 else (0.0, 0.0)
    for i in range(2):
        o, length = (BLOCKS, SHORT_BLOCK) if i == 0 else (BLOCKS + 5, LONG_BLOCK)
        state[o + 1] += left
        state[o + 2] += 1.0
        if state[o + 2] >= length:
            mean = state[o + 1] / length
            if state[o + 4] > 0.0:
                # the difference of two means has twice the variance of one; one shift must not move it far
                square = min((mean - state[o + 3]) ** 2 * length / 2.0, SPIKE * SPIKE * state[o])
                state[o] += max(FORGET_BLOCK, 1.0 / (state[o + 4] + BELIEF_BLOCKS)) * (square - state[o])
            state[o + 1], state[o + 2], state[o + 3] = 0.0, 0.0, mean
            state[o + 4] += 1.0
    alarm = state[ALARM]
    if (alarm > 0.0 and state[UP] < CLEAR * limit) or (alarm < 0.0 and state[DOWN] < CLEAR * limit):
        alarm = 0.0
    if state[UP] > limit and alarm <= 0.0:
        alarm = 1.0
        state[RAISED] += 1.0
    elif state[DOWN] > limit and alarm >= 0.0 and state[UP] <= limit:
        alarm = -1.0
        state[RAISED] += 1.0
    state[ALARM] = alarm
    return alarm


_plain: Any = getattr(drift_step, "py_func", drift_step)
