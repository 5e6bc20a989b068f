"""What a validation asks of the controller: no worse than static but for what tuning gives up, a queue that holds, and all that was required."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate
from headway.controllers.static import StaticLaw
from headway.experiments.checks import no_worse, queue_held, required
from headway.experiments.constraints import Requirement, asked_again, found_in, kept_json
from headway.experiments.contest import outgrown
from headway.experiments.validate import requiring, validate_on_plant
from headway.models.goodput import REJECTED
from headway.models.signals import Target
from tests.small_problems import known
from tests.test_metrics_cases import LIMITS, SLOW, Even, carried

LATE = (Target(1e3, 0.2),)
"""A time to the first token that no run here exceeds."""


def attained(share: float) -> Any:
    """All that the check reads of a Goodput."""
    return cast(Any, SimpleNamespace(attainment=share))


@pytest.mark.parametrize(
    ("ours", "static", "ok"),
    [(0.95, 0.94, True), (0.99, 0.99, True), (0.98998, 0.99, True), (0.985, 0.99, True), (0.975, 0.99, False)],
    ids=["ahead", "equal", "behind by a hair", "behind by what tuning may give up", "behind"],
)
def test_a_controller_may_lag_the_best_static_setting_by_what_tuning_gives_up(ours: float, static: float, ok: bool) -> None:
    check = no_worse(attained(ours), attained(static))
    assert check.ok is ok
    assert check.value == pytest.approx(ours - static)


def test_a_queue_that_grows_all_through_the_runs_is_no_promise_kept() -> None:
    growing, held = (queue_held(carried(rate)[1]) for rate in (12.4, 8.0))
    assert (growing.ok, held.ok) == (False, True)
    assert growing.value == pytest.approx(2.4 / 12.4, abs=0.02), "of 12.4 that arrive 10 are served"
    assert held.value == pytest.approx(0.0, abs=0.01)
    assert queue_held(carried(12.4, triage="timeout")[1]).ok, "who was shed does not wait"


def test_a_controller_whose_queue_grows_is_said_with_the_requests_that_show_it() -> None:
    _, growing = carried(12.4)
    assert outgrown(growing, (Target(1.0, 0.2), Target(20.0, 0.2))) == [
        "the controller's queue grows for as long as its runs of 48.3 s last, so a longer run attains less: --requests 2500 shows how much"
    ]
    assert outgrown(growing, (Target(1.0, 0.2),))[0].endswith("--requests 1200 shows how much"), "twice as many at least"
    assert outgrown(carried(8.0)[1], (Target(1.0, 0.2),)) == []


ASKED = (Requirement("shed", 0.02), Requirement("class", 0.95, "default"), Requirement("ttft_p99", 0.5), Requirement("clean", 0.5))


def test_what_was_required_comes_back_from_the_record_as_it_was_asked() -> None:
    kept = json.loads(json.dumps(kept_json(ASKED, dict.fromkeys(ASKED, 0.5))))
    assert asked_again(kept) == ASKED
    for bad in (5, [5], [{"name": "shed"}], [{"name": 5, "bound": 0.1}], [{"name": "shed", "bound": "x"}]):
        with pytest.raises(ValueError, match=r"tuning\.required is no list of requirements"):
            asked_again(cast(Any, bad))


def test_what_was_required_is_measured_in_the_runs() -> None:
    runs = carried(12.4, triage="timeout")[1]
    found = found_in(ASKED, runs, (Target(1.0, 0.2),))
    shed = sum(int((o.status >= REJECTED).sum()) for o in runs) / sum(len(o.status) for o in runs)
    assert found[ASKED[0]] == pytest.approx(shed)
    assert found[ASKED[1]] == pytest.approx(sum(o.on_time.sum() for o in runs) / sum(o.owed.sum() for o in runs))
    assert found[ASKED[3]] == pytest.approx(found[ASKED[1]]), "of one token each"
    checks = required(ASKED, runs, (Target(1.0, 0.2),))
    assert [(c.name, c.ok, c.part) for c in checks] == [
        ("required shed", False, "target"),
        ("required class.default", False, "target"),
        ("required ttft_p99", False, "target"),
        ("required clean", False, "target"),
    ]
    assert (checks[0].bar, checks[1].bar, checks[2].bar, checks[2].unit) == ("at most 2 %", "at least 95 %", "at most 500 ms", "s")


def test_a_validation_is_not_met_where_the_queue_grows_or_a_requirement_is_missed() -> None:
    plant, stock = known(SLOW, LIMITS), Candidate(StaticLaw(100.0), Policy(order="fcfs", triage="none"))

    def outcome(rate_rps: float, *require: Requirement) -> tuple[str, bool]:
        found = validate_on_plant((stock, stock), plant, plant, Even(rate_rps), LATE, LIMITS, requests=200, runs=2)
        found = requiring(found, require)
        return found.outcome, found.target_reached

    assert outcome(8.0) == ("met", True)
    assert outcome(8.0, Requirement("shed", 0.02)) == ("met", True)
    assert outcome(8.0, Requirement("ttft_p99", 0.05)) == ("not met", False), "a step alone takes 100 ms"
    assert outcome(12.4) == ("not met", False), "all in time so far, and the queue grows"
