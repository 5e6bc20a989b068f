"""Planes below a plant: the least that a step can take for the work in it, kind of step by kind of step.

A plant bends, jumps and changes its law with the first prompt token. A relaxation that adds steps up needs it linear. So steps
are divided into kinds, decode-only or with prefill and by their number of tokens, and each kind gets planes that lie below the
plant wherever a step of that kind can be. Sums of steps then take at least the plane of the sums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.models.plant import Plant
from headway.models.signals import Limits
from headway.models.steptime import CONCURRENCY, CURVED, CURVES, KIND, ROOFLINE, p_norm, padded

MOST_KINDS = 5
"""Kinds into which one regime is divided by size, at most."""
CLOSE = 0.02
"""Parts are split until the line lies within this share of the law, or there are MOST_KINDS."""
FLOOR, PER_DECODE, PER_KV, PER_PREFILL, EXTRA = range(5)
"""Columns of a plane [s, s/request, s/token, s/token, 1]."""
MIXES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of arithmetic in the planes below a roof."""


class StepKind(NamedTuple):
    """Steps that share their planes.

    Args:
        mixed: whether such steps may hold prompt tokens; those of the other sort never do.
        most_tokens: in one of them, decodes included [tokens].
        most_decodes: in one of them [requests].
        planes: each lies below the plant for every such step: floor, per decode, per cache token read, per prompt token, factor on the
            prompts' extra seconds, shape (m, 5), none negative.
    """

    mixed: bool
    most_tokens: float
    most_decodes: float
    planes: np.ndarray


class Envelope(NamedTuple):
    """What the work costs at least.

    Args:
        kinds: of steps.
        per_pair_s: extra of a prompt's attention work, per token^2 [s].
        per_prompt_s: extra of a prompt, however it is cut [s].
        left_out: terms of the plant that the planes do without.
    """

    kinds: tuple[StepKind, ...]
    per_pair_s: float
    per_prompt_s: float
    left_out: tuple[str, ...]

    def extra_s(self, prompt_tokens: np.ndarray, hit_tokens: np.ndarray) -> np.ndarray:
        """What a prompt costs beside its tokens; the sum over chunks telescopes, so the cutting does not matter.

        sum x (c + x / 2) = (T^2 - h^2) / 2

        Args:
            prompt_tokens: T, shape (n,) [tokens].
            hit_tokens: h, what a prefix cache may spare, shape (n,) [tokens].

        Returns:
            Shape (n,) [s].
        """
        return self.per_pair_s * (prompt_tokens**2 - hit_tokens**2) / 2 + self.per_prompt_s


def envelope(plant: Plant, limits: Limits) -> Envelope:
    """The planes below a plant.

    t(n, kv, p, pairs, r) >= floor + a n + d kv + c p + (g pairs + h r), for every step of the kind

    Args:
        plant: of any structure.
        limits: how large a step can be.

    Returns:
        Envelope; for the linear structures the planes are the plant itself.
    """
    packed = plant.pack()
    if packed[KIND] == ROOFLINE:
        return _below_roof(packed, limits)
    decode, mixed = packed[:6], packed[6:12]
    left_out: tuple[str, ...] = ()
    if packed[KIND] == CONCURRENCY:
        root = packed[KIND + 1] * np.sqrt(np.arange(limits.max_seqs + 1.0))
        kinds = [_kind(True, limits, mixed, line, by_decodes=True) for line in lines_below(root, mixed[0])]
    elif packed[KIND] == CURVED:
        kinds = []
        for with_prefill, law in ((False, decode), (True, mixed)):
            most = limits.max_tokens if with_prefill else min(limits.max_seqs, limits.max_tokens)
            bend = _by_tokens(packed, most, with_prefill)
            kinds += [_kind(with_prefill, limits, law, line) for line in lines_below(bend, law[0])]
        left_out = ("context, longest sequence and cache misses cost nothing in it",) if _has_more(packed) else ()
    else:
        flat = (float(limits.max_tokens), 0.0, 0.0)
        kinds = [_kind(True, limits, mixed, flat)]
        if (decode[:3] < mixed[:3]).any():
            kinds.insert(0, _kind(False, limits, decode, flat))
    return Envelope(tuple(kinds), float(mixed[4]), float(mixed[5]), left_out)


