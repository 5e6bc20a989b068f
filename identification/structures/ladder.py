"""The ladder of structures: from one law for all steps upward, a rung at a time, as long as unseen steps are told better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from headway.identification.structures.crossval import Comparison, compare, folds, out_of_fold
from headway.identification.structures.learn import FEWEST, learn, rows_of
from headway.identification.structures.shapes import BENDS, Bend, best_shape, shapes_of
from headway.identification.structures.terms import Structure
from headway.models.plant import Batch

MOST_ROWS = 4000
"""Rows of each regime that the ladder is climbed on at most: whole runs of neighbours, evenly spread."""
RUN = 50
"""Rows of such a run."""
REGIMES = ("decode", "mixed")
TWO = "one law for each regime"
ROUNDS_FEW = 6
"""Rounds of reweighting in each of the hundreds of fits: the comparison needs no more digits."""
SHORT = 4
"""Terms of the shortest law of steps with prefill: floor, requests, cache, prompt tokens."""


class Rung(NamedTuple):
    """One structure that was tried.

    Args:
        name: in words.
        regime: whose error was looked at: "decode", "mixed", or "both".
        before: mean absolute log residual without it, out of fold.
        after: with it.
        errors: standard errors by which it is better.
        taken: whether it was kept.
    """

    name: str
    regime: str
    before: float
    after: float
    errors: float
    taken: bool

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            The fields by name.
        """
        return {k: (round(v, 6) if isinstance(v, float) else v) for k, v in self._asdict().items()}


class _Data(NamedTuple):
    batch: Batch
    step_time_s: np.ndarray
    rows: np.ndarray
    fold: np.ndarray
    mixed: np.ndarray

    def of(self, regime: str) -> np.ndarray:
        return self.rows & (self.mixed == (regime == "mixed"))


def climb(batch: Batch, step_time_s: np.ndarray, rows: np.ndarray) -> tuple[Structure, list[Rung]]:
    """Choose a structure by blocked cross-validation; a simpler one stays unless another is surely better.

    Args:
        batch: sums of all steps, shape (k,).
        step_time_s: durations, shape (k,) [s].
        rows: which are used, shape (k,), bool.

    Returns:
        (the structure, with where its terms bend; every rung tried).

    Source:
        Roberts et al., Cross-validation strategies for data with temporal structure, Ecography 2017: whole blocks are
        left out, since neighbours share their residual.
    """
    mixed = np.asarray(batch.prefill_tokens) > 0
    used = thinned(rows, mixed)
    everything = np.ones(int(used.sum()), bool)
    data = _Data(rows_of(batch, used), step_time_s[used], everything, folds(everything, mixed[used]), mixed[used])
    there = [regime for regime in REGIMES if int(data.of(regime).sum()) >= 2 * FEWEST]
    if not there:
        return Structure("affine"), []
    if len(there) < len(REGIMES):
        return _bent(data, Structure("regimes"), [], there)
    structure, rungs = _bent(data, Structure("regimes"), _linear(data), there)
    one = _residuals(data, Structure("affine"))
    held = _residuals(data, structure)
    apart = {regime: _held(one, held, data, regime) for regime in REGIMES}
    if any(c.better for c in apart.values()) or structure.name != "regimes":
        return structure, rungs
    return Structure("affine"), [rung._replace(taken=False) if rung.name == TWO else rung for rung in rungs]


def tried_text(rungs: Sequence[Rung] | None, regime: str) -> str:
    """What is to be said of other structures where a plant misses steps: that they were tried, or that they can be.

    Args:
        rungs: those of the climb that chose the structure; None where somebody named the structure.
        regime: "decode" or "mixed".

    Returns:
        A clause; empty where nothing was tried.
    """
    if rungs is None:
        return "--structure auto tries others on steps left out"
    left = [rung for rung in rungs if rung.regime == regime and not rung.taken]
    if not left:
        return ""
    best = min(left, key=lambda rung: rung.after / rung.before if rung.before > 0 else 1.0)
    return (
        f"of {len(left)} other structures that --structure auto tried on steps left out none told them surely better "
        f"(the nearest, {best.name}: error {best.before:.1%} to {best.after:.1%})"
    )


