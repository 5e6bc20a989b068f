"""What lies before and between the engines of a topology: which replica a request is sent to, and the link that its cache takes."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from headway.models.compiled import compiled

DISPATCHES = ("round_robin", "least_loaded")
"""How requests are sent to the replicas of a pool."""

TURN, HEAD, TAIL = range(3)
"""Places in the counters of a gateway: requests sent, and the ends of the list of those who stay."""


class Gateway(NamedTuple):
    """What the gateway before a pool keeps: one entry per replica unless said.

    Args:
        here: tokens that it is taken to have [tokens].
        in_all: tokens sent to it so far [tokens].
        counts: see TURN, HEAD, TAIL, int64.
        before_s: time of the last request, shape (1,) [s].
        stays: of those who stay: until when [s], replica, tokens; in order of time, shape (3, n).
    """

    here: np.ndarray
    in_all: np.ndarray
    counts: np.ndarray
    before_s: np.ndarray
    stays: np.ndarray


def gateway(replicas: int, requests: int) -> Gateway:
    """A gateway that has sent nothing yet.

    Args:
        replicas: of its pool.
        requests: that it may send at most.

    Returns:
        Gateway.
    """
    return Gateway(np.zeros(replicas), np.zeros(replicas), np.zeros(3, np.int64), np.zeros(1), np.zeros((3, requests)))


@compiled
def fewest(gate):
    """The replica with the fewest tokens, ties to where fewer were sent in all, then by number.

    Args:
        gate: gateway.

    Returns:
        Its index.
    """
    k = 0
    for j in range(1, len(gate.here)):
        if gate.here[j] < gate.here[k] or (gate.here[j] == gate.here[k] and gate.in_all[j] < gate.in_all[k]):
            k = j
    return k


@compiled
def send_prompt(gate, least, now_s, tokens, rate_tps):
    """Which replica computes the next prompt.

    Args:
        gate: gateway of the pool, changed in place.
        least: whether it goes to where the least is left, else in turn.
        now_s: its arrival, not before that of the last [s].
        tokens: its prompt [tokens].
        rate_tps: prompt tokens that a replica is taken to compute per second [tokens/s].

    Returns:
        Index of the replica.
    """
    if not least:
        gate.counts[TURN] += 1
        return (gate.counts[TURN] - 1) % len(gate.here)
    for j in range(len(gate.here)):
        gate.here[j] = max(gate.here[j] - rate_tps * (now_s - gate.before_s[0]), 0.0)
    gate.before_s[0] = now_s
    k = fewest(gate)
    gate.here[k] += tokens
    gate.in_all[k] += tokens
    return k


@compiled
def send_cache(gate, least, now_s, tokens, stay_s):
    """Which replica decodes the next request.

    Args:
        gate: gateway of the pool, changed in place.
        least: whether it goes to where the fewest tokens stay, else in turn.
        now_s: when its prompt is ready, not before that of the last [s].
        tokens: its prompt [tokens].
        stay_s: how long each is taken to stay [s].

    Returns:
        Index of the replica.
    """
    if not least:
        gate.counts[TURN] += 1
        return (gate.counts[TURN] - 1) % len(gate.here)
    while gate.counts[HEAD] < gate.counts[TAIL] and gate.stays[0, gate.counts[HEAD]] <= now_s:
        gate.here[int(gate.stays[1, gate.counts[HEAD]])] -= gate.stays[2, gate.counts[HEAD]]
        gate.counts[HEAD] += 1
    k = fewest(gate)
    gate.here[k] += tokens
    gate.in_all[k] += tokens
    gate.stays[0, gate.counts[TAIL]], gate.stays[1, gate.counts[TAIL]], gate.stays[2, gate.counts[TAIL]] = now_s + stay_s, k, tokens
    gate.counts[TAIL] += 1
    return k


def send_prompts(dispatch: str, replicas: int, arrival_s: np.ndarray, prompt_tokens: np.ndarray, rate_tps: float) -> np.ndarray:
    """Which replica computes each prompt.

    "least_loaded" sends a prompt to where the fewest prompt tokens are left to compute, ties to where fewer were sent in all. What is
    left is estimated, as a gateway would that hears of nothing but arrivals: tokens sent, less `rate_tps` for each second with work.

    Args:
        dispatch: one of DISPATCHES.
        replicas: that compute prompts.
        arrival_s: ascending, shape (n,) [s].
        prompt_tokens: shape (n,) [tokens].
        rate_tps: prompt tokens that a replica is taken to compute per second [tokens/s].

    Returns:
        Index of the replica, shape (n,), int64.
    """
    gate, least = gateway(replicas, len(arrival_s)), dispatch == "least_loaded"
    sent = [send_prompt(gate, least, float(at), float(x), float(rate_tps)) for at, x in zip(arrival_s, prompt_tokens, strict=True)]
    return np.array(sent, np.int64)


def send_caches(dispatch: str, replicas: int, ready_s: np.ndarray, prompt_tokens: np.ndarray, stay_s: float) -> np.ndarray:
    """Which replica decodes each request, decided in the order in which prompts are ready, ties by number.

    "least_loaded" sends a cache to where the fewest prompt tokens stay, ties to where fewer were sent in all. Outputs are unknown: each
    is taken to stay as long as an output of the policy's median takes at the setpoint.

    Args:
        dispatch: one of DISPATCHES.
        replicas: that decode.
        ready_s: when each first token was sent, shape (n,) [s].
        prompt_tokens: shape (n,) [tokens].
        stay_s: how long each is taken to stay [s].

    Returns:
        Index of the replica, shape (n,), int64.
    """
    gate, least, sent = gateway(replicas, len(ready_s)), dispatch == "least_loaded", np.zeros(len(ready_s), np.int64)
    for i in np.argsort(ready_s, kind="stable"):
        sent[i] = send_cache(gate, least, float(ready_s[i]), float(prompt_tokens[i]), float(stay_s))
    return sent


def arrivals_of_caches(ready_s: np.ndarray, prompt_tokens: np.ndarray, s_per_token: float, latency_s: float) -> np.ndarray:
    """When caches that leave by one link have arrived: one after the other, in the order in which they are ready.

    end_i = max(ready_i, end_{i-1}) + prompt_i * s_per_token,  arrival_i = end_i + latency

    Args:
        ready_s: when each may leave, shape (n,) [s].
        prompt_tokens: shape (n,) [tokens].
        s_per_token: time on the link per prompt token [s/token].
        latency_s: beside that; the link is free meanwhile [s].

    Returns:
        Shape (n,) [s].

    Example:
        >>> arrivals_of_caches(np.array([0.0, 0.05]), np.array([100, 200]), 0.001, 0.5)
        array([0.6, 0.8])
    """
    comes_s, free_s = np.zeros(len(ready_s)), -math.inf
    for i in np.argsort(ready_s, kind="stable"):
        free_s = max(ready_s[i], free_s) + prompt_tokens[i] * s_per_token
        comes_s[i] = free_s + latency_s
    return comes_s


def transfer_s_per_token(kv_token_bytes: float, bandwidth_bytes_per_s: float) -> float:
    """Time that the cache of one token takes on a link.

    kv_token_bytes / bandwidth

    Args:
        kv_token_bytes: cache of one token, all layers [bytes].
        bandwidth_bytes_per_s: of the link from one prefill replica [bytes/s].

    Returns:
        Time per prompt token [s/token].

    Raises:
        ValueError: not positive.

    Example:
        >>> transfer_s_per_token(131072, 25e9)  # 128 KiB a token over 200 Gbit/s
        5.24288e-06
    """
    if not (kv_token_bytes > 0 and bandwidth_bytes_per_s > 0):
        raise ValueError(f"bytes per token and bandwidth must be positive, got {kv_token_bytes:g} and {bandwidth_bytes_per_s:g}")
    return kv_token_bytes / bandwidth_bytes_per_s
