"""Prompts inside an engine's process: how urgent each is, and whether to serve it at all."""

from __future__ import annotations

import math
from typing import NamedTuple

ORDERS, TRIAGES = ("fcfs", "edf", "slack"), ("none", "defer", "reject", "timeout")

BEHIND_S = 1e6
"""Added to the key of a deferred request: behind every feasible one, among themselves still by key [s]."""


class Prompts(NamedTuple):
    """Order and triage.

    Args:
        order: one of ORDERS.
        triage: one of TRIAGES.
        tolerance: negative slack tolerated, as a share of the TTFT target.
        estimate: factor on the estimated time to completion.
        timeout: share of the TTFT target after which "timeout" sheds.
        aging_rate: seconds of slack that one second of waiting is worth [s/s].
        chunk_tokens: most prompt tokens of one request in a step; 0 is no cap [tokens].
        max_tokens: most tokens in a step [tokens].
        setpoint_s: duration of a step that the law aims at [s].
        extra_steps: steps after the last chunk until the first token.
        first_token_s: longest time to first token at the engine, per class [s].
    """

    order: str
    triage: str
    tolerance: float
    estimate: float
    timeout: float
    aging_rate: float
    chunk_tokens: float
    max_tokens: float
    setpoint_s: float
    extra_steps: int
    first_token_s: tuple[float, ...]

    def slack_s(self, rate_tps: float, tokens_left: float, arrival_s: float, now_s: float, class_id: int) -> float:
        """Time left at a prompt's TTFT deadline if it were served from now on without waiting.

        Args:
            rate_tps: of prefill, as measured [tokens/s].
            tokens_left: prompt tokens still to compute [tokens].
            arrival_s: when it arrived [s].
            now_s: now, on the same clock [s].
            class_id: index into the targets.

        Returns:
            Slack [s]; negative means late even if started now.
        """
        carried = min(rate_tps * self.setpoint_s, self.max_tokens)
        if self.chunk_tokens > 0.0:
            carried = min(carried, self.chunk_tokens)
        steps = math.ceil(tokens_left / max(carried, 1.0)) + self.extra_steps
        return arrival_s + self.first_token_s[class_id] - now_s - self.estimate * steps * self.setpoint_s

    def key(self, rate_tps: float, tokens_left: float, arrival_s: float, now_s: float, class_id: int, started: bool) -> float:
        """Sort key of a prompt, least first.

        Args:
            rate_tps: of prefill, as measured [tokens/s].
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
            slack = self.slack_s(rate_tps, tokens_left, arrival_s, now_s, class_id)
        if self.order == "slack":
            key = slack - self.aging_rate * (now_s - arrival_s)
        if self.triage == "defer" and slack < -self.tolerance * ttft_s:
            key += BEHIND_S
        return key

    def turn_away(self, rate_tps: float, tokens_left: float, arrival_s: float, now_s: float, class_id: int, started: bool) -> bool:
        """Whether a waiting request should be shed now.

        Args:
            rate_tps: of prefill, as measured [tokens/s].
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
            return self.slack_s(rate_tps, tokens_left, arrival_s, now_s, class_id) < -self.tolerance * ttft_s
        return self.triage == "timeout" and now_s - arrival_s > self.timeout * ttft_s
