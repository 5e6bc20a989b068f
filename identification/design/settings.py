"""What can be held while a trace is recorded, and what steps a saturated engine then composes: its steady state."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from headway.models.plant import Batch
from headway.models.signals import Limits

PROMPT_SPREAD = 0.25
"""Prompts of a setting are drawn evenly within this share of their mean: one exact length would lock the steps to it."""
LONGEST_OUTPUT = 4
"""Outputs of a setting are geometric, cut at this many times their mean."""
LEVELS = {"token_budget": 5, "running_limit": 5, "prompt_tokens": 5, "output_tokens": 3}
"""Values of each input on the grid, evenly spaced in logarithms."""
SHORTEST = {"token_budget": 16, "running_limit": 1, "prompt_tokens": 16, "output_tokens": 8}
"""Smallest value of each input on the grid [tokens, requests, tokens, tokens]."""
OFFSETS = 4
"""Places in a prompt at which a chunk may begin, where it may begin anywhere."""
SHORTEST_STAY = 40
"""Steps for which a setting is held at least."""
FILL_POINTS = 8
"""Compositions that stand for the steps in which an empty engine fills."""
REACH = 6.0
"""How many standard deviations of the number of prompts in hand the chain is solved for."""
RARE = 1e-4
"""Share of steps below which a state is left out."""


class Setting(NamedTuple):
    """Inputs that are held while steps are recorded, under a queue that is never empty.

    Args:
        token_budget: most tokens of a step [tokens].
        running_limit: most requests at once [requests].
        prompt_tokens: mean prompt [tokens].
        output_tokens: mean output, at least 2 [tokens].
    """

    token_budget: int
    running_limit: int
    prompt_tokens: int
    output_tokens: int

    def check(self) -> None:
        """Refuse what cannot be held.

        Raises:
            ValueError: a value below its least.
        """
        for name, least in (("token_budget", 1), ("running_limit", 1), ("prompt_tokens", 1), ("output_tokens", 2)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} of a setting must be at least {least}, got {getattr(self, name)}")


class Mixture(NamedTuple):
    """Steps of several compositions, and how often each occurs.

    Args:
        batch: sums of the steps, arrays of shape (k,) [requests, tokens, tokens, tokens^2, requests].
        share: of the steps, summing to one, shape (k,).
    """

    batch: Batch
    share: np.ndarray

    @property
    def mixed(self) -> float:
        """Share of the steps that have prefill."""
        return float(self.share[self.batch.prefill_tokens > 0].sum())


def grid(limits: Limits) -> list[Setting]:
    """Settings that an engine can be held at, on a grid even in logarithms.

    Prompts reach half of the longest request, outputs an eighth of it or 256. A running limit whose requests would not
    fit into the cache together is lowered until they do: preemptions compute prompts twice and hide what was asked for.

    Args:
        limits: of the engine.

    Returns:
        The settings, none twice.

    Raises:
        ValueError: limits under which no setting can be held.
    """
    limits.check()
    output = max(min(limits.max_len // 8, 256), 2)
    prompt = max(min(limits.max_len // 2, limits.kv_tokens // 4), 1)
    most = {
        "token_budget": limits.max_tokens,
        "running_limit": limits.max_seqs,
        "prompt_tokens": prompt,
        "output_tokens": output,
    }
    level = {name: _levels(SHORTEST[name], top, LEVELS[name]) for name, top in most.items()}
    found: dict[Setting, None] = {}
    for p in level["prompt_tokens"]:
        for o in level["output_tokens"]:
            fitting = _fitting(p, o, limits)
            if fitting >= 1 and p * (1 + PROMPT_SPREAD) + LONGEST_OUTPUT * o + 1 <= limits.max_len:
                pairs = [(b, min(n, fitting)) for b in level["token_budget"] for n in level["running_limit"]]
                found.update(dict.fromkeys(Setting(b, n, p, o) for b, n in pairs))
    if not found:
        raise ValueError(f"no setting fits into {limits.kv_tokens:,} KV tokens and {limits.max_len:,} tokens a request; raise one of them")
    return list(found)


def _levels(low: int, high: int, count: int) -> list[int]:
    return sorted({round(x) for x in np.geomspace(min(low, high), high, count).tolist()})


def _fitting(prompt: int, output: int, limits: Limits) -> int:
    """Requests that fit into the cache together, with three standard deviations of their lengths to spare."""
    room = limits.kv_tokens * (1 - limits.watermark)
    each, spread = prompt + output + limits.block_tokens, 3.0 * math.hypot(output, prompt * PROMPT_SPREAD / math.sqrt(3))
    root = (-spread + math.sqrt(spread**2 + 4 * each * room)) / (2 * each)
    return min(int(root**2), int(room // (prompt * (1 + PROMPT_SPREAD) + LONGEST_OUTPUT * output)) if root**2 < 2 else limits.max_seqs)


def steady_state(setting: Setting, limits: Limits) -> Mixture:
    """The steps of a saturated engine that is held at a setting, decodes first.

    Each of N places is in hand (its prompt to be computed) or decodes; a place that decodes ends its output with
    probability 1 / D a step and is filled anew at once. With j in hand, C = budget - (N - j) prompt tokens go to them
    in order of arrival: floor(C / P) prompts are finished, one more with probability frac(C / P), a single one after
    ceil(P / C) steps. The number in hand is a Markov chain; its stationary law is solved for, and each of its states
    holds a few compositions: where in its prompt the first chunk begins, and the cache's spread about n (P + D).

    What it is not: exact. Outputs are taken as geometric, prompts as of one length; the exact simulator is the judge.

    Args:
        setting: held.
        limits: of the engine; only `first_token` matters, the requests are taken to fit.

    Returns:
        Compositions with their shares.

    Raises:
        ValueError: a setting that cannot be held.

    Source:
        The machine-repair queue (Palm, 1947) in discrete time with a server that takes several at once.

    Example:
        >>> alone = steady_state(Setting(512, 1, 800, 39), Limits(65536))
        >>> round(alone.mixed, 3)  # two chunks, then 38 decodes
        0.05
    """
    setting.check()
    decoding = setting.output_tokens - 1 if limits.first_token == "last_chunk" else setting.output_tokens
    low, high = _window(setting, decoding)
    in_hand = np.arange(low, high + 1)
    share = _stationary(setting, decoding, in_hand)
    in_hand, share = in_hand[share > RARE], share[share > RARE]
    chunk = _chunk(setting, in_hand)
    carried = float(share[(in_hand * setting.prompt_tokens > chunk) & (in_hand > 0)].sum() / max(share[in_hand > 0].sum(), RARE))
    rows = [
        (j, *work, float(s) * part)
        for j, c, s in zip(in_hand.tolist(), chunk.tolist(), share.tolist(), strict=True)
        for *work, part in _prefills(j, c, setting.prompt_tokens, carried)
    ]
    j, p, pairs, r, weight = np.array(rows).T
    n = np.minimum(setting.running_limit - j, setting.token_budget)
    mean, variance = setting.prompt_tokens + decoding, decoding * (decoding - 1) + (setting.prompt_tokens * PROMPT_SPREAD) ** 2 / 3
    low_kv = np.maximum(n * mean - np.sqrt(n * variance), n * (setting.prompt_tokens * (1 - PROMPT_SPREAD) + 1))
    kv = np.concatenate([low_kv, 2 * n * mean - low_kv])
    n, p, pairs, r, weight = (np.tile(x, 2) for x in (n, p, pairs, r, weight))
    live = n + p > 0
    return Mixture(Batch(n[live], kv[live], p[live], pairs[live], r[live]), weight[live] / weight[live].sum())


def stay_steps(setting: Setting) -> int:
    """Steps for which a setting is held before another has its turn: about the time in which the running requests change.

    Args:
        setting: held.

    Returns:
        Length of a stay [steps].
    """
    return max(SHORTEST_STAY, setting.output_tokens)


def stay(setting: Setting, limits: Limits, steps: int) -> Mixture:
    """The steps of a stay that begins on an empty engine: it fills, then comes the steady state.

    While it fills, all places that do not decode are in hand: n <- n + (budget - n) / P' - n / D, with P' = P + D, since
    the first prompts bring the context of a running request.

    Args:
        setting: held.
        limits: of the engine.
        steps: of the stay, at least 1 [steps].

    Returns:
        Compositions with their shares.

    Raises:
        ValueError: a setting that cannot be held, or no step.
    """
    if steps < 1:
        raise ValueError(f"a stay takes at least one step, got {steps}")
    steady = steady_state(setting, limits)
    usual = float(steady.share @ steady.batch.decode_requests)
    decoding, prompt, n, filling = setting.output_tokens - 1, setting.prompt_tokens + setting.output_tokens - 1, 0.0, []
    while len(filling) < steps and n < 0.98 * usual and setting.token_budget - n >= 1:
        filling.append(n)
        n += min((setting.token_budget - n) / prompt, setting.running_limit - n) - n / decoding
    if not filling:
        return steady
    part, count = len(filling) / steps, min(len(filling), FILL_POINTS)
    rows = []
    for k in range(count):
        n = math.floor(filling[int(len(filling) * (k + 0.5) / count)])
        in_hand = max(round(setting.running_limit - n), 1)
        for begin in [0.0] if n == 0 else [prompt * (i + 0.5) / OFFSETS for i in range(OFFSETS)]:
            p, pairs, r = _served(in_hand, setting.token_budget - n, prompt, begin)
            rows.append((n, n * prompt, p, pairs, r, part / count / (1 if n == 0 else OFFSETS)))
    *sums, weight = (np.concatenate(pair) for pair in zip(np.array(rows).T, (*steady.batch, steady.share * (1 - part)), strict=True))
    return Mixture(Batch(*sums), weight)


def _chunk(setting: Setting, in_hand: np.ndarray) -> np.ndarray:
    """Prompt tokens that a step has room for."""
    return np.maximum(setting.token_budget - (setting.running_limit - in_hand), 0).astype(float)


def _finished(setting: Setting, in_hand: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Prompts that a step finishes for certain, and the chance of one more."""
    lengths = _lengths(setting.prompt_tokens)
    chunk = _chunk(setting, in_hand)
    rate = chunk / setting.prompt_tokens
    alone = np.where(chunk > 0, 1.0 / np.ceil(lengths[:, None] / np.maximum(chunk, 1.0)).mean(axis=0), 0.0)
    whole = np.minimum(np.floor(rate), in_hand)
    more = np.where(whole < in_hand, rate - np.floor(rate), 0.0)
    return np.where(in_hand == 1, 0.0, whole), np.where(in_hand == 1, alone, more)


