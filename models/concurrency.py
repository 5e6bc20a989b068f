"""A plant from what clients see: time per token against the requests in service, where no single step was recorded."""

from __future__ import annotations

from typing import Any, ClassVar, final

import numpy as np

from headway.models.plant import Batch, Coefficient, Plant
from headway.models.pytree import pytree
from headway.models.regimes import checked, namespace
from headway.models.steptime import CONCURRENCY, KIND, PACKED

NUMBERS: tuple[tuple[str, str], ...] = (
    ("all.floor", "s"),
    ("all.per_decode_request", "s/request"),
    ("all.per_sqrt_decode_request", "s/sqrt(request)"),
)
"""Name and unit of the numbers, in the order of `ConcurrencyPlant.law`."""


@final
@pytree
class ConcurrencyPlant(Plant):
    """Time per output token as a concave function of concurrency; it knows nothing of prompts and of the cache.

    t = a + b n + d sqrt(n)

    Measured curves are concave: experts and cache reads saturate, and prefills of others mix in.

    Args:
        law: a, b, d in the order of `NUMBERS`, shape (3,).

    Source:
        Headway's own comparison on aggregate benchmarks; see docs/design.md, "Structures".
    """

    structure: ClassVar[str] = "concurrency"
    law: Any

    def step_time_s(self, batch: Batch) -> Any:  # noqa: D102
        like = namespace(self.law, batch)
        n = like.asarray(batch.decode_requests, dtype=float)
        floor, per_request, per_root = (like.asarray(self.law)[i] for i in range(len(NUMBERS)))
        root = like.where(n > 0, like.sqrt(like.where(n > 0, n, 1.0)), 0.0)
        return floor + per_request * n + per_root * root

    def pack(self) -> np.ndarray:  # noqa: D102
        packed = np.zeros(PACKED)
        packed[[0, 6]], packed[[1, 7]] = float(self.law[0]), float(self.law[1])
        packed[KIND : KIND + 2] = (CONCURRENCY, float(self.law[2]))
        return packed

    def coefficients(self) -> dict[str, Coefficient]:  # noqa: D102
        return {name: Coefficient(float(v), unit) for (name, unit), v in zip(NUMBERS, self.law, strict=True)}

    @classmethod
    def from_coefficients(cls, values: dict[str, float]) -> ConcurrencyPlant:  # noqa: D102
        return cls(tuple(checked(values, [name for name, _ in NUMBERS], cls.structure)))
