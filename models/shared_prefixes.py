"""Prompts that begin with one of a few texts, a system prompt or a set of examples, on top of any workload."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, final

import numpy as np

from headway.models.prefix import Prefix
from headway.models.workload import Workload, WorkloadSource

SHARING = 0x5A3E
"""Key of the random numbers that choose a text: the workload below keeps its own."""

UNIT_TOKENS = 64
"""Tokens of a text that are cached or not as one, where nothing else is given [tokens]; a multiple of most engines' blocks."""


class Shared(NamedTuple):
    """What the prompts of one class begin with.

    Args:
        tokens: length of each text [tokens].
        among: how many texts there are, each as likely; 1 is one system prompt for all.
    """

    tokens: int
    among: int = 1


@final
@dataclasses.dataclass(frozen=True)
class SharedPrefixes(WorkloadSource):
    """A workload in which a shared text stands before every prompt of a class.

        prompt = text + what the workload gives,  ids of floor(tokens / unit) units

    The prompt grows by the text, as load generators count it. Only whole units of a text can be found in a cache.

    Args:
        inner: the workload.
        shared: of each class, None for prompts that begin with nothing shared, shape (classes,).
        unit_tokens: of the ids; a multiple of the engine's block [tokens].
        source: where it came from, for people.
    """

    inner: WorkloadSource
    shared: tuple[Shared | None, ...]
    unit_tokens: int = UNIT_TOKENS
    source: str = "shared prefixes"

    def draw(self, seed: int, requests: int, *, heldout: bool) -> Workload:
        """The workload of one seed.

        Args:
            seed: from 0.
            requests: wanted number of requests.
            heldout: draw from what tuning never saw; the texts are the same.

        Returns:
            A workload of at most `requests` requests; the same arguments give the same one.

        Raises:
            ValueError: the workload has prefixes of its own, which would be lost.
        """
        drawn = self.inner.draw(seed, requests, heldout=heldout)
        if drawn.prefix is not None:
            raise ValueError(f"{drawn.source or 'the workload'} has prefixes of its own; leave prefix= out")
        text, tokens, units, begun = np.full(len(drawn), -1), np.zeros(len(drawn), np.int64), np.zeros(len(drawn), np.int64), 0
        for c, one in enumerate(self.shared):
            if one is not None:
                rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(heldout), SHARING, c)))
                chosen, of_class = np.floor(rng.random(len(drawn)) * one.among).astype(np.int64), drawn.class_id == c
                whole = one.tokens // self.unit_tokens
                text = np.where(of_class, begun + chosen * whole, text)  # the first id of its text
                tokens, units = np.where(of_class, one.tokens, tokens), np.where(of_class, whole, units)
                begun += one.among * whole
        start = np.concatenate([[0], np.cumsum(units)]).astype(np.int64)
        ids = np.repeat(text - start[:-1], units) + np.arange(start[-1])
        prefix = Prefix(self.unit_tokens, start, ids).rows(np.arange(len(drawn)))
        return dataclasses.replace(drawn, prompt_tokens=drawn.prompt_tokens + tokens, prefix=prefix, source=self.source)

    def check(self) -> None:
        """Refuse texts that nothing could share.

        Raises:
            ValueError: a unit below one token, a text shorter than a unit, or no text.
        """
        if self.unit_tokens < 1:
            raise ValueError(f"prefix_unit must be at least 1, got {self.unit_tokens}")
        for one in (one for one in self.shared if one is not None):
            if one.tokens < self.unit_tokens:
                raise ValueError(
                    f"prefix must be at least one unit of {self.unit_tokens} tokens, got {one.tokens}; name a smaller prefix_unit, 16 for example"
                )
            if one.among < 1:
                raise ValueError(f"prefixes must be at least 1, got {one.among}")
