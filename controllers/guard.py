"""The guard between readings and a law, in compiled form: faults of sensor and actuator, and a watchdog with a fallback.

`headway.engines.runtime_guard` is the same for an engine's process, in the standard library.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from headway.controllers.balanced import BALANCED
from headway.controllers.controller import Controller
from headway.controllers.feedforward import FEEDFORWARD
from headway.controllers.laws import law_init, law_step
from headway.controllers.pi import PI
from headway.controllers.static import STATIC
from headway.controllers.tracker import TRACKER
from headway.controllers.updown import UPDOWN
from headway.models.compiled import compiled, compiled_making
from headway.models.identified import Hull
from headway.models.plant import Batch, Plant
from headway.models.signals import SIGNALS, Limits
from headway.models.steptime import step_time

KINDS = ("missing", "negative", "empty", "sums", "stale", "skipped", "clock", "double", "not_applied")
"""Faults for which the command is held and the law frozen, in the order of their codes, which begin at 1."""
MISSING, NEGATIVE, EMPTY, SUMS, STALE, SKIPPED, CLOCK, DOUBLE, NOT_APPLIED, POWERLESS, REVERTED = range(1, 12)
"""Codes; the last two count steps without authority and reversions to the fallback."""
COUNTS = 12
"""Length of the array of counts."""
(LATE, WINDOW, CLEAN, BLIND, OVER_STEPS, LEAST_S, MOST_S, FALLBACK, MAX_TOKENS, MAX_SEQS, HULL_N, HULL_KV) = range(12)
NUMBERS = 12
"""Length of a packed guard."""
(HELD, HELD_BEFORE, HELD_EARLIER, PREFILL, SAFE, CAP, READY, MODE, BITS, LATES, SEEN, BAD, OVER, CALLS) = range(14)
(STEP, CLOCK_S, Y, KV, READY_KV, SINGLE, FLIPS, DOUBLED) = 14, 15, 16, 17, 18, 19, 21, 23
MEMORY = 25
"""Length of the guard's memory. The last three have a place for decode-only steps and one for steps with prefill."""
TWICE_LOW, TWICE_HIGH, FLIPS_TELL = 1.7, 2.3, 5.0
"""A reading of two loops is this many times the last single one, and this many changes in a row between the two tell it."""
ABSURD = 20.0
"""Times the longest step that is expected, beyond which a reading is a fault of the clock."""


@dataclasses.dataclass(frozen=True)
class Guard:
    """Numbers of the guard.

    Args:
        late_steps: late steps with prefill within the window that call the fallback.
        window_steps: length of the window, at most 50 [steps].
        clean_steps: late steps that a window may hold which gives the loop back to the law.
        blind_steps: bad readings in a row after which the fallback caps the held command.
        over_steps: steps above the command in a row that count as a command not applied.
        least_s: shortest believable step [s].
        most_s: longest [s].
        fallback_tokens: token budget of the fallback; 0 for none: then what was last on time is it [tokens].

    Source:
        Sha, Using simplicity to control complexity, IEEE Software 18(4), 2001 (Simplex: a verified fallback under a
        controller that performs).
    """

    late_steps: float = 20.0
    window_steps: float = 50.0
    clean_steps: float = 1.0
    blind_steps: float = 50.0
    over_steps: float = 8.0
    least_s: float = 0.0
    most_s: float = 60.0
    fallback_tokens: float = 0.0

    def check(self) -> None:
        """Refuse numbers that no watchdog could work with.

        Raises:
            ValueError: a window out of [1, 50], more late steps than it holds, or bounds of a step that exclude each other.
        """
        if not 1 <= self.window_steps <= 50:
            raise ValueError(f"window_steps must be in [1, 50], got {self.window_steps:g}")
        if not 1 <= self.late_steps <= self.window_steps:
            raise ValueError(f"late_steps must be in [1, {self.window_steps:g}], got {self.late_steps:g}")
        if not 0 <= self.least_s < self.most_s:
            raise ValueError(f"least_s must be in [0, most_s), got {self.least_s:g} against {self.most_s:g}")

    def pack(self, limits: Limits, hull: Hull) -> np.ndarray:
        """The guard as the compiled form reads it.

        Args:
            limits: of the engine.
            hull: that the plant was fitted on; a law that predicts starts from its end.

        Returns:
            float64 array of shape (NUMBERS,).
        """
        numbers = [float(x) for x in dataclasses.astuple(self)]
        numbers[FALLBACK] = numbers[FALLBACK] or math.inf
        return np.array([*numbers, limits.max_tokens, limits.max_seqs, hull.decode_requests, hull.decode_kv_tokens], float)


