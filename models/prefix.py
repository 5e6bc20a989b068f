"""Which prompts begin alike, by hashes of their leading units."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np


class Prefix(NamedTuple):
    """Which prompts begin alike. Equal ids mean equal prompts from the beginning up to the end of that unit.

    Args:
        unit_tokens: prompt tokens that one id stands for [tokens].
        start: ids of request i are ids[start[i]:start[i + 1]], shape (n + 1,), int64.
        ids: from 0, one per whole unit of a prompt, in order, shape (start[n],), int64.
    """

    unit_tokens: int
    start: np.ndarray
    ids: np.ndarray

    def check(self, prompt_tokens: np.ndarray) -> None:
        """Refuse ids that say of no set of prompts how they begin.

        Args:
            prompt_tokens: of the requests, shape (n,) [tokens].

        Raises:
            ValueError: a unit below one token, starts that do not fit requests or ids, ids not numbered from 0 without a gap, more
                ids than a prompt has whole units, or one id at two places or after two beginnings.
        """
        if self.unit_tokens < 1:
            raise ValueError(f"prefix: unit_tokens must be at least 1, got {self.unit_tokens}")
        if len(self.start) != len(prompt_tokens) + 1:
            raise ValueError(f"prefix: start has {len(self.start)} entries, {len(prompt_tokens)} requests need {len(prompt_tokens) + 1}")
        units = np.diff(self.start)
        if self.start[0] != 0 or self.start[-1] != len(self.ids) or (units < 0).any():
            raise ValueError(
                f"prefix: start must ascend from 0 to the number of ids, {len(self.ids)}, got {self.start[0]} to {self.start[-1]}"
            )
        if (units > prompt_tokens // self.unit_tokens).any():
            row = int(np.argmax(units > prompt_tokens // self.unit_tokens))
            whole = f"{prompt_tokens[row]} tokens, {prompt_tokens[row] // self.unit_tokens} whole units of {self.unit_tokens}"
            raise ValueError(f"prefix: row {row} has {units[row]} ids for a prompt of {whole}; leave out what is not whole")
        if not len(self.ids):
            return
        found, first, back = np.unique(self.ids, return_index=True, return_inverse=True)
        if found[0] != 0 or found[-1] != len(found) - 1:
            raise ValueError(f"prefix: ids must be numbered from 0 without a gap, got {len(found)} from {found[0]} to {found[-1]}")
        place = np.arange(len(self.ids)) - np.repeat(self.start[:-1], units)
        before = np.where(place == 0, -1, np.roll(self.ids, 1))
        wrong = (place != place[first][back]) | (before != before[first][back])
        if wrong.any():
            one = int(self.ids[np.argmax(wrong)])
            raise ValueError(f"prefix: id {one} stands at two places or after two beginnings; equal ids mean equal prompts up to there")

    def rows(self, taken: np.ndarray) -> Prefix:
        """The ids of some requests, numbered anew without a gap.

        Args:
            taken: which requests, in the order wanted, shape (m,), int64.

        Returns:
            Ids of these m requests.

        Example:
            >>> Prefix(512, np.array([0, 2, 3]), np.array([0, 1, 0])).rows(np.array([1])).ids
            array([0])
        """
        units = np.diff(self.start)[taken]
        start = np.concatenate([[0], np.cumsum(units)]).astype(np.int64)
        index = np.repeat(self.start[:-1][taken] - start[:-1], units) + np.arange(start[-1])
        return Prefix(self.unit_tokens, start, np.unique(self.ids[index], return_inverse=True)[1].astype(np.int64))


def prefix_of(unit_tokens: int, hashes: Sequence[Sequence[Hashable]], prompt_tokens: np.ndarray) -> Prefix:
    """Ids from hashes as files hold them. A unit is the same as another only if all units before it are, whatever its hash says.

    Args:
        unit_tokens: prompt tokens of one hash [tokens].
        hashes: of each prompt's units in order; those beyond its whole units are left out, n of them.
        prompt_tokens: shape (n,) [tokens].

    Returns:
        The ids, numbered as they first appear.

    Example:
        >>> prefix_of(512, ["ab", "ac", "cb"], np.array([1024, 1100, 1000])).ids
        array([0, 1, 0, 2, 3])
    """
    number: dict[tuple[int, Hashable], int] = {}
    start, ids = [0], []
    for units, tokens in zip(hashes, prompt_tokens, strict=True):
        before = -1
        for unit in units[: int(tokens) // unit_tokens]:
            before = number.setdefault((before, unit), len(number))
            ids.append(before)
        start.append(len(ids))
    return Prefix(unit_tokens, np.array(start, np.int64), np.array(ids, np.int64))
