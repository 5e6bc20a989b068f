"""A plant with a roof: what the memory takes and what the arithmetic takes go on at once, and the longer of them counts."""

from __future__ import annotations

from typing import Any, ClassVar, final

import numpy as np

from headway.models.curved import norm
from headway.models.plant import Batch, Coefficient, Plant
from headway.models.pytree import pytree
from headway.models.regimes import checked, namespace
from headway.models.steptime import KIND, PACKED, ROOFLINE

NUMBERS: tuple[tuple[str, str], ...] = (
    ("decode.floor", "s"),
    ("mixed.floor", "s"),
    ("all.per_decode_request", "s/request"),
    ("all.per_prefill_request", "s/request"),
    ("memory.weights", "s"),
    ("memory.per_kv_token", "s/token"),
    ("arithmetic.per_token", "s/token"),
    ("arithmetic.per_pair", "s/token^2"),
    ("roof.power", "1"),
)
"""Name and unit of the numbers, in the order of `RooflinePlant.law`."""


@final
@pytree
class RooflinePlant(Plant):
    """A launch floor, and the p-norm of a memory side and an arithmetic side.

    t = floor + a n + b r + (m^q + c^q)^(1/q),  m = weights + k kv,  c = f (n + p) + g pairs

    The floor is one of two, for decode-only steps and for steps with prefill: their launch differs, the hardware does not.

    Args:
        law: nine numbers in the order of `NUMBERS`, shape (9,); a power q of 0 stands for infinity, the maximum.

    Source:
        Williams, Waterman and Patterson, Roofline: an insightful visual performance model, 2009.
    """

    structure: ClassVar[str] = "roofline"
    law: Any

    def step_time_s(self, batch: Batch) -> Any:  # noqa: D102
        like = namespace(self.law, batch)
        n, kv, p, pairs, r = (like.asarray(x, dtype=float) for x in batch)
        decode, mixed, per_n, per_r, weights, per_kv, per_token, per_pair, power = (like.asarray(self.law)[i] for i in range(len(NUMBERS)))
        floor = like.where(p > 0, mixed, decode)
        return floor + per_n * n + per_r * r + norm(weights + per_kv * kv, per_token * (n + p) + per_pair * pairs, power, like)

    def pack(self) -> np.ndarray:  # noqa: D102
        decode, mixed, per_n, per_r, *roof = (float(x) for x in self.law)
        packed = np.zeros(PACKED)
        packed[:12] = (decode, per_n, 0, 0, 0, per_r, mixed, per_n, 0, 0, 0, per_r)
        packed[KIND : KIND + 6] = (ROOFLINE, *roof)
        return packed

    def coefficients(self) -> dict[str, Coefficient]:  # noqa: D102
        return {name: Coefficient(float(v), unit) for (name, unit), v in zip(NUMBERS, self.law, strict=True)}

    @classmethod
    def from_coefficients(cls, values: dict[str, float]) -> RooflinePlant:  # noqa: D102
        return cls(tuple(checked(values, [name for name, _ in NUMBERS], cls.structure)))