def guard_for(law: Controller, plant: Plant, hull: Hull, budget_s: float, fallback_tokens: float = 0.0) -> Guard:
    """The guard of a loop, from what its plant says that a step can be.

    Args:
        law: a law that is meant to be late more often than one step in five gets a watchdog that waits longer.
        plant: fitted.
        hull: that it was fitted on.
        budget_s: longest step that keeps the ITL promise [s].
        fallback_tokens: token budget that was verified without the law; 0 for none [tokens].

    Returns:
        The guard.
    """
    n, p = max(hull.decode_requests, 1.0), max(hull.prefill_tokens, 1.0)
    columns = ((1.0, 0.0, n), (1.0, 0.0, hull.decode_kv_tokens), (0.0, 1.0, p), (0.0, 0.5, max(hull.prefill_pairs, 0.5)), (0.0, 1.0, 1.0))
    decode_s, prefill_s, longest_s = (float(t) for t in np.asarray(plant.step_time_s(Batch(*(np.array(c) for c in columns)))))
    window = Guard().window_steps
    late = min(max(Guard().late_steps, math.ceil(2 * float(getattr(law, "late_rate", 0.0)) * window)), window)
    least_s = min(decode_s, prefill_s) / ABSURD
    return Guard(late_steps=late, least_s=least_s, most_s=ABSURD * max(longest_s, budget_s), fallback_tokens=fallback_tokens)


@compiled_making
def guard_init(guard, memory, counts, law, state, plant, budget_s):
    """Memory and state before the first step.

    Args:
        guard: packed, shape (NUMBERS,).
        memory: changed in place, shape (MEMORY,).
        counts: changed in place, shape (COUNTS,).
        law: packed, shape (LAW_SIZE,).
        state: of the law, changed in place, shape (STATE_SIZE,).
        plant: packed, shape (PACKED,).
        budget_s: [s].
    """
    law_init(law, state)
    memory[:], counts[:] = 0.0, 0.0
    memory[HELD : HELD_EARLIER + 1] = guard[MAX_TOKENS]
    memory[STEP : SINGLE + 2] = np.nan
    signals = np.zeros(SIGNALS)
    ready = max(guard[HULL_N], 1.0)
    signals[0], signals[4], signals[8] = np.nan, ready, guard[HULL_KV]
    memory[PREFILL : CAP + 1] = max(law_step(law, state.copy(), signals, budget_s) - ready, 0.0)


@compiled
def guard_step(guard, memory, counts, law, state, plant, signals, stamps, budget_s):
    """One step of the guard and the law behind it.

    Args:
        guard: packed, shape (NUMBERS,).
        memory: changed in place, shape (MEMORY,).
        counts: changed in place, by code, shape (COUNTS,).
        law: packed, shape (LAW_SIZE,).
        state: of the law, changed in place, shape (STATE_SIZE,).
        plant: packed, shape (PACKED,).
        signals: as `Measurement`, shape (SIGNALS,).
        stamps: number of the step and clock at its end [s]; NaN where there is none, shape (2,).
        budget_s: longest step that keeps the ITL promise [s].

    Returns:
        Token budget of the next step, whole and within the engine's limit [tokens].
    """
    memory[CALLS] += 1.0
    y, p, n, ready = signals[0], signals[1], signals[2], signals[4]
    predicts = law[0] == FEEDFORWARD or law[0] == TRACKER
    kind = _order(memory, signals, stamps)
    unsound = _unsound(signals, predicts)
    if unsound > 0:
        kind = unsound
    elif kind == 0:
        predicted = np.nan
        if n + p > 0.0 and _known(signals):
            predicted = step_time(plant, n, signals[5], p, signals[6], signals[7])
        kind = _examine(guard, memory, y, p, n, predicted)
    seen = not predicts or ready == 0.0 or (0.0 < signals[8] < np.inf and 0.0 <= signals[9] < np.inf)
    if kind > 0 and not (memory[CALLS] == 1.0 and np.isnan(y) and 0.0 <= ready < np.inf and seen):
        return _hold(guard, memory, counts, law, state, signals, kind, seen, budget_s)
    moves = kind == 0
    if moves:
        memory[BAD] = 0.0
        moves = n > 0.0 and law[0] != STATIC and _watched(guard, memory, counts, law, state, signals, budget_s)
    memory[READY] = ready
    return _command(guard, memory, law, state, signals, moves, budget_s)


