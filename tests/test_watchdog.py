"""The watchdog: when the fallback is called, what it commands, how the law comes back; and storms of faults over all of it."""

from __future__ import annotations

import dataclasses
import itertools
import logging

import pytest

from headway.controllers.guard import Guard
from headway.controllers.pi import PILaw
from headway.controllers.static import StaticLaw
from headway.controllers.updown import UpDownLaw
from headway.engines import runtime_guard
from headway.engines.runtime_guard import KINDS
from headway.engines.storm import FAULTS, storm
from headway.models.regimes import AffinePlant
from tests.guarded_loops import BUDGET_S, PLANTS, Loop, laws, record


def slowed(loop: Loop, steps: int, slow: float) -> list[bool]:
    """Whether the fallback is in force after each step."""
    found = []
    for _ in range(steps):
        loop.step(slow=slow)
        found.append(loop.run.reverted)
    return found


def test_the_watchdog_reverts_after_20_late_steps_in_50_says_so_once_and_returns_after_a_clean_window(caplog) -> None:
    """An up/down law that does not cut is no controller: the fallback is what saves the step time."""
    law = UpDownLaw(margin=0.0, down=1.0, up_tokens=4.0, initial_tokens=600.0)
    loop = Loop(law, dataclasses.replace(Guard(), fallback_tokens=200.0))
    with caplog.at_level(logging.INFO, "headway_runtime"):
        found = slowed(loop, 400, 1.0)
    first = found.index(True)
    assert first < 200
    budgets_tokens = loop.run.guard.prefill + loop.n
    assert budgets_tokens <= 200 or not found[-1]
    returned = found.index(False, first)
    assert returned - first == 50, "a window of 50 steps without a late one"
    warnings = [r for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == loop.run.counts["fallback"] == sum(b and not a for a, b in zip([False, *found], found, strict=False))
    assert "20 late steps in a window of 50: reverted to the fallback" in warnings[0].getMessage()
    assert "law updown is back" in next(r.getMessage() for r in caplog.records if r.levelname == "INFO")


def test_the_return_from_the_fallback_is_without_a_bump() -> None:
    law = UpDownLaw(margin=0.0, down=1.0, up_tokens=4.0, initial_tokens=600.0)
    loop = Loop(law, dataclasses.replace(Guard(), fallback_tokens=200.0))
    budgets, found = [], []
    for _ in range(200):
        budgets.append(loop.step())
        found.append(loop.run.reverted)
    first = found.index(True)
    returned = found.index(False, first)
    assert max(budgets[first:returned]) <= 200
    assert abs(budgets[returned] - budgets[returned - 1]) <= 4, "it goes on from the command in force"


def test_without_a_declared_fallback_it_is_the_last_budget_that_was_on_time_and_a_late_one_is_halved() -> None:
    law = UpDownLaw(margin=0.0, down=1.0, up_tokens=40.0, initial_tokens=200.0)
    loop = Loop(law)
    safe = 0.0
    while not loop.run.reverted:
        on_time = loop.run.guard.prefill
        loop.step()
        if float(loop.reading["step_time_s"]) <= BUDGET_S:
            safe = on_time
        assert loop.k < 200
    assert loop.run.guard.cap == safe
    assert loop.budget == safe + loop.n
    caps = [loop.run.guard.cap]
    for _ in range(100):
        loop.step(slow=3.0)
        if loop.run.guard.cap != caps[-1]:
            caps.append(loop.run.guard.cap)
    assert all(b == a // 2 for a, b in itertools.pairwise(caps))
    assert len(caps) > 3


def test_the_fallback_never_raises_what_is_in_force() -> None:
    loop = Loop(law := PILaw(slope_s_per_token=2e-5), dataclasses.replace(Guard(), late_steps=5.0, fallback_tokens=4000.0))
    last = loop.budget
    for k in range(200):
        before = loop.run.reverted
        budget = loop.step(slow=1.0 if k < 100 else 1.0 + 0.02 * (k - 100))
        if loop.run.reverted:
            assert budget <= last or before
        last = budget
    assert loop.run.counts["fallback"] >= 1
    assert law.margin > 0


def test_a_static_law_has_no_watchdog() -> None:
    loop = Loop(StaticLaw(4096.0))
    assert {loop.step() for _ in range(100)} == {4096}
    assert loop.run.counts["fallback"] == 0


@pytest.mark.parametrize("name", ["pi", "tracker"])
def test_20_000_steps_of_every_fault_break_nothing(name: str) -> None:
    law = laws(PLANTS["curved"])[name]
    found = storm(
        record(law, PLANTS["curved"], tuning={"best_static": {"settings": {"token_budget": 512, "running_limit": 64}}}), 20_000, 5
    )
    assert (found.raised, found.outside, found.risen) == (0, 0, 0)
    assert all(found.injected[fault] > 50 for fault in (*FAULTS, "double", "disobeyed"))
    seen = [kind for kind in KINDS if kind != "sums" or law.predicts]
    assert all(found.faults[kind] > 10 for kind in seen), found.faults


def test_the_storm_sees_a_guard_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_guard.Guard, "hold", lambda self, u, ready: self.command(self.held + 8.0 + ready))
    found = storm(record(PILaw(slope_s_per_token=2e-5), AffinePlant((0.006, 6e-5, 5e-9, 1.5e-5, 0.0, 0.0))), 2000, 1)
    assert found.risen > 100
    assert found.raised == found.outside == 0
