"""Several searches at once: the best of them in training is kept, whoever ran them."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from headway.experiments.starts import tune_from
from headway.experiments.tune import Effort, Problem, tune
from tests.test_pareto import small

EFFORT = Effort(train_seeds=2, heldout_seeds=2, requests=40, sobol=2, starts=1, iterations=1)


def posed() -> Problem:
    p = small()
    return Problem(p.identified, p.source, p.targets, p.limits)


def test_the_search_that_did_best_in_training_is_kept() -> None:
    found = tune_from(posed(), EFFORT, 2, free=("margin",), workers=1)
    alone = [tune(posed(), dataclasses.replace(EFFORT, seed=k), free=("margin",)) for k in range(2)]
    train = posed().draws(EFFORT, heldout=False)
    scores = posed().scores([t.tuned.candidate for t in alone], train)[:, 0]
    assert found.seeds == (0, 1)
    assert found.trained == pytest.approx(scores)
    assert json.dumps(found.tuned.tuned.to_json()) == json.dumps(alone[found.chosen].tuned.to_json())
    assert found.trained[found.chosen] >= found.trained.max() - 0.01, "or nearly, and with more clean requests"
    low, high = 100 * np.min(scores), 100 * np.max(scores)
    assert found.sentence() == f"2 searches ended between {low:.2f} and {high:.2f} % in training; that of seed {found.chosen} is kept"


def test_no_search_is_refused_and_so_is_what_tune_refuses() -> None:
    with pytest.raises(ValueError, match=r"^searches must be at least 1, got 0$"):
        tune_from(posed(), EFFORT, 0)
    with pytest.raises(ValueError, match=r"^cannot tune \['speed'\]; known: margin, "):
        tune_from(posed(), EFFORT, 1, free=("speed",), workers=1)


@pytest.mark.slow
def test_on_two_processes_it_is_the_same() -> None:
    one, two = (tune_from(posed(), EFFORT, 2, free=("margin",), workers=n) for n in (1, 2))
    assert json.dumps(one.tuned.tuned.to_json()) == json.dumps(two.tuned.tuned.to_json())
    assert one.trained.tolist() == two.trained.tolist()
