"""What a fitted plant says of the hardware: bytes and operations per second, held against what the maker promises.

A plant that reads weights or computes prompts faster than its device can is no slow engine seen through noise: the trace
is wrong (unit, device, tp, rows counted twice), and what is tuned on it would be wrong with it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from headway.identification.hardware.devices import DEVICES, Device
from headway.identification.hardware.llms import Llm, check_memory
from headway.models.plant import Batch, Plant

FIXED = ("shape.", "roof.")
"""Coefficients that say where a plant bends, not how long a term takes: they stay when the others go to their upper ends."""
NAMES: dict[str, tuple[str, ...]] = {
    "weights": ("memory.weights", "decode.floor", "all.floor"),
    "cache": ("memory.per_kv_token", "decode.per_kv_token", "all.per_kv_token"),
    "prompt": ("arithmetic.per_token", "mixed.per_prefill_token", "all.per_prefill_token"),
    "attention": ("arithmetic.per_pair", "mixed.per_prefill_pair", "all.per_prefill_pair"),
}
"""Which coefficient tells of what, in any structure; the first that the plant has. A cache read beside a prompt hides behind
its arithmetic, so the mixed regime says nothing of bandwidth."""
SAYS = {
    "weights": "reading the weights",
    "cache": "reading the cache",
    "prompt": "computing prompt tokens",
    "attention": "attending to a prompt",
}
CHECK = "check the unit of the durations, the device, tp, weights of fewer bits, and rows that are in the trace twice"


class Facts(NamedTuple):
    """What an engine ran, and on what.

    Args:
        llm: the model.
        device: one of the accelerators.
        tp: accelerators that share each layer, at least 1.
        weight_bytes: of one parameter; None as published [bytes].
        kv_bytes: of one number in the cache [bytes].
    """

    llm: Llm
    device: Device
    tp: int = 1
    weight_bytes: float | None = None
    kv_bytes: float = 2.0

    def weights_bytes(self) -> float:
        """Weights that even the smallest step reads from one device.

        Returns:
            Size [bytes].
        """
        each = self.weight_bytes if self.weight_bytes is not None else self.llm.weight_bytes
        return self.llm.read_parameters() * each / self.tp

    def kv_token_bytes(self) -> float:
        """Cache that one token of context makes a step read from one device.

        Returns:
            Size [bytes]; beyond as many devices as the cache has heads it is copied, not divided.
        """
        return self.llm.kv_token_bytes(self.kv_bytes) / min(self.tp, self.llm.kv_heads)

    def peak_flops(self) -> float:
        """Most operations per second of one device for weights of this size.

        Returns:
            Dense peak [1/s]; infinite below one byte a parameter, for which the table holds no peak.
        """
        each = self.weight_bytes if self.weight_bytes is not None else self.llm.weight_bytes
        if each < 1:
            return math.inf
        return self.device.eight_bit_flops if each < 2 else self.device.flops

    def work(self) -> dict[str, tuple[float, float, str]]:
        """Work behind one unit of each coefficient of `NAMES`, on one device.

        Returns:
            By name: (bytes or operations, peak per second, unit of the rate).
        """
        band = self.device.bandwidth_bytes_per_s
        return {
            "weights": (self.weights_bytes(), band, "bytes/s"),
            "cache": (self.kv_token_bytes(), band, "bytes/s"),
            "prompt": (self.llm.prompt_token_flops() / self.tp, self.peak_flops(), "1/s"),
            "attention": (self.llm.pair_flops() / self.tp, self.peak_flops(), "1/s"),
        }


class Rate(NamedTuple):
    """What one coefficient implies for one device.

    Args:
        what: a key of `NAMES`.
        coefficient: its name.
        value: rate, in `unit`; None where the coefficient is zero.
        ci95: from the coefficient's interval; None where it has none, its upper end None where it reaches to zero.
        peak: of the device; None where the table has none.
        share: value over peak; None where either is unknown.
        unit: "bytes/s" or "1/s" (operations).
    """

    what: str
    coefficient: str
    value: float | None
    ci95: tuple[float, float | None] | None
    peak: float | None
    share: float | None
    unit: str


@dataclasses.dataclass(frozen=True)
class Implied:
    """What a plant implies about its hardware.

    Args:
        rates: one for each coefficient that tells of some.
        sentences: the same in words.
        warnings: what is doubtful, one sentence each.
    """

    rates: tuple[Rate, ...]
    sentences: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            {"rates": [fields of `Rate`], "sentences", "warnings"}.
        """
        return {"rates": [r._asdict() for r in self.rates], "sentences": list(self.sentences), "warnings": list(self.warnings)}