@compiled
def _known(signals):
    """Whether the sums of the step that ended are there."""
    for i in range(5, 8):
        if not 0.0 <= signals[i] < np.inf:
            return False
    return (signals[2] == 0.0 or signals[5] > 0.0) and (signals[1] == 0.0 or (signals[6] > 0.0 and signals[7] > 0.0))


@compiled
def _unsound(signals, predicts):
    """Code of what is wrong with a reading's values."""
    last = SIGNALS if predicts else 5
    for i in range(last):
        if not abs(signals[i]) < np.inf:
            return MISSING
    for i in range(last):
        if signals[i] < 0.0:
            return NEGATIVE
    if signals[0] == 0.0:
        return EMPTY
    if predicts and not (_known(signals) and (signals[4] == 0.0 or signals[8] > 0.0)):
        return SUMS
    return 0


@compiled
def _order(memory, signals, stamps):
    """Whether a reading is the next one."""
    found, number, clock = 0, stamps[0], stamps[1]
    if np.isnan(number) and np.isnan(clock):
        y, kv, ready_kv = signals[0], signals[5], signals[8]
        if kv > 0.0 and y == memory[Y] and kv == memory[KV] and ready_kv == memory[READY_KV]:
            found = STALE
    elif number == memory[STEP] or clock == memory[CLOCK_S]:
        found = STALE
    elif number < memory[STEP] or clock < memory[CLOCK_S]:
        found = CLOCK
    elif number > memory[STEP] + 1.0:
        found = SKIPPED
    if not np.isnan(number):
        memory[STEP] = number
    if not np.isnan(clock):
        memory[CLOCK_S] = clock
    memory[Y], memory[KV], memory[READY_KV] = signals[0], signals[5], signals[8]
    return found


@compiled
def _examine(guard, memory, y, p, n, predicted):
    """Whether a sound reading can be of one step, and of one that followed the command."""
    if not guard[LEAST_S] <= y <= guard[MOST_S]:
        return CLOCK
    if predicted > 0.0:
        ratio, r = y / predicted, 1 if p > 0.0 else 0
        single, before = memory[SINGLE + r], memory[DOUBLED + r] > 0.0
        doubled = TWICE_LOW * single <= ratio <= TWICE_HIGH * single
        memory[FLIPS + r] = memory[FLIPS + r] + 1.0 if doubled != before else 0.0
        if doubled and before:
            doubled = False
        if not doubled:
            memory[SINGLE + r] = ratio
        memory[DOUBLED + r] = 1.0 if doubled else 0.0
        if doubled and memory[FLIPS + r] >= FLIPS_TELL:
            return DOUBLE
    if n + p <= max(memory[HELD], memory[HELD_BEFORE], memory[HELD_EARLIER]):
        memory[OVER] = 0.0
        return 0
    memory[OVER] += 1.0
    return NOT_APPLIED if memory[OVER] >= guard[OVER_STEPS] else 0


