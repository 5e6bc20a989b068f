"""The contract of every law: pure, traceable, equal to its compiled form, decodes first; and what anti-windup is for."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers import CONTROLLERS
from headway.controllers.controller import LAW_SIZE, PLANT_AT, Controller, Gain
from headway.controllers.laws import STATE_SIZE, law_init, law_step
from headway.controllers.pi import PILaw
from headway.controllers.updown import UpDownLaw
from headway.models.regimes import RegimePlant
from headway.models.signals import SIGNALS, Measurement

BUDGET_S = 0.025
PLANT = RegimePlant((6e-3, 7e-5, 5e-9, 0.0, 0.0, 0.0), (6.5e-3, 1e-4, 6e-9, 1.5e-5, 5e-10, 5e-4))
REQUIRED: dict[str, dict[str, Any]] = {"static": {"token_budget": 2048.0}, "feedforward": {"plant": PLANT}, "tracker": {"plant": PLANT}}
"""Fields without a default, by law."""
UNPROTECTED = {"static"}
"""Laws that promise nothing to decodes: a start-up flag does not."""

laws = pytest.mark.parametrize("law", [cls(**REQUIRED.get(name, {})) for name, cls in CONTROLLERS.items()], ids=list(CONTROLLERS))


def measurement(row: Any) -> Measurement:
    return Measurement._make(jnp.asarray(x, float) for x in full(row))


def full(row: Any) -> np.ndarray:
    """A measurement of five readings with the sums that go with them."""
    if len(row) == SIGNALS:
        return np.array(row, float)
    _, p, n, _, ready = row
    return np.array([*row, 900.0 * n, 0.5 * p * p, float(p > 0), 950.0 * ready, 0.0], float)


ROWS = [
    (math.nan, 0.0, 0.0, 0.0, 3.0),
    (0.012, 256.0, 3.0, 1.0, 4.0),
    (0.040, 512.0, 4.0, 1.0, 4.0),
    (0.010, 0.0, 4.0, 0.0, 0.0),
    (0.009, 900.0, 0.0, 1.0, 7.0),
    (0.0249, 100.0, 7.0, 0.0, 9.0),
]
"""First step, good, late, not bound, prefill only, close to the budget."""


@st.composite
def drawn_law(draw) -> Controller:
    """Any law with any gains within their stated ranges, cut to what an engine could hold."""
    cls = CONTROLLERS[draw(st.sampled_from(sorted(CONTROLLERS)))]
    law = cls(**REQUIRED.get(cls.law, {}))
    gains = law.gains()
    values = {name: draw(st.floats(g.low, min(g.high, 1e4)), label=name) for name, g in gains.items()}
    if "slope_s_per_token" in values:
        values["slope_s_per_token"] = draw(st.floats(1e-7, 1e-2))
    return dataclasses.replace(law, **values)  # pyright: ignore[reportArgumentType]  # a dataclass by @pytree


step = st.tuples(st.floats(1e-4, 0.2), st.integers(0, 8192), st.integers(0, 256), st.booleans(), st.integers(0, 256))


@laws
def test_the_table_names_each_law_by_its_own_name(law: Controller) -> None:
    assert CONTROLLERS[law.law] is type(law)
    assert [cls.code for cls in CONTROLLERS.values()] == sorted({cls.code for cls in CONTROLLERS.values()})
    assert dataclasses.is_dataclass(law)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(law, next(iter(law.gains())), 0.0)


@laws
def test_init_and_update_are_pure(law: Controller) -> None:
    """The same arguments give the same result, and nothing that was given is changed."""
    state = law.init()
    kept = np.array(state)
    assert np.array_equal(kept, law.init())
    for row in ROWS:
        signals = measurement(row)
        first, second = law.update(state, signals, BUDGET_S), law.update(state, signals, BUDGET_S)
        assert np.array_equal(np.array(first[0]), np.array(second[0]))
        assert float(first[1]) == float(second[1])
        assert np.array_equal(np.array(state), kept)
        state, kept = first[0], np.array(first[0])
        assert np.array(state).shape == np.array(law.init()).shape


@laws
def test_it_compiles_and_gives_the_same(law: Controller) -> None:
    update = jax.jit(lambda law, state, signals: law.update(state, signals, BUDGET_S))
    state, traced = law.init(), law.init()
    for row in ROWS:
        signals = measurement(row)
        state, budget = law.update(state, signals, BUDGET_S)
        traced, compiled = update(law, traced, signals)
        assert np.array(traced) == pytest.approx(np.array(state), rel=1e-12)
        assert float(compiled) == float(budget)


@laws
def test_a_gradient_is_a_law_and_agrees_with_differences(law: Controller) -> None:
    """Of the sum of states over steps without the first, whose time is not known: the budget itself is rounded."""

    def total(law: Any) -> Any:
        state, out = law.init(), 0.0
        for row in ROWS[1:]:
            state, budget = law.update(state, measurement(row), BUDGET_S)
            out = out + (jnp.sum(jnp.asarray(state)) if law.law not in UNPROTECTED else jnp.asarray(budget))
        return out

    slope = jax.grad(total)(jax.tree.map(float, law))
    assert type(slope) is type(law)
    for name, gain in law.gains().items():
        h = 1e-5 * max(abs(gain.value), 1e-6)
        up, down = (float(total(dataclasses.replace(law, **{name: gain.value + x}))) for x in (h, -h))  # pyright: ignore[reportArgumentType]
        assert float(getattr(slope, name)) == pytest.approx((up - down) / (2 * h), rel=1e-4, abs=1e-5 / max(abs(gain.value), 1e-6)), name


@laws
def test_a_batch_of_laws_is_a_sweep(law: Controller) -> None:
    name, gain = next(iter(law.gains().items()))
    values = jnp.linspace(gain.value * 0.5, gain.value, 5)
    batch = dataclasses.replace(law, **{name: values})  # pyright: ignore[reportArgumentType]
    axes = dataclasses.replace(jax.tree.map(lambda _: None, law, is_leaf=lambda x: x is None), **{name: 0})
    signals = measurement(ROWS[2])
    budgets = jax.vmap(lambda one: jnp.asarray(one.update(one.init(), signals, BUDGET_S)[1]), in_axes=(axes,))(batch)
    singles = [dataclasses.replace(law, **{name: float(v)}) for v in values]  # pyright: ignore[reportArgumentType]
    assert np.array(budgets) == pytest.approx([float(one.update(one.init(), signals, BUDGET_S)[1]) for one in singles])


@settings(max_examples=40)
@given(drawn_law(), st.lists(step, min_size=1, max_size=30))
def test_the_compiled_form_equals_the_law(law: Controller, rows: list[Any]) -> None:
    packed, state, compiled = law.pack(), law.init(), np.zeros(STATE_SIZE)
    law_init(packed, compiled)
    for row in [(math.nan, 0, 0, False, 1), *rows]:
        state, budget = law.update(state, measurement(row), BUDGET_S)
        got = law_step(packed, compiled, full(row), BUDGET_S)
        expected = np.array(state)
        assert compiled[: len(expected)] == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert got == float(budget)


@given(drawn_law(), st.lists(step, min_size=1, max_size=30))
def test_decodes_are_served_first_and_the_prefill_stays_within_its_limits(law: Controller, rows: list[Any]) -> None:
    packed, state = law.pack(), np.zeros(STATE_SIZE)
    law_init(packed, state)
    most = getattr(law, "most_tokens", None)
    acted = False
    for row in rows:
        budget = law_step(packed, state, full(row), BUDGET_S)
        acted = acted or (row[2] > 0 and (row[3] or row[0] > BUDGET_S))
        assert math.isfinite(budget)
        assert budget >= 0
        if law.law not in UNPROTECTED:
            assert budget >= row[4]
            assert budget == math.floor(budget) or row[4] == 0
        if most is not None and acted:
            assert budget <= most + row[4]


@given(drawn_law())
def test_a_packed_law_holds_its_code_and_all_gains_in_order(law: Controller) -> None:
    packed, gains = law.pack(), law.gains()
    assert packed.shape == (LAW_SIZE,)
    assert packed[0] == law.code
    assert packed[1 : 1 + len(gains)].tolist() == [g.value for g in gains.values()]
    assert not packed[1 + len(gains) : PLANT_AT].any()
    assert packed[PLANT_AT:].tolist() == (law.plant.pack().tolist() if law.predicts else [0.0] * (LAW_SIZE - PLANT_AT))  # pyright: ignore[reportAttributeAccessIssue]
    law.check()


@laws
def test_gains_are_the_fields_with_units_and_json_values(law: Controller) -> None:
    gains = law.gains()
    assert set(gains) == {f.name for f in dataclasses.fields(law)} - {"plant"}  # pyright: ignore[reportArgumentType]
    for name, gain in gains.items():
        assert isinstance(gain, Gain)
        assert gain.unit
        assert gain.low < gain.high
        assert gain.low <= gain.value <= gain.high, name
        assert getattr(law, name) == gain.value
    assert json.loads(json.dumps({name: list(gain) for name, gain in gains.items()}))
    assert 0 <= law.setpoint_margin < 1


@laws
@pytest.mark.parametrize("wrong", [math.nan, -1.0, 1e12])
def test_check_names_the_gain_its_value_and_its_range(law: Controller, wrong: float) -> None:
    law.check()
    for name, gain in law.gains().items():
        with pytest.raises(ValueError, match=rf"^{name} must be in \[{gain.low:g}, .*\], got {wrong:g}".replace("+", r"\+")):
            dataclasses.replace(law, **{name: wrong}).check()  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("cls", [PILaw, UpDownLaw])
def test_a_margin_in_percent_is_met_with_what_to_write(cls: type[Controller]) -> None:
    with pytest.raises(ValueError, match="margin") as caught:
        cls(margin=25).check()  # pyright: ignore[reportCallIssue]
    assert str(caught.value) == "margin must be in [0, 0.95], got 25; write 0.25 for 25 %"


# --- Windup -----------------------------------------------------------------------------------------------------------

SLOPE, FLOOR_S = 4e-5, 0.008


def closed_loop(
    law: PILaw, load_s: np.ndarray, offered: np.ndarray | None = None, always_bound: bool = False, budget_s: float = BUDGET_S
) -> tuple[np.ndarray, np.ndarray]:
    """The law on y = floor + load + slope u, u what prompts offer at most: (prefill tokens, step times [s])."""
    packed, state = law.pack(), np.zeros(STATE_SIZE)
    law_init(packed, state)
    last = np.array([math.nan, 0.0, 0.0, 0.0, 1.0])
    used, times = [], []
    for k, load in enumerate(load_s):
        wanted = law_step(packed, state, last, budget_s) - 1.0
        u = wanted if offered is None else min(wanted, offered[k])
        y = FLOOR_S + load + SLOPE * u
        bound = always_bound or offered is None or offered[k] >= wanted
        last = np.array([y, u, 1.0, float(bound), 1.0])
        used.append(u)
        times.append(y)
    return np.array(used), np.array(times)


def recovery(times: np.ndarray, since: int, setpoint_s: float) -> int:
    """Steps from `since` until the step time stays within 5 % of the setpoint."""
    outside = np.flatnonzero(np.abs(times[since:] - setpoint_s) > 0.05 * setpoint_s)
    return int(outside[-1]) + 1 if len(outside) else 0


LAW = PILaw(slope_s_per_token=SLOPE, most_tokens=4096.0)
SETPOINT_S = (1 - LAW.margin) * BUDGET_S


def test_case_e42_windup_on_a_saturated_actuator() -> None:
    """For 500 steps the target is out of reach (no prefill at all, and late), then the load halves."""
    load = np.concatenate([np.full(100, 0.004), np.full(500, 0.02), np.full(1500, 0.01)])
    used, times = closed_loop(LAW, load)
    assert (times[400:600] > BUDGET_S).all(), "the target is to be out of reach"
    assert (used[400:600] == 0).all()
    assert recovery(times, 600, SETPOINT_S) <= 20
    _, without = closed_loop(dataclasses.replace(LAW, kt=0.0), load)
    assert recovery(without, 600, SETPOINT_S) > 500, "without back-calculation the integrator remembers the whole outage"


def test_case_e42_windup_in_a_lull() -> None:
    """The other end: for 500 steps few prompts wait, so the budget is not used; then they all come at once."""
    load, offered = np.full(1100, 0.004), np.concatenate([np.full(100, 1e9), np.full(500, 32.0), np.full(500, 1e9)])
    _, times = closed_loop(LAW, load, offered)
    assert recovery(times, 600, SETPOINT_S) <= 20
    assert not (times[600:] > BUDGET_S).any(), "no step is late after the lull"
    blind = dataclasses.replace(LAW, kt=0.0)
    _, without = closed_loop(blind, load, offered, always_bound=True)
    assert recovery(without, 600, SETPOINT_S) > 20
    assert (without[600:] > BUDGET_S).sum() > 10


def test_windup_at_the_law_s_own_limit() -> None:
    """A limit below what the target allows, for long, and then more load: the integrator waits at the limit, not beyond it."""
    load = np.concatenate([np.zeros(500), np.full(500, 0.01)])
    law = dataclasses.replace(LAW, most_tokens=300.0)
    used, times = closed_loop(law, load)
    assert (used[100:500] == 300).all()
    assert recovery(times, 500, SETPOINT_S) <= 20
    _, without = closed_loop(dataclasses.replace(law, kt=0.0), load)
    assert recovery(without, 500, SETPOINT_S) > 40


def test_pi_settles_on_its_setpoint_whatever_the_slope() -> None:
    for factor in (0.5, 1.0, 2.0):
        law = dataclasses.replace(LAW, slope_s_per_token=SLOPE * factor)
        _, times = closed_loop(law, np.full(300, 0.003))
        assert times[200:] == pytest.approx(SETPOINT_S, abs=SLOPE), "to within the one token that rounding takes"


@pytest.mark.parametrize(("before_s", "after_s"), [(0.013, 0.0), (0.0, 0.013)], ids=["up", "down"])
def test_a_step_in_the_load_moves_the_command_by_the_slew_and_no_more(before_s: float, after_s: float) -> None:
    """As long as ki times what is left exceeds (1 + kp) slew, every step is one whole slew; none is ever more."""
    law, slew = dataclasses.replace(LAW, slew_tokens=20.0), 20.0
    load = np.concatenate([np.full(200, before_s), np.full(300, after_s)])
    used, _ = closed_loop(law, load)
    there, here = (SETPOINT_S - FLOOR_S - after_s) / SLOPE, used[200]
    whole = int((abs(there - here) - (1 + law.kp) * slew / law.ki) / slew)
    assert whole >= 8
    moves = np.diff(used)[200:]  # the first step under the new load is measured before the first move
    assert moves[:whole].tolist() == [math.copysign(slew, there - here)] * whole
    assert np.abs(moves).max() <= slew
    assert used[-1] == pytest.approx(there, abs=1.0)
    free, _ = closed_loop(LAW, load)
    assert np.abs(np.diff(free)[200:]).max() > slew, "without a limit it moves faster"


def test_anti_windup_sees_the_command_that_the_slew_left() -> None:
    """Without back-calculation the integral runs on while the command is held to its slew, and then shoots past the budget."""
    load = np.concatenate([np.full(200, 0.012), np.zeros(600)])
    law = dataclasses.replace(LAW, slew_tokens=4.0)
    _, times = closed_loop(law, load)
    _, without = closed_loop(dataclasses.replace(law, kt=0.0), load)
    assert times[200:].max() <= SETPOINT_S * 1.02
    assert without[200:].max() > BUDGET_S


def test_case_e42_windup_with_a_slew_limit() -> None:
    load = np.concatenate([np.full(100, 0.004), np.full(500, 0.02), np.full(1500, 0.01)])
    _, times = closed_loop(dataclasses.replace(LAW, slew_tokens=16.0), load)
    assert recovery(times, 600, SETPOINT_S) <= 20


@given(st.floats(0, 5000), st.floats(1.0, 1e6), st.floats(1e-3, 0.2))
def test_pi_goes_on_from_a_command_in_force_without_a_bump(tokens: float, slew: float, step_time_s: float) -> None:
    """At no error the next command is the one in force; at any error it is within the slew of it."""
    law = dataclasses.replace(LAW, slew_tokens=slew)
    state = law.resume(law.init(), tokens)
    in_force = min(tokens, law.most_tokens)
    _, still = law.update(state, measurement((SETPOINT_S, 100.0, 1.0, 1.0, 1.0)), BUDGET_S)
    assert float(still) - 1 == pytest.approx(math.floor(in_force), abs=1)  # what the setpoint is off by in its last digit
    after, _ = law.update(state, measurement((step_time_s, 100.0, 1.0, 1.0, 1.0)), BUDGET_S)
    assert abs(float(after[1]) - in_force) <= slew * (1 + 1e-12)