def implied(
    plant: Plant,
    interval: Mapping[str, tuple[float, float]],
    largest: Batch,
    *,
    llm: Llm | None,
    device: Device | None,
    tp: int = 1,
    weight_bytes: float | None = None,
    kv_bytes: float = 2.0,
) -> Implied:
    """Hold a plant against the hardware that it was measured on, and refuse what no such hardware can do.

    bandwidth = bytes read / coefficient, arithmetic = operations / coefficient, per device

    One coefficient above its peak is only doubtful: terms that moved together share their time. Refused is a whole step
    (the smallest, the largest of decodes, the largest of prefill) that takes less than its bytes or operations must, even
    with every coefficient at the upper end of its interval.

    Args:
        plant: fitted.
        interval: 95 % intervals by name of coefficient.
        largest: largest of each sum in the trace, scalars.
        llm: the model; None implies nothing.
        device: the accelerator; None holds the plant against the fastest known, and warns instead of refusing.
        tp: accelerators that share each layer.
        weight_bytes: of one parameter; None as published [bytes].
        kv_bytes: of one number in the cache [bytes].

    Returns:
        Rates with their shares of the peaks, sentences and warnings.

    Raises:
        ValueError: weights that do not fit the memory, or a step faster than the device can be.
    """
    if llm is None:
        return Implied((), (), ("the llm is not known, so the plant was not held against any hardware",) if device else ())
    if device is not None:
        check_memory(llm, device, tp, weight_bytes)
    facts = Facts(llm, device or fastest(), tp, weight_bytes, kv_bytes)
    broken = list(_impossible(plant, interval, largest, facts))
    if broken and device is not None:
        raise ValueError(f"{broken[0]}; {CHECK}")
    rates = tuple(_rate(facts, what, plant, interval, known=device is not None) for what in NAMES if _name(plant, what))
    doubts = [_doubt(rate, facts) for rate in rates] if device is not None else []
    warnings = [f"{text}, the fastest known; {CHECK}" for text in broken] + [text for text in doubts if text]
    return Implied(rates, tuple(_sentence(rate, facts) for rate in rates if rate.value is not None), tuple(warnings))


def fastest() -> Device:
    """A device with the best figure of each kind in `DEVICES`: what it cannot do, none can.

    Returns:
        The device.
    """
    figures = [max(column) for column in zip(*(row[1:6] for row in DEVICES.values()), strict=True)]
    return Device("device as fast as any known", *figures)


def _name(plant: Plant, what: str) -> str | None:
    names = plant.coefficients()
    return next((name for name in NAMES[what] if name in names), None)


def _slow(plant: Plant, interval: Mapping[str, tuple[float, float]]) -> Plant:
    """The same plant with every coefficient at the upper end of its interval."""
    upper = {
        name: c.value if name.startswith(FIXED) else max(c.value, interval.get(name, (0.0, 0.0))[1])
        for name, c in plant.coefficients().items()
    }
    return type(plant).from_coefficients(upper)


def _impossible(plant: Plant, interval: Mapping[str, tuple[float, float]], largest: Batch, facts: Facts) -> Iterator[str]:
    """Steps that take less than their bytes or operations must, one sentence each."""
    slow, device = _slow(plant, interval), facts.device
    n, kv, p, pairs, r = (float(x) for x in largest)
    kv, p = (x if _name(plant, what) else 0.0 for x, what in ((kv, "cache"), (p, "prompt")))
    weights_s = facts.weights_bytes() / device.bandwidth_bytes_per_s
    cases = []
    if n > 0:
        cases.append((Batch(1.0, 0.0, 0.0, 0.0, 0.0), weights_s, "a step with one decoding request", "reading the weights"))
        need = weights_s + kv * facts.kv_token_bytes() / device.bandwidth_bytes_per_s
        cases.append((Batch(n, kv, 0.0, 0.0, 0.0), need, f"a step that reads {kv:,.0f} cached tokens", "reading weights and cache"))
    if p > 0:
        need = p * facts.llm.prompt_token_flops() / facts.tp / facts.peak_flops()
        cases.append((Batch(0.0, 0.0, p, pairs, r), need, f"a step of {p:,.0f} prompt tokens", "its matrix products"))
    for batch, need, step, work in cases:
        taken = float(np.asarray(slow.step_time_s(batch)))
        if taken < need:
            hardware = f"{facts.tp} x {device.name}"
            yield f"impossible: {step} would take {_ms(taken)} at most, {work} of {facts.llm.name} takes {_ms(need)} at least on {hardware}"


def _rate(facts: Facts, what: str, plant: Plant, interval: Mapping[str, tuple[float, float]], *, known: bool) -> Rate:
    name = _name(plant, what) or ""
    work, most, unit = facts.work()[what]
    value, ends = plant.coefficients()[name].value, interval.get(name)
    rate = work / value if value > 0 else None
    ci95 = None
    if ends is not None and ends[1] > 0:
        ci95 = (work / ends[1], work / ends[0] if ends[0] > 0 else None)
    peak = most if known and math.isfinite(most) else None
    return Rate(what, name, rate, ci95, peak, rate / peak if rate is not None and peak is not None else None, unit)


def _sentence(rate: Rate, facts: Facts) -> str:
    scale, unit = (1e12, "TB/s") if rate.unit == "bytes/s" else (1e12, "TFLOP/s")
    text = f"{SAYS[rate.what]} goes at {(rate.value or 0.0) / scale:,.2f} {unit} per device"
    if rate.share is None or rate.peak is None:
        return text + f" ({rate.coefficient})"
    span = ""
    if rate.ci95 is not None:
        high = "?" if rate.ci95[1] is None else f"{rate.ci95[1] / rate.peak:.0%}"
        span = f" [{rate.ci95[0] / rate.peak:.0%}, {high}]"
    least = ", at least: the floor holds the launch as well" if rate.coefficient.endswith(".floor") else ""
    return text + f", {rate.share:.0%}{span} of what a {facts.device.name} can ({rate.coefficient}{least})"


def _doubt(rate: Rate, facts: Facts) -> str | None:
    """A coefficient whose whole interval lies above the peak: its time is with a term that moved with it."""
    if rate.peak is None or rate.ci95 is None or rate.ci95[0] <= rate.peak:
        return None
    return (
        f"{rate.coefficient} on its own means {SAYS[rate.what]} at {rate.ci95[0] / rate.peak:.1f} times what a {facts.device.name} can, or more: "
        "part of its time is in the terms that moved with it, so it must not be read alone"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
