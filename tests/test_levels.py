"""At which level a promise is made: closed forms against counted sequences, and what is asked for against what comes out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.identification.readers.errors import TraceError
from headway.loads import open_load
from headway.models.goodput import CLEAN_SHARE, tokens_owed
from headway.models.levels import EXACT_TOKENS, Lateness, _at_most, lateness, levels, levels_of, token_epsilon
from headway.models.signals import LEVELS, Target
from headway.models.workload import Workload
from headway.targets import parse_target

ITL_S = 0.025


def sequences(n: int, requests: int, share: float, correlation: float, seed: int = 0) -> np.ndarray:
    """Which gaps of each request are late: two-state chains, shape (requests, n)."""
    rng = np.random.default_rng(seed)
    late = np.zeros((requests, n), bool)
    late[:, 0] = rng.random(requests) < share
    for k in range(1, n):
        chance = np.where(late[:, k - 1], share + correlation * (1 - share), share * (1 - correlation))
        late[:, k] = rng.random(requests) < chance
    return late


def test_the_figures_of_the_design() -> None:
    per_token = levels(0.01, "token", [150])
    assert per_token.request_no_late == pytest.approx(0.99**150)  # 22 % of the requests
    assert per_token.itl_quantile == pytest.approx(0.99)
    per_request = levels(0.1, "request", [150])
    assert per_request.token_no_late == pytest.approx(1 - 0.9 ** (1 / 150), rel=1e-9)  # .07 %
    assert per_request.request_clean == pytest.approx(0.9, abs=1e-9)
    p = per_request.token  # one late token of 150 is allowed: the binomial's first two terms
    assert (1 - p) ** 150 + 150 * p * (1 - p) ** 149 == pytest.approx(0.9, abs=1e-9)
    assert p > 5 * per_request.token_no_late


@pytest.mark.parametrize(("n", "correlation", "owed"), [(60, 0.0, 1), (150, 0.0, 1), (150, 0.6, 1), (400, 0.9, 1), (400, 0.3, 3)])
def test_a_request_is_clean_as_often_as_counted(n: int, correlation: float, owed: int) -> None:
    requests, share = 40_000, 0.006
    late = sequences(n, requests, share, correlation)
    gaps = np.where(late, ITL_S * (owed + 0.5), ITL_S / 2)
    owes = np.where(late, float(tokens_owed(ITL_S * (owed + 0.5), ITL_S)), 1.0)
    on_time = (~late).sum(axis=1)
    clean = on_time >= CLEAN_SHARE * owes.sum(axis=1) - 1e-9
    found = levels(share, "p99_itl", [n], late=Lateness(correlation=correlation, owed_per_late=owed))
    sure = 4 / math.sqrt(requests) / 2
    assert found.request_clean == pytest.approx(clean.mean(), abs=sure)
    assert found.request_no_late == pytest.approx((~late.any(axis=1)).mean(), abs=sure)
    assert found.token == pytest.approx(1 - on_time.sum() / owes.sum(), rel=0.05)
    seen = lateness(gaps.ravel(), ITL_S, request=np.repeat(np.arange(requests), n))
    assert seen.gap == pytest.approx(share, rel=0.05)
    assert seen.correlation == pytest.approx(correlation, abs=0.02)
    assert seen.owed_per_late == owed


@settings(max_examples=60)
@given(
    epsilon=st.floats(0.001, 0.5),
    level=st.sampled_from(LEVELS),
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=8),
    correlation=st.floats(0.0, 0.95),
    owed=st.floats(1.0, 10.0),
)
def test_every_level_leads_back_to_itself(epsilon: float, level: str, lengths: list[int], correlation: float, owed: float) -> None:
    late = Lateness(correlation=correlation, owed_per_late=owed)
    found = levels(epsilon, level, lengths, late=late)
    back = {"token": found.token, "request": 1 - found.request_clean, "p99_itl": found.gap}
    assert back[level] == pytest.approx(epsilon, rel=1e-6, abs=1e-9)
    if 0 < found.token < 1:
        assert levels(found.token, "token", lengths, late=late).gap == pytest.approx(found.gap, rel=1e-6)
    assert found.gap <= found.token + 1e-12
    assert found.request_no_late <= found.request_clean + 1e-9
    stricter = levels(epsilon / 2, level, lengths, late=late)
    assert stricter.token < found.token
    assert stricter.request_clean >= found.request_clean - 1e-9


def test_runs_of_late_tokens_spare_requests_but_not_always_clean_ones() -> None:
    none = [levels(0.01, "token", [150], late=Lateness(correlation=rho)).request_no_late for rho in (0.0, 0.3, 0.6, 0.9)]
    assert none == sorted(none)
    left = {rho: levels(0.1, "request", [150], late=Lateness(correlation=rho)).token for rho in (0.0, 0.5, 0.9)}
    assert left[0.5] < 0.8 * left[0.0]  # taken as independent, the promise would be missed
    assert left[0.9] > left[0.0]


def test_long_outputs_are_no_step_away_from_counted_ones() -> None:
    lengths = np.array([EXACT_TOKENS, EXACT_TOKENS + 100.0])
    for correlation in (0.0, 0.5):
        counted, normal = _at_most(lengths, np.floor(0.01 * lengths), 0.0095, correlation)
        assert counted == pytest.approx(normal, abs=0.02)


def test_mixed_lengths_are_weighed_by_requests() -> None:
    both = levels(0.004, "token", [50, 50, 50, 1000])
    each = [levels(0.004, "token", [n]).request_clean for n in (50, 1000)]
    assert both.request_clean == pytest.approx(0.75 * each[0] + 0.25 * each[1])
    many = np.random.default_rng(0).lognormal(6, 1, 20_000).round().clip(1)
    few = np.random.default_rng(1).lognormal(6, 1, 2000).round().clip(1)
    assert levels(0.1, "request", many).token == pytest.approx(levels(0.1, "request", few).token, rel=0.05)


def test_lateness_of_gaps_that_say_little() -> None:
    assert lateness([0.02, 0.02], ITL_S) == Lateness(0.0, 0.0, 1.0)
    assert math.isnan(lateness([], ITL_S).gap)
    once = lateness([0.02, 0.03, 0.02], ITL_S)
    assert once.correlation == 0
    assert once.gap == pytest.approx(1 / 3)
    # a boundary between two requests is no run
    assert lateness([0.03, 0.03, 0.02, 0.03, 0.03, 0.02], ITL_S, request=[0, 1, 1, 1, 2, 2]).correlation == 0
    assert lateness([0.02, 0.03], ITL_S, weight=[3, 1]).gap == 0.25


def test_token_epsilon_of_each_level() -> None:
    workload = Workload(np.arange(4.0), np.full(4, 100), np.array([150, 150, 20, 20]), np.array([0, 0, 1, 1]))
    target = Target(1.0, ITL_S, epsilon=0.1, level="request")
    assert token_epsilon(Target(1.0, ITL_S, epsilon=0.1), workload) == 0.1
    assert token_epsilon(target, workload) == pytest.approx(levels(0.1, "request", [150]).token)
    assert token_epsilon(target, workload, class_id=1) == pytest.approx(1 - 0.9 ** (1 / 20))  # none of 20 may be late
    assert levels_of(target, workload, class_id=7).output_tokens == 85


def test_the_sentence_names_its_level_and_the_others() -> None:
    assert levels(0.1, "request", [150]).sentence() == (
        "The target is per request: 10 % of the requests may be less than clean. That is: 0.355 % of the tokens may be late; the ITL target "
        "is the p99.645 of all gaps; 58.6 % of the requests have no late token at all; read as not one late token in 90 % of the requests, it "
        "would be 0.0702 % of the tokens (outputs of 150 tokens at the median, late tokens taken as independent)."
    )
    text = levels(0.01, "token", [150], late=Lateness(correlation=0.5)).sentence()
    assert text.startswith("The target is per token: 1 % of the tokens may be late. That is:")
    assert "late tokens in runs of 2 on average" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, "token", [1]), r"epsilon must be in \(0, 1\), got 0"),
        ((0.01, "step", [1]), "unknown level 'step'; this version knows token, request, p99_itl"),
        ((0.01, "token", []), "output_tokens must hold at least one length"),
        ((0.01, "token", [0]), "output_tokens must hold at least one length"),
    ],
)
def test_what_is_no_promise_is_refused(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        levels(*arguments)
    with pytest.raises(ValueError, match="correlation must be in"):
        levels(0.01, "token", [1], late=Lateness(correlation=1.0))


def test_a_target_names_its_level(tmp_path: Path) -> None:
    targets, _ = parse_target("ttft=1s,itl=25ms,level=request,epsilon=10%")
    assert (targets[0].level, targets[0].epsilon) == ("request", 0.1)
    assert parse_target("ttft=1s,itl=25ms")[0][0].level == "token"
    assert parse_target("ttft=1s,itl=25ms,level=p99_itl")[0][0].epsilon == 0.01
    with pytest.raises(ValueError, match=r"level must be one of token, request, p99_itl, got 'step'"):
        parse_target("ttft=1s,itl=25ms,level=step")
    with pytest.raises(ValueError, match=r"level p99_itl lets 1 % of the gaps be late, got epsilon 0.1; leave epsilon out"):
        parse_target("ttft=1s,itl=25ms,level=p99_itl,epsilon=10%")
    file = tmp_path / "classes.toml"
    file.write_text('[[class]]\nttft = "1s"\nitl = "25ms"\nepsilon = "5%"\nlevel = "request"\n')
    assert parse_target(str(file))[0][0].level == "request"
    file.write_text('[[class]]\nttft = "1s"\nitl = "25ms"\nlevel = 3\n')
    with pytest.raises(TraceError, match="a level that this version knows: token, request, p99_itl, found 3"):
        parse_target(str(file))


def test_a_target_of_requests_is_counted_per_token_behind_the_doors_and_it_is_said() -> None:
    load = open_load(
        "poisson:rate=5/s,prompt=200,output=150", "ttft=1s,itl=25ms,level=request,epsilon=10%", rate_rps=None, rows=None, epsilon=None
    )
    (target,) = load.targets
    assert target.level == "token"
    assert 0.002 < target.epsilon < 0.006  # 90 % of requests clean at about 150 tokens
    assert any(note.startswith("The target is per request: 10 % of the requests may be less than clean.") for note in load.notes)
    plain = open_load("poisson:rate=5/s,prompt=200,output=150", "ttft=1s,itl=25ms", rate_rps=None, rows=None, epsilon=None)
    assert plain.targets[0].epsilon == 0.01
    assert not any("The target is" in note for note in plain.notes)
