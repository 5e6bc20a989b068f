"""What tuning may move: names, bounds, the way to a candidate and back, and what is refused because it cannot act."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.controllers import PILaw, TrackerLaw
from headway.controllers.default import default_candidate
from headway.controllers.policy import ORDERS, PHASES, TRIAGES, Policy, pack_policy
from headway.controllers.record import POLICY_UNITS
from headway.controllers.simulator import Candidate
from headway.experiments.free import PER_CLASS, free_parameters, needs
from headway.experiments.space import ALWAYS, EVERY, Space
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from tests.small_problems import known

PLANT = RegimePlant((6e-3, 7e-5, 5e-9, 0.0, 0.0, 0.0), (6.5e-3, 1e-4, 6e-9, 3e-5, 5e-10, 5e-4))
LIMITS = Limits(30_000, 16, max_seqs=64, max_tokens=2048)
TARGETS = (Target(0.8, 0.022, name="chat"), Target(4.0, 0.1, name="batch"))
STOCK_SET = ["margin", "late_rate", "aging_rate", "chunk_tokens", "running_limit", "least_tokens", "most_tokens", "tolerance", "estimate"]


def start(**fields: object) -> Candidate:
    """The controller straight from the fit, with another policy; stock order has no price of memory."""
    base = default_candidate(known(PLANT, LIMITS), TARGETS, LIMITS, policy={"memory_price_s": 0.0} if fields.get("order") == "fcfs" else {})
    return base._replace(policy=dataclasses.replace(base.policy, **fields))  # pyright: ignore[reportArgumentType]


def names(space: Space) -> list[str]:
    return [f.name for f in space.free]


def test_a_candidate_inside_the_box_comes_back_from_its_point() -> None:
    law = PILaw(margin=0.15, kp=0.1, ki=0.15, most_tokens=1024.0)
    policy = Policy(aging_rate=0.5, chunk_tokens=256.0, running_limit=32.0, tolerance=-0.2, estimate=0.75)
    space = Space(Candidate(law, policy), LIMITS)
    back = space.candidate(space.point(space.base))
    assert {n: g.value for n, g in back.law.gains().items()} == pytest.approx({n: g.value for n, g in law.gains().items()})
    assert (back.policy.order, back.policy.triage) == (policy.order, policy.triage)
    for name in POLICY_UNITS:
        assert getattr(back.policy, name) == pytest.approx(getattr(policy, name), abs=1e-12), name


@given(
    prefill=st.sampled_from([0, 1, 2, 5, 64, 127]),
    decode=st.sampled_from([0, 1, 3, 100]),
    stride=st.floats(0, 1),
    price=st.floats(0, 0.03),
    shares=st.tuples(st.floats(0.07, 15), st.floats(0.07, 15)),
    priorities=st.tuples(st.floats(0, 7), st.floats(0, 7)),
    degrade=st.floats(1, 8),
)
def test_so_does_one_with_every_part_on(
    prefill: int, decode: int, stride: float, price: float, shares: tuple, priorities: tuple, degrade: float
) -> None:
    policy = Policy(
        triage="degrade",
        degrade=degrade,
        admission="lookahead",
        prefill_every=float(prefill),
        decode_every=float(decode),
        stride=stride,
        memory_price_s=price,
        class_shares=shares,
        priority_s=priorities,
    )
    space = Space(Candidate(PILaw(), policy), LIMITS, (EVERY,), TARGETS)
    back = space.candidate(space.point(space.base)).policy
    for f in dataclasses.fields(Policy):  # pyright: ignore[reportArgumentType]
        value = getattr(policy, f.name)
        if f.name == "chunk_tokens":
            assert back.chunk_tokens == LIMITS.max_tokens, "no cap is the loose end of the axis"
        elif f.name == "running_limit":
            assert back.running_limit == LIMITS.max_seqs
        else:
            expected = value if isinstance(value, str) else pytest.approx(value, rel=1e-9, abs=1e-12)  # tolerances stay one number
            assert getattr(back, f.name) == expected, f.name


@given(st.lists(st.floats(-200, 200), min_size=40, max_size=40), st.sampled_from(ORDERS), st.sampled_from(TRIAGES), st.sampled_from(PHASES))
def test_every_point_is_a_candidate_inside_its_bounds(point: list[float], order: str, triage: str, phases: str) -> None:
    if order == "fcfs":
        triage, phases = ("none" if triage in ("defer", "degrade") else triage), "mixed"
    space = Space(start(order=order, triage=triage, phases=phases, admission="lookahead"), LIMITS, (EVERY,), TARGETS)
    law, policy, _ = space.candidate(np.array(point[: len(space.free)]))
    law.check()
    policy.check()
    pack_policy(policy, law, TARGETS, LIMITS, PLANT)
    assert policy.running_limit <= LIMITS.max_seqs
    assert max(policy.chunk_tokens, law.gains()["most_tokens"].value) <= LIMITS.max_tokens
    for steps in (policy.prefill_every, policy.decode_every, policy.lookahead_steps, policy.prior_output_tokens):
        assert steps == round(steps), "steps and tokens are whole"
    again = space.candidate(space.point(Candidate(law, policy)))
    assert space.values(space.point(again)) == pytest.approx(space.values(space.point(Candidate(law, policy))))


def test_margin_and_aging_are_always_free_and_nothing_else_that_was_not_named() -> None:
    base = start()
    space = Space(base, LIMITS, ("late_rate",), TARGETS)
    assert names(space) == ["margin", "late_rate", "aging_rate"]
    law, policy, _ = space.candidate(space.high)
    assert dataclasses.replace(policy, aging_rate=base.policy.aging_rate) == base.policy
    assert {n for n, g in law.gains().items() if g != base.law.gains()[n]} == {"margin", "late_rate"}
    assert set(ALWAYS) <= set(names(Space(base, LIMITS, ())))


def test_without_names_a_part_that_is_off_stays_off_and_one_that_is_on_is_searched() -> None:
    assert names(Space(start(), LIMITS, targets=TARGETS)) == [*STOCK_SET, "memory_price_s"]
    assert names(Space(start(memory_price_s=0.0), LIMITS, targets=TARGETS)) == STOCK_SET
    assert "least_tokens" not in names(Space(start()._replace(law=TrackerLaw(PLANT)), LIMITS))
    assert names(Space(start(stride=0.3, priority_s=(1.0, 0.0)), LIMITS, targets=TARGETS)) == [
        *STOCK_SET,
        "stride",
        "memory_price_s",
        "priority.chat",
        "priority.batch",
    ]
    assert "degrade" in names(Space(start(triage="degrade"), LIMITS))
    assert {"timeout", "estimate"} <= set(names(Space(start(triage="timeout"), LIMITS)))
    assert "tolerance" not in names(Space(start(triage="timeout"), LIMITS))
    every = set(names(Space(start(), LIMITS, (EVERY,), TARGETS)))
    assert every == {
        *STOCK_SET,
        *("prefill_every", "decode_every", "stride", "memory_price_s"),
        *("share.chat", "share.batch", "priority.chat", "priority.batch"),
        *("tolerance.chat", "tolerance.batch", "estimate.chat", "estimate.batch", "shed_cap"),
    } - {"tolerance", "estimate"}


def test_every_number_of_a_policy_has_a_name_and_every_name_is_of_law_or_policy() -> None:
    parts = {name.partition(".")[0] for name in free_parameters(LIMITS, TARGETS)}
    fields = {PER_CLASS[part][0] if part in PER_CLASS else part for part in parts}
    numbers = {f.name for f in dataclasses.fields(Policy) if not isinstance(getattr(Policy(), f.name), str)}  # pyright: ignore[reportArgumentType]
    laws = {name for law in (PILaw(), TrackerLaw(PLANT)) for name in law.gains()}
    assert numbers <= fields <= numbers | laws
    for f in free_parameters(Limits(100, max_seqs=1, max_tokens=1, max_len=1), TARGETS).values():
        assert f.low <= f.high
        assert f.unit > 0


def test_one_class_is_named_and_the_others_keep_what_they_have() -> None:
    space = Space(start(class_shares=(3.0, 1.0)), LIMITS, ("share.batch", "priority.chat"), TARGETS)
    policy = space.candidate(space.high).policy
    assert policy.class_shares == (3.0, 16.0)
    assert policy.priority_s == (2 * 4.0, 0.0)
    fresh = Space(start(), LIMITS, ("share.batch",), TARGETS)
    assert fresh.candidate(fresh.point(fresh.base)).policy.class_shares == (1.0, 1.0), "switched on by its name, from equal shares"
    assert fresh.candidate(fresh.low).policy.class_shares == (1.0, 1 / 16)


def test_a_tolerance_may_be_one_for_all_or_each_class_its_own() -> None:
    one = Space(start(tolerance=-0.2), LIMITS, ("tolerance", "tolerance.batch"), TARGETS)
    assert names(one) == ["margin", "aging_rate", "tolerance", "tolerance.batch"]
    assert one.candidate(one.high).policy.tolerance == pytest.approx(0.4)
    point = one.point(one.base)
    assert one.candidate(point).policy.tolerance == pytest.approx(-0.2)
    point[-1] = one.high[-1]
    apart = one.candidate(point)
    assert apart.policy.tolerance == pytest.approx((-0.2, 0.4))
    assert one.point(apart) == pytest.approx(point)
    split = start(tolerance=(-0.2, 0.1), estimate=(0.5, 1.0))
    assert names(Space(split, LIMITS, targets=TARGETS))[-4:] == ["tolerance.chat", "tolerance.batch", "estimate.chat", "estimate.batch"]
    with pytest.raises(ValueError, match=r"cannot tune tolerance: it acts only with one tolerance for all classes"):
        Space(split, LIMITS, ("tolerance",), TARGETS)
    with pytest.raises(ValueError, match=r"cannot tune estimate: every class's own is tuned already; leave estimate out"):
        Space(start(), LIMITS, ("estimate", "estimate.chat", "estimate.batch"), TARGETS)


def test_the_loose_end_of_a_bound_is_off() -> None:
    space = Space(start(), LIMITS, ("prefill_every", "decode_every"))
    loose, tight = space.candidate(space.high).policy, space.candidate(space.low).policy
    assert (loose.prefill_every, loose.decode_every) == (0.0, 0.0)
    assert (tight.prefill_every, tight.decode_every) == (1.0, 1.0)
    assert space.values(space.high) == space.values(space.high + 1)
    no_cap = Space(Candidate(PILaw(), Policy(chunk_tokens=0.0)), LIMITS)
    assert no_cap.candidate(no_cap.point(no_cap.base)).policy.chunk_tokens in (0.0, LIMITS.max_tokens)


@pytest.mark.parametrize(
    ("fields", "name", "message"),
    [
        ({}, "timeout", "cannot tune timeout: it acts only with triage=timeout; switch that on with --policy, or leave timeout out"),
        ({}, "degrade", "cannot tune degrade: it acts only with triage=degrade"),
        ({}, "lookahead_z", "cannot tune lookahead_z: it acts only with admission=lookahead"),
        ({}, "kp", "cannot tune kp: the law that is tuned has no kp; leave it out"),
        ({"triage": "timeout"}, "tolerance", "cannot tune tolerance: it acts only with triage=reject"),
        ({"order": "fcfs"}, "stride", "cannot tune stride: it acts only with order=slack or order=edf"),
        ({"order": "fcfs"}, "priority.chat", "cannot tune priority.chat: it acts only with order=slack or order=edf"),
        ({"phases": "prefill_first"}, "prefill_every", "cannot tune prefill_every: it acts only with phases=mixed or phases=decode_first"),
        ({"phases": "decode_first"}, "decode_every", "cannot tune decode_every: it acts only with phases=mixed or phases=prefill_first"),
        ({}, "share.voice", "cannot tune ['share.voice']; known: margin, late_rate"),
    ],
)
def test_case_e4_a_number_that_cannot_act_is_refused_in_one_line(fields: dict, name: str, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)) as caught:
        Space(start(**fields), LIMITS, ("margin", name), TARGETS)
    assert "\n" not in str(caught.value)


def test_case_e4_shares_of_one_class_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^cannot tune share\.chat: numbers per class act between classes; give --target"):
        Space(start(), LIMITS, ("share.chat",), TARGETS[:1])


@pytest.mark.parametrize("order", ["edf", "fcfs"])
def test_case_e4_aging_that_cannot_act_stays_free_and_is_reported(order: str) -> None:
    space = Space(start(order=order), LIMITS, ())
    assert names(space) == ["margin", "aging_rate"]
    assert space.notes == ["aging_rate is searched, but cannot act without order=slack"]
    assert Space(start(), LIMITS, ()).notes == []


@given(st.sampled_from(ORDERS), st.sampled_from(TRIAGES), st.sampled_from(PHASES), st.sampled_from(["none", "lookahead"]))
def test_what_a_number_needs_is_enough_for_it_to_be_offered(order: str, triage: str, phases: str, admission: str) -> None:
    base = start(order=order, triage=triage, phases=phases, admission=admission)
    offered = set(names(Space(base, LIMITS, (EVERY,), TARGETS))) - set(ALWAYS)
    each_its_own = {"tolerance", "estimate"}  # of all: where everything is free, every class has its own
    assert offered == {n for n in free_parameters(LIMITS, TARGETS) if not needs(n, base)} - set(ALWAYS) - each_its_own
