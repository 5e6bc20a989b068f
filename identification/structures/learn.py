"""One structure fitted to chosen rows: a law per regime, and the plant that they make."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.identification.structures.concurrency import curve_law
from headway.identification.structures.families import Told
from headway.identification.structures.robust import ROUNDS, Law, fit_law
from headway.identification.structures.roof import fit_roof
from headway.identification.structures.terms import NAMES, Structure, table
from headway.models.concurrency import ConcurrencyPlant
from headway.models.plant import Batch, Plant

FEWEST = 20
"""Used rows below which a regime gets no law of its own, and a trace no plant."""


class Part(NamedTuple):
    """The rows that one law is fitted to.

    Args:
        regime: "decode", "mixed" or "all": the first half of its coefficients' names.
        rows: numbers of the rows in the trace, in time order, shape (k,), int64.
        names: of its law's coefficients, whole: "regime.term".
    """

    regime: str
    rows: np.ndarray
    names: tuple[str, ...]


class Learned(NamedTuple):
    """A fitted structure, with the laws and rows behind it.

    Args:
        plant: the plant.
        parts: what each law was fitted to.
        laws: one for each part.
        said: what there is to say, one sentence each.
    """

    plant: Plant
    parts: list[Part]
    laws: list[Law]
    said: list[str]


def rows_of(batch: Batch, rows: np.ndarray) -> Batch:
    """Some steps of many.

    Args:
        batch: sums, shape (k,).
        rows: mask or numbers of the rows wanted.

    Returns:
        Their sums.
    """
    return Batch(*(np.asarray(column)[rows] for column in batch))


def learn(
    structure: Structure,
    batch: Batch,
    step_time_s: np.ndarray,
    rows: np.ndarray,
    *,
    rounds: int = ROUNDS,
    only: str | None = None,
    told: Told | None = None,
) -> Learned:
    """Fit a structure.

    Args:
        structure: which, with the terms that may act and where they bend.
        batch: sums of all steps, shape (k,).
        step_time_s: their durations, shape (k,) [s].
        rows: which are used, shape (k,), bool.
        rounds: of reweighting at most.
        only: fit the law of this regime alone, and leave the other at zero; None for both.
        told: points that other curves tell of one of averages ("concurrency"); no other structure has any.

    Returns:
        The fit.
    """
    if structure.name == "roofline":
        return _roofline(batch, step_time_s, np.flatnonzero(rows))
    if structure.name == "concurrency":
        return _concurrency(batch, step_time_s, np.flatnonzero(rows), told)
    chosen, said = _regimes(structure, batch, rows)
    parts, laws, values = [], [], {}
    for regime, own in [pair for pair in chosen if only in (None, pair[0])]:
        columns = structure.columns("mixed" if regime != "decode" or _any_prefill(batch, own) else "decode")
        law = fit_law(table(rows_of(batch, own), structure)[:, columns], step_time_s[own], rounds=rounds)
        names = tuple(f"{regime}.{NAMES[c]}" for c in columns)
        parts.append(Part(regime, own, names))
        laws.append(law)
        values |= dict(zip(names, law.coefficients.tolist(), strict=True))
    return Learned(structure.plant(values), parts, laws, said)


def _any_prefill(batch: Batch, rows: np.ndarray) -> bool:
    return bool((np.asarray(batch.prefill_tokens)[rows] > 0).any())


def _regimes(structure: Structure, batch: Batch, rows: np.ndarray) -> tuple[list[tuple[str, np.ndarray]], list[str]]:
    """Which rows each law is fitted to. A regime with too few of its own takes the law of all rows, and it is said."""
    everything = np.flatnonzero(rows)
    if structure.name == "affine":
        return [("all", everything)], []
    mixed = np.asarray(batch.prefill_tokens) > 0
    chosen, said = [], []
    for regime, mask in (("decode", ~mixed), ("mixed", mixed)):
        own = np.flatnonzero(rows & mask)
        if len(own) < FEWEST:
            said.append(f"{regime}: only {len(own)} used rows, fewer than {FEWEST}; its law is fitted to all rows and is a guess")
            own = everything
        chosen.append((regime, own))
    return chosen, said


def _roofline(batch: Batch, step_time_s: np.ndarray, rows: np.ndarray) -> Learned:
    plant, law = fit_roof(rows_of(batch, rows), step_time_s[rows])
    return Learned(plant, [Part("all", rows, tuple(plant.coefficients()))], [law], [])


def _concurrency(batch: Batch, step_time_s: np.ndarray, rows: np.ndarray, told: Told | None) -> Learned:
    law = curve_law(np.asarray(batch.decode_requests, float)[rows], step_time_s[rows], told=told)
    plant = ConcurrencyPlant(tuple(law.coefficients.tolist()))
    said = ["time per token against concurrency: prompts and the cache are not in this plant, so it cannot tune a chunk or an admission"]
    if told is not None and len(told.concurrency):
        at = ", ".join(f"{count:g}" for count in told.concurrency)
        said.append(
            f"points at concurrency {at} were not measured on this curve: at least {told.curves.min()} other curves of the trace tell each, "
            "and the law is fitted to them too"
        )
    return Learned(plant, [Part("all", rows, tuple(plant.coefficients()))], [law], said)
