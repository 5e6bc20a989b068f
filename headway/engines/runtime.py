"""A tuned controller inside an engine's process: this file and gains.json are all it needs. Standard library only.

Once per engine step, before the step is composed: `Runtime.update` takes the measurement of the step that ended and
returns the token budget of the next. `slack_s`, `key` and `turn_away` answer for one prompt: how urgent it is, and
whether to serve it at all.

Run as a script, it replays recorded steps and compares: `python headway_runtime.py gains.json golden.csv`.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCHEMA = "headway/controller/1"
INF = math.inf

BEHIND_S = 1e6
"""Added to the key of a deferred request: behind every feasible one, among themselves still by key [s]."""

RATE_GAIN, RATE_TOKENS = 0.02, 64.0
"""Of the running mean of the prefill rate: weight of one step, and the fewest prompt tokens that make a step count."""

LAWS = {
    "static": ("token_budget",),
    "updown": ("margin", "up_tokens", "down", "initial_tokens", "most_tokens"),
    "pi": ("margin", "kp", "ki", "kt", "slope_s_per_token", "initial_tokens", "most_tokens"),
}
"""Gains of each law, in the order in which its step reads them."""

ORDERS, TRIAGES = ("fcfs", "edf", "slack"), ("none", "defer", "reject", "timeout")
READINGS = ("step_time_s", "prefill_tokens", "decode_requests", "binding", "ready_requests")

log = logging.getLogger("headway_runtime")


def _static(_gains: tuple[float, ...], _state: list[float], _step_time_s: float, _bound: bool, _budget_s: float) -> None:
    """A budget that never moves."""


def _updown(gains: tuple[float, ...], state: list[float], step_time_s: float, bound: bool, budget_s: float) -> None:
    """Some tokens more after a good step, a cut after a late one."""
    margin, up, down, _, most = gains
    u = state[0]
    if step_time_s > budget_s:
        u = max(u * down, 1.0)
    elif bound and step_time_s < (1.0 - margin) * budget_s:
        u = u + up
    state[0] = min(u, most)


def _pi(gains: tuple[float, ...], state: list[float], step_time_s: float, bound: bool, budget_s: float) -> None:
    """PI with back-calculation; it integrates only while the budget binds or the step is above its setpoint."""
    margin, kp, ki, kt, slope, _, most = gains
    setpoint_s = (1.0 - margin) * budget_s
    if bound or step_time_s > setpoint_s:
        error = (setpoint_s - step_time_s) / slope
        integral = state[0] + ki * error
        wanted = integral + kp * error
        u = min(max(wanted, 0.0), most)
        state[0] = integral + kt * (u - wanted)
        state[1] = u


MOVES: dict[str, Callable[..., None]] = {"static": _static, "updown": _updown, "pi": _pi}
"""What each law does to its state after a step with decodes. The last number of a state is the prefill budget, if it moves."""


class Runtime:
    """A controller with its state: one per engine, called from one thread.

    A reading that cannot be true (missing, NaN, infinite, negative, a step of no duration) changes nothing: the state
    freezes, the last command is held and not raised (requests that decode get their one token each whatever happens),
    `faults` counts it and the first in a row is logged. The next good reading goes on from there without a bump.

    Args:
        data: content of gains.json or controller.json.

    Raises:
        ValueError: another schema, an unknown law or policy, a missing or wrong value; the message names it.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        """Read the gains."""
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"expected schema {SCHEMA!r}, found {found!r}; is this the gains.json of `headway export`?")
        try:
            self._read(data)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"gains lack or misstate {error}; write them anew with `headway export`") from None
        self.reset()

    def _read(self, data: dict[str, Any]) -> None:
        self.law, self.content = data["law"]["kind"], str(data["content_sha256"])
        if self.law not in LAWS:
            raise ValueError(f"unknown law {self.law!r}; this runtime knows {', '.join(LAWS)}")
        self.gains = tuple(_number(data["law"]["gains"], name) for name in LAWS[self.law])
        if self.law == "pi" and self.gains[4] <= 0.0:
            raise ValueError(f"slope_s_per_token must be above 0, got {self.gains[4]:g}")
        self._move = MOVES[self.law]
        policy, engine = data["policy"], data["engine"]
        self.order, self.triage = policy["order"], policy["triage"]
        if self.order not in ORDERS or self.triage not in TRIAGES:
            raise ValueError(f"unknown order {self.order!r} or triage {self.triage!r}; this runtime knows {ORDERS} and {TRIAGES}")
        names = ("tolerance", "estimate", "timeout", "aging_rate")
        self.tolerance, self.estimate, self.timeout, self.aging_rate = (_number(policy, name) for name in names)
        self.max_tokens = _finite(engine["max_tokens"], "max_tokens", 1.0)
        self.chunk_tokens = float(math.floor(_number(policy, "chunk_tokens")))
        self.running_limit = min(math.floor(_number(policy, "running_limit")), int(_finite(engine["max_seqs"], "max_seqs", 1.0)))
        self.extra_steps = engine["first_token"] == "next_step"
        targets = data["targets"]
        self.classes = tuple(str(t["name"]) for t in targets)
        transport_s = [_finite(t["transport_s"], "transport_s", 0.0) for t in targets]
        self.first_token_s = tuple(_finite(t["ttft_s"], "ttft_s", 0.0) - x for t, x in zip(targets, transport_s, strict=True))
        self.budget_s = min((_finite(t["itl_s"], "itl_s", 0.0) - x for t, x in zip(targets, transport_s, strict=True)), default=0.0)
        if not self.budget_s > 0.0:
            raise ValueError("targets must leave a positive time for the step; write the gains anew with `headway export`")
        self.setpoint_s = (1.0 - (0.0 if self.law == "static" else self.gains[0])) * self.budget_s
        self._initial_rate_tps = _initial_rate_tps(data, self.setpoint_s, self.max_tokens)

    @classmethod
    def from_json(cls, source: str | Path | dict[str, Any]) -> Runtime:
        """Read gains from a file, or from its content.

        Args:
            source: path of gains.json or controller.json, or what it holds.

        Returns:
            The controller in its initial state.

        Raises:
            ValueError: not JSON, another schema, a missing or wrong value; the message names it.
        """
        if isinstance(source, dict):
            return cls(source)
        try:
            return cls(json.loads(Path(source).read_text(encoding="utf-8")))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{source}: not JSON: {error}") from None

    def reset(self) -> None:
        """Back to the state before the first step."""
        if self.law == "static":
            self.state = [0.0]
        elif self.law == "updown":
            self.state = [min(self.gains[-2:])]
        else:
            self.state = [min(self.gains[-2:])] * 2
        self.rate_tps = self._initial_rate_tps
        self.calls, self.faults, self.last_fault, self._faulty = 0, 0, "", False
        self._ready: float | None = None
        self._held = self.max_tokens

    def update(self, step_time_s: Any, prefill_tokens: Any, decode_requests: Any, binding: Any, ready_requests: Any) -> int:
        """Token budget of the step to be composed, from the measurement of the one that ended. It never raises.

        Args:
            step_time_s: duration of the last step, start to start [s]; None or NaN before the first.
            prefill_tokens: prompt tokens that it carried [tokens].
            decode_requests: requests that decoded in it.
            binding: whether its token budget was used up while prompt work was waiting.
            ready_requests: requests that want to decode in the step composed now.

        Returns:
            Most tokens in the step, the decoding requests' own included; within the engine's limit [tokens].
        """
        self.calls += 1
        try:
            y, p, n, b, ready = float(step_time_s), float(prefill_tokens), float(decode_requests), float(binding), float(ready_requests)
        except (TypeError, ValueError, OverflowError):
            return self._hold(step_time_s, prefill_tokens, decode_requests, binding, ready_requests)
        if not (0.0 < y < INF and 0.0 <= p < INF and 0.0 <= n < INF and 0.0 <= b < INF and 0.0 <= ready < INF):
            return self._hold(step_time_s, prefill_tokens, decode_requests, binding, ready_requests)
        if self._faulty:
            self._faulty = False
            log.info("readings are back; faults in all: %d", self.faults)
        self.observe(y, p)
        if n > 0.0:
            self._move(self.gains, self.state, y, b > 0.0, self.budget_s)
        self._ready, self._held = ready, self._budget(ready)
        return int(self._held)

    def observe(self, step_time_s: float, prefill_tokens: float) -> None:
        """Keep the running mean of the prefill rate. `update` does it; for an engine that uses order and triage alone.

        Args:
            step_time_s: duration of the last step, above 0 [s].
            prefill_tokens: prompt tokens that it carried [tokens].
        """
        if prefill_tokens >= RATE_TOKENS:
            self.rate_tps += RATE_GAIN * (prefill_tokens / step_time_s - self.rate_tps)

    def _budget(self, ready: float) -> float:
        """The law's command from its state: the most there is where nobody decodes and no ITL has to be kept."""
        if self.law == "static":
            budget = self.gains[0]
        else:
            budget = self.gains[-1] if ready <= 0.0 else float(int(self.state[-1])) + ready
        return min(float(math.floor(budget)), self.max_tokens)

    def _hold(self, *readings: Any) -> int:
        """The command without a measurement: from the frozen state, not above the last but for what decodes need."""
        ready = _reading(readings[4])
        missing = readings[0] is None or (isinstance(readings[0], float) and math.isnan(readings[0]))
        if self.calls == 1 and ready is not None and missing:
            self._ready, self._held = ready, self._budget(ready)
            return int(self._held)
        self.faults += 1
        self.last_fault = ", ".join(f"{name}={value!r:.40}" for name, value in zip(READINGS, readings, strict=True))
        if not self._faulty:
            self._faulty = True
            log.warning("bad reading, the last command is held: %s", self.last_fault)
        ready = self._ready if ready is None else ready
        if self.law == "static":
            return int(self._budget(0.0))
        if ready is None:
            return int(min(self.state[-1], self.max_tokens))
        return int(max(min(self._budget(ready), self._held), min(ready, self.max_tokens)))

    def slack_s(self, tokens_left: float, arrival_s: float, now_s: float, class_id: int = 0) -> float:
        """Time left at a prompt's TTFT deadline if it were served from now on without waiting.

        Args:
            tokens_left: prompt tokens still to compute [tokens].
            arrival_s: when it arrived [s].
            now_s: now, on the same clock [s].
            class_id: index into the targets.

        Returns:
            Slack [s]; negative means late even if started now.
        """
        carried = min(self.rate_tps * self.setpoint_s, self.max_tokens)
        if self.chunk_tokens > 0.0:
            carried = min(carried, self.chunk_tokens)
        steps = math.ceil(tokens_left / max(carried, 1.0)) + self.extra_steps
        return arrival_s + self.first_token_s[class_id] - now_s - self.estimate * steps * self.setpoint_s

    def key(self, tokens_left: float, arrival_s: float, now_s: float, class_id: int = 0, *, started: bool = False) -> float:
        """Sort key of a prompt, least first; ties go by arrival. Compute it once per step and sort then.

        Args:
            tokens_left: prompt tokens still to compute [tokens].
            arrival_s: when it arrived [s].
            now_s: now, on the same clock [s].
            class_id: index into the targets.
            started: it has emitted a token and was preempted since: its client is watching a stream.

        Returns:
            Key [s].
        """
        if started:
            return arrival_s - BEHIND_S
        if self.order == "fcfs":
            return arrival_s
        ttft_s = self.first_token_s[class_id]
        key, slack = arrival_s + ttft_s, 0.0
        if self.order == "slack" or self.triage == "defer":
            slack = self.slack_s(tokens_left, arrival_s, now_s, class_id)
        if self.order == "slack":
            key = slack - self.aging_rate * (now_s - arrival_s)
        if self.triage == "defer" and slack < -self.tolerance * ttft_s:
            key += BEHIND_S
        return key

    def turn_away(self, tokens_left: float, arrival_s: float, now_s: float, class_id: int = 0, *, started: bool = False) -> bool:
        """Whether a waiting request should be shed now, before it costs a token. Ask only before it is first admitted.

        Args:
            tokens_left: prompt tokens still to compute [tokens].
            arrival_s: when it arrived [s].
            now_s: now, on the same clock [s].
            class_id: index into the targets.
            started: it was admitted before and preempted since: work once begun is finished.

        Returns:
            True to shed it.
        """
        if started:
            return False
        ttft_s = self.first_token_s[class_id]
        if self.triage == "reject":
            return self.slack_s(tokens_left, arrival_s, now_s, class_id) < -self.tolerance * ttft_s
        return self.triage == "timeout" and now_s - arrival_s > self.timeout * ttft_s


