"""Excitation inside vLLM: budget and running limit drawn at random, each held for some steps, so that a plant can be told apart."""

from __future__ import annotations

import random

from headway.engines.vllm.settings import VllmSettings

EXCITED_SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Shares of the engine's own limit that a command is drawn from where none are named."""


class Excitation:
    """Commands drawn independently of the load and of each other.

    Args:
        settings: levels, holding times and seed.
        max_tokens: the engine's own limit [tokens].
        max_seqs: likewise [requests].
    """

    def __init__(self, settings: VllmSettings, max_tokens: int, max_seqs: int) -> None:
        """Take levels within the limits."""
        self._rng = random.Random(settings.seed)
        self._hold = settings.hold_steps
        shares = EXCITED_SHARES
        self._tokens = _levels(settings.tokens or tuple(int(max_tokens * x) for x in shares), max_tokens)
        self._running = _levels(settings.running or tuple(int(max_seqs * x) for x in shares), max_seqs)
        self.tokens, self.running = self._tokens[-1], self._running[-1]
        self._left = [0, 0]

    def step(self, decodes: int) -> tuple[int, int]:
        """The command of the next step.

        Args:
            decodes: requests that want to decode: they get their tokens whatever was drawn, and one prompt token stays.

        Returns:
            (token budget [tokens], running limit [requests]).
        """
        for k in (0, 1):
            if self._left[k] <= 0:
                self._left[k] = self._rng.randint(*self._hold)
                if k == 0:
                    self.tokens = self._rng.choice(self._tokens)
                else:
                    self.running = self._rng.choice(self._running)
            self._left[k] -= 1
        return max(self.tokens, decodes + 1), self.running


def _levels(values: tuple[int, ...], most: int) -> tuple[int, ...]:
    return tuple(sorted({min(max(x, 1), most) for x in values}))
