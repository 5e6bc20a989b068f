"""Where a term bends: the threshold of a jump, told by many steps and by few."""

from __future__ import annotations

import numpy as np
import pytest

from headway.identification.structures.bends import _untold
from headway.identification.structures.shapes import _limit


def test_a_jump_that_few_steps_tell_is_not_placed_by_one_of_them() -> None:
    """Four steps between 256 and 512 tokens, a slow one just below: the least error lies at 256, and is no surer than 512."""
    rng = np.random.default_rng(1)
    small, between, large = rng.integers(100, 250, 60), np.array([270, 300, 380, 470]), rng.integers(560, 4000, 120)
    tokens = np.concatenate([small, [262], between, large]).astype(float)
    slow = np.isin(tokens, [262.0])

    def told(limit: float) -> np.ndarray:
        past = np.where(tokens > limit, 0.2, 0.0)
        return np.where(tokens > 512, 0.2, 0.0) + np.where(slow, 0.5, 0.0) + errors - past

    errors = rng.normal(0, 0.02, len(tokens))
    errors[np.isin(tokens, [270, 300, 380, 470])] = [0.11, 0.0, 0.12, 0.15]
    assert np.abs(told(256.0)).mean() < np.abs(told(512.0)).mean(), "by least error alone it is 256"
    assert _limit(tokens, told) == 512.0
    low, high = _untold(tokens, 512.0, told) or (0.0, 0.0)
    assert low <= 262.0, "256 is told no worse, so the interval reaches there"
    assert 512.0 < high < 800.0, "many steps above tell it from a much larger one"


@pytest.mark.parametrize("limit", [192.0, 384.0, 700.0])
def test_a_jump_that_many_steps_tell_stands_where_it_is(limit: float) -> None:
    rng = np.random.default_rng(2)
    tokens = rng.integers(16, 2000, 2000).astype(float)
    errors = rng.normal(0, 0.03, len(tokens))
    found = _limit(tokens, lambda x: np.where(tokens > limit, 0.15, 0.0) - np.where(tokens > x, 0.15, 0.0) + errors)
    assert found == pytest.approx(limit, rel=0.01)
    low, high = _untold(tokens, limit, lambda x: np.where(tokens > limit, 0.15, 0.0) - np.where(tokens > x, 0.15, 0.0) + errors) or (
        0.0,
        0.0,
    )
    assert 0.95 * limit < low <= limit < high < 1.05 * limit


def test_a_threshold_past_all_steps_has_no_interval() -> None:
    tokens = np.array([16.0, 32.0, 64.0])
    assert _untold(tokens, 64.0, lambda _: np.zeros(3)) is None
    assert _untold(tokens, 8.0, lambda _: np.zeros(3)) is None
