"""Drawn workloads: rates and lengths as asked for, the same by seed, and the language that asks for them."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.models.arrivals import Arrivals, Gamma, Poisson, Uniform, Weibull
from headway.models.generators import Synthetic
from headway.models.lengths import Constant, Geometric, Lengths, LogNormal, UniformLengths
from headway.models.signals import Target
from headway.specs import synthetic
from headway.workloads import load_workload, workload_source

RATES = st.floats(0.01, 1000)
ARRIVALS = st.one_of(
    st.builds(Poisson, RATES),
    st.builds(Gamma, RATES, st.floats(0.2, 5)),
    st.builds(Uniform, RATES),
    st.builds(Weibull, RATES, st.floats(0.5, 5)),
)
LENGTHS = st.one_of(
    st.builds(LogNormal, st.floats(16, 4096), st.floats(0, 3), low=st.integers(1, 16), high=st.integers(4096, 10**6)),
    st.tuples(st.integers(1, 5000), st.integers(0, 5000)).map(lambda pair: UniformLengths(pair[0], sum(pair))),
    st.builds(Constant, st.integers(1, 10**6)),
    st.builds(Geometric, st.floats(1, 60_000)),
)
SOURCES = st.builds(lambda a, p, o: Synthetic(a, (p,), (o,)), ARRIVALS, LENGTHS, LENGTHS)
TWO = (Target(1.0, 0.025, name="chat", share=0.75), Target(10.0, 0.2, name="batch", share=0.25))


def _same(a, b) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("arrival_s", "prompt_tokens", "output_tokens", "class_id"))


@given(SOURCES, st.integers(0, 2**40), st.integers(1, 300), st.booleans())
def test_every_draw_is_a_workload_and_the_same_by_seed(source: Synthetic, seed: int, n: int, heldout: bool) -> None:
    source.check()
    drawn = source.draw(seed, n, heldout=heldout)
    drawn.check()
    assert len(drawn) == n
    assert drawn.arrival_s[0] == 0
    assert _same(drawn, source.draw(seed, n, heldout=heldout))


@given(SOURCES, st.integers(0, 1000), st.integers(2, 200), st.integers(1, 200))
def test_more_requests_begin_with_the_same_ones(source: Synthetic, seed: int, n: int, more: int) -> None:
    assert _same(source.draw(seed, n, heldout=False), source.draw(seed, n + more, heldout=False).window(0, n))


@given(SOURCES, st.integers(0, 1000), RATES)
def test_another_rate_stretches_the_gaps_of_the_same_requests(source: Synthetic, seed: int, rate_rps: float) -> None:
    drawn, faster = source.draw(seed, 50, heldout=False), source.rescaled(rate_rps).draw(seed, 50, heldout=False)
    assert np.allclose(faster.arrival_s * rate_rps, drawn.arrival_s * source.arrivals.rate_rps, rtol=1e-9)
    assert np.array_equal(faster.prompt_tokens, drawn.prompt_tokens)


@given(st.integers(0, 2**64), st.integers(0, 2**64))
def test_training_and_heldout_seeds_share_no_number(seed: int, other: int) -> None:
    source = Synthetic(Poisson(1.0), (LogNormal(600, 0.8),), (Geometric(200),))
    training, heldout = source.draw(seed, 40, heldout=False), source.draw(other, 40, heldout=True)
    assert not set(np.diff(training.arrival_s)) & set(np.diff(heldout.arrival_s))
    if seed != other:
        assert not set(np.diff(training.arrival_s)) & set(np.diff(source.draw(other, 40, heldout=False).arrival_s))


@settings(max_examples=30)
@given(ARRIVALS, st.integers(0, 10**6))
def test_the_mean_rate_is_the_one_asked_for(arrivals: Arrivals, seed: int) -> None:
    n = 20_000
    gaps_s = np.diff(Synthetic(arrivals, (Constant(1),), (Constant(1),)).draw(seed, n + 1, heldout=False).arrival_s)
    cv = arrivals.cv if isinstance(arrivals, Gamma | Weibull) else float(isinstance(arrivals, Poisson))
    # Six standard errors of the mean, and some for the skew of bursts.
    assert abs(gaps_s.mean() * arrivals.rate_rps - 1) < 6.5 * cv / math.sqrt(n) + 1e-9
    assert gaps_s.std() * arrivals.rate_rps == pytest.approx(cv, rel=0.25, abs=1e-6)


@settings(max_examples=30)
@given(LENGTHS, st.integers(0, 10**6))
def test_lengths_keep_their_bounds_and_their_centre(lengths: Lengths, seed: int) -> None:
    n = 20_000
    drawn = lengths.draw(np.random.default_rng(seed), n)
    assert drawn.dtype == np.int64
    assert drawn.min() >= 1
    match lengths:
        case LogNormal(median, _, low, high):
            assert low <= drawn.min()
            assert drawn.max() <= high
            below = (drawn <= median + 0.5).mean(), (drawn >= median - 0.5).mean()
            assert min(below) > 0.5 - 3.5 / math.sqrt(n), "the median is not the one that was asked for"
        case UniformLengths(low, high):
            assert low <= drawn.min()
            assert drawn.max() <= high
            assert abs(drawn.mean() - (low + high) / 2) <= 6 * (high - low + 1) / math.sqrt(12 * n)
        case Constant(value):
            assert (drawn == value).all()
        case Geometric(mean):
            assert abs(drawn.mean() - mean) <= 6.5 * math.sqrt(mean * (mean - 1) / n) + 1e-9


def test_uniform_lengths_hit_both_ends() -> None:
    assert set(UniformLengths(3, 6).draw(np.random.default_rng(0), 1000)) == {3, 4, 5, 6}


def test_a_class_has_its_share_and_its_lengths() -> None:
    source = workload_source("poisson:rate=5,prompt=600,prompt.batch=uniform(2k,4k),output=geometric(200)", classes=TWO)
    drawn = source.draw(0, 20_000, heldout=False)
    batch = drawn.class_id == 1
    assert abs(batch.mean() - 0.25) < 6 * math.sqrt(0.25 * 0.75 / len(drawn))
    assert (drawn.prompt_tokens[~batch] == 600).all()
    assert drawn.prompt_tokens[batch].min() >= 2000


def test_a_spec_says_what_it_made() -> None:
    text = "gamma:rate=300/min, cv=4, prompt=lognormal(median=600,sigma=0.8,min=16,max=4k), output=lognormal(200, 1)"
    source = synthetic(text)
    assert source == Synthetic(Gamma(5.0, 4.0), (LogNormal(600.0, 0.8, 16, 4000),), (LogNormal(200.0, 1.0),), (1.0,), text)
    faster, notes = load_workload(text, rate_rps=13.0)
    assert isinstance(faster, Synthetic)
    assert faster.arrivals == Gamma(13.0, 4.0)
    assert faster.source == f"{text} at 13/s"
    assert notes == []


def test_a_rate_from_outside_may_be_the_only_one() -> None:
    source = workload_source("uniform:prompt=600,output=1", rate_rps=4.0)
    assert source.draw(0, 3, heldout=False).arrival_s.tolist() == [0.0, 0.25, 0.5]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Poisson(0.0), "rate of arrivals must be positive and finite, got 0"),
        (Gamma(1.0, float("nan")), "cv of arrivals must be positive and finite, got nan"),
        (LogNormal(10.0, 0.8, low=16), "lognormal: median must lie between min 16 and max 1048576, got 10"),
        (LogNormal(600.0, 12.0), "lognormal: sigma must be in [0, 10], got 12; it is the spread of the logarithm, 0.8 for chat"),
        (UniformLengths(5, 2), "uniform: min must be at least 1 and at most max, got 5 and 2"),
        (UniformLengths(1, 10**7), "uniform: max must be at most 1048576, got 10000000"),
        (Constant(0), "constant: value must be at least 1 and at most the longest, got 0 and 1048576"),
        (Geometric(0.5), "geometric: mean must be in [1, 65536], got 0.5; for one fixed length write constant"),
        (
            Synthetic(Poisson(1.0), (Constant(1),), (Constant(1),), (0.5, 0.5)),
            "prompt has lengths for 1 classes, there are 2",
        ),
        (
            Synthetic(Poisson(1.0), (Constant(1),) * 2, (Constant(1),) * 2, (0.5, 0.4)),
            "shares of the classes must be at least 0 and sum to 1, got 0.5, 0.4",
        ),
    ],
)
def test_a_parameter_out_of_range_is_refused(made, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        made.check()


def test_a_draw_of_nothing_is_refused() -> None:
    source = synthetic("poisson:rate=5,prompt=600,output=1")
    for seed, n in ((-1, 5), (0, 0)):
        with pytest.raises(ValueError, match="seed must be at least 0 and requests at least 1"):
            source.draw(seed, n, heldout=False)
    with pytest.raises(ValueError, match="rate of arrivals must be positive"):
        source.rescaled(0.0)
    assert source.rescaled(None) is source


EXAMPLE = "; write for example poisson:rate=5/s,prompt=lognormal(median=600,sigma=0.8),output=geometric(200)"
KNOWN = "prompt, output, lengths, patience, patience_share, cancel, cancel_share, prefix, prefixes, prefix_unit"
REST = ",prompt=600,output=geometric(200)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no workload named; name a file, or" + EXAMPLE.removeprefix(";")),
        ("poisson", "workload poisson: poisson needs rate, prompt and output" + EXAMPLE),
        (
            "poison:rate=5",
            "workload poison:rate=5: unknown arrivals 'poison'; did you mean poisson? known: poisson, gamma, uniform, weibull, "
            "mmpp, diurnal, step, ramp, closed" + EXAMPLE,
        ),
        ("poisson:rte=5/s" + REST, f"workload rte=5/s: unknown name 'rte'; did you mean rate? known: rate, {KNOWN}" + EXAMPLE),
        ("poisson:rate=5,cv=3" + REST, f"workload cv=3: unknown name 'cv'; known: rate, {KNOWN}" + EXAMPLE),
        ("gamma:rate=5" + REST, "workload gamma:rate=5: gamma needs cv" + EXAMPLE),
        ("gamma:rate=5,cv=0" + REST, "workload gamma:rate=5,cv=0: cv of arrivals must be positive and finite, got 0" + EXAMPLE),
        (
            "poisson:rate=-5/s" + REST,
            "workload poisson:rate=-5/s: rate of poisson: a rate must be finite and not negative, got '-5/s'; write 12/s or 300/min",
        ),
        ("poisson:rate=5,rate=6" + REST, "workload rate=6: rate is given twice; write it once"),
        ("poisson:rate=5,prompt=600", "workload poisson:rate=5,prompt=600: no output lengths; add output=..." + EXAMPLE),
        ("poisson:rate=5,,output=1", "workload : expected name=value, found ''" + EXAMPLE),
        (
            "poisson:rate=5,output=1,prompt=lognorm(1,2)",
            "workload prompt=lognorm(1,2): unknown lengths 'lognorm'; did you mean lognormal? "
            "known: lognormal, uniform, geometric, constant" + EXAMPLE,
        ),
        (
            "poisson:rate=5,output=1,prompt=lognormal(600,sigam=2)",
            "workload prompt=lognormal(600,sigam=2): lognormal takes median, sigma, min, max, each once, found 'sigam=2'" + EXAMPLE,
        ),
        ("poisson:rate=5,output=1,prompt=lognormal(600)", "workload prompt=lognormal(600): lognormal needs sigma" + EXAMPLE),
        (
            "poisson:rate=5,output=1,prompt=lognormal(600,x)",
            "workload prompt=lognormal(600,x): sigma of lognormal: a number is expected, got 'x'" + EXAMPLE,
        ),
        (
            "poisson:rate=5,output=1,prompt=lognormal(600",
            "workload prompt=lognormal(600: expected a number of tokens or one of lognormal, uniform, geometric, constant with its (...)"
            + EXAMPLE,
        ),
        (
            "poisson:rate=5,output=1,prompt=uniform(5,2)",
            "workload prompt=uniform(5,2): uniform: min must be at least 1 and at most max, got 5 and 2" + EXAMPLE,
        ),
        (
            "poisson:rate=5,output=1,prompt=1.5",
            "workload prompt=1.5: value of constant: a number of tokens must be whole and at least 1, got '1.5'; write 4096 or 200k",
        ),
        ("poisson:rate=5,output=1,prompt.cat=9", "workload prompt.cat=9: unknown class 'cat'; known: default" + EXAMPLE),
    ],
)
def test_a_wrong_spec_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        workload_source(text)


def test_a_class_without_lengths_is_named() -> None:
    with pytest.raises(ValueError, match=r"no output lengths for class 'batch'; add output=... for all or output.batch=..."):
        workload_source("poisson:rate=5,prompt=600,output.chat=1", classes=TWO)


def test_rows_are_for_files() -> None:
    with pytest.raises(ValueError, match="rows select from a file"):
        workload_source("poisson:rate=5,prompt=600,output=1", rows=slice(0, 5))


def test_a_long_spec_is_no_file_name() -> None:
    classes = [dataclasses.replace(TWO[0], name=f"class{i:03}", share=1 / 64) for i in range(64)]
    lengths = ",".join(f"prompt.class{i:03}={i + 1}" for i in range(64))
    drawn = workload_source(f"poisson:rate=5,output=1,{lengths}", classes=classes).draw(0, 100, heldout=True)
    assert np.array_equal(drawn.prompt_tokens, drawn.class_id + 1)


@given(st.text(alphabet="poisngamunifrtecv:=,()/.0123456789 \n\0", max_size=60))
def test_any_spec_is_understood_or_refused(text: str) -> None:
    message = ""
    try:
        synthetic(text).draw(0, 3, heldout=False)
    except ValueError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1
