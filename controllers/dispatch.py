"""What lies before and between the engines of a topology: which replica a request is sent to, and the link that its cache takes."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

DISPATCHES = ("round_robin", "least_loaded")
"""How requests are sent to the replicas of a pool."""


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
    n = len(arrival_s)
    if dispatch == "round_robin":
        return np.arange(n) % replicas
    left, in_all, before_s, sent = np.zeros(replicas), np.zeros(replicas), 0.0, np.zeros(n, np.int64)
    for i in range(n):
        left = np.maximum(left - rate_tps * (arrival_s[i] - before_s), 0.0)
        before_s = arrival_s[i]
        k = int(np.lexsort((in_all, left))[0])
        sent[i] = k
        left[k] += prompt_tokens[i]
        in_all[k] += prompt_tokens[i]
    return sent


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
    order, sent = np.argsort(ready_s, kind="stable"), np.zeros(len(ready_s), np.int64)
    if dispatch == "round_robin":
        sent[order] = np.arange(len(order)) % replicas
        return sent
    here, in_all, ends = np.zeros(replicas), np.zeros(replicas), deque()
    for i in order:
        while ends and ends[0][0] <= ready_s[i]:
            _, k, tokens = ends.popleft()
            here[k] -= tokens
        k = int(np.lexsort((in_all, here))[0])
        sent[i] = k
        here[k] += prompt_tokens[i]
        in_all[k] += prompt_tokens[i]
        ends.append((ready_s[i] + stay_s, k, prompt_tokens[i]))
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