def _window(setting: Setting, decoding: int) -> tuple[int, int]:
    """The numbers in hand that matter: about where as many prompts are finished as outputs end."""
    places = setting.running_limit
    low, high = 0, places
    while low < high:
        middle = (low + high) // 2
        whole, more = _finished(setting, np.array([middle]))
        if float((whole + more)[0]) < (places - middle) / decoding:
            low = middle + 1
        else:
            high = middle
    reach = int(REACH * (math.sqrt(places) + 1)) + 2
    return max(low - reach, 0), min(low + reach, places)


def _stationary(setting: Setting, decoding: int, in_hand: np.ndarray) -> np.ndarray:
    """Stationary law of the number in hand, shape (k,)."""
    whole, more = _finished(setting, in_hand)
    ready = np.minimum(setting.running_limit - in_hand, setting.token_budget)
    size, change = len(in_hand), np.zeros((len(in_hand), len(in_hand)))
    ended = np.arange(int(ready.max()) + 1)[:, None]
    ended = ended[ended[:, 0] <= binom.isf(1e-9, int(ready.max()), 1.0 / decoding) + 1]
    chance = binom.pmf(ended, ready, 1.0 / decoding)
    for extra, part in ((1, more), (0, 1.0 - more)):
        to = np.clip(np.arange(size) - (whole + extra).astype(int) + ended, 0, size - 1)
        np.add.at(change, (np.broadcast_to(np.arange(size), to.shape), to), chance * part)
    change /= change.sum(axis=1, keepdims=True)
    system = change.T - np.eye(size)
    system[-1] = 1.0
    right = np.zeros(size)
    right[-1] = 1.0
    share = np.maximum(np.linalg.lstsq(system, right, rcond=None)[0], 0.0)
    return share / share.sum()


