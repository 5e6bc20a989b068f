"""Gain schedules in training: what can follow the load, what is trained of it, where its slopes come from, and what is kept."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headway.controllers.default import default_candidate
from headway.controllers.fluid.state import Seen
from headway.controllers.simulator import Candidate
from headway.experiments import gain_training
from headway.experiments.baseline import Static
from headway.experiments.checkpoint import Ledger
from headway.experiments.descent import Course
from headway.experiments.free import free_parameters
from headway.experiments.gain_forms import KINDS, NEAR, NetworkForm, TableForm, form_of, gains_of, schedule_of
from headway.experiments.gain_slopes import ScheduleFluid, fluid_slopes, random_slopes, unknown_to_fluid
from headway.experiments.gain_training import BETTER, NO_BETTER, train_schedule, training_key
from headway.experiments.problem import Effort, Problem
from headway.experiments.selection import SCORES, VALUE
from headway.models.generators import Gamma, Synthetic
from headway.models.identified import IdentifiedPlant
from headway.models.lengths import Geometric, LogNormal
from headway.models.noise import Noise
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from tests.small_problems import known
from tests.test_tune_resume import Kept, Killed, Mortal

PLANT = RegimePlant((6e-3, 7e-5, 5e-9, 0.0, 0.0, 0.0), (6.5e-3, 1e-4, 6e-9, 3e-5, 5e-10, 5e-4))
LIMITS = Limits(400_000, 16, max_seqs=256, max_tokens=2048)
TARGETS = (Target(1.0, 0.022),)
EFFORT = Effort(train_seeds=4, heldout_seeds=4, requests=60, iterations=1, gradient="exact")


def noisy() -> IdentifiedPlant:
    rng = np.random.default_rng(0)
    return known(PLANT, LIMITS, Noise(rng.normal(0, 0.05, 500), rng.normal(0, 0.1, 500)))


def problem(rate_rps: float = 14.0, targets: tuple[Target, ...] = TARGETS, **parts) -> Problem:
    n = len(targets)
    source = Synthetic(Gamma(rate_rps, 2.0), (LogNormal(800, 1.0, high=8000),) * n, (Geometric(120),) * n, (1 / n,) * n)
    return Problem(noisy(), source, targets, LIMITS, **parts)


def base(tried: Problem, **policy) -> Candidate:
    found = default_candidate(tried.identified, tried.targets, tried.limits)
    return found._replace(policy=dataclasses.replace(found.policy, **policy))


def test_what_can_follow_the_load_is_what_acts() -> None:
    tried = problem()
    gains = gains_of(base(tried, aging_rate=0.5, chunk_tokens=512.0), LIMITS, TARGETS)
    assert [(g.name, g.start) for g in gains] == [("margin", 0.0), ("aging_rate", 0.5), ("chunk_tokens", 9.0)]
    known = free_parameters(LIMITS, TARGETS)
    assert all((g.low, g.high, g.unit) == known[g.name][1:4] for g in gains)
    for order in ("edf", "fcfs"):  # neither counts a wait
        assert "aging_rate" not in {g.name for g in gains_of(base(tried, order=order, aging_rate=0.5), LIMITS, TARGETS)}
    assert gains_of(Static(512, 64).candidate(), LIMITS, TARGETS) == ()
    two = (Target(1.0, 0.022, name="chat"), Target(5.0, 0.022, name="doc"))
    shared = gains_of(base(problem(targets=two), class_shares=(3.0, 1.0)), LIMITS, two)
    assert [(g.name, g.start) for g in shared[3:]] == [("share.0", 0.75), ("share.1", 0.25)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_form_starts_as_the_constants_and_stays_in_its_box(kind) -> None:
    gains = gains_of(base(problem(), aging_rate=0.5, chunk_tokens=512.0), LIMITS, TARGETS)
    form = form_of(kind, gains)
    start = schedule_of(gains, form.table(form.start))
    start.check()
    assert start.shape == KINDS[kind]
    found = start.at(np.array([0.0, 700.0, 1e6]), np.array([0.0, 0.4, 1.0]), np.array([0.1, 0.5, 0.9]))
    np.testing.assert_allclose(found, np.repeat([[0.0], [0.5], [9.0]], 3, axis=1), atol=1e-12)
    rng = np.random.default_rng(1)
    far = np.clip(form.start + 30 * form.directions(rng, 1)[0], *form.box)
    table = np.asarray(schedule_of(gains, form.table(far)).table)
    for values, gain in zip(table, gains, strict=True):
        assert gain.low - 1e-9 <= values.min() <= values.max() <= gain.high + 1e-9
    assert len(form.start) == len(form.box[0]) == form.directions(rng, 3).shape[1]


def test_a_network_makes_the_table_that_its_function_has_at_the_knots_and_has_a_gradient() -> None:
    gains = gains_of(base(problem()), LIMITS, TARGETS)
    form = NetworkForm(gains, (8, 4, 4))
    rng = np.random.default_rng(2)
    numbers = form.start + 0.05 * rng.standard_normal(len(form.start))
    table = form.table(numbers)
    h, n = form.hidden, len(gains)
    x = np.array([2 * 3 / 7 - 1, 2 * 1 / 3 - 1, 2 * 2 / 3 - 1])  # knot (3, 1, 2)
    hidden = np.tanh(numbers[: 3 * h].reshape(h, 3) @ x + numbers[3 * h : 4 * h])
    offset = numbers[4 * h : 4 * h + n * h].reshape(n, h) @ hidden + numbers[4 * h + n * h :]
    wanted = [np.clip(g.start / g.unit + o, g.low / g.unit, g.high / g.unit) for g, o in zip(gains, offset, strict=True)]
    np.testing.assert_allclose(table[:, 3, 1, 2], wanted, rtol=1e-12)
    pulled = jax.grad(lambda w: form.table(w)[1].sum())(jnp.asarray(numbers))
    moved = np.zeros(len(numbers))
    moved[4 * h + n * h + 1] = 1e-6
    slope = (form.table(numbers + moved)[1].sum() - table[1].sum()) / 1e-6
    assert float(pulled[4 * h + n * h + 1]) == pytest.approx(slope, rel=1e-4, abs=1e-4)


def test_a_knot_s_neighbours_go_along_with_it() -> None:
    form = TableForm(gains_of(base(problem()), LIMITS, TARGETS), (8, 4, 1))
    found = form.directions(np.random.default_rng(3), 4000).reshape(4000, 3, 8, 4)
    assert found.std(axis=0) == pytest.approx(1.0, abs=0.06)
    assert np.corrcoef(found[:, 0, 2, 1], found[:, 0, 3, 1])[0, 1] == pytest.approx(NEAR, abs=0.06)
    assert np.corrcoef(found[:, 0, 2, 1], found[:, 0, 4, 2])[0, 1] == pytest.approx(NEAR**3, abs=0.06)
    assert abs(np.corrcoef(found[:, 0, 2, 1], found[:, 1, 2, 1])[0, 1]) < 0.06


def test_differences_in_random_directions_point_uphill() -> None:
    gains = gains_of(base(problem(), aging_rate=1.0, chunk_tokens=256.0), LIMITS, TARGETS)
    form = TableForm(gains, (8, 1, 1))
    top = form.start + 0.4 * np.repeat([1.0, -1.0, 1.0], 8) * np.tile(np.linspace(0.2, 1, 8), 3)

    def scores(candidates, draws, stretch):
        found = np.zeros((len(candidates), SCORES))
        unit = np.repeat([g.unit for g in gains], 8)
        found[:, VALUE] = [-((np.ravel(c.gains.table) / unit - top) ** 2).sum() for c in candidates]
        return found

    known_ = base(problem())
    slopes = random_slopes(
        SimpleNamespace(scores=scores),  # pyright: ignore[reportArgumentType]  # all that is asked of a problem
        form,
        lambda p: known_._replace(gains=schedule_of(gains, form.table(p))),
        [],
        0,
        Ledger(),
    )
    mean = np.mean([slopes(form.start, np.arange(0)) for _ in range(60)], axis=0)
    uphill = top - form.start
    free = form.start > form.box[0] + 1e-9  # what starts at an end of its box can go one way only
    assert mean[free] @ uphill[free] / np.linalg.norm(mean[free]) / np.linalg.norm(uphill[free]) > 0.7


def test_the_fluid_reads_the_table_where_the_engine_does() -> None:
    tried = problem()
    constant = base(tried, aging_rate=0.5, chunk_tokens=512.0)
    gains = gains_of(constant, LIMITS, TARGETS)
    fluid = ScheduleFluid(tried, constant, gains, tried.draws(EFFORT, heldout=False))
    form = TableForm(gains, (8, 1, 1))
    dtype = fluid.grid.dtype
    flat = fluid.knobs(jnp.asarray(form.table(form.start), dtype), Seen(*(jnp.asarray(x, dtype) for x in (900.0, 30.0, 0.4))))
    for name in ("margin", "aging_rate", "chunk_tokens", "running_limit", "tolerance"):
        assert float(getattr(flat, name)) == pytest.approx(float(getattr(fluid.still, name)), rel=1e-5, abs=1e-6)
    table = form.start.reshape(3, 8).copy()
    table[1] = np.arange(8.0)
    table[2] = np.arange(8.0, 16.0)
    at = lambda tokens: fluid.knobs(  # noqa: E731
        jnp.asarray(table.reshape(3, 8, 1, 1), dtype), Seen(jnp.asarray(tokens, dtype), jnp.asarray(3.0, dtype), jnp.asarray(0.2, dtype))
    )
    for tokens in (0.0, 500.0, 1000.0, 1e7):
        place = min(math.log2(1 + tokens / 500), 7.0)
        assert float(at(tokens).chunk_tokens) == pytest.approx(2.0 ** (0.5 * (8 + place)), rel=1e-5)
        assert float(at(tokens).aging_rate) == pytest.approx(0.25 * place, rel=1e-5)


def test_what_the_fluid_does_not_know_is_named() -> None:
    two = (Target(1.0, 0.022, name="chat"), Target(5.0, 0.022, name="doc"))
    tried = problem(targets=two)
    shared = base(tried, class_shares=(3.0, 1.0))
    draws = tried.draws(EFFORT, heldout=False)
    assert unknown_to_fluid(tried, shared, gains_of(shared, LIMITS, two), draws) == ["class shares", "scheduled shares"]
    assert unknown_to_fluid(tried, base(tried), gains_of(base(tried), LIMITS, two), draws[:2]) == ["fewer than 3 training draws"]


def test_what_cannot_be_trained_is_said() -> None:
    tried = problem()
    constant = base(tried)
    with pytest.raises(ValueError, match="schedule must be one of queued, load, network, got 'queue'"):
        train_schedule(tried, constant, kind="queue", effort=EFFORT)
    gains = gains_of(constant, LIMITS, TARGETS)
    form = form_of("queued", gains)
    scheduled = constant._replace(gains=schedule_of(gains, form.table(form.start)))
    with pytest.raises(ValueError, match="has a gain schedule already"):
        train_schedule(tried, scheduled, effort=EFFORT)


def test_a_static_setting_has_nothing_that_follows_the_load() -> None:
    found = train_schedule(problem(), Static(512, 64).candidate(), effort=EFFORT)
    assert found.verdict == NO_BETTER
    assert found.schedule is None
    assert found.candidate == found.constant
    assert found.slopes == "no gain of this candidate can follow the load"


@pytest.mark.parametrize("kind", KINDS)
def test_training_keeps_the_constants_unless_held_out_seeds_speak_for_the_schedule(kind, monkeypatch) -> None:
    monkeypatch.setattr(gain_training, "ROUGH", Course(2, 0.3, 2, 1))
    tried = problem()
    found = train_schedule(tried, base(tried), kind=kind, effort=EFFORT)
    again = train_schedule(tried, base(tried), kind=kind, effort=EFFORT)
    assert again.to_json() == found.to_json()
    shown = found.to_json()
    assert shown["names"] == ["margin", "aging_rate", "chunk_tokens"]
    assert shown["knots"] == list(KINDS[kind])
    assert shown["slopes"] == "exact differences in random directions, as asked"
    assert found.train[1] >= found.train[0]
    assert found.verdict == (BETTER if found.gain.low > 0 else NO_BETTER)
    assert found.candidate == (found.schedule if found.verdict == BETTER else found.constant)
    assert found.constant.gains is None


@pytest.mark.slow
def test_where_constants_are_bad_a_better_schedule_is_found_whatever_the_gate_says(monkeypatch) -> None:
    monkeypatch.setattr(gain_training, "CONSTANTS", Course(1, 1e-9))
    tried = problem()
    poor = base(tried)
    poor = poor._replace(law=dataclasses.replace(poor.law, margin=0.4))  # pyright: ignore[reportArgumentType]  # by @pytree
    effort = dataclasses.replace(EFFORT, train_seeds=8, heldout_seeds=12, requests=300, gradient="fluid")
    found = train_schedule(tried, poor, effort=effort)
    assert found.admitted is not None
    assert found.slopes == found.admitted.said
    assert found.slopes.startswith("fluid gradient used" if found.admitted.passed else "fluid gradient not used here")
    assert found.verdict == BETTER
    assert found.gain.low > 0.03
    assert found.candidate.gains is not None


@pytest.mark.slow
def test_slopes_of_a_network_are_those_of_its_table_carried_on() -> None:
    tried = problem()
    constant = base(tried, chunk_tokens=512.0)
    gains = gains_of(constant, LIMITS, TARGETS)
    fluid = ScheduleFluid(tried, constant, gains, tried.draws(EFFORT, heldout=False))
    form = form_of("network", gains)
    numbers = form.start + 0.1
    found = fluid_slopes(fluid, form)(numbers, np.arange(1))
    values, slopes = fluid.at(np.asarray(form.table(numbers)), np.arange(1))
    jacobian = np.asarray(jax.jacobian(form.table)(jnp.asarray(numbers)))
    np.testing.assert_allclose(found, np.tensordot(slopes[0], jacobian, 4), rtol=1e-3, atol=1e-6)
    assert np.linalg.norm(found) > 1e-6
    assert 0 <= values[0] <= 1


# after a kill


@pytest.mark.parametrize("answers", [1, 3, 5, 7])
def test_wherever_a_training_dies_it_ends_in_the_same_place(answers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain_training, "ROUGH", Course(2, 0.3, 2, 1))
    tried = problem()
    whole, store = train_schedule(tried, base(tried), effort=EFFORT), Mortal(answers)
    with pytest.raises(Killed):
        train_schedule(tried, base(tried), effort=EFFORT, store=store)
    found = train_schedule(tried, base(tried), effort=EFFORT, store=store)
    assert found.to_json() == {**whole.to_json(), "resumed": answers}
    assert (found.candidate, found.constant, found.schedule) == (whole.candidate, whole.constant, whole.schedule)
    assert store.content is None, "nothing is left to go on with"


def test_answers_to_another_training_are_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain_training, "ROUGH", Course(2, 0.3, 2, 1))
    tried, store = problem(), Mortal(4)
    with pytest.raises(Killed):
        train_schedule(tried, base(tried), kind="load", effort=EFFORT, store=store)
    assert train_schedule(tried, base(tried), effort=EFFORT, store=store).resumed == 0
    ours = base(tried)
    others = [
        training_key(tried, EFFORT, ours, "queued"),
        training_key(tried, EFFORT, ours, "load"),
        training_key(problem(13.0), EFFORT, ours, "queued"),
        training_key(tried, dataclasses.replace(EFFORT, seed=1), ours, "queued"),
        training_key(tried, EFFORT, base(tried, aging_rate=0.7), "queued"),
        training_key(tried, EFFORT, ours._replace(law=dataclasses.replace(ours.law, margin=0.1)), "queued"),  # pyright: ignore[reportArgumentType]
    ]
    assert others[0] == training_key(tried, EFFORT, base(tried), "queued")
    assert len({*others}) == 6


def test_what_the_fluid_has_said_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, store = problem(), Kept()
    constant, draws = base(tried), tried.draws(EFFORT, heldout=False)
    gains, part = gains_of(constant, LIMITS, TARGETS), np.array([2, 0])
    form = form_of("queued", gains)
    said = np.random.default_rng(4).random((2, 1 + len(form.start)))
    monkeypatch.setattr(ScheduleFluid, "_rows", lambda *_: said)
    values, slopes = ScheduleFluid(tried, constant, gains, draws, Ledger("k", store)).at(form.table(form.start), part)
    np.testing.assert_array_equal(values, said[:, 0])
    np.testing.assert_array_equal(slopes, said[:, 1:].reshape(2, len(gains), 8, 1, 1))
    monkeypatch.delattr(ScheduleFluid, "_rows")
    again = ScheduleFluid(tried, constant, gains, draws, Ledger("k", store))
    np.testing.assert_array_equal(again.at(form.table(form.start), part)[1], slopes)
    with pytest.raises(AttributeError):
        again.at(form.table(form.start), part[::-1])


@pytest.mark.slow
def test_a_training_along_the_fluid_goes_on_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain_training, "SMOOTH", Course(3, 0.3, 2, 1))
    monkeypatch.setattr(gain_training, "ROUGH", Course(3, 0.3, 2, 1))
    tried, effort = problem(), dataclasses.replace(EFFORT, gradient="fluid")
    whole = train_schedule(tried, base(tried), effort=effort)
    assert whole.admitted is not None
    for answers in (3, 4, 5, 8):  # the gate asks the fluid, then the simulator
        store = Mortal(answers)
        with pytest.raises(Killed):
            train_schedule(tried, base(tried), effort=effort, store=store)
        found = train_schedule(tried, base(tried), effort=effort, store=store)
        assert found.to_json() == {**whole.to_json(), "resumed": answers}
