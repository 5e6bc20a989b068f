"""What a plant implies about its hardware, what is refused as impossible, and which resource binds a step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.identification.fit import fit
from headway.identification.hardware.binding import RESOURCES, binding
from headway.identification.hardware.devices import DEVICES, device
from headway.identification.hardware.implied import Facts, fastest, implied
from headway.identification.hardware.llms import LLMS, llm
from headway.identification.hardware.tp import TpLaw, fit_tp
from headway.identification.readers import read_trace
from headway.models import PLANTS
from headway.models.plant import Batch, Plant
from headway.models.regimes import AffinePlant, RegimePlant
from headway.models.roofline import NUMBERS, RooflinePlant
from tests.synthetic_steps import composed, noise, traced
from tests.test_tp_law import MIXED_ALONE, MIXED_LIMIT, at, run_at

LARGEST = Batch(64.0, 200_000.0, 8192.0, 6e7, 4.0)
QWEN, B300 = llm("qwen3-32b"), device("b300")


def hardware(share: float, facts: Facts, launch_s: float = 0.0) -> RegimePlant:
    """The plant of an engine that reaches this share of every peak."""
    unit = {name: work / (share * peak) for name, (work, peak, _) in facts.work().items()}
    decode = (unit["weights"] + launch_s, 0.0, unit["cache"], 0.0, 0.0, 0.0)
    return RegimePlant(decode, (launch_s, 0.0, 0.0, unit["prompt"], unit["attention"], 0.0))


def around(plant: Plant, width: float) -> dict[str, tuple[float, float]]:
    return {name: (c.value * (1 - width), c.value * (1 + width)) for name, c in plant.coefficients().items()}


def test_rates_are_bytes_and_operations_over_seconds() -> None:
    facts = Facts(QWEN, B300, tp=2)
    plant = hardware(0.6, facts)
    found = implied(plant, around(plant, 0.1), LARGEST, llm=QWEN, device=B300, tp=2)
    assert [rate.what for rate in found.rates] == ["weights", "cache", "prompt", "attention"]
    for rate in found.rates:
        assert rate.share == pytest.approx(0.6)
        assert rate.peak is not None
        assert rate.ci95 is not None
        assert rate.ci95[0] == pytest.approx(0.6 * rate.peak / 1.1)
        assert rate.ci95[1] == pytest.approx(0.6 * rate.peak / 0.9)
    cache = found.rates[1]
    assert cache.value == pytest.approx(131_072 / plant.decode[2])  # 64 layers x 2 x 8 heads x 128 x 2 bytes, over two devices
    assert found.warnings == ()
    assert "60% [55%, 67%] of what a b300 can" in found.sentences[1]
    assert json.loads(json.dumps(found.to_json()))["rates"][1]["what"] == "cache"


def test_latent_and_few_heads_are_copied_not_divided() -> None:
    assert Facts(llm("deepseek-v3"), B300, tp=8).kv_token_bytes() == llm("deepseek-v3").kv_token_bytes()
    assert Facts(QWEN, B300, tp=16).kv_token_bytes() == QWEN.kv_token_bytes() / 8


def test_a_floor_below_the_reading_of_the_weights_is_refused() -> None:
    plant = hardware(0.6, Facts(QWEN, B300))
    for device_name, tp in (("h100", 1), ("l40s", 2)):
        with pytest.raises(ValueError, match=r"impossible: a step with one decoding request .* check the unit") as caught:
            implied(plant, around(plant, 0.05), LARGEST, llm=QWEN, device=device(device_name), tp=tp)
        assert len(str(caught.value).splitlines()) == 1
        assert device(device_name).name in str(caught.value)
        assert "qwen3-32b" in str(caught.value)


def test_milliseconds_taken_for_seconds_are_refused() -> None:
    law = hardware(0.6, Facts(QWEN, B300))
    faster = RegimePlant(*(tuple(1e-3 * c for c in side) for side in (law.decode, law.mixed)))
    with pytest.raises(ValueError, match="impossible"):
        implied(faster, around(faster, 0.05), LARGEST, llm=QWEN, device=B300)
    said = implied(faster, around(faster, 0.05), LARGEST, llm=QWEN, device=None).warnings
    assert "the fastest known" in said[0]


def test_prompts_faster_than_the_arithmetic_are_refused() -> None:
    law = hardware(0.6, Facts(QWEN, B300), launch_s=1e-3)
    fast = RegimePlant(law.decode, (*law.mixed[:3], law.mixed[3] / 3, 0.0, 0.0))
    with pytest.raises(ValueError, match=r"8,192 prompt tokens .* its matrix products"):
        implied(fast, around(fast, 0.05), LARGEST, llm=QWEN, device=B300)
    # where the interval reaches to what the device can, nothing is refused
    wide = around(fast, 0.05) | {"mixed.per_prefill_token": (0.0, law.mixed[3])}
    assert implied(fast, wide, LARGEST, llm=QWEN, device=B300).rates[2].share == pytest.approx(1.8)
    # nor for weights of fewer bits, whose peak the table does not hold
    implied(fast, around(fast, 0.05), LARGEST, llm=QWEN, device=B300, weight_bytes=0.5)


def test_a_cache_term_that_gave_its_time_to_its_neighbour_is_doubted_not_refused() -> None:
    law = hardware(0.6, Facts(QWEN, B300))
    context = LARGEST.decode_kv_tokens / LARGEST.decode_requests
    moved = RegimePlant((law.decode[0], law.decode[2] * 0.8 * context, law.decode[2] * 0.2, 0.0, 0.0, 0.0), law.mixed)
    said = implied(moved, around(moved, 0.05), LARGEST, llm=QWEN, device=B300).warnings
    assert len(said) == 1
    assert "decode.per_kv_token on its own" in said[0]
    assert "must not be read alone" in said[0]


@given(st.sampled_from(list(DEVICES)), st.sampled_from(list(LLMS)), st.integers(1, 8), st.floats(0.05, 0.99), st.floats(0, 0.01))
def test_what_the_hardware_can_do_is_never_refused(name: str, model: str, tp: int, share: float, launch_s: float) -> None:
    model_of, card = llm(model), device(name)
    if model_of.parameters * model_of.weight_bytes / tp > card.memory_bytes:
        with pytest.raises(ValueError, match="GB"):
            implied(AffinePlant((1.0,) * 6), {}, LARGEST, llm=model_of, device=card, tp=tp)
        return
    facts = Facts(model_of, card, tp)
    found = implied(hardware(share, facts, launch_s), {}, LARGEST, llm=model_of, device=card, tp=tp)
    assert found.warnings == ()
    assert all(rate.share is None or rate.share <= 1 for rate in found.rates)


def test_without_a_model_nothing_is_implied_and_it_is_said() -> None:
    plant = hardware(0.6, Facts(QWEN, B300))
    assert implied(plant, {}, LARGEST, llm=None, device=None).warnings == ()
    assert implied(plant, {}, LARGEST, llm=None, device=B300).warnings == (
        "the llm is not known, so the plant was not held against any hardware",
    )
    assert implied(plant, {}, LARGEST, llm=None, device=None).rates == ()
    assert fastest().bandwidth_bytes_per_s == 8e12


@pytest.mark.parametrize("structure", list(PLANTS))
def test_every_structure_can_be_held_against_hardware_and_attributed(structure: str) -> None:
    trial = PLANTS[structure]
    names = list(trial.from_coefficients(dict.fromkeys(_names(trial), 1.0)).coefficients())
    values = {name: 2.0 if "power" in name else 64.0 if name.startswith("shape.") else 1e-9 if "pair" in name else 1e-4 for name in names}
    plant = trial.from_coefficients(values)
    implied(plant, {}, LARGEST, llm=QWEN, device=None)
    for batch in (Batch(16.0, 30_000.0, 0.0, 0.0, 0.0), Batch(16.0, 30_000.0, 512.0, 4e5, 2.0), Batch(0.0, 0.0, 512.0, 131_072.0, 1.0)):
        found = binding(plant, batch)
        assert sum(found.shares.values()) == pytest.approx(1.0)
        assert min(found.shares.values()) >= 0
        assert found.resource in RESOURCES


def _names(structure: type[Plant]) -> list[str]:
    """The names that a structure wants, from its own complaint."""
    with pytest.raises(ValueError, match="missing") as caught:
        structure.from_coefficients({})
    return [part.strip(" '") for part in str(caught.value).partition("missing [")[2].partition("]")[0].split(",")]


def test_a_long_cache_binds_bandwidth_and_a_long_prompt_arithmetic() -> None:
    facts = Facts(QWEN, B300)
    plant = hardware(0.6, facts, launch_s=1e-3)
    decode = binding(plant, Batch(64.0, 400_000.0, 0.0, 0.0, 0.0), facts)
    assert decode.resource == "bandwidth"
    weights_s, cache_s = facts.weights_bytes() / B300.bandwidth_bytes_per_s, 400_000 * plant.decode[2]
    assert decode.shares["bandwidth"] == pytest.approx((weights_s + cache_s) / decode.step_time_s)
    assert binding(plant, Batch(8.0, 8000.0, 4096.0, 8e6, 2.0), facts).resource == "arithmetic"
    blind = binding(plant, Batch(8.0, 8000.0, 0.0, 0.0, 0.0))
    assert blind.resource == "launch"
    assert "give the device and the llm" in blind.sentence


def test_under_a_roof_the_longer_side_binds() -> None:
    values = dict.fromkeys((name for name, _ in NUMBERS), 0.0)
    values |= {"memory.weights": 4e-3, "memory.per_kv_token": 4e-8, "arithmetic.per_token": 4e-5, "roof.power": 8.0}
    plant, facts = RooflinePlant.from_coefficients(values), Facts(QWEN, B300)
    assert binding(plant, Batch(32.0, 300_000.0, 16.0, 128.0, 1.0), facts).resource == "bandwidth"
    assert binding(plant, Batch(32.0, 10_000.0, 2048.0, 2e6, 1.0), facts).resource == "arithmetic"


def test_experts_that_are_read_count_as_bandwidth() -> None:
    names = _names(PLANTS["curved"])
    values = dict.fromkeys(names, 0.0) | {"decode.floor": 2e-3, "decode.saturation": 8e-3, "shape.saturation_tokens": 16.0}
    values = {name: 2.0 if name == "shape.knee_power" else v for name, v in values.items()}
    found = binding(PLANTS["curved"].from_coefficients(values), Batch(64.0, 0.0, 0.0, 0.0, 0.0))
    assert found.resource == "bandwidth"


def test_the_links_are_what_does_not_shrink_with_more_devices() -> None:
    law: TpLaw = fit_tp({tp: run_at(tp, 800, 0.0) for tp in (1, 2)})
    batch, facts = Batch(4.0, 2000.0, 2000.0, 2e6, 1.0), Facts(QWEN, B300, tp=4)
    plant = law.plant(4)
    found = binding(plant, batch, facts, law)
    own = 2000.0 * MIXED_LIMIT[3] * 0.75 + 4.0 * MIXED_LIMIT[1] * 0.75
    assert found.shares["interconnect"] == pytest.approx(own / found.step_time_s, rel=0.02)
    assert "several tp" in binding(plant, batch, facts).sentence
    with pytest.raises(ValueError, match="needs facts"):
        binding(plant, batch, None, law)
    assert at(MIXED_ALONE, MIXED_LIMIT, 1) == pytest.approx(MIXED_ALONE)


def test_a_step_that_takes_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="must take time"):
        binding(AffinePlant((0.0,) * 6), Batch(1.0, 1.0, 0.0, 0.0, 0.0))


def test_a_fitted_synthetic_engine_is_believed() -> None:
    facts = Facts(QWEN, B300)
    batch = composed(2000)
    trace = traced(batch, hardware(0.6, facts, launch_s=1e-3).step_time_s(batch) * np.exp(noise(2000, 0.04)))
    found = fit(trace)
    largest = Batch(*(float(x.max()) for x in batch))
    rates = {r.what: r for r in implied(found.plant, found.interval, largest, llm=QWEN, device=B300).rates}
    assert rates["prompt"].share == pytest.approx(0.6, rel=0.05)
    with pytest.raises(ValueError, match="impossible"):
        implied(found.plant, found.interval, largest, llm=QWEN, device=device("h100"))


@pytest.mark.parametrize(("name", "tp"), [("qwen3-32b", 1), ("qwen3-32b", 2), ("qwen3-32b", 4), ("qwen3.6-35b-a3b", 2)])
def test_measured_traces_are_possible_on_their_device_and_not_on_a_slower_one(name: str, tp: int, shared_data: Path) -> None:
    trace = read_trace(shared_data / f"steps/fpm_vllm0201_b300/{name}_tp{tp}.fpm_detail.csv")
    found = fit(trace, structure="regimes")  # a term below a jump shares its time with those past it
    largest = Batch(*(float(x.max()) for x in trace.batch()))
    rates = {r.what: r for r in implied(found.plant, found.interval, largest, llm=llm(name), device=B300, tp=tp).rates}
    assert rates["weights"].share is not None
    assert 0.02 < rates["weights"].share < 1
    assert rates["prompt"].share is not None
    assert 0.2 < rates["prompt"].share < 1
    with pytest.raises(ValueError, match="impossible"):
        implied(found.plant, found.interval, largest, llm=llm(name), device=device("a10g"), tp=max(tp, 4))
