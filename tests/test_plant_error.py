"""A lead under plant error: what is off, that only the steps know, and where the lead is said to end."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from headway.controllers.default import default_candidate
from headway.experiments.baseline import Static
from headway.experiments.plant_error import DRAWN, ERRORS, SLOWER, Off, PlantError, plant_error, scaled
from headway.experiments.promises import promised_runs
from headway.experiments.statistics import Estimate
from headway.models import PLANTS
from headway.models.measures import ATTAINMENT
from headway.models.plant import Batch
from tests.test_pareto import EFFORT, LIMITS, PLANT, TARGETS, small

BATCH = Batch(*(np.array(x, float) for x in ([4, 30], [4000, 90_000], [0, 700], [0, 400_000], [0, 2])))


@pytest.mark.parametrize("structure", sorted(PLANTS))
def test_floor_and_slopes_together_scale_the_step_time_of_every_structure(structure: str) -> None:
    # sizes at which a curve bends, and powers, are no times
    cls = PLANTS[structure]
    names = _names(structure)
    plant = cls.from_coefficients({n: 2.0 if u in ("1", "requests", "tokens") else 1e-3 if u == "s" else 1e-6 for n, u in names.items()})
    whole = scaled(plant, 1.3, 1.3).step_time_s(BATCH)
    assert whole == pytest.approx(1.3 * np.asarray(plant.step_time_s(BATCH)), rel=1e-9)
    assert {n: c.value for n, c in scaled(plant, 1.0, 1.0).coefficients().items()} == pytest.approx(
        {n: c.value for n, c in plant.coefficients().items()}
    )


def _names(structure: str) -> dict[str, str]:
    """Its coefficients with their units: a plant that lacks them all names them."""
    cls = PLANTS[structure]
    with pytest.raises(ValueError, match="expected") as caught:
        cls.from_coefficients({})
    listed = str(caught.value).split("expected ")[1].strip("[]").replace("'", "").split(", ")
    return {name: c.unit for name, c in cls.from_coefficients(dict.fromkeys(listed, 1.0)).coefficients().items()}


def test_a_floor_alone_leaves_what_contents_add() -> None:
    both = np.asarray(scaled(PLANT, 1.5, 1.0).step_time_s(BATCH)) - np.asarray(PLANT.step_time_s(BATCH))
    assert both == pytest.approx([0.5 * PLANT.decode[0], 0.5 * PLANT.mixed[0]])


def test_both_contenders_run_on_the_plants_that_are_off() -> None:
    p = small()
    interval = {"decode.floor": (5e-3, 7e-3), "mixed.per_prefill_token": (2e-5, 4e-5)}
    identified = dataclasses.replace(p.identified, interval=interval)
    draws = p.draws(EFFORT, heldout=True)
    ours, static = default_candidate(identified, TARGETS, LIMITS), Static(512, 32).candidate()
    found = plant_error(identified, ours, static, draws, TARGETS, LIMITS, workers=1)
    assert [r.part for r in found.rows] == ["floor"] * len(ERRORS) + ["slopes"] * len(ERRORS) + ["all"] * len(SLOWER) + ["drawn"] * DRAWN
    for row in found.rows:
        if row.part == "all" and row.error == 0.10:
            runs = promised_runs(identified, [ours, static], draws, TARGETS, LIMITS, truth=scaled(PLANT, 1.1, 1.1))[..., ATTAINMENT]
            assert (row.controller.value, row.static.value) == pytest.approx(runs.mean(axis=1).tolist())
            assert row.lead.value == pytest.approx((runs[0] - runs[1]).mean())
    drawn = [r.controller.value for r in found.rows if r.part == "drawn"]
    assert len(set(drawn)) > DRAWN // 2, "they differ"
    assert 0 <= found.drawn_held <= 1
    slower = [r.controller.value for r in found.rows if r.part == "all"]
    assert slower[0] > slower[-1]
    json.dumps(found.to_json()["rows"][0], allow_nan=False)
    bare = plant_error(p.identified, ours, static, draws[:2], TARGETS, LIMITS, workers=1)
    assert math.isnan(bare.drawn_held)
    assert bare.notes == ["the plant has no intervals to draw from"]


def told(*lows: float, held: float = math.nan) -> str:
    """The sentence where the lead's interval begins at these values, from the plant as fitted upwards."""
    up = [e for e in SLOWER if e >= 0]
    same = Estimate(0.9, 0.8, 1.0)
    rows = [Off("all", e, same, same, Estimate(x + 0.01, x, x + 0.02)) for e, x in zip(up, lows, strict=True)]
    kept = next((k for k, x in enumerate(lows) if x <= 0), len(lows))
    return PlantError(rows, up[kept - 1] if kept else None, up[kept] if kept < len(up) else None, held, []).sentence()


def test_the_sentence_says_how_far_the_lead_holds() -> None:
    n = len([e for e in SLOWER if e >= 0])
    assert told(*[0.1] * n).endswith("at every error tried, steps 40% slower than fitted included")
    assert "until steps are 5% slower than fitted; at 10% slower it is +0.5 points [-0.5, +1.5]" in told(
        *[0.1] * 3, -0.005, *[0.1] * (n - 4)
    )
    assert "only as long as steps are as fitted" in told(0.1, *[-0.1] * (n - 1))
    assert told(*[-0.1] * n).startswith("on the plant as fitted the controller has no lead over the best static setting to hold")
    assert told(*[0.1] * n, held=0.75).endswith("on 75% of the plants drawn from the fit's intervals it leads")
