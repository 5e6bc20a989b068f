"""What a validation asks of the controller beside the best static setting: a tie is no fault, and a wide interval is no excuse."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headway.experiments.checks import no_worse
from headway.experiments.statistics import Estimate

NAN = math.nan


def attained(share: float) -> Any:
    """All that the check reads of a Goodput."""
    return cast(Any, SimpleNamespace(attainment=share))


@pytest.mark.parametrize(
    ("ours", "static", "gain", "ok"),
    [
        (0.95, 0.94, Estimate(0.011, -0.01, 0.03), True),
        (0.95, 0.94, Estimate(0.011, NAN, NAN), True),
        (0.99, 0.99, Estimate(0.0, 0.0, 0.0), True),
        (0.98998, 0.99, Estimate(-0.00002, -0.0003, 0.0004), True),
        (0.985, 0.99, Estimate(-0.005, -0.006, -0.004), False),
        (0.95, 0.97, Estimate(-0.02, -0.3, 0.3), False),
        (0.98998, 0.99, Estimate(-0.00002, NAN, NAN), False),
    ],
    ids=["ahead", "ahead in one run", "equal", "a tie", "surely behind", "behind by more than a tie", "behind in one run"],
)
def test_a_controller_that_ties_with_the_best_static_setting_is_no_worse(ours: float, static: float, gain: Estimate, ok: bool) -> None:
    check = no_worse(attained(ours), attained(static), gain)
    assert check.ok is ok
    assert check.value == pytest.approx(ours - static)
