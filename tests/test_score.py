"""What a score says of steps that took longer or shorter than the plant says: by how much, and whether they scatter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.cli import main
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.identification.score import score, shift_sentence
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Batch
from tests.synthetic_steps import composed, durations, traced

FPM = "steps/fpm_vllm0201_b300/qwen3-32b_tp{}.fpm_detail.csv"


@pytest.fixture(scope="module")
def plant() -> IdentifiedPlant:
    """Of steps that scatter by 3 %."""
    batch = composed(2000)
    return fit(traced(batch, durations(batch, 0.03)))


def _seen(factor: float, sd: float = 0.03) -> tuple[Batch, np.ndarray]:
    batch = composed(1500, seed=4)
    return batch, factor * durations(batch, sd, seed=4)


@pytest.mark.parametrize(("factor", "said"), [(1.41, "41 % longer"), (0.8, "20 % shorter"), (1.15, "15 % longer")])
def test_a_shift_is_said_with_its_size_and_direction_and_is_no_scatter(plant: IdentifiedPlant, factor: float, said: str) -> None:
    result = score(plant, traced(*_seen(factor)))
    for regime in ("decode", "mixed"):
        shift = result.shift[regime]
        assert shift["value"] == pytest.approx(factor - 1, abs=0.006)
        assert shift["direction"] == said.split()[-1]
        assert shift["coverage90"] == pytest.approx(0.9, abs=0.03)
        assert result.coverage90[regime]["value"] < 0.3
        (text,) = [w for w in result.warnings if f"of the {regime} steps lie where" in w]
        assert f"should: they scatter around a time {said} than the plant says; with that median taken out" in text
        assert "scatter more" not in text
    assert shift_sentence(result.to_json()) == f"decode steps took {said} than the plant says, mixed steps {said}, in the median"
    assert result.to_json()["shift"] == result.shift


def test_scatter_is_no_shift(plant: IdentifiedPlant) -> None:
    result = score(plant, traced(*_seen(1.0, 0.12)))
    said = [w for w in result.warnings if "lie where 90 % should" in w]
    assert len(said) == 2
    assert all(w.endswith("should: they scatter more than the plant says") for w in said)
    assert abs(result.shift["decode"]["value"]) < 0.02
    both = score(plant, traced(*_seen(2.0, 0.12)))
    assert all(w.endswith("lie there: they scatter more as well") for w in both.warnings if "lie where 90 % should" in w)


def test_no_shift_is_said_as_none_and_few_steps_say_nothing(plant: IdentifiedPlant) -> None:
    batch = composed(1500, seed=4)
    exact = np.asarray(plant.plant.step_time_s(batch))
    said = "decode steps took neither longer nor shorter than the plant says, mixed steps neither longer nor shorter, in the median"
    assert shift_sentence(score(plant, traced(batch, exact)).to_json()) == said
    few = score(plant, traced(Batch(*(column[:5] for column in batch)), exact[:5]))
    assert shift_sentence(few.to_json()) == ""
    nothing = score(plant, traced(Batch(*(np.zeros(5),) * 5), np.zeros(5)))
    assert nothing.shift["decode"] == {"value": None, "direction": None, "spread90": None, "coverage90": None}


@pytest.mark.parametrize("size", [1, 2])
def test_another_size_of_the_same_model_is_shifted_in_the_terminal(
    size: int, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "plant.json")
    assert main(["fit", str(shared_data / FPM.format(4)), "--kv-tokens", "200k", "--max-tokens", "2048", "--out", out]) == 0
    capsys.readouterr()
    assert main(["score", out, str(shared_data / FPM.format(size))]) == 0
    said = capsys.readouterr().out
    value = score(fit(read_trace(shared_data / FPM.format(4))), read_trace(shared_data / FPM.format(size))).shift["decode"]["value"]
    assert value > 0.4
    assert f"shift      decode steps took {100 * value:.0f} % longer than the plant says, mixed steps" in said
    assert "they scatter more than the plant says" not in said
    assert f"they scatter around a time {100 * value:.0f} % longer than the plant says" in said
