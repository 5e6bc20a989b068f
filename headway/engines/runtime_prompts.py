"""Prompts inside an engine's process: how urgent each is, and whether to serve it at all."""

from __future__ import annotations

import math
from typing import Any

from headway.engines.runtime_gains import finite, number

ORDERS, TRIAGES = ("fcfs", "edf", "slack"), ("none", "defer", "reject", "timeout", "degrade")

BEHIND_S = 1e6
"""Added to the key of a deferred, degraded or spared request: behind every feasible one, among themselves still by key [s]."""
STREAM_S = 1e7
"""Taken from the key of a request that has emitted: its client is already watching a stream [s]."""
RENEW, RENEW_STEPS = 0.05, 32
"""Relative change of the measured rate at which estimates take the new one, and fewest steps in between, more where more wait:
keys stand still in between."""
RENEW_AGING = 0.01
"""Change of a scheduled aging rate at which keys are taken anew [s/s]."""

RATE_GAIN, RATE_TOKENS = 0.02, 64.0
"""Of the running mean of the prefill rate: weight of one step, and the fewest prompt tokens that make a step count."""

ENGINES_OWN = {
    "phases": "mixed",
    "preemption": "recompute",
    "prefill_every": 0.0,
    "decode_every": 0.0,
    "stride": 0.0,
    "class_shares": 0.0,
}
"""Parts of a policy that only the engine's own scheduler can carry out, and what each is when it is off."""


def engines_own(policy: dict[str, Any]) -> str:
    """A part that is on and that nobody beside the scheduler can carry out: it decides what shares a step with what.

    Args:
        policy: of a gains file.

    Returns:
        What to say of it; empty where there is none.
    """
    for name, off in ENGINES_OWN.items():
        found = policy.get(name, off)
        found = found["value"] if isinstance(found, dict) else found
        if any(x != off for x in (found if isinstance(found, list) else [found])):
            without = off if isinstance(off, str) else "" if name == "class_shares" else f"{off:g}"
            how = f"with --policy {name}={without}" if without else f"without {name}"
            return f"policy part {name} ({found}) is for the engine's own scheduler, no runtime carries it; tune {how}"
    return ""