def thinned(rows: np.ndarray, mixed: np.ndarray) -> np.ndarray:
    """At most `MOST_ROWS` rows of each regime, as whole runs.

    Args:
        rows: which are used, shape (k,), bool.
        mixed: which have prefill, shape (k,), bool.

    Returns:
        Mask of those taken, shape (k,), bool.
    """
    used = np.zeros(len(rows), bool)
    for regime in (False, True):
        own = np.flatnonzero(rows & (mixed == regime))
        if len(own) > MOST_ROWS:
            starts = np.linspace(0, len(own) - RUN, MOST_ROWS // RUN).round().astype(int)
            own = own[(starts[:, None] + np.arange(RUN)).ravel()]
        used[own] = True
    return used


def _residuals(data: _Data, structure: Structure, only: str | None = None) -> np.ndarray:
    rows = data.rows if only is None else data.of(only)
    return out_of_fold(structure, data.batch, data.step_time_s, rows, data.fold, rounds=ROUNDS_FEW, only=only)


def _held(before: np.ndarray, after: np.ndarray, data: _Data, regime: str) -> Comparison:
    rows = data.of(regime)
    return compare(before[rows], after[rows])


def _linear(data: _Data) -> list[Rung]:
    """One law for all steps against one for each regime, and what the terms of chunks are worth in the second."""
    held = {s: _residuals(data, s) for s in (Structure("affine"), Structure("regimes", linear=SHORT), Structure("regimes"))}
    one, short, full = held.values()
    rungs = [Rung(TWO, regime, *_held(one, full, data, regime), True) for regime in REGIMES]
    return [*rungs, Rung("attention pairs and prompts of a step", "mixed", *_held(short, full, data, "mixed"), True)]


def _bent(data: _Data, structure: Structure, rungs: list[Rung], there: list[str]) -> tuple[Structure, list[Rung]]:
    """Forward: of all terms that may bend take the one that helps most, and go on with what is left."""
    held, fixed = _residuals(data, structure), frozenset[str]()
    left = [(regime, bend) for bend in BENDS for regime in (there if bend.decode_first else there[::-1])]
    tried: dict[tuple[str, Bend], tuple[Comparison, Structure, np.ndarray]] = {}
    while True:
        for regime, bend in left:
            wanted = None if (regime, bend) in tried else _with(data, structure, regime, bend, fixed)
            if wanted is not None:
                after = _residuals(data, wanted, regime)
                tried[regime, bend] = _held(held, after, data, regime), wanted, after
        good = [key for key, (c, _, _) in tried.items() if c.better]
        if not good:
            rungs += [Rung(bend.name, regime, *c, False) for (regime, bend), (c, _, _) in tried.items()]
            break
        regime, bend = min(good, key={key: c.after / c.before for key, (c, _, _) in tried.items()}.__getitem__)
        c, wanted, after = tried[regime, bend]
        rungs.append(Rung(bend.name, regime, *c, True))
        structure = structure._replace(name="curved", **{regime: getattr(wanted, regime)})
        new = {name: value for name, value in wanted.shapes().items() if name in shapes_of(bend, regime) and name not in fixed}
        structure, held, fixed = structure.with_shape(**new), np.where(data.of(regime), after, held), fixed | set(new)
        left = [key for key in left if key != (regime, bend)]
        # a term of the other regime whose shape is still its own was judged rightly, whatever was taken here
        tried = {(r, b): found for (r, b), found in tried.items() if r != regime and not new.keys() & set(shapes_of(b, r))}
    return _roofed(data, structure, held, rungs)


def _with(data: _Data, structure: Structure, regime: str, bend: Bend, fixed: frozenset[str]) -> Structure | None:
    """The structure with one more term in one regime, bent where it fits best; None where the term cannot act."""
    terms = (*getattr(structure, regime), *bend.terms)
    wanted = structure._replace(name="curved", **{regime: terms})
    if wanted.columns(regime) == structure.columns(regime):
        return None
    rows = data.of(regime)
    batch, y = rows_of(data.batch, rows), data.step_time_s[rows]
    everything = np.ones(len(y), bool)

    def told(s: Structure) -> np.ndarray:
        return learn(s, batch, y, everything, rounds=ROUNDS_FEW, only=regime).laws[0].residual

    return best_shape(bend, regime, wanted, batch.decode_requests + batch.prefill_tokens, batch.decode_kv_tokens, told, fixed)


def _roofed(data: _Data, structure: Structure, held: np.ndarray, rungs: list[Rung]) -> tuple[Structure, list[Rung]]:
    """The roofline against what was found: it must be surely better in one regime and not worse in the other."""
    roof = Structure("roofline")
    after = _residuals(data, roof)
    found = {regime: _held(held, after, data, regime) for regime in REGIMES if data.of(regime).any()}
    taken = any(c.better for c in found.values()) and not any(c.worse for c in found.values())
    rungs += [Rung("roof over memory and arithmetic", regime, *c, taken) for regime, c in found.items()]
    return (roof if taken else structure), rungs
