"""The report on the plant: ladder, binding resources, diagnostics, coefficients, and steps that hold time of their neighbours."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from headway.identification.readers import read_trace
from headway.models.identified import IdentifiedPlant
from headway.report.data import Findings, collect, steps_of
from headway.report.identified import coefficient_table, diagnostic_table
from headway.report.sections import SECTIONS
from tests.small_plant import IDENTIFIED, Read
from tests.small_run import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "demo"
    write_run(folder)
    return folder


@pytest.fixture(scope="module")
def found(run: Path) -> Findings:
    known = collect(run)
    return dataclasses.replace(known, plant={**known.plant, **copy.deepcopy(IDENTIFIED)})


def test_the_ladder_the_binding_and_the_diagnostics_are_told(found: Findings) -> None:
    read = Read(SECTIONS["plant"][1](found) + SECTIONS["residuals"][1](found))
    lines = [line.rstrip() for line in read.lines]
    assert "jump at a number of tokens | mixed | 4.9 % | 3.9 % | 3.8" in lines
    before, after = "\n".join(lines).split("2 more rungs were tried")
    assert "longest sequence" not in before
    assert "longest sequence | mixed | 3.9 % | 4.1 % | −1.2" in after  # noqa: RUF001
    assert "one law for each regime | decode | 2.4 % | 2.4 % | 0.1" in after
    assert "typical decode step | 20.2 ms | 62 % | 14 % | 24 %" in lines
    assert "weights | 4.94 TB/s | 62 % | 61 % to –" in lines  # noqa: RUF001
    assert not [line for line in lines if line.startswith("cache |")]
    told = lines[lines.index("Diagnostics of the fit") + 2 :]
    assert told[0].startswith("closed loop | finding | token_budget follows")
    assert told[1].startswith("residual against inputs | finding | decode: the residual depends")
    assert (
        "excitation | finding | mixed: decode_requests did not move: their terms cannot be told; prefill_tokens and prefill_pairs moved "
        in "\n".join(told)
    )
    assert "shape along tokens | cannot be told | too few steps, or not in the trace" in told
    assert "drift | clear | neither a slope nor a change of level" in told
    assert SECTIONS["residuals"][1](found).count("<details>") == 1  # twelve rows, ten of them shown


def test_inputs_that_moved_together_are_told_in_the_words_of_the_fit(found: Findings) -> None:
    said = "decode_kv_tokens and decode_requests moved together (VIF 11): what either term takes alone is not trustworthy, their sum is"
    terms = {"decode_requests": {"moved": True, "vif": 9.9}, "decode_kv_tokens": {"moved": True, "vif": 10.7}}
    plant = {**found.plant, "excitation": {"mixed": {"terms": terms, "negative": {}}}}
    told = {
        f"mixed: {said}": "their sum is",
        "decode: of another regime moved together": "decode_kv_tokens and other inputs moved together (VIF 11)",
    }
    for warning, words in told.items():
        lines = Read(diagnostic_table({**plant, "warnings": [warning]})).lines
        (row,) = [line for line in lines if line.startswith("excitation | finding | mixed")]
        assert words in row
        assert (said in row) == (warning == f"mixed: {said}")


def test_a_term_that_does_not_act_is_counted_and_not_listed(found: Findings) -> None:
    some = {"value": 0.012, "ci95": [0.01, 0.013], "unit": "s"}
    none = {"value": 0.0, "ci95": None, "unit": "s"}
    held = {"value": 0.0, "ci95": [0.0, 3e-8], "unit": "s/token"}
    plant = {**found.plant, "coefficients": {"decode.floor": some, "decode.saturation": none, "decode.per_kv_token": held}}
    lines = Read(coefficient_table(plant)).lines
    assert "decode.floor | 12 | 10 to 13 | ms" in lines
    assert "decode.per_kv_token | 0 | 0 to 30 | ns/token" in lines
    assert lines[-1] == "1 terms of this structure do not act in this plant."


def test_what_the_record_holds_of_neighbours_is_in_the_prediction(run: Path) -> None:
    trace, plant = read_trace(run / "trace.parquet"), IdentifiedPlant.from_json(json.loads((run / "plant.json").read_text()))
    booked = dataclasses.replace(plant, about={**plant.about, "lag": {"late": {"decode": 0.1}, "early": {}}})
    before, after = steps_of(trace, plant), steps_of(trace, booked)
    own = before.predicted_s
    k = int(np.flatnonzero(~before.mixed & (np.diff(before.place, prepend=-2) == 1))[5])
    assert after.predicted_s[k] == pytest.approx(0.9 * own[k] + 0.1 * own[k - 1])
    assert (after.predicted_s[before.mixed] == own[before.mixed]).all()
