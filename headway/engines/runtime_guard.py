"""What stands between an engine's readings and a law: readings that cannot be true, and a watchdog over late steps.

`headway.controllers.guard` is the same in compiled form; `tests/test_guard.py` holds the two to each other.
"""

from __future__ import annotations

import math
from typing import Any

INF, NAN = math.inf, math.nan

KINDS = ("missing", "negative", "empty", "sums", "stale", "skipped", "clock", "double", "not_applied")
"""Faults for which the command is held and the law frozen, in the order of their codes, which begin at 1."""
MISSING, NEGATIVE, EMPTY, SUMS, STALE, SKIPPED, CLOCK, DOUBLE, NOT_APPLIED = range(1, 10)
POWERLESS = "no_authority"
"""Counted besides: a late step without prefill under a budget without prefill, which no budget can shorten."""

NUMBERS = {
    "late_steps": (20.0, "steps"),
    "window_steps": (50.0, "steps"),
    "clean_steps": (1.0, "steps"),
    "blind_steps": (50.0, "steps"),
    "over_steps": (8.0, "steps"),
    "least_s": (0.0, "s"),
    "most_s": (60.0, "s"),
    "fallback_tokens": (0.0, "tokens"),
}
"""Numbers of a guard: default and unit. Late steps with prefill in the window that call the fallback, late ones that a
clean window may hold, bad readings in a row after which the fallback caps the held command, steps above the command in
a row that count as a command not applied, least and longest believable step, and the fallback's token budget; 0 is none."""

TWICE_LOW, TWICE_HIGH, FLIPS = 1.7, 2.3, 5.0
"""A reading of two loops is this many times the last single one, and this many changes in a row between the two tell it."""