class Prompts:
    """Order and triage of a policy, with the prefill rate that estimates are made with. A `Runtime` is one.

    Requests are the caller's: whatever is to be known of one, it says with each question. Where a queue is long, it says in
    `waiting_requests` how many wait: estimates are then renewed more seldom, as everybody's key is to be taken anew each time.
    """

    waiting_requests: int = 0
    renewals: int = 0
    max_tokens: float
    setpoint_s: float
    first_token_s: tuple[float, ...]
    rate_tps: float
    used_tps: float

    def _read_prompts(self, policy: dict[str, Any], engine: dict[str, Any]) -> None:
        """Read a policy; parts that a file does not name are off. Targets are known by then."""
        self.order, self.triage = policy["order"], policy["triage"]
        if self.order not in ORDERS or self.triage not in TRIAGES:
            raise ValueError(f"unknown order {self.order!r} or triage {self.triage!r}; this runtime knows {ORDERS} and {TRIAGES}")
        if own := engines_own(policy):
            raise ValueError(own)
        self.tolerance, self.estimate = (self._each(policy, name) for name in ("tolerance", "estimate"))
        self.shed_cap = finite(policy.get("shed_cap", {"value": 1.0})["value"], "shed_cap", 0.0, 1.0)
        if self.shed_cap < 1.0 and self.order == "fcfs":
            raise ValueError(f"shed_cap {self.shed_cap:g} needs order 'edf' or 'slack', got 'fcfs'")
        self.arrivals, self.sheds = [0] * len(self.first_token_s), [0] * len(self.first_token_s)
        self.timeout, self.aging_rate = number(policy, "timeout"), number(policy, "aging_rate")
        self.aging_next = self.aging_rate
        self.chunk_tokens = float(math.floor(number(policy, "chunk_tokens")))
        self.degrade = finite(policy.get("degrade", {"value": 2.0})["value"], "degrade", 1.0)
        self.memory_price_s = finite(policy.get("memory_price_s", {"value": 0.0})["value"], "memory_price_s", 0.0)
        self.priority_s = tuple(finite(x, "priority_s") for x in policy.get("priority_s", {"value": ()})["value"])
        if len(self.priority_s) not in (0, len(self.first_token_s)):
            raise ValueError(f"priority_s must have one number per class, got {len(self.priority_s)} for {len(self.first_token_s)} classes")
        self.block_tokens = finite(engine.get("block_tokens", 16), "block_tokens", 1.0)
        self.extra_steps = int(engine["first_token"] == "next_step")

    def _each(self, policy: dict[str, Any], name: str) -> tuple[float, ...]:
        """The number of each class, where a file holds one for all or one for each."""
        found, classes = policy[name]["value"], len(self.first_token_s)
        if not isinstance(found, (list, tuple)):
            return (number(policy, name),) * classes
        if len(found) != classes:
            raise ValueError(f"{name} must have one number per class, got {len(found)} for {classes} classes")
        return tuple(finite(x, name) for x in found)

    def observe(self, step_time_s: float, prefill_tokens: float) -> None:
        """Count a step and keep the running mean of the prefill rate. `update` does it; for an engine that uses no more than this.

        Keys are to be taken anew where the mean is 5 % off the rate that estimates use, or the scheduled aging rate .01 off that of the
        keys, and the last time is at least 32 steps, or as many as `waiting_requests`, ago. Until `renewals` counts that, every key
        stands still.

        Args:
            step_time_s: duration of the last step, above 0 [s].
            prefill_tokens: prompt tokens that it carried [tokens].
        """
        self._steps += 1
        if prefill_tokens >= RATE_TOKENS:
            self.rate_tps += RATE_GAIN * (prefill_tokens / step_time_s - self.rate_tps)
        apart = max(RENEW_STEPS, self.waiting_requests)
        if self._steps - self._renewed >= apart and (
            abs(self.rate_tps - self.used_tps) > RENEW * self.used_tps or abs(self.aging_next - self.aging_rate) > RENEW_AGING
        ):
            self.used_tps, self.aging_rate, self._renewed = self.rate_tps, self.aging_next, self._steps
            self.renewals += 1

    def _start_rate(self, rate_tps: float) -> None:
        """Back to the rate that is assumed before any was measured, and to the aging rate of the load that was told last."""
        self.rate_tps = self.used_tps = rate_tps
        self.aging_rate = self.aging_next
        self._steps = self._renewed = 0

    def service_s(self, tokens_left: float, class_id: int = 0) -> float:
        """Estimated time from now to the first token, were a prompt served without waiting.

        Args:
            tokens_left: prompt tokens still to compute, without those that the prefix cache holds [tokens].
            class_id: index into the targets.

        Returns:
            Time [s].
        """
        carried = min(self.used_tps * self.setpoint_s, self.max_tokens)
        if self.chunk_tokens > 0.0:
            carried = min(carried, self.chunk_tokens)
        steps = math.ceil(tokens_left / max(carried, 1.0)) + self.extra_steps
        return self.estimate[class_id] * steps * self.setpoint_s

    def target_s(self, class_id: int, degraded: bool) -> float:
        """Longest time to first token at the engine.

        Args:
            class_id: index into the targets.
            degraded: it was degraded: its own target counts.

        Returns:
            Time [s].
        """
        return self.first_token_s[class_id] * self.degrade if degraded else self.first_token_s[class_id]

    def slack_s(self, tokens_left: float, arrival_s: float, now_s: float, class_id: int = 0, *, degraded: bool = False) -> float:
        """Time left at a prompt's TTFT deadline if it were served from now on without waiting.

        Args:
            tokens_left: prompt tokens still to compute, without those that the prefix cache holds [tokens].
            arrival_s: when it arrived [s].
            now_s: now, on the same clock [s].
            class_id: index into the targets.
            degraded: it was degraded: its own target counts.

        Returns:
            Slack [s]; negative means late even if started now.
        """
        return arrival_s + self.target_s(class_id, degraded) - now_s - self.service_s(tokens_left, class_id)

    def infeasible_from_s(self, tokens_left: float, arrival_s: float, class_id: int = 0, *, degraded: bool = False) -> float:
        """When a prompt is too late by more than the tolerance, even if started then: arrival + ttft (1 + tolerance) - service.

        Args:
            tokens_left: prompt tokens still to compute, without those that the prefix cache holds [tokens].
            arrival_s: when it arrived [s].
            class_id: index into the targets.
            degraded: it was degraded: its own target counts.

        Returns:
            Time, on the clock of the arrival [s].
        """
        patience_s = self.target_s(class_id, degraded) * (1.0 + self.tolerance[class_id])
        return arrival_s + patience_s - self.service_s(tokens_left, class_id)

    def key(
        self,
        tokens_left: float,
        arrival_s: float,
        now_s: float,
        class_id: int = 0,
        *,
        started: bool = False,
        degraded: bool = False,
        spared: bool = False,
        blocks: float = 0.0,
        hit_tokens: float = 0.0,
    ) -> float:
        """Sort key of a prompt, least first; ties go by arrival.

        The time that passes is the same for all and left out, so a key stands still until `renewals` counts one more or "defer"
        ranks it behind.

        Args:
            tokens_left: prompt tokens still to compute, without those that the prefix cache holds [tokens].
            arrival_s: when it arrived [s].
            now_s: now, on the same clock; only "defer" asks for it [s].
            class_id: index into the targets.
            started: it has emitted a token and was preempted since: its client is watching a stream.
            degraded: `degrades` said so once.
            spared: `spares` said so once.
            blocks: cache blocks that its whole prompt needs, where it waits; 0 where it runs. For a price of memory.
            hit_tokens: of its prompt that the prefix cache holds, where it was never admitted; likewise [tokens].

        Returns:
            Key [s]; only the difference of two means something.
        """
        if started:
            return arrival_s - STREAM_S
        if self.order == "fcfs":
            return arrival_s
        ttft_s = self.target_s(class_id, degraded)
        key = arrival_s + ttft_s
        if self.order == "slack":
            key = (1.0 + self.aging_rate) * arrival_s + ttft_s - self.service_s(tokens_left, class_id)
        if self.memory_price_s > 0.0:
            key += self.memory_price_s * (blocks - hit_tokens / self.block_tokens)
        if self.priority_s:
            key -= self.priority_s[class_id]
        if degraded or spared or (self.triage == "defer" and now_s > self.infeasible_from_s(tokens_left, arrival_s, class_id)):
            key += BEHIND_S
        return key

    def turn_away(self, tokens_left: float, arrival_s: float, now_s: float, class_id: int = 0, *, started: bool = False) -> bool:
        """Whether a waiting request should be shed now, before it costs a token. Ask only before it is first admitted.

        Args:
            tokens_left: prompt tokens still to compute, without those that the prefix cache holds [tokens].
            arrival_s: when it arrived [s].
            now_s: now, on the same clock [s].
            class_id: index into the targets.
            started: it was admitted before and preempted since: work once begun is finished.

        Returns:
            True to shed it: never where `shed_cap` is below 1 and `spares` is true. Where it is, count with `count_arrival` and `count_shed`.
        """
        if started or not self._may_shed(class_id):
            return False
        return self._is_over(tokens_left, arrival_s, now_s, class_id)

    def spares(self, tokens_left: float, arrival_s: float, now_s: float, class_id: int = 0, *, started: bool = False) -> bool:
        """Whether a waiting request that is to be shed now exceeds the cap of its class. It is spared then, for good.

        Tell `key` from then on, and do not ask `turn_away` any more. Whoever is to be shed at the same time, ask for in the order in
        which `infeasible_from_s` came.

        Args:
            tokens_left: prompt tokens still to compute, without those that the prefix cache holds [tokens].
            arrival_s: when it arrived [s].
            now_s: now, on the same clock [s].
            class_id: index into the targets.
            started: it was admitted before and preempted since.

        Returns:
            True where it is to be served behind all feasible ones, in place of being shed.
        """
        if started or self._may_shed(class_id):
            return False
        return self._is_over(tokens_left, arrival_s, now_s, class_id)

    def count_arrival(self, class_id: int = 0) -> None:
        """Count a request that has arrived; needed only where `shed_cap` is below 1, which else sheds nobody.

        Args:
            class_id: index into the targets.
        """
        self.arrivals[class_id] += 1

    def count_shed(self, class_id: int = 0) -> None:
        """Count a request that was shed because `turn_away` said so; needed only where `shed_cap` is below 1.

        Args:
            class_id: index into the targets.
        """
        self.sheds[class_id] += 1

    def _may_shed(self, class_id: int) -> bool:
        return self.shed_cap >= 1.0 or self.sheds[class_id] + 1.0 <= self.shed_cap * self.arrivals[class_id]

    def _is_over(self, tokens_left: float, arrival_s: float, now_s: float, class_id: int) -> bool:
        """Whether the wait of one that was never admitted is over, the cap aside."""
        if self.triage == "timeout":
            return now_s > arrival_s + self.timeout * self.first_token_s[class_id]
        # who is infeasible for targets that are wider is so for its class's too: it need not be told whether it was degraded
        wider = self.triage == "degrade"
        return (wider or self.triage == "reject") and now_s > self.infeasible_from_s(tokens_left, arrival_s, class_id, degraded=wider)

    def degrades(self, tokens_left: float, arrival_s: float, now_s: float, class_id: int = 0, *, started: bool = False) -> bool:
        """Whether a waiting request should be degraded now, for good; tell `key` and `slack_s` from then on.

        Args:
            tokens_left: prompt tokens still to compute, without those that the prefix cache holds [tokens].
            arrival_s: when it arrived [s].
            now_s: now, on the same clock [s].
            class_id: index into the targets.
            started: it was admitted before.

        Returns:
            True where triage is "degrade" and its class's target cannot be kept: both its targets are `degrade` times as long.
        """
        if started or self.triage != "degrade":
            return False
        return now_s > self.infeasible_from_s(tokens_left, arrival_s, class_id)