def _prefills(in_hand: int, chunk: float, prompt: int, carried: float) -> list[tuple[float, float, float, float]]:
    """What a step computes of the prompts in hand: (tokens, pairs, requests, share) for each place where it may begin."""
    if in_hand == 0 or chunk < 1:
        return [(0.0, 0.0, 0.0, 1.0)]
    if in_hand == 1:
        return _alone(chunk, prompt)
    begins = [0.0, *(prompt * (k + 0.5) / OFFSETS for k in range(OFFSETS))]
    parts = [1.0 - carried, *[carried / OFFSETS] * OFFSETS]
    return [(*_served(in_hand, chunk, prompt, u), part) for u, part in zip(begins, parts, strict=True) if part > 0]


def _lengths(prompt: int) -> np.ndarray:
    """Prompts that stand for those of a setting, each as likely [tokens]."""
    return prompt * (1 + PROMPT_SPREAD * np.array([-0.8, -0.4, 0.0, 0.4, 0.8]))


def _alone(chunk: float, prompt: int) -> list[tuple[float, float, float, float]]:
    """The steps of one prompt that has the chunks to itself: a longer one is met in more steps."""
    rows = []
    for length in _lengths(prompt).tolist():
        count = math.ceil(length / chunk)
        places = range(count) if count <= 2 * OFFSETS else [int(count * (k + 0.5) / OFFSETS) for k in range(OFFSETS)]
        rows += [(*_served(1, chunk, length, chunk * k), count / len(places)) for k in places]
    total = sum(row[-1] for row in rows)
    return [(*work, part / total) for *work, part in rows]


def _served(in_hand: int, chunk: float, prompt: float, begin: float) -> tuple[float, float, float]:
    """Tokens, pairs and requests of one step that begins at a place in the first prompt."""
    first = min(prompt - begin, chunk)
    whole = min((chunk - first) // prompt, in_hand - 1)
    last = min(chunk - first - whole * prompt, prompt) if whole < in_hand - 1 else 0.0
    pairs = first * (begin + first / 2) + whole * prompt**2 / 2 + last**2 / 2
    return first + whole * prompt + last, pairs, 1 + whole + (1 if last > 0 else 0)
