"""The engine port: anything that executes steps. A closed loop composes a step, an engine runs it and says how long it took."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, final

import numpy as np

from headway.models.plant import Batch, Plant
from headway.models.signals import Limits
from headway.models.steptime import step_time


class Step(NamedTuple):
    """One step as the scheduler composed it: one row per request that gets tokens, in scheduling order.

    Args:
        request: index of the request in its workload, shape (m,), int64.
        tokens: prompt tokens to prefill, or 1 for a decode, shape (m,), int64.
        context: tokens of the request already in the cache before this step, shape (m,), int64.
        decode: True where the row emits one more token after its prompt, shape (m,), bool.
        released: requests whose cache is free again since the step before (finished or preempted; among them may be one that
            gave way before it got any token), shape (q,), int64.
        moved_blocks: cache blocks moved out or back in since the step before [blocks].
    """

    request: np.ndarray
    tokens: np.ndarray
    context: np.ndarray
    decode: np.ndarray
    released: np.ndarray
    moved_blocks: int = 0


class Engine(ABC):
    """Anything that executes steps: a plant with noise, timed kernels, a serving engine behind an adapter."""

    name: str
    limits: Limits

    @abstractmethod
    def reset(self) -> None:
        """Forget all requests: an empty cache, as after start-up."""

    @abstractmethod
    def execute(self, step: Step) -> float:
        """Run one step to its end.

        Args:
            step: what to run; never empty.

        Returns:
            How long it took, from its start until its results were there [s].
        """


@final
class PlantEngine(Engine):
    """A plant with its noise behind the port: what runs on it runs on a live engine.

    The exact simulator does the same without leaving compiled code, a hundred times as fast; a test holds the two equal.

    Args:
        plant: durations without noise.
        limits: of the engine.
        decode: noise factors of decode-only steps, shape (k,).
        mixed: noise factors of steps with prefill, shape (k,).
    """

    name = "sim"

    def __init__(self, plant: Plant, limits: Limits, decode: np.ndarray, mixed: np.ndarray) -> None:
        """Take the plant and its noise."""
        self.plant, self.limits, self.decode, self.mixed, self.step = plant, limits, decode, mixed, 0

    def reset(self) -> None:
        """Back to the first noise factor."""
        self.step = 0

    def execute(self, step: Step) -> float:
        """Predict the step and draw its noise.

        Args:
            step: what to run; never empty.

        Returns:
            Duration [s].
        """
        y = float(step_time(self.plant.pack(), *batch_of(step)))
        factors = self.decode if step.decode.all() else self.mixed
        y *= float(factors[self.step % len(factors)])
        self.step += 1
        return y + self.limits.swap_block_s * step.moved_blocks


def batch_of(step: Step) -> Batch:
    """The sums of a step that its duration depends on.

    Args:
        step: the step.

    Returns:
        Batch of scalars. A decode reads its whole context and the token it computes.
    """
    d, p = step.decode, ~step.decode
    tokens, context = step.tokens.astype(float), step.context.astype(float)
    pairs = tokens[p] * (context[p] + 0.5 * tokens[p])
    return Batch(float(d.sum()), float((context[d] + 1).sum()), float(tokens[p].sum()), float(pairs.sum()), float(p.sum()))
