"""How long outputs last: the estimate against the outputs themselves, the prior, and those that still run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.controllers import StaticLaw
from headway.controllers.admission import look
from headway.controllers.policy import Policy, pack_policy
from headway.controllers.survival import EDGES, WIDTHS, bin_of, learn, reached
from headway.models.signals import Limits
from headway.models.state import ALIVE, OUTLOOK_BINS, RUNNING_IDS, new_state
from headway.models.workload import Workload
from tests.test_admission import LINEAR, TARGET


def survival(ended: list[int], going: list[int], policy: Policy) -> np.ndarray:
    """The probability to reach each bin, after outputs ended and with requests that go on."""
    n = len(ended) + len(going)
    packed = pack_policy(policy, StaticLaw(512.0), (TARGET,), Limits(1 << 40), LINEAR)
    w = Workload(np.zeros(n), np.ones(n), np.ones(n), np.zeros(n, int))
    s = new_state(w, 1, blocks=1 << 30, block_tokens=16)
    e = s.books[0]
    for i, length in enumerate([*ended, *going]):
        s.req[i]["emitted"] = length
    for i in range(len(ended)):
        learn(s.req[i], e)
    s.ids[RUNNING_IDS, : len(going)] = np.arange(len(ended), n)
    e["n_running"] = len(going)
    look(s.req, e, s.ids, packed)
    return e["outlook"][ALIVE]


def test_survival_is_that_of_the_outputs_and_the_prior_fades() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(np.log(300), 0.7, 1500).astype(int) + 1
    found = survival(lengths.tolist(), [], Policy(admission="lookahead", prior_output_tokens=5000.0))
    wanted = np.array([(lengths >= edge).mean() for edge in EDGES])
    assert np.abs(found - wanted).max() < 0.03
    unseen = survival([], [], Policy(admission="lookahead", prior_output_tokens=300.0))
    assert np.interp(301.0, EDGES, unseen) == pytest.approx(0.5, abs=0.01)
    assert (np.diff(unseen) <= 0).all()


def test_those_that_run_on_count_though_only_short_ones_ended() -> None:
    """At the start of a run of equal halves, 10 and 1,000 tokens: those that ended are all short, half still goes on."""
    policy = Policy(admission="lookahead", prior_output_tokens=50.0, prior_requests=0.1)
    blind = survival([10] * 100, [], policy)
    found = survival([10] * 100, [500] * 100, policy)
    assert np.interp(400.0, EDGES, blind) < 0.01
    assert np.interp(400.0, EDGES, found) == pytest.approx(0.5, abs=0.02)


@given(st.floats(0.0, 2e6))
def test_every_length_lies_in_its_bin(tokens: float) -> None:
    j = bin_of(tokens)
    assert 0 <= j <= OUTLOOK_BINS - 2
    assert EDGES[j] <= tokens
    assert tokens < EDGES[j] + WIDTHS[j] or j == OUTLOOK_BINS - 2
    straight = 1 - EDGES / EDGES[-1]
    assert reached(straight, tokens) == pytest.approx(max(1 - tokens / EDGES[-1], straight[-1]), abs=1e-9)
