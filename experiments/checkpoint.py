"""Going on after a kill: what the search has asked the simulator, with the answers, so that it need not ask again.

The search is a function of its problem and its seed: it asks, and what it asks next follows from the answers. So the
answers are all that has to be kept. A search that begins anew with the answers of one that was killed takes the same way,
without simulating what is known, and goes on where that one stood.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from headway.controllers.simulator import Candidate, Draw
from headway.experiments.problem import Effort, Problem
from headway.experiments.run import versions
from headway.experiments.whole_files import without_nan

SCHEMA = "headway/checkpoint/1"

OTHERS = 3
"""Other problems at most whose answers are kept beside those of the last: what a killed search had found is not lost to one that asks
for something else in the same place, and a file does not grow without end."""


class Store(Protocol):
    """Where a checkpoint lies: a file, in tests a dictionary. It is written whole or not at all."""

    def load(self) -> Any:
        """What lies there.

        Returns:
            Plain JSON values; None where there is nothing that can be read.
        """

    def save(self, content: dict[str, Any]) -> None:
        """Put it there, in place of what lay there.

        Args:
            content: plain JSON values.
        """

    def clear(self) -> None:
        """Take away the answers of the last problem that was put there, if any lie there; those of others stay."""


class Ledger:
    """Questions with their answers.

    Args:
        key: of the problem, as from `problem_key`: answers to another one are of no use here, and are kept for it.
        store: where they are kept; None keeps nothing.
    """

    def __init__(self, key: str = "", store: Store | None = None) -> None:
        """Take over what is known."""
        self.key, self.store = key, store
        held = _held(store.load()) if store is not None else []
        self.known = next((_answers(one) for one in held if one["problem"] == key), {})
        self.others = [one for one in held if one["problem"] != key][:OTHERS]
        self.taken = len(self.known)
        if self.taken and held[0]["problem"] != key:  # it becomes the last one: that is what is cleared in the end
            self._save()

    def answer(self, question: str, work: Callable[[], np.ndarray]) -> np.ndarray:
        """The answer to a question, worked out if it is not known.

        Args:
            question: as from `digest`.
            work: gives the answer.

        Returns:
            The answer, to the last bit the one that was worked out.
        """
        if self.store is None:
            return work()
        if question not in self.known:
            self.known[question] = _packed(work())
            self._save()
        return _unpacked(self.known[question])

    def scores(self, problem: Problem, candidates: list[Candidate], draws: list[Draw], stretch: float = 1.0) -> np.ndarray:
        """`Problem.scores`, if need be.

        Args:
            problem: what is tuned for.
            candidates: to compare.
            draws: to compare them on.
            stretch: factor on all arrival times.

        Returns:
            Scores, shape (candidates, SCORES).
        """
        work = lambda: problem.scores(candidates, draws, stretch)  # noqa: E731
        if self.store is None:
            return work()
        asked = (repr([(c.law.law, c.law.pack().tolist(), c.policy, c.gains) for c in candidates]), *draw_parts(draws), stretch)
        return self.answer(digest("scores", *asked), work)

    def _save(self) -> None:
        if self.store is not None:
            others = {"others": self.others} if self.others else {}
            self.store.save({"schema": SCHEMA, "problem": self.key, "answers": self.known, **others})

    def close(self) -> None:
        """The search has ended: nothing is left to go on with."""
        if self.store is not None:
            self.store.clear()


def problem_key(problem: Problem, effort: Effort, *asked: Any) -> str:
    """A hash of everything that the course of a search depends on, the versions of the packages included.

    Args:
        problem: what is tuned for; its source by the workloads that it draws.
        effort: how much is spent.
        asked: what else was asked for, such as the free numbers.

    Returns:
        Hexadecimal digits.
    """
    plant = json.dumps(without_nan(problem.identified.to_json()), sort_keys=True)
    same = (problem.targets, problem.limits, problem.objective, problem.require, problem.robust, effort, asked)
    heldout = problem.draws(effort, heldout=True, count=1)
    return digest(plant, repr(same), *draw_parts([*problem.draws(effort, heldout=False), *heldout]), json.dumps(versions(), sort_keys=True))


def draw_parts(draws: Iterable[Draw]) -> list[Any]:
    """What makes draws what they are.

    Args:
        draws: workloads and noise.

    Returns:
        Arrays and numbers, for `digest`.
    """
    parts: list[Any] = []
    for d in draws:
        w = d.workload
        parts += [w.arrival_s, w.prompt_tokens, w.output_tokens, w.class_id, w.patience_s, w.cancel_s, w.after, w.think_s]
        parts += [d.decode, d.mixed] if w.prefix is None else [d.decode, d.mixed, *w.prefix]
    return parts


def digest(*parts: Any) -> str:
    """One hash of several things.

    Args:
        parts: arrays, by their bytes; all else by its text.

    Returns:
        Hexadecimal digits.
    """
    found = hashlib.sha256()
    for part in parts:
        content = np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode()
        found.update(len(content).to_bytes(8, "big") + content)
    return found.hexdigest()


def _held(content: Any) -> list[dict[str, Any]]:
    """Problem and answers of every problem that a checkpoint holds, the last one first; what is no checkpoint holds none."""
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        return []
    others = content.get("others")
    all_of = [content, *(others if isinstance(others, list) else [])]
    return [
        {"problem": one["problem"], "answers": one["answers"]}
        for one in all_of
        if isinstance(one, dict) and isinstance(one.get("problem"), str) and isinstance(one.get("answers"), dict)
    ]


def _answers(one: dict[str, Any]) -> dict[str, Any]:
    """Those of one problem; none if they cannot be read."""
    try:
        for packed in one["answers"].values():
            _unpacked(packed)
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
    return dict(one["answers"])


def _packed(values: np.ndarray) -> dict[str, Any]:
    values = np.ascontiguousarray(values, np.float64)
    return {"shape": list(values.shape), "bytes": base64.b64encode(values.tobytes()).decode()}


def _unpacked(packed: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["bytes"], validate=True), np.float64).reshape(packed["shape"]).copy()
