"""What the world does: plants, noise, workloads, the engine's mechanics, goodput. Pure: no clock, no file."""

from headway.models.concurrency import ConcurrencyPlant
from headway.models.curved import CurvedPlant
from headway.models.plant import Plant
from headway.models.regimes import AffinePlant, RegimePlant
from headway.models.roofline import RooflinePlant

PLANTS: dict[str, type[Plant]] = {
    plant.structure: plant for plant in (AffinePlant, RegimePlant, CurvedPlant, RooflinePlant, ConcurrencyPlant)
}
"""Plant structures by name: one row, one class; `tests/test_plants.py` holds each to the same contract."""
