"""Whether the engine still behaves as its plant says: the drift monitor inside an engine's process. Standard library only.

`headway.controllers.drift` is the same in compiled form, and says why; `tests/test_drift.py` holds the two to each other.
"""

from __future__ import annotations

import math

DRIFT_NUMBERS = {"slowdown": 0.12, "memory": 0.95, "gain": 0.2, "reference": 0.3, "limit": 13.0, "spread": 0.05}
"""Numbers of a drift monitor and their defaults: the change to be found (a share), correlation and gain of the residual's slow
part, reference and limit of the CUSUM, and the spread of the residual that is believed first."""
DRIFT_BLOCKS = (20.0, 200.0)
"""Steps in the blocks whose means tell how far the residual wanders by itself [steps]."""
DRIFT_STEP, DRIFT_BLOCK, DRIFT_STEPS_BELIEVED, DRIFT_BLOCKS_BELIEVED = 0.002, 0.01, 100.0, 20.0
"""Weight of one step and of one block in the spreads, and steps and blocks that the first belief counts for."""
DRIFT_SPIKE, DRIFT_MOST, DRIFT_CLEAR = 3.0, 1.5, 0.25
"""Spreads beyond which a step counts as no more; of the limit, where a CUSUM stops to grow and where an alarm ends."""


class DriftWatch:
    """Page's two-sided CUSUM of log(measured / predicted), with a memory: one per engine.

    Args:
        numbers: of DRIFT_NUMBERS, by name; what is left out takes its default.
    """

    def __init__(self, numbers: dict[str, float] | None = None) -> None:
        """Take the numbers."""
        every = {**DRIFT_NUMBERS, **(numbers or {})}
        self.memory, self.gain, self.reference, self.limit = (every[name] for name in ("memory", "gain", "reference", "limit"))
        self.spread = every["spread"]
        through = (1.0 - self.memory) / (1.0 - self.memory * (1.0 - self.gain))
        self.least = 0.5 * math.log1p(every["slowdown"]) * through
        self.reset()

    def reset(self) -> None:
        """Back to the state before the first step."""
        self.slow, self.variance = 0.0, self.spread**2
        self.blocks = [[self.spread**2, 0.0, 0.0, 0.0, 0.0] for _ in DRIFT_BLOCKS]
        self.up, self.down, self.alarm, self.rows, self.raised, self.skipped = 0.0, 0.0, 0, 0, 0, 0
        self.up_sum, self.up_rows, self.down_sum, self.down_rows = 0.0, 0, 0.0, 0

    def update(self, predicted_s: float, step_time_s: float) -> int:
        """Pair one prediction with its measurement.

        Args:
            predicted_s: what the plant said of this very step [s].
            step_time_s: what it took [s].

        Returns:
            1 slower than the plant says, -1 faster, 0 as it says. A reading that is no positive number is skipped and counted.
        """
        if not (0.0 < step_time_s < math.inf and 0.0 < predicted_s < math.inf):
            self.skipped += 1
            return self.alarm
        # conditions in the place of min and max, here and below: this runs in every step of an engine
        residual, limit, variance = math.log(step_time_s) - math.log(predicted_s), self.limit, self.variance
        most, left = DRIFT_SPIKE * math.sqrt(variance), residual - self.memory * self.slow
        left = -most if left < -most else most if left > most else left
        self.slow = self.memory * self.slow + self.gain * left
        self.rows += 1
        if self.up < limit / 2.0 and self.down < limit / 2.0:
            weight = 1.0 / (self.rows + DRIFT_STEPS_BELIEVED)
            variance += (weight if weight > DRIFT_STEP else DRIFT_STEP) * (left * left - variance)
            self.variance = variance = variance if variance > 1e-12 else 1e-12
        fast, slow = self.blocks
        widest = fast[0] if fast[0] > variance else variance
        scale = math.sqrt(slow[0] if slow[0] > widest else widest)
        k = self.least / scale
        k = k if k > self.reference else self.reference
        self._accumulate(left / scale, k, -1.0 if residual < -1.0 else 1.0 if residual > 1.0 else residual)
        for block, length in ((fast, DRIFT_BLOCKS[0]), (slow, DRIFT_BLOCKS[1])):
            block[1] += left
            block[2] += 1.0
            if block[2] >= length:
                _spread_of_means(block, length)
        if self.alarm or self.up > limit or self.down > limit:
            self._judge()
        return self.alarm

    def _accumulate(self, scaled: float, k: float, seen: float) -> None:
        """One step into both CUSUMs, and into the residual's sum since each last stood at zero."""
        most, up, down = DRIFT_MOST * self.limit, self.up + scaled - k, self.down - scaled - k
        if up > 0.0:
            self.up = up if up < most else most
            self.up_sum += seen
            self.up_rows += 1
        else:
            self.up, self.up_sum, self.up_rows = 0.0, 0.0, 0
        if down > 0.0:
            self.down = down if down < most else most
            self.down_sum += seen
            self.down_rows += 1
        else:
            self.down, self.down_sum, self.down_rows = 0.0, 0.0, 0

    def _judge(self) -> None:
        if (self.alarm > 0 and self.up < DRIFT_CLEAR * self.limit) or (self.alarm < 0 and self.down < DRIFT_CLEAR * self.limit):
            self.alarm = 0
        if self.up > self.limit and self.alarm <= 0:
            self.alarm, self.raised = 1, self.raised + 1
        elif self.down > self.limit and self.alarm >= 0 and self.up <= self.limit:
            self.alarm, self.raised = -1, self.raised + 1

    @property
    def size(self) -> float:
        """Change of the step time as a share since the CUSUM of the alarm last stood at zero; 0 without an alarm."""
        total, rows = (self.up_sum, self.up_rows) if self.alarm > 0 else (self.down_sum, self.down_rows)
        return math.expm1(total / max(rows, 1)) if self.alarm else 0.0

    def sentence(self) -> str:
        """What an engineer on call is told.

        Returns:
            One sentence for the log; empty without an alarm.
        """
        if self.alarm == 0:
            return ""
        if self.alarm > 0:
            return (
                f"steps take {100 * self.size:.0f} % longer than the plant says, for {self.up_rows:,} steps: a throttle (look at clocks and "
                "power), another tenant of the device, or another version or load than was fitted; if it stays, record a trace and run "
                "`headway fit` on it"
            )
        return (
            f"steps take {-100 * self.size:.0f} % less than the plant says, for {self.down_rows:,} steps: the plant is of a slower engine, and "
            "what it gained is not used; if it stays, record a trace and run `headway fit` on it"
        )


def _spread_of_means(block: list[float], length: float) -> None:
    """A full block: its variance from the difference of means, its sum, its rows, the mean before, blocks so far."""
    mean = block[1] / length
    if block[4] > 0.0:
        square = min((mean - block[3]) ** 2 * length / 2.0, DRIFT_SPIKE * DRIFT_SPIKE * block[0])
        block[0] += max(DRIFT_BLOCK, 1.0 / (block[4] + DRIFT_BLOCKS_BELIEVED)) * (square - block[0])
    block[1], block[2], block[3] = 0.0, 0.0, mean
    block[4] += 1.0
