"""Where a term bends: the threshold of a jump, told by many steps and by few."""

from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize("limit", [192.0, 384.0, 700.0])
def test_a_jump_that_many_steps_tell_stands_where_it_is(limit: float) -> None:
    rng = np.random.default_rng(2)
    tokens = rng.integers(16, 2000, 2000).astype(float)
    errors = rng.normal(0, 0.03, len(tokens))
    found = _limit(tokens, lambda x: np.where(tokens > limit, 0.15, 0.0) - np.where(tokens > x, 0.15, 0.0) + errors)
    assert found == pytest.approx(limit, rel=0.01)