def lines_below(values_s: np.ndarray, scale_s: float) -> list[tuple[float, float, float]]:
    """Straight lines below a law of one whole number, part by part.

    Args:
        values_s: the law at 0, 1, ..., not falling, shape (k,) [s].
        scale_s: what steps take beside it, to judge what is close enough [s].

    Returns:
        Per part its last number, height at 0 [s] and slope, not negative: valid on that part, which begins after the last one's end.
    """
    parts = [(0, len(values_s) - 1)]
    lines = [_line(values_s, *parts[0], scale_s)]
    while len(parts) < MOST_KINDS:
        gaps = [values_s[a : b + 1] - (h + s * np.arange(a, b + 1)) for (a, b), (h, s) in zip(parts, lines, strict=True)]
        worst = int(np.argmax([g.max() for g in gaps]))
        a, b = parts[worst]
        if a == b or gaps[worst].max() <= CLOSE * (scale_s + float(values_s[a])):
            break
        middle = a + int(np.argmax(np.diff(values_s[a : b + 1]))) if _jumps(values_s[a : b + 1]) else a + max(0, (b - a) // 4)
        parts[worst : worst + 1] = [(a, middle), (middle + 1, b)]
        lines[worst : worst + 1] = [_line(values_s, a, middle, scale_s), _line(values_s, middle + 1, b, scale_s)]
    return [(float(b), h, s) for (_, b), (h, s) in zip(parts, lines, strict=True)]


def _jumps(values_s: np.ndarray) -> bool:
    """Whether one step of the law is most of its rise."""
    return float(np.diff(values_s).max(initial=0.0)) > 0.3 * float(values_s[-1] - values_s[0])


def _line(values_s: np.ndarray, first: int, last: int, scale_s: float) -> tuple[float, float]:
    """The edge of the lower convex hull over the middle of a part: (height at 0, slope); level where it would begin below nothing."""
    hull: list[int] = []
    for i in range(first, last + 1):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (values_s[b] - values_s[a]) * (i - a) < (values_s[i] - values_s[a]) * (b - a):
                break
            hull.pop()
        hull.append(i)
    if len(hull) == 1:
        return float(values_s[first]), 0.0
    edge = min(int(np.searchsorted(hull, (first + last) / 2, side="right")), len(hull) - 1)
    a, b = hull[edge - 1], hull[edge]
    slope = max(float(values_s[b] - values_s[a]) / (b - a), 0.0)
    height = float(np.min(values_s[first : last + 1] - slope * np.arange(first, last + 1)))
    return (height, slope) if height + scale_s >= 0 else (float(values_s[first]), 0.0)


def _kind(mixed: bool, limits: Limits, law: np.ndarray, line: tuple[float, float, float], *, by_decodes: bool = False) -> StepKind:
    """A kind from its linear law and a line over its size."""
    most, height, slope = line
    plane = np.array([[law[0] + height, law[1] + slope, law[2], law[3] + (0.0 if by_decodes else slope), 1.0]])
    most_tokens = float(limits.max_tokens) if by_decodes else min(most, float(limits.max_tokens))
    return StepKind(mixed, most_tokens, min(most, float(limits.max_seqs)), plane)


def _by_tokens(packed: np.ndarray, most: int, with_prefill: bool) -> np.ndarray:
    """What a curved plant adds for a step of 0, 1, ..., most tokens, shape (most + 1,) [s]."""
    o, s = KIND + 1 + (CURVES if with_prefill else 0), KIND + 1 + 2 * CURVES
    knee, power, spread, stride = packed[s], packed[s + 1], packed[s + 2], packed[s + 5]
    limit = packed[s + 4] if with_prefill else packed[s + 3]
    tokens = np.arange(most + 1.0)
    value = np.zeros(most + 1)
    if packed[o + 2] > 0:
        value += packed[o + 2] * np.array([p_norm(t, knee, power) for t in tokens])
    if packed[o + 3] > 0 and spread > 0:
        value += packed[o + 3] * (1 - np.exp(-tokens / spread))
    if packed[o + 4] > 0:
        value += packed[o + 4] * np.array([padded(t, stride, limit) for t in tokens])
    past = np.where(tokens > limit, packed[o + 5] + packed[o + 6] * (tokens - limit), 0.0)
    return np.minimum.accumulate((value + past)[::-1])[::-1]


def _has_more(packed: np.ndarray) -> bool:
    """Whether a curved plant has terms that no plane of ours holds."""
    return any(packed[KIND + 1 + regime * CURVES + term] > 0 for regime in (0, 1) for term in (0, 1, 7))


def _below_roof(packed: np.ndarray, limits: Limits) -> Envelope:
    """Planes below a p-norm: (m^q + c^q)^(1/q) >= x m + y c for every (x, y) of dual norm 1."""
    weights, per_kv, per_token, per_pair, power = (float(v) for v in packed[KIND + 1 : KIND + 6])
    share = 1.0 if power == 0 else 1 - 1 / power
    kinds = []
    for mixed, law in ((False, packed[:6]), (True, packed[6:12])):
        planes = []
        for arithmetic in MIXES:
            x, y = (1.0, 1.0) if share == 0 else ((1 - arithmetic) ** share, arithmetic**share)
            planes.append((law[0] + x * weights, law[1] + y * per_token, x * per_kv, y * per_token, y))
        kinds.append(StepKind(mixed, float(limits.max_tokens), float(limits.max_seqs), np.unique(np.array(planes), axis=0)))
    return Envelope(tuple(kinds), per_pair, 0.0, ("a chunk costs nothing beside its tokens and attention",) if packed[11] > 0 else ())
