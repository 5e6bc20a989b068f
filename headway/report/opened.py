"""A run's files as the library's own objects, and the short held-out loads on which its figures try a controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import Draw, draw
from headway.loads import load_of
from headway.models.identified import IdentifiedPlant
from headway.models.workload import WorkloadSource

SHOWN_REQUESTS, SHOWN_SEED = 250, 100_000
"""Length of the loads, and the first of their seeds: none that tuning drew."""

SEEDS = 4
"""Loads that a batch is tried on; the closed loop is shown on the first."""


class Opened(NamedTuple):
    """What a controller's figures are computed from.

    Args:
        identified: the plant.
        record: the controller.
        draws: loads, SEEDS of them; empty where the workload is not to be had.
        fault: why there are none.
    """

    identified: IdentifiedPlant
    record: ControllerRecord
    draws: list[Draw]
    fault: str = ""


def opened(plant: Mapping[str, Any], controller: Mapping[str, Any]) -> Opened:
    """Read a plant and a controller, and draw the loads that the controller was tuned for.

    Args:
        plant: content of plant.json.
        controller: content of controller.json.

    Returns:
        Opened.

    Raises:
        ValueError: one of them cannot be read; the message names it.
    """
    try:
        identified = IdentifiedPlant.from_json(dict(plant))
    except (ValueError, *BROKEN) as error:
        raise ValueError(f"plant.json: {error}") from None
    try:
        record = ControllerRecord.from_json(dict(controller))
    except (ValueError, *BROKEN) as error:
        raise ValueError(f"controller.json: {error}") from None
    try:
        load = load_of(record, workload=None, rate_rps=None, target=None)
        return Opened(identified, record, drawn(load.source, identified))
    except (ValueError, *BROKEN) as error:
        return Opened(identified, record, [], str(error))


BROKEN = (AttributeError, TypeError, KeyError, IndexError, OverflowError)
"""What a value of another kind than Headway writes raises on its way in."""


def drawn(source: WorkloadSource, identified: IdentifiedPlant) -> list[Draw]:
    """Short held-out loads.

    Args:
        source: of the workload.
        identified: the plant, for its noise.

    Returns:
        SEEDS draws of SHOWN_REQUESTS requests each.
    """
    return [draw(source, identified, SHOWN_SEED + k, SHOWN_REQUESTS, heldout=True) for k in range(SEEDS)]