def _finite(value: Any, name: str, low: float = -INF, high: float = INF) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and low <= number <= high):
        raise ValueError(f"{name} must be a number in [{low:g}, {high:g}], got {value!r}")
    return number


def _number(rows: dict[str, Any], name: str) -> float:
    """A number by name, within the range that the file itself states for it."""
    row = rows[name]
    return _finite(row["value"], name, row.get("low", -INF), row.get("high", INF))


def _reading(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0.0 <= number < math.inf else None


def _initial_rate_tps(data: dict[str, Any], setpoint_s: float, max_tokens: float) -> float:
    """Prompt tokens per second of the largest prefill-only step within the setpoint: assumed until one was measured."""
    given = data.get("prefill_rate_tps")
    if given is not None:
        return _number(data, "prefill_rate_tps")
    plant = data["plant"]
    regime = {"affine": "all", "regimes": "mixed"}.get(plant["structure"])
    if regime is None:
        raise ValueError(f"unknown plant structure {plant['structure']!r}, and the gains state no prefill_rate_tps")
    terms = ("floor", "per_prefill_token", "per_prefill_pair", "per_prefill_request")
    floor, token, pair, request = (_number(plant["coefficients"], f"{regime}.{term}") for term in terms)
    fits, fastest, span = 0.0, 0.0, math.log10(max_tokens) / 399.0
    for k in range(400):
        p = float(round(10.0 ** (span * k)))
        took = floor + token * p + pair * (p * p / 2.0) + request
        fastest = max(fastest, p / took) if took > 0.0 else fastest
        if took <= setpoint_s:
            fits = p
    return fits / setpoint_s if fits else fastest


def replay(runtime: Runtime, golden: Path) -> tuple[int, str]:
    """Feed recorded steps to a controller in its initial state and compare.

    Args:
        runtime: reset first.
        golden: golden.csv beside the gains.

    Returns:
        (rows that agree, the first disagreement in words or "").
    """
    runtime.reset()
    agree = 0
    with golden.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            budget = runtime.update(float.fromhex(row["step_time_s"]), *(float(row[name]) for name in READINGS[1:]))
            states = [float.fromhex(row[f"state_{i}"]) for i in range(len(runtime.state))]
            if budget != int(row["token_budget"]):
                return agree, f"row {agree}: token budget {budget}, expected {row['token_budget']}"
            if any(abs(a - b) > 1e-12 * max(1.0, abs(b)) for a, b in zip(runtime.state, states, strict=True)):
                return agree, f"row {agree}: state {runtime.state}, expected {states}"
            agree += 1
    return agree, ""


if __name__ == "__main__":
    rows, fault = replay(Runtime.from_json(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.write(f"{fault or f'{rows} rows agree'}\n")
    sys.exit(1 if fault or not rows else 0)
