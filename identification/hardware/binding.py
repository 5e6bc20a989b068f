"""Which resource binds a step: memory bandwidth, arithmetic, the links between devices, or the launch of its kernels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.identification.hardware.implied import Facts
from headway.identification.hardware.tp import TpLaw
from headway.models.bottleneck import spent_s
from headway.models.plant import Batch, Plant

RESOURCES: tuple[str, ...] = ("bandwidth", "arithmetic", "interconnect", "launch")
"""What a step may wait for. "launch" is what no work explains: kernels' start, the host, and without facts the weights."""
USES = {
    "decode_kv_tokens": "bandwidth",
    "decode_requests": "arithmetic",
    "prefill_pairs": "arithmetic",
    "prefill_requests": "launch",
    "prefill_tokens": "arithmetic",
}
"""The resource that each sum of a step works on."""
TERMS_APART = {"saturation": "bandwidth", "past_limit": "launch"}
"""Terms whose resource is not that of the sum they grow with: more tokens read more experts' weights, or leave the graphs."""
ALIKE = 0.05
"""Difference of two shares below which neither is said to bind alone."""


class Binding(NamedTuple):
    """What one step's time goes into.

    Args:
        step_time_s: predicted [s].
        shares: of it by resource, a key of `RESOURCES`; they sum to 1.
        resource: the largest.
        sentence: the same in words, with what it rests on.
    """

    step_time_s: float
    shares: dict[str, float]
    resource: str
    sentence: str


def binding(plant: Plant, batch: Batch, facts: Facts | None = None, law: TpLaw | None = None) -> Binding:
    """Attribute a step's predicted time to resources.

    share of x = (F(batch) - F(batch without x)) / F(batch), as `headway.models.bottleneck.spent_s`; what no sum explains is the floor

    With facts, the floor gives the time in which the weights can be read at peak to bandwidth. With a law across
    tensor-parallel sizes, the part of the work's own time that does not shrink with more devices goes to the links.

    Args:
        plant: of any structure.
        batch: one step, scalars.
        facts: the model and device; None leaves the weights in the floor.
        law: across tensor-parallel sizes, with `facts` for the size at hand; None leaves the links unknown, as 0.

    Returns:
        Shares and the resource that binds.

    Raises:
        ValueError: a step that takes no time, or a law without facts.

    Example:
        >>> from headway.models.regimes import AffinePlant
        >>> binding(AffinePlant((0.002, 0.0, 0.0, 1e-5, 0.0, 0.0)), Batch(0, 0, 800, 0, 1)).resource
        'arithmetic'
    """
    if law is not None and facts is None:
        raise ValueError("a law across tensor-parallel sizes needs facts as well, for the size at hand; give Facts(llm, device, tp)")
    whole = _seconds(plant, batch)
    if not whole > 0:
        raise ValueError(f"the step must take time, got {whole:g} s for {tuple(float(x) for x in batch)}")
    seconds = dict.fromkeys(RESOURCES, 0.0)
    spent = spent_s(plant, batch)
    for name, resource in USES.items():
        seconds[resource] += float(spent[name][0])
    for term, resource in TERMS_APART.items():
        own = min(whole - _seconds(_lacking(plant, term), batch), seconds["arithmetic"])
        seconds["arithmetic"] -= own
        seconds[resource] += own
    floor = whole - sum(seconds.values())
    weights = min(facts.weights_bytes() / facts.device.bandwidth_bytes_per_s, floor) if facts is not None else 0.0
    seconds["bandwidth"] += weights
    seconds["launch"] += floor - weights
    if law is not None and facts is not None:
        links = min(law.unscaled_work_s(batch, facts.tp), seconds["arithmetic"])
        seconds["arithmetic"] -= links
        seconds["interconnect"] += links
    shares = {name: value / whole for name, value in seconds.items()}
    resource = max(shares, key=lambda name: shares[name])
    return Binding(whole, shares, resource, _sentence(whole, shares, resource, facts, law))


def _seconds(plant: Plant, batch: Batch) -> float:
    return float(np.asarray(plant.step_time_s(Batch(*(float(x) for x in batch)))))


def _lacking(plant: Plant, term: str) -> Plant:
    """The same plant with the coefficients of one term at zero; the plant itself where it has no such term."""
    values = {name: c.value for name, c in plant.coefficients().items()}
    return type(plant).from_coefficients({name: 0.0 if name.partition(".")[2] == term else v for name, v in values.items()})


def _sentence(whole: float, shares: dict[str, float], resource: str, facts: Facts | None, law: TpLaw | None) -> str:
    order = sorted(shares, key=lambda name: -shares[name])
    parts = ", ".join(f"{name} {shares[name]:.0%}" for name in order if shares[name] >= 0.005)
    second = order[1]
    binds = f"{resource} and {second} bind alike" if shares[resource] - shares[second] < ALIKE else f"{resource} binds"
    text = f"of {whole * 1e3:.3g} ms: {parts}; {binds}"
    if facts is None:
        return text + " (launch holds the reading of the weights as well: give the device and the llm to tell them apart)"
    return text if law is not None or facts.tp == 1 else text + " (the links are not told from the rest: that takes runs at several tp)"
