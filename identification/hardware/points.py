"""What a fitted plant says of the machine: which resource binds where, and whether such a machine can be."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headway.identification.hardware.binding import binding
from headway.identification.hardware.devices import Device
from headway.identification.hardware.implied import Facts, implied
from headway.identification.hardware.llms import Llm
from headway.identification.structures.learn import rows_of
from headway.models.plant import Batch, Plant


class Hardware(NamedTuple):
    """What the engine ran, and on what, as far as it was said.

    Args:
        llm: the model; None where nobody said.
        device: one of the accelerators; None where nobody said.
        tp: accelerators that share each layer.
    """

    llm: Llm | None = None
    device: Device | None = None
    tp: int = 1


POINTS = ("typical decode step", "largest decode step", "largest prefill step")
"""Operating points that are looked at."""


def hardware_findings(
    plant: Plant, interval: dict[str, tuple[float, float]], batch: Batch, rows: np.ndarray, hardware: Hardware
) -> tuple[dict[str, Any], list[str]]:
    """Attribute steps to resources, and hold the plant against the machine.

    Args:
        plant: fitted.
        interval: 95 % intervals by name of coefficient.
        batch: sums of all steps, shape (k,).
        rows: that the plant was fitted to, shape (k,), bool.
        hardware: what is known.

    Returns:
        ({"binding": [...], "implied": {...}}, what there is to say, one sentence each).

    Raises:
        ValueError: a trace that this machine cannot have produced, or weights that do not fit its memory.
    """
    used = rows_of(batch, rows)
    facts = Facts(hardware.llm, hardware.device, hardware.tp) if hardware.llm and hardware.device else None
    points = []
    for name, step in zip(POINTS, _points(used), strict=True):
        if step is not None and float(np.asarray(plant.step_time_s(step))) > 0:
            found = binding(plant, step, facts)
            shares = {k: round(v, 4) for k, v in found.shares.items()}
            points.append(
                {"point": name, "step_time_s": found.step_time_s, "resource": found.resource, "shares": shares, "sentence": found.sentence}
            )
    largest = Batch(*(float(np.max(column)) for column in used))
    machine = implied(plant, interval, largest, llm=hardware.llm, device=hardware.device, tp=hardware.tp)
    return {"binding": points, "implied": machine.to_json()}, list(machine.warnings)


def _points(used: Batch) -> tuple[Batch | None, ...]:
    """The middle and the largest of the decode-only steps, and the step with most prefill; None where there is none."""
    columns = np.stack([np.asarray(c, float) for c in used], axis=1)
    decode = columns[columns[:, 2] == 0]
    mixed = columns[columns[:, 2] > 0]
    typical = Batch(*np.median(decode, axis=0).tolist()) if len(decode) else None
    largest = Batch(*decode[np.argmax(decode[:, 0])].tolist()) if len(decode) else None
    prefill = Batch(*mixed[np.argmax(mixed[:, 2])].tolist()) if len(mixed) else None
    return typical, largest, prefill