class Guard:
    """Memory of a loop's readings and commands, and the decisions that need nothing else.

    Args:
        numbers: of NUMBERS, by name.
        max_tokens: the engine's own limit [tokens].
    """

    def __init__(self, numbers: dict[str, float], max_tokens: float) -> None:
        """Take the numbers."""
        self.late_steps, self.window, self.clean_steps = numbers["late_steps"], int(numbers["window_steps"]), numbers["clean_steps"]
        self.blind_steps, self.over_steps = numbers["blind_steps"], numbers["over_steps"]
        self.least_s, self.most_s = numbers["least_s"], numbers["most_s"]
        self.fallback_tokens, self.max_tokens = numbers["fallback_tokens"] or INF, max_tokens
        self.reset(0.0)

    def reset(self, prefill_tokens: float) -> None:
        """Forget everything.

        Args:
            prefill_tokens: prefill budget to hold if the first reading is bad [tokens].
        """
        self.held, self.held_before, self.held_earlier = self.max_tokens, self.max_tokens, self.max_tokens
        self.prefill, self.safe, self.cap, self.ready = prefill_tokens, prefill_tokens, prefill_tokens, 0.0
        self.reverted, self.bits, self.late, self.seen = False, 0, 0, 0
        self.bad, self.over = 0, 0
        # of decode-only steps, and of steps with prefill
        self.single, self.flips, self.doubled = [NAN, NAN], [0, 0], [False, False]
        self.step_number = self.clock_s = NAN
        self.y = self.kv = self.ready_kv = NAN
        self.counts: dict[str, int] = dict.fromkeys((*KINDS, POWERLESS, "fallback"), 0)

    def order(self, step_number: Any, clock_s: Any, step_time_s: float, kv: float, ready_kv: float) -> int:
        """Whether a reading is the next one: by the engine's step number or clock, else by not being the last one again.

        Args:
            step_number: of the step that ended, one more each step; None where the engine has none.
            clock_s: monotonic clock at its end [s]; None likewise.
            step_time_s: its duration [s].
            kv: cache tokens that its decodes read [tokens].
            ready_kv: those that the next would read [tokens].

        Returns:
            0, STALE, SKIPPED or CLOCK.
        """
        number, clock, found = NAN, NAN, 0
        if step_number is not None or clock_s is not None:
            number, clock = _stamp(step_number), _stamp(clock_s)
        if number != number and clock != clock:
            if kv > 0.0 and step_time_s == self.y and kv == self.kv and ready_kv == self.ready_kv:
                found = STALE
        else:
            if number == self.step_number or clock == self.clock_s:
                found = STALE
            elif number < self.step_number or clock < self.clock_s:
                found = CLOCK
            elif number > self.step_number + 1.0:
                found = SKIPPED
            self.step_number = number if number == number else self.step_number
            self.clock_s = clock if clock == clock else self.clock_s
        return found

    def examine(self, step_time_s: float, prefill_tokens: float, decode_requests: float, predicted_s: float) -> int:
        """Whether a sound reading can be of one step, and of one that followed the command.

        Args:
            step_time_s: duration [s].
            prefill_tokens: prompt tokens that it carried [tokens].
            decode_requests: requests that decoded in it.
            predicted_s: the plant's duration of it; NaN where unknown [s].

        Returns:
            0, CLOCK, DOUBLE or NOT_APPLIED.
        """
        if not self.least_s <= step_time_s <= self.most_s:
            return CLOCK
        if predicted_s > 0.0:
            ratio, mixed = step_time_s / predicted_s, prefill_tokens > 0.0
            # most readings are of one loop and follow such a one
            if self.doubled[mixed] or TWICE_LOW * self.single[mixed] <= ratio <= TWICE_HIGH * self.single[mixed]:
                if self._twice(ratio, mixed):
                    return DOUBLE
            else:
                self.single[mixed], self.flips[mixed] = ratio, 0
        tokens = decode_requests + prefill_tokens
        if tokens <= self.held or tokens <= self.held_before or tokens <= self.held_earlier:
            self.over = 0
            return 0
        self.over += 1
        return NOT_APPLIED if self.over >= self.over_steps else 0

    def _twice(self, ratio: float, mixed: bool) -> bool:
        """Measured over predicted, against the last single reading of the same regime: two loops in one come alternately."""
        single, before = self.single[mixed], self.doubled[mixed]
        doubled = TWICE_LOW * single <= ratio <= TWICE_HIGH * single
        self.flips[mixed] = self.flips[mixed] + 1 if doubled != before else 0
        if doubled and before:
            doubled = False  # two in a row: a new level
        if not doubled:
            self.single[mixed] = ratio
        self.doubled[mixed] = doubled
        return doubled and self.flips[mixed] >= FLIPS

    def watch(self, late: bool) -> bool:
        """Book a step with decodes: the fallback is called after many late steps, and ended by a clean window.

        Args:
            late: the step was over the budget and carried prefill, which a smaller budget would have shortened.

        Returns:
            True if the fallback ended with this step.
        """
        self.late += late - (self.bits >> (self.window - 1) & 1)
        self.bits = (self.bits << 1 | late) & (1 << self.window) - 1
        self.seen += 1
        if self.late >= self.late_steps:
            # a verified fallback needs no more than not to raise what is in force; without one, what was last on time counts
            self.cap = self.cap // 2.0 if self.reverted else self.prefill if self.fallback_tokens < INF else min(self.prefill, self.safe)
            self.counts["fallback"] += not self.reverted
            self.reverted, self.bits, self.late, self.seen = True, 0, 0, 0
        elif self.reverted and self.seen >= self.window and self.late <= self.clean_steps:
            self.reverted, self.bits, self.late, self.seen = False, 0, 0, 0
            return True
        return False

    def capped(self, prefill_tokens: float, ready_requests: float) -> float:
        """A prefill budget under the fallback.

        Args:
            prefill_tokens: what the law asks for [tokens].
            ready_requests: requests that want to decode.

        Returns:
            Prefill budget, not above it [tokens].
        """
        return min(prefill_tokens, self.cap, max(self.fallback_tokens - ready_requests, 0.0))

    def hold(self, prefill_tokens: float, ready_requests: float) -> float:
        """The command after a bad reading: not above the last, but for the one token of each request that decodes.

        Args:
            prefill_tokens: prefill budget that would be right for what is known [tokens].
            ready_requests: requests that want to decode, as far as is known.

        Returns:
            Token budget [tokens].
        """
        u = min(self.prefill, prefill_tokens)
        if self.bad > self.blind_steps:
            u = min(u, max(self.fallback_tokens - ready_requests, 0.0))
        if self.reverted:
            u = self.capped(u, ready_requests)
        return self.command(max(min(u + ready_requests, self.held), ready_requests))

    def command(self, token_budget: float) -> float:
        """Book a command.

        Args:
            token_budget: as decided [tokens].

        Returns:
            What is sent: whole, and within the engine's limit [tokens].
        """
        self.held_earlier, self.held_before = self.held_before, self.held
        self.held = min(token_budget // 1.0, self.max_tokens)
        return self.held


def _stamp(value: Any) -> float:
    """A stamp as a number; NaN where it is none: a stamp that cannot be read tells nothing."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return NAN
    return number if -INF < number < INF else NAN
