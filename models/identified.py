"""A plant with all that was learned beside its numbers: noise, intervals, margins, hull and the engine's limits."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from headway.models.noise import Noise
from headway.models.plant import Batch, Plant
from headway.models.signals import HABITS, Limits


@dataclasses.dataclass(frozen=True)
class Hull:
    """The box of operating points that the trace held: beyond it a prediction is an extrapolation.

    Args:
        decode_requests: most requests decoding in one kept step [requests].
        decode_kv_tokens: most cache tokens read in one kept step [tokens].
        prefill_tokens: most prompt tokens in one kept step [tokens].
        prefill_pairs: most attention work in one kept step [tokens^2].
    """

    decode_requests: float
    decode_kv_tokens: float
    prefill_tokens: float
    prefill_pairs: float

    @staticmethod
    def from_json(data: dict[str, Any]) -> Hull:
        """Read it from plain JSON values.

        Args:
            data: number by field.

        Returns:
            The hull.

        Raises:
            ValueError: no number, not finite or negative; the message names the field.
            TypeError: a field that is missing or unknown.
        """
        numbers = {name: finite(f"hull.{name}", value) for name, value in data.items()}
        for name, number in numbers.items():
            if number < 0:
                raise ValueError(f"hull.{name} must not be negative, got {number:g}")
        return Hull(**numbers)

    def outside(self, largest: Batch) -> list[str]:
        """What a load needs beyond the box.

        Args:
            largest: the largest of each sum that the load reached.

        Returns:
            One sentence for each sum that lies outside; empty if the load stays inside.
        """
        words = {
            "decode_requests": "decoding sequences",
            "decode_kv_tokens": "KV tokens read",
            "prefill_tokens": "prefill tokens",
            "prefill_pairs": "attention pairs",
        }
        rows = []
        for name, word in words.items():
            seen, needed = float(getattr(self, name)), float(getattr(largest, name))
            if needed > seen * (1 + 1e-9):
                rows.append(f"extrapolation: steps of up to {needed:,.0f} {word}, the trace held {seen:,.0f}")
        return rows


@dataclasses.dataclass(frozen=True)
class IdentifiedPlant:
    """What identification hands on, and what plant.json holds.

    Args:
        plant: the fitted structure.
        noise: its residuals on the kept rows.
        hull: operating points seen.
        margin: per regime ("decode", "mixed") 1 - exp(-q), q the (1 - epsilon) quantile of the residuals; None where
            the trace holds too few steps to say.
        interval: per coefficient name a 95 % interval [same unit].
        limits: the engine's, where known from the trace, its configuration or the command line.
        about: what is shown beside it (rows, heldout, excitation, warnings, sources), as plain JSON values.
    """

    plant: Plant
    noise: Noise
    hull: Hull
    margin: dict[str, float | None]
    interval: dict[str, tuple[float, float]]
    limits: Limits
    about: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; `from_json` is the inverse.

        Returns:
            The content of plant.json.
        """
        return {
            "schema": "headway/plant/1",
            "structure": self.plant.structure,
            "coefficients": {
                name: {"value": c.value, "ci95": list(self.interval[name]) if name in self.interval else None, "unit": c.unit}
                for name, c in self.plant.coefficients().items()
            },
            "margin": self.margin,
            "hull": dataclasses.asdict(self.hull),
            "engine": dataclasses.asdict(self.limits),
            "residuals": {
                "unit": "log(measured / predicted)",
                "decode": [round(float(x), 5) for x in self.noise.decode],
                "mixed": [round(float(x), 5) for x in self.noise.mixed],
            },
            **self.about,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> IdentifiedPlant:
        """Read what `to_json` wrote.

        Args:
            data: the content of plant.json.

        Returns:
            The plant.

        Raises:
            ValueError: another schema, an unknown structure, a missing or wrong value; the message names it.
        """
        from headway.models import PLANTS

        if not isinstance(data, dict) or data.get("schema") != "headway/plant/1" or not isinstance(data.get("structure"), str):
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"expected schema 'headway/plant/1', found {found!r}; is this the plant.json of `headway fit`?")
        if data.get("structure") not in PLANTS:
            raise ValueError(f"unknown structure {data.get('structure')!r}; this version knows {sorted(PLANTS)}")
        for name, kind in (("coefficients", dict), ("residuals", dict), ("engine", dict), ("hull", dict), ("margin", dict)):
            if not isinstance(data.get(name), kind):
                raise ValueError(f"plant.json lacks or misstates {name!r}, a mapping of names; write it anew with `headway fit`")
        at = "coefficients"
        try:
            values = {name: float(_number(name, row["value"])) for name, row in data["coefficients"].items()}
            interval = {n: (float(r["ci95"][0]), float(r["ci95"][1])) for n, r in data["coefficients"].items() if r.get("ci95")}
            at = "residuals"
            noise = Noise(*(np.asarray(data["residuals"][regime], float) for regime in ("decode", "mixed")))
            at = "engine"
            limits = Limits(**{k: v if k in HABITS else _number(f"engine.{k}", v) for k, v in data["engine"].items()})
            at = "hull"
            hull = Hull.from_json(data["hull"])
            at = "margin"
            margin = {k: None if v is None else finite(k, v) for k, v in data["margin"].items()}
            at = "lag, training or sources"
            _check_about(data)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"plant.json lacks or misstates {at}: {error}; write it anew with `headway fit`") from None
        plant = PLANTS[data["structure"]].from_coefficients(values)
        for name, c in plant.coefficients().items():
            unit = data["coefficients"][name].get("unit", c.unit)
            if unit != c.unit:
                raise ValueError(f"coefficient {name} is in {unit!r}, expected {c.unit!r}; write plant.json anew with `headway fit`")
        if set(margin) != {"decode", "mixed"} or any(m is not None and m >= 1 for m in margin.values()):
            raise ValueError("margin must give decode and mixed, each below 1 or null; write plant.json anew with `headway fit`")
        if noise.decode.ndim != 1 or noise.mixed.ndim != 1:
            raise ValueError("residuals must be plain lists of numbers; write plant.json anew with `headway fit`")
        if not (np.isfinite(noise.decode).all() and np.isfinite(noise.mixed).all()):
            raise ValueError("residuals must be finite numbers; write plant.json anew with `headway fit`")
        limits.check()
        known = {"schema", "structure", "coefficients", "margin", "hull", "engine", "residuals"}
        return IdentifiedPlant(plant, noise, hull, margin, interval, limits, {k: v for k, v in data.items() if k not in known})


def finite(name: str, value: Any) -> float:
    """A number of a file, refused where it is none: a hull of NaN would let every load pass for known.

    Args:
        name: for the message.
        value: as read.

    Returns:
        The number.

    Raises:
        ValueError: no number, or not finite.
    """
    try:
        number = float(_number(name, value))
    except OverflowError:
        raise ValueError(f"{name} must be a number below 1e308, got one of {len(str(value))} digits") from None
    if not np.isfinite(number):
        raise ValueError(f"{name} must be finite, got {value}")
    return number


def _check_about(data: dict[str, Any]) -> None:
    """What a score, a report and another fit look up beside the numbers."""
    for direction, shares in (data.get("lag") or {}).items():
        for regime, share in shares.items():
            if not 0 <= finite(f"{direction}.{regime}", share) < 1:
                raise ValueError(f"{direction}.{regime} must be in [0, 1), got {share}")
    training = data.get("training") or {}
    for name in (training, training.get("where") or {}):
        dict(name.items())
    for source in data.get("sources") or []:
        source.get("sha256")


def _number(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        shown = repr(value)
        raise ValueError(f"{name} must be a number, got {shown if len(shown) <= 60 else shown[:56] + ' ...'}")
    return value
