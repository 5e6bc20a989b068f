"""The contract of every plant: three forms of one law agree, numbers pass through names and JSON, and a wrong one is named."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.models import PLANTS
from headway.models.concurrency import ConcurrencyPlant
from headway.models.curved import CurvedPlant
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.plant import Batch, Coefficient, Plant
from headway.models.regimes import AffinePlant, RegimePlant
from headway.models.roofline import RooflinePlant
from headway.models.signals import Limits, Target
from headway.models.steptime import PACKED, step_time

SCALES = {"s": 1e-2, "s/request": 1e-4, "s/token": 1e-6, "s/token^2": 1e-9, "tokens": 500.0, "1": 3.0, "s/sqrt(request)": 1e-3}
"""Units of the terms, and numbers with which each of them counts."""
structures = pytest.mark.parametrize("structure", PLANTS)


def some_plant(structure: str, seed: int = 0) -> Plant:
    """A plant whose numbers are all different."""
    rng = np.random.default_rng(seed)
    return PLANTS[structure].from_coefficients(
        {name: float(rng.uniform(0.5, 1.5) * SCALES[unit]) for name, unit in names_and_units(structure)}
    )


def names_and_units(structure: str) -> list[tuple[str, str]]:
    zero = {
        "affine": AffinePlant((0.0,) * 6),
        "regimes": RegimePlant((0.0,) * 6, (0.0,) * 6),
        "curved": CurvedPlant((0.0,) * 6, (0.0,) * 6, (0.0,) * 8, (0.0,) * 8, (0.0,) * 7),
        "roofline": RooflinePlant((0.0,) * 9),
        "concurrency": ConcurrencyPlant((0.0,) * 3),
    }
    assert set(zero) == set(PLANTS), "a new structure needs a row here"
    return [(name, c.unit) for name, c in zero[structure].coefficients().items()]


def batches(k: int, seed: int) -> Batch:
    """Steps of every kind: decode only, prefill only, both."""
    rng = np.random.default_rng(seed)
    decodes = rng.integers(0, 200, k) * (rng.random(k) < 0.7)
    chunks = rng.integers(0, 5, k) * (rng.random(k) < 0.6)
    prefill = np.where(chunks > 0, rng.integers(1, 4000, k), 0)
    columns = (decodes, decodes * rng.integers(1, 4000, k), prefill, prefill * rng.integers(1, 3000, k) / 2, chunks)
    return Batch(*(np.asarray(c, float) for c in columns))


@structures
@given(seed=st.integers(0, 10**6))
def test_numpy_jax_and_the_compiled_form_are_one_law(structure: str, seed: int) -> None:
    plant, batch = some_plant(structure, seed), batches(40, seed)
    times_s = plant.step_time_s(batch)
    assert isinstance(times_s, np.ndarray)
    assert times_s.shape == (40,)
    traced = jax.jit(type(plant).step_time_s)(plant, Batch(*map(jnp.asarray, batch)))
    np.testing.assert_allclose(np.asarray(traced), times_s, rtol=1e-12)
    packed = plant.pack()
    assert packed.shape == (PACKED,)
    assert packed.dtype == np.float64
    for i in range(40):
        row = [float(column[i]) for column in batch]
        assert step_time(packed, *row) == pytest.approx(times_s[i], rel=1e-12)
        assert float(plant.step_time_s(Batch(*row))) == pytest.approx(times_s[i], rel=1e-12)


@structures
def test_the_gradient_is_the_finite_difference(structure: str) -> None:
    plant, batch = some_plant(structure), batches(30, 1)
    slope = jax.grad(lambda p: jnp.sum(jnp.log(p.step_time_s(Batch(*map(jnp.asarray, batch))))))(plant)
    assert isinstance(slope, type(plant))
    values = {name: c.value for name, c in plant.coefficients().items()}
    found = {name: c.value for name, c in slope.coefficients().items()}
    for name, value in values.items():
        sides = [type(plant).from_coefficients({**values, name: value * (1 + h)}) for h in (-1e-5, 1e-5)]
        low, high = (np.log(side.step_time_s(batch)).sum() for side in sides)
        assert found[name] == pytest.approx((high - low) / (2e-5 * value), rel=1e-5), name


@structures
def test_vmap_over_a_field_is_the_sweep(structure: str) -> None:
    plants, batch = [some_plant(structure, seed) for seed in range(5)], batches(7, 2)
    stacked = jax.tree.map(lambda *numbers: jnp.asarray(numbers), *plants)
    swept = jax.vmap(lambda p: p.step_time_s(Batch(*map(jnp.asarray, batch))))(stacked)
    np.testing.assert_allclose(np.asarray(swept), [p.step_time_s(batch) for p in plants], rtol=1e-12)


@structures
def test_numbers_pass_through_their_names(structure: str) -> None:
    plant = some_plant(structure)
    rows = plant.coefficients()
    assert all(isinstance(c, Coefficient) and c.unit in SCALES and "." in name for name, c in rows.items())
    again = type(plant).from_coefficients({name: c.value for name, c in rows.items()})
    assert again == plant
    assert again.coefficients() == rows
    assert again.structure == structure


@structures
def test_more_work_never_takes_less_time(structure: str) -> None:
    plant, batch = some_plant(structure), batches(200, 3)
    n, kv, p, pairs, r = batch
    some, chunks = np.maximum(p, 1), np.maximum(r, 1)
    context = np.maximum(pairs * r / some - p / 2, 0)
    more = {
        "another request like the others": batch._replace(decode_requests=n + (n > 0), decode_kv_tokens=kv + kv / np.maximum(n, 1)),
        "longer contexts": batch._replace(decode_kv_tokens=kv + n),
        "longer chunks": batch._replace(prefill_tokens=p + (p > 0), prefill_pairs=pairs + (p > 0) * (context + p + 0.5) / chunks),
        "chunks further on": batch._replace(prefill_pairs=pairs + p),
    }
    for what, batch_of_more in more.items():
        assert (plant.step_time_s(batch_of_more) >= plant.step_time_s(batch) * (1 - 1e-12)).all(), what


@structures
@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_a_number_that_no_plant_has_is_named(structure: str, value: float) -> None:
    values = {name: c.value for name, c in some_plant(structure).coefficients().items()}
    name = list(values)[1]
    message = f"coefficient {name} must be finite and not negative, got {value}; more work never takes less time"
    with pytest.raises(ValueError, match=re.escape(message)):
        PLANTS[structure].from_coefficients({**values, name: value})


@structures
def test_missing_and_unknown_names_are_named(structure: str) -> None:
    values = {name: c.value for name, c in some_plant(structure).coefficients().items()}
    first = next(iter(values))
    wrong = {**{n: v for n, v in values.items() if n != first}, "no.such": 1.0}
    message = f"coefficients of structure '{structure}': missing ['{first}'], unknown ['no.such']; expected {list(values)}"
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        PLANTS[structure].from_coefficients(wrong)


def test_a_step_with_any_prefill_is_mixed() -> None:
    plant = RegimePlant((1.0, 0.0, 0.0, 0.0, 0.0, 0.0), (2.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    assert [float(plant.step_time_s(Batch(n, 0, p, 0, 1))) for n, p in ((4, 0), (4, 1), (0, 1))] == [1.0, 2.0, 2.0]


def identified(structure: str = "regimes") -> IdentifiedPlant:
    noise = Noise(np.array([0.01, -0.02, 0.03]), np.array([0.125]))
    limits = Limits(200_000, 16, max_seqs=64, watermark=0.01, reservation="full", first_token="next_step")
    interval = {name: (c.value / 2, c.value * 2) for name, c in some_plant(structure).coefficients().items()}
    about = {"rows": {"read": 10, "used": 9}, "warnings": ["none"]}
    return IdentifiedPlant(
        some_plant(structure), noise, Hull(32.0, 1e5, 2048.0, 1e6), {"decode": 0.07, "mixed": None}, interval, limits, about
    )


@structures
def test_an_identified_plant_passes_through_json(structure: str) -> None:
    before = identified(structure)
    text = json.dumps(before.to_json(), allow_nan=False)
    after = IdentifiedPlant.from_json(json.loads(text))
    assert after.plant == before.plant
    assert all(np.array_equal(a, b) for a, b in zip(dataclasses.astuple(after.noise), dataclasses.astuple(before.noise), strict=True))
    for name in ("hull", "margin", "interval", "limits", "about"):
        assert getattr(after, name) == getattr(before, name), name
    assert json.dumps(after.to_json(), allow_nan=False) == text


def _changed(**fields: Any) -> Any:
    return {**json.loads(json.dumps(identified().to_json())), **fields}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1], "expected schema 'headway/plant/1', found 'list'; is this the plant.json of `headway fit`?"),
        ({}, "expected schema 'headway/plant/1', found None; is this the plant.json of `headway fit`?"),
        (_changed(schema="headway/controller/1"), "expected schema 'headway/plant/1', found 'headway/controller/1'; is this"),
        (
            _changed(structure="cubic"),
            "unknown structure 'cubic'; this version knows ['affine', 'concurrency', 'curved', 'regimes', 'roofline']",
        ),
        (_changed(hull={}), "plant.json lacks or misstates"),
        (_changed(residuals={"decode": []}), "plant.json lacks or misstates residuals: 'mixed'; write it anew with `headway fit`"),
        (_changed(residuals={"decode": [math.nan], "mixed": []}), "residuals must be finite numbers; write plant.json anew"),
        (_changed(engine={"kv_tokens": 8, "block_tokens": 16}), "kv_tokens must hold at least one block of 16 tokens, got 8"),
        (_changed(engine={"kv_tokens": 800, "reservation": "some"}), "reservation must be 'gate' or 'chunk' or 'full', got 'some'"),
        (_changed(engine={"kv_tokens": 800, "colour": "red"}), "plant.json lacks or misstates"),
        (_changed(coefficients={}), "coefficients of structure 'regimes': missing ["),
    ],
)
def test_a_wrong_plant_file_says_what_is_wrong(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        IdentifiedPlant.from_json(data)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (_changed(coefficients=[]), "coefficients"),
        (_changed(hull=[]), "hull"),
        (_changed(margin=None), "margin"),
        (_changed(engine={"kv_tokens": "many"}), "kv_tokens"),
        (_changed(residuals={"decode": ["x"], "mixed": []}), "residuals"),
    ],
)
def test_a_value_of_a_wrong_kind_is_named_too(data: Any, name: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the name is looked for below
        IdentifiedPlant.from_json(data)
    assert name in str(refused.value)


def test_the_hull_says_what_lies_outside_it() -> None:
    hull = Hull(32.0, 1e5, 2048.0, 1e6)
    assert hull.outside(Batch(32.0, 1e5, 2048.0, 1e6, 99)) == []
    assert hull.outside(Batch(256.0, 1e5, 4096.0, 0.0, 0)) == [
        "extrapolation: steps of up to 256 decoding sequences, the trace held 32",
        "extrapolation: steps of up to 4,096 prefill tokens, the trace held 2,048",
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_seqs": 0}, "max_seqs must be at least 1, got 0"),
        ({"kv_tokens": 15}, "kv_tokens must hold at least one block of 16 tokens, got 15"),
        ({"watermark": 1.0}, "watermark must be in [0, 1), got 1; write 0.01 for 1 %"),
        ({"first_token": "soon"}, "first_token must be 'last_chunk' or 'next_step', got 'soon'"),
    ],
)
def test_limits_under_which_nothing_could_run_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        Limits(**{"kv_tokens": 1000, **fields}).check()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"itl_s": 0.0}, "itl_s must be a positive time, got 0; write for example itl=25ms"),
        ({"ttft_s": math.nan}, "ttft_s must be a positive time, got nan; write for example itl=25ms"),
        ({"transport_s": 0.025}, "transport must be in [0, itl), got 25 ms against itl 25 ms; nothing would be left for the step"),
        ({"epsilon": 1.0}, "epsilon must be in (0, 1), got 1; write 0.01 for 1 %"),
        ({"share": 20.0}, "share of class 'default' must be in (0, 1], got 20; write 0.2 for 20 %"),
    ],
)
def test_a_target_that_no_engine_could_be_held_to_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        Target(**{"ttft_s": 1.0, "itl_s": 0.025, **fields}).check()
