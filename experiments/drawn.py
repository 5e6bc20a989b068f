"""What a run's own noise factors force: whichever steps a policy picks, and whatever it puts into them, they are not all quick ones.

For steps S out of any K in a row, and loads q_k of at most Q each,

    sum over S of z_k q_k >= l sum over S of q_k - Q sum over all K of max(l - z_k, 0) >= l sum of q_k - Q (m K + c)

with m the mean of what factors fall short of the level l, and c the most by which a stretch of them falls short of that mean.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headway.experiments.certified import Program
from headway.experiments.envelope import EXTRA, FLOOR, PER_DECODE, PER_KV, PER_PREFILL, Envelope, StepKind
from headway.models.signals import Limits

KILO = 1e3
"""Cache reads are counted in thousands."""
FLOOR_LEVELS = (0.5, 0.95)
"""Quantiles of the factors at which floors are held."""
WORK_LEVELS = (0.01, 0.05, 0.25)
"""The same for what steps hold beside their floor, where one step can hold so much that a few quick ones matter."""
MARKS = 8
"""Times up to which the work is summed."""


class Steps(NamedTuple):
    """The steps of a program.

    Args:
        program: that gets the rows.
        kinds: of steps, each with its variables per bin by name.
        least: smallest factor, by whether the step has prefill.
        total: steps up to each bin, shape (bins,).
        most: steps that a run can have.
        span_s: of all bins [s].
        below: planes below the plant.
        limits: of the engine.
        longest_tokens: longest prompt [tokens].
    """

    program: Program
    kinds: list[tuple[StepKind, dict[str, np.ndarray]]]
    least: dict[bool, float]
    total: np.ndarray
    most: float
    span_s: float
    below: Envelope
    limits: Limits
    longest_tokens: float


def shortfall(factors: np.ndarray, level: float, steps: float) -> tuple[float, float]:
    """How far factors fall short of a level.

    Args:
        factors: z, going round, shape (k,).
        level: l.
        steps: longest stretch that is looked at.

    Returns:
        (m, their mean shortfall; c, the most by which any such stretch exceeds it).
    """
    short = np.maximum(level - factors, 0.0)
    mean, k = float(short.mean()), len(short)
    path = np.concatenate([[0.0], np.cumsum(short - mean)])
    if steps >= k:
        return mean, float(path.max() - path.min())  # a whole round adds nothing
    reach = max(1, int(np.ceil(steps)))
    path = np.concatenate([path, path[1:]])
    least = np.lib.stride_tricks.sliding_window_view(path, reach + 1).min(axis=1)
    return mean, float((path[reach:] - least).max())


def hold_floors(steps: Steps, factors: dict[bool, np.ndarray]) -> None:
    """Of the steps up to any bin: sum of z_k >= l K - m K - c, by kind.

    Args:
        steps: of the program that gets the rows.
        factors: of every step of this run, by whether it has prefill, shape (k,).
    """
    program, at = steps.program, np.arange(len(steps.total))
    for kind, v in steps.kinds:
        for level in np.quantile(factors[kind.mixed], FLOOR_LEVELS):
            mean, worst = shortfall(factors[kind.mixed], float(level), steps.most + 1)
            reach = (level + mean) * steps.most + worst
            gap = program.variables(len(at), reach, -reach)
            terms: list[Any] = [(at, v["steps"], level), (at, v["floors"], -1.0), (at, gap, -1.0), (at[1:], gap[:-1], 1.0)]
            program.rows(terms, 0.0, len(at), equal=True)
            program.rows([(at, gap, 1.0), (at, steps.total, -mean)], worst, len(at))


def hold_work(steps: Steps, factors: dict[bool, np.ndarray]) -> None:
    """Of the steps up to a few marks: their seconds >= floor Z + l work - Q (m K + c), by kind and plane.

    Args:
        steps: of the program that gets the rows.
        factors: of every step of this run, by whether it has prefill, shape (k,).
    """
    program, at = steps.program, np.arange(len(steps.total))
    marks = np.unique(np.ceil(np.linspace(0, len(at), MARKS + 1)[1:]).astype(int)) - 1
    part, rows = np.searchsorted(marks, at), np.arange(len(marks))
    for kind, v in steps.kinds:
        for plane in kind.planes:
            most_s = _most_work_s(steps, kind, plane)
            for level in np.quantile(factors[kind.mixed], WORK_LEVELS):
                if level <= steps.least[kind.mixed]:
                    continue
                mean, worst = shortfall(factors[kind.mixed], float(level), steps.most + 1)
                reach = steps.most * (level * most_s + plane[FLOOR]) + steps.span_s
                gap = program.variables(len(marks), reach, -reach)
                work = (("decodes", PER_DECODE, 1.0), ("reads", PER_KV, KILO), ("prefill", PER_PREFILL, 1.0), ("extra", EXTRA, 1.0))
                terms: list[Any] = [(part, v[name], level * plane[column] * unit) for name, column, unit in work]
                terms += [(part, v["floors"], plane[FLOOR]), (part, v["seconds"], -1.0), (rows, gap, -1.0), (rows[1:], gap[:-1], 1.0)]
                program.rows(terms, 0.0, len(marks), equal=True)
                program.rows([(rows, gap, 1.0), (rows, steps.total[marks], -mean * most_s)], worst * most_s, len(marks))


def _most_work_s(steps: Steps, kind: StepKind, plane: np.ndarray) -> float:
    """The most that one step can hold beside its floor, noise-free: Q."""
    decodes, tokens = kind.most_decodes, kind.most_tokens
    held = max(plane[PER_DECODE] * decodes + plane[PER_PREFILL] * max(tokens - decodes, 0.0), plane[PER_PREFILL] * tokens)
    held += plane[PER_KV] * steps.limits.kv_tokens
    if kind.mixed:
        longest, prompts = steps.longest_tokens, min(tokens, float(steps.limits.max_seqs))
        held += plane[EXTRA] * (steps.below.per_pair_s * tokens * longest + steps.below.per_prompt_s * prompts)
    return float(held)
