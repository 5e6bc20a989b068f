"""How specs speak of a workload's clients: arrivals that change, closed loops, patience, cancelled streams, shared prefixes."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.models.arrivals import Arrivals, Closed, Poisson, Weibull
from headway.models.durations import ExponentialTime, FixedTime, LogNormalTime
from headway.models.generators import Synthetic
from headway.models.impatience import Impatient, Leaving
from headway.models.lengths import Constant, Geometric
from headway.models.recorded_lengths import RecordedLengths
from headway.models.shared_prefixes import Shared, SharedPrefixes
from headway.models.signals import Target
from headway.models.varying import MMPP, Diurnal, Ramp, Step
from headway.specs import ARRIVALS, drawn, synthetic
from headway.workloads import load_workload, located, workload_source

DATA = Path(__file__).parent / "data" / "workloads"
LENGTHS = "input_length,output_length\n" + "".join(f"{10 + i},{100 + i}\n" for i in range(12))
REST = ",prompt=600,output=geometric(200)"
TWO = (Target(1.0, 0.025, name="chat", share=0.75), Target(10.0, 0.2, name="batch", share=0.25))
PLAIN = Synthetic(Poisson(5.0), (Constant(600), Constant(900)), (Geometric(50.0), Constant(9)), (0.75, 0.25))


@pytest.mark.parametrize(
    ("text", "arrivals"),
    [
        ("weibull:rate=5/s,shape=0.6", Weibull(5.0, 0.6)),
        ("mmpp:rates=2/s;20/s,dwell=30s;5s", MMPP((2.0, 20.0), (30.0, 5.0))),
        ("mmpp:rates=0; 600/min ;20,dwell=1min;5s;2s", MMPP((0.0, 10.0, 20.0), (60.0, 5.0, 2.0))),
        ("diurnal:rate=8/s,amplitude=0.6,period=1h", Diurnal(8.0, 0.6, 3600.0)),
        ("diurnal:rate=8/s,amplitude=0.6,period=1h,phase=0.25", Diurnal(8.0, 0.6, 3600.0, 0.25)),
        ("step:rate=4/s,to=12/s,at=60s", Step(4.0, 12.0, 60.0)),
        ("step:rate=4/s,to=12/s,at=60s,until=2min", Step(4.0, 12.0, 60.0, 120.0)),
        ("ramp:rate=4/s,to=12/s,over=2min", Ramp(4.0, 12.0, 120.0)),
        ("ramp:rate=4/s,to=12/s,over=2min,at=10s", Ramp(4.0, 12.0, 120.0, 10.0)),
        ("closed:clients=64", Closed(64)),
        ("closed:clients=64,think=2s", Closed(64, FixedTime(2.0))),
        ("closed:clients=64,think=exponential(500ms)", Closed(64, ExponentialTime(0.5))),
        ("closed:clients=64,think=lognormal(median=2s,sigma=0.8)", Closed(64, LogNormalTime(2.0, 0.8))),
    ],
)
def test_a_spec_makes_these_arrivals(text: str, arrivals: Arrivals) -> None:
    source = synthetic(text + REST)
    assert source.arrivals == arrivals
    assert source.source == text + REST
    source.draw(0, 40, heldout=True).check()


@pytest.mark.parametrize("kind", ARRIVALS)
def test_the_example_of_a_kind_is_understood(kind: str) -> None:
    synthetic(ARRIVALS[kind].example).draw(1, 30, heldout=False).check()


def test_a_rate_from_outside_multiplies_all_rates_of_a_spec() -> None:
    assert synthetic("step:rate=4/s,to=12/s,at=60s" + REST, rate_rps=8.0).arrivals == Step(8.0, 24.0, 60.0)
    burst = synthetic("mmpp:rates=2/s;20/s,dwell=1s;1s" + REST, rate_rps=22.0).arrivals
    assert burst == MMPP((4.0, 40.0), (1.0, 1.0))
    assert synthetic("diurnal:amplitude=0.6,period=1h" + REST, rate_rps=8.0).arrivals == Diurnal(8.0, 0.6, 3600.0)


CLIENTS = "; write for example poisson:rate=5/s,prompt=600,output=geometric(200),patience=exponential(5s),prefix=1024,prefixes=8"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "mmpp:rates=2/s,dwell=1s;2s",
            "workload mmpp:rates=2/s,dwell=1s;2s: mmpp: needs as many rates as dwell times, at least two, got 1 and 2; "
            "write for example mmpp:rates=2/s;20/s,dwell=30s;5s,prompt=600,output=geometric(200)",
        ),
        (
            "step:rate=4/s,to=12/s",
            "workload step:rate=4/s,to=12/s: step needs at; write for example step:rate=4/s,to=12/s,at=60s,"
            "prompt=600,output=geometric(200)",
        ),
        (
            "ramp:rate=4/s,to=12/s,over=60",
            "workload ramp:rate=4/s,to=12/s,over=60: over of ramp: a duration needs a unit, got '60'; write 60ms or 60s",
        ),
        (
            "closed:clients=0",
            "workload closed:clients=0: clients of closed: a whole number of at least 1 is expected, got '0'; write for example 64",
        ),
        (
            "closed:clients=6,think=normal(2s)",
            "workload think=normal(2s): unknown times 'normal'; "
            "did you mean lognormal? known: exponential, lognormal, constant; "
            "write for example closed:clients=64,think=exponential(2s),prompt=600,output=geometric(200)",
        ),
        (
            "poisson:rate=5,patience=0s",
            f"workload patience=0s: patience must be above 0, got 0 s; a client that is gone on arrival sends nothing{CLIENTS}",
        ),
        (
            "poisson:rate=5,patience=2",
            "workload patience=2: value of constant: a duration needs a unit, got '2'; write 2ms or 2s",
        ),
        ("poisson:rate=5,cancel_share=20%", f"workload cancel_share=...: cancel_share needs cancel{CLIENTS}"),
        ("poisson:rate=5,prefixes=2", f"workload prefixes=...: prefixes needs prefix{CLIENTS}"),
        (
            "poisson:rate=5,prefix=20",
            "workload prefix=20: prefix must be at least one unit of 64 tokens, got 20; name a smaller prefix_unit, 16 for example"
            + CLIENTS,
        ),
        (
            "poisson:rate=5,cancel=exponential(2s),cancel_share=20",
            "workload cancel_share=20: cancel_share: a share must be in 0 to 1, got '20'; write 20% or 0.2",
        ),
    ],
)
def test_a_wrong_spec_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        workload_source(text + REST)


def test_the_example_is_one_of_the_kind_that_was_meant() -> None:
    with pytest.raises(
        ValueError, match=r"no output lengths; add output=...; write for example closed:clients=64,think=exponential\(2s\),"
    ):
        workload_source("closed:clients=4,prompt=300")


def test_a_closed_loop_takes_no_rate() -> None:
    with pytest.raises(ValueError, match="a closed loop has no rate to set, got 5/s: its clients send when they were answered"):
        workload_source("closed:clients=4" + REST, rate_rps=5.0)


# Clients who leave.


def test_a_class_has_its_own_patience() -> None:
    text = "poisson:rate=5/s,prompt=600,output=9,patience=exponential(2s),patience.batch=1min,cancel.chat=30s,cancel_share=20%"
    source = workload_source(text, classes=TWO)
    assert isinstance(source, Impatient)
    assert source.patience == (Leaving(ExponentialTime(2.0)), Leaving(FixedTime(60.0)))
    assert source.cancel == (Leaving(FixedTime(30.0), 0.2), None)
    workload = source.draw(0, 8_000, heldout=False)
    workload.check()
    assert workload.source == text
    assert workload.patience_s is not None
    assert workload.cancel_s is not None
    batch = workload.class_id == 1
    assert (workload.patience_s[batch] == 60).all()
    assert workload.patience_s[~batch].mean() == pytest.approx(2.0, rel=6 / math.sqrt(6_000))
    assert np.isinf(workload.cancel_s[batch]).all()
    assert set(workload.cancel_s[~batch]) == {30.0, np.inf}
    assert (workload.cancel_s[~batch] == 30).mean() == pytest.approx(0.2, abs=5 * 0.4 / math.sqrt(6_000))


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 100), st.integers(1, 100), st.booleans())
def test_clients_leave_by_seed_and_change_nothing_else(seed: int, n: int, more: int, heldout: bool) -> None:
    leaving = Leaving(ExponentialTime(3.0), 0.6)
    source = Impatient(PLAIN, (leaving, None), (None, leaving))
    plain, few, many = (one.draw(seed, k, heldout=heldout) for one, k in ((PLAIN, n), (source, n), (source, n + more)))
    many.check()
    assert many.patience_s is not None
    assert many.cancel_s is not None
    assert few.patience_s is not None
    assert few.cancel_s is not None
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "class_id"):
        assert np.array_equal(getattr(plain, name), getattr(few, name))
    assert np.array_equal(few.patience_s, many.patience_s[:n])
    assert np.array_equal(few.cancel_s, many.cancel_s[:n])
    other = source.draw(seed, n + more, heldout=not heldout)
    assert other.patience_s is not None
    both = set(many.patience_s[np.isfinite(many.patience_s)]) & set(other.patience_s)
    assert not both, "held-out draws use random numbers of their own"


def test_files_have_such_clients_too(tmp_path: Path) -> None:
    file = tmp_path / "a,b.csv"
    file.write_bytes((DATA / "azure.csv").read_bytes())
    source, notes = load_workload(f"azure:{file}@2/s,patience=2s,cancel=exponential(5s)")
    workload = source.draw(0, 4, heldout=False)
    assert source.source == "a,b.csv at 2/s, patience=2s,cancel=exponential(5s)"
    assert notes == ["arrivals rescaled from 0.834/s to 2/s"]
    assert workload.patience_s is not None
    assert workload.patience_s.tolist() == [2.0] * 4
    assert workload.cancel_s is not None
    assert np.isfinite(workload.cancel_s).all()
    assert load_workload(f"{file},patience=2s").source.draw(0, 4, heldout=True).patience_s is not None
    assert located(f"{file},patience=2s") == f"{file.resolve()},patience=2s"
    assert located(f"azure:{file}@2/s,patience=2s") == f"azure:{file.resolve()}@2.0/s,patience=2s"
    with pytest.raises(ValueError, match="expected a file that exists"):
        load_workload(f"{tmp_path / 'gone.csv'},patience=2s")
    with pytest.raises(ValueError, match="unknown class 'cat'; known: default"):
        load_workload(f"{file},patience.cat=2s")
    with pytest.raises(ValueError, match=r"mooncake\.jsonl has prefixes of its own; leave prefix= out"):
        load_workload(f"{DATA / 'mooncake.jsonl'},prefix=1024")


# Prompts that begin alike.


def test_a_system_prompt_stands_before_every_prompt() -> None:
    source = workload_source(
        "poisson:rate=5/s,prompt=600,output=9,prefix=1000,prefixes.chat=3,prefix.batch=128,prefix_unit=32", classes=TWO
    )
    assert isinstance(source, SharedPrefixes)
    assert source.shared == (Shared(1000, 3), Shared(128, 1))
    workload = source.draw(0, 3_000, heldout=False)
    workload.check()
    assert workload.prefix is not None
    batch = workload.class_id == 1
    assert (workload.prompt_tokens[~batch] == 1600).all()
    assert (workload.prompt_tokens[batch] == 728).all()
    assert (np.diff(workload.prefix.start) == np.where(batch, 4, 31)).all()
    texts = {}
    for i in np.flatnonzero(~batch):
        ids = tuple(workload.prefix.ids[workload.prefix.start[i] : workload.prefix.start[i + 1]])
        texts[ids] = texts.get(ids, 0) + 1
    assert len(texts) == 3
    assert len({one for ids in texts for one in ids}) == 3 * 31
    assert min(texts.values()) / (~batch).sum() == pytest.approx(1 / 3, abs=0.06)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 80), st.integers(1, 80), st.integers(1, 300), st.integers(1, 5), st.integers(1, 64))
def test_texts_are_chosen_by_seed_and_change_no_arrival(seed: int, n: int, more: int, tokens: int, among: int, unit: int) -> None:
    source = SharedPrefixes(PLAIN, (Shared(tokens + unit, among), None), unit)
    source.check()
    plain, few, many = (one.draw(seed, k, heldout=False) for one, k in ((PLAIN, n), (source, n), (source, n + more)))
    many.check()
    first = many.window(0, n)
    assert few.prefix is not None
    assert first.prefix is not None
    assert all(np.array_equal(a, b) for a, b in zip(few.prefix, first.prefix, strict=True))
    assert np.array_equal(few.arrival_s, plain.arrival_s)
    assert np.array_equal(few.prompt_tokens, plain.prompt_tokens + np.where(plain.class_id == 0, tokens + unit, 0))


# Recorded lengths, sent by any arrivals.


def test_recorded_lengths_are_sent_by_the_arrivals_of_a_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lengths.csv").write_text(LENGTHS + "0,5\n")
    monkeypatch.chdir(tmp_path)
    text = "closed:clients=3,think=2s,lengths=lengths.csv,patience=9s"
    source, notes = load_workload(text)
    assert isinstance(source, Impatient)
    assert isinstance(source.inner, RecordedLengths)
    assert source.inner.arrivals == Closed(3, FixedTime(2.0))
    assert notes == ["1 of 13 rows hold no prompt or no output token; set aside"]
    workload = source.draw(0, 9, heldout=False)
    workload.check()
    assert (workload.output_tokens == workload.prompt_tokens + 90).all()
    assert workload.after is not None
    assert workload.after.tolist() == [-1, -1, -1, 0, 1, 2, 3, 4, 5]
    whole = f"closed:clients=3,think=2s,lengths={(tmp_path / 'lengths.csv').resolve()},patience=9s"
    assert located(text) == whole
    monkeypatch.chdir("/")
    assert np.array_equal(load_workload(whole).source.draw(0, 9, heldout=False).prompt_tokens, workload.prompt_tokens)
    with pytest.raises(ValueError, match="lengths=FILE holds prompts and outputs; leave prompt and output out, or lengths"):
        drawn(f"{whole},prompt=5")


@given(st.text(alphabet="closedmprtnihkaxy:=,;()/.0123456789 ", max_size=60))
def test_any_spec_is_understood_or_refused(text: str) -> None:
    message = ""
    for kind in ("closed:clients=2,", "mmpp:", "step:", "poisson:rate=1,prompt=9,output=9,patience="):
        try:
            workload_source(kind + text).draw(0, 3, heldout=False).check()
        except ValueError as error:
            message = str(error)
        assert len(message.splitlines()) <= 1