@compiled
def _watched(guard, memory, counts, law, state, signals, budget_s):
    """Book a step with decodes with the watchdog.

    Returns:
        Whether the law may move.
    """
    late, p = signals[0] > budget_s, signals[1]
    powerless = late and p == 0.0 and memory[PREFILL] < 1.0
    if powerless:
        counts[POWERLESS] += 1.0
    elif signals[3] > 0.0 and p > 0.0 and not late:
        memory[SAFE] = memory[PREFILL]
    bits, bit, window = int(memory[BITS]), 1 if late and p > 0.0 else 0, int(guard[WINDOW])
    memory[LATES] += bit - (bits >> (window - 1) & 1)
    memory[BITS] = float((bits << 1 | bit) & ((1 << window) - 1))
    memory[SEEN] += 1.0
    reverted = memory[MODE] > 0.0
    if memory[LATES] >= guard[LATE]:
        if reverted:
            memory[CAP] = float(int(memory[CAP] / 2.0))
        else:
            memory[CAP] = memory[PREFILL] if guard[FALLBACK] < np.inf else min(memory[PREFILL], memory[SAFE])
            counts[REVERTED] += 1.0
        memory[MODE], memory[BITS], memory[LATES], memory[SEEN] = 1.0, 0.0, 0.0, 0.0
    elif reverted and memory[SEEN] >= guard[WINDOW] and memory[LATES] <= guard[CLEAN]:
        memory[MODE], memory[BITS], memory[LATES], memory[SEEN] = 0.0, 0.0, 0.0, 0.0
        _resume(law, state, memory[PREFILL])
    # what a plant is off by can be learned under any command; an error under another's command would wind up an integral
    return law[0] == FEEDFORWARD or law[0] == TRACKER or not (memory[MODE] > 0.0 or powerless)


@compiled
def _resume(law, state, prefill):
    """Let a state go on from a command in force, as `Controller.resume`."""
    if law[0] == PI:
        state[0] = min(max(prefill, 0.0), law[8])
        state[1], state[2] = state[0], state[0]
    elif law[0] == FEEDFORWARD:
        state[1] = min(max(prefill, 0.0), law[3])
    elif law[0] == TRACKER:
        state[3] = min(max(prefill, 0.0), law[8])
    elif law[0] == UPDOWN:
        state[0] = min(max(prefill, 1.0), law[5])
    elif law[0] == BALANCED:
        state[0] = min(max(prefill, 1.0), law[4])


@compiled_making
def _still(law, state, signals, ready, budget_s):
    """What the law asks for from its state alone [tokens]."""
    held = signals.copy()
    held[0], held[4] = np.nan, ready
    return law_step(law, state, held, budget_s)


@compiled
def _capped(guard, memory, u, ready):
    """A prefill budget under the fallback."""
    return min(u, memory[CAP], max(guard[FALLBACK] - ready, 0.0))


@compiled
def _sent(guard, memory, budget):
    """Book a command, whole and within the engine's limit."""
    memory[HELD_EARLIER], memory[HELD_BEFORE] = memory[HELD_BEFORE], memory[HELD]
    memory[HELD] = min(math.floor(budget), guard[MAX_TOKENS])
    return memory[HELD]


@compiled
def _command(guard, memory, law, state, signals, moves, budget_s):
    """The command after a good reading."""
    ready = signals[4]
    raw = law_step(law, state, signals, budget_s) if moves else _still(law, state, signals, ready, budget_s)
    if law[0] == STATIC:
        return _sent(guard, memory, raw)
    u = raw - ready
    if ready == 0.0:
        if law[0] == FEEDFORWARD or law[0] == TRACKER:
            return _sent(guard, memory, raw)
        u = _still(law, state, signals, 1.0, budget_s) - 1.0
    memory[PREFILL] = _capped(guard, memory, u, ready) if memory[MODE] > 0.0 else u
    return _sent(guard, memory, raw if ready == 0.0 else memory[PREFILL] + ready)


@compiled_making
def _hold(guard, memory, counts, law, state, signals, kind, seen, budget_s):
    """The command after a bad reading: not above the last, but for the one token of each request that decodes."""
    counts[kind] += 1.0
    memory[BAD] += 1.0
    if law[0] == STATIC:
        return _sent(guard, memory, law[1])
    here = 0.0 < signals[4] < np.inf  # nobody to decode may be an outage read as zero
    if here:
        memory[READY] = min(signals[4], guard[MAX_SEQS])
    ready, u = memory[READY], memory[PREFILL]
    if (law[0] == FEEDFORWARD or law[0] == TRACKER) and here and seen:
        u = min(u, _still(law, state.copy(), signals, ready, budget_s) - ready)
    if memory[BAD] > guard[BLIND]:
        u = min(u, max(guard[FALLBACK] - ready, 0.0))
    if memory[MODE] > 0.0:
        u = _capped(guard, memory, u, ready)
    return _sent(guard, memory, max(min(u + ready, memory[HELD]), ready))
