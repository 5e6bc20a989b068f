"""The rules by which rows are set aside: what each catches, and what they must leave alone."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.identification.rows import BOOKED, FIRST_SHAPE, GAP, IDLE, KEPT, REASONS, judge, select, used_rows
from headway.identification.trace import Trace
from headway.models.plant import Batch
from tests.synthetic_steps import composed, durations, traced


def test_clean_steps_all_stay() -> None:
    batch = composed(3000)
    assert (judge(traced(batch, durations(batch, sd=0.05))) == KEPT).all()


@given(seed=st.integers(0, 2**32 - 1), sd=st.sampled_from([0.0, 0.02, 0.1, 0.3, 0.6]))
def test_noise_alone_sets_next_to_nothing_aside(seed: int, sd: float) -> None:
    batch = composed(600, seed)
    assert (judge(traced(batch, durations(batch, sd, seed))) != KEPT).sum() <= 3


def test_idle_rows_are_those_without_tokens_or_without_duration() -> None:
    batch = composed(300)
    nothing = Batch(*(np.where(np.arange(300) % 10 == 0, 0.0, column) for column in batch))
    time = durations(batch)
    time[5] = 0.0
    reason = judge(traced(nothing, time))
    assert (reason == IDLE).sum() == 31
    assert reason[5] == IDLE


def test_compilation_at_the_start_and_stalls_later_are_told_apart() -> None:
    batch = composed(2000)
    time = durations(batch, sd=0.03)
    time[:20] *= np.linspace(50, 10, 20)
    time[[700, 1500]] *= 8
    reason = judge(traced(batch, time))
    assert (reason[:20] == FIRST_SHAPE).all()
    assert (reason[[700, 1500]] == GAP).all()
    assert (reason != KEPT).sum() == 22


def test_the_first_step_of_a_shape_may_compile_late() -> None:
    k = np.arange(1000)
    requests = np.where(k < 500, 4.0, 40.0)
    batch = Batch(requests, requests * 1000 + k, *(np.zeros(1000),) * 3)
    time = durations(batch, sd=0.02)
    time[500] = 0.8
    reason = judge(traced(batch, time))
    assert reason[500] == FIRST_SHAPE
    assert (reason != KEPT).sum() == 1


def test_a_pair_booked_on_the_neighbour_is_set_aside_together() -> None:
    batch = composed(1000, mixed=0.5)
    time = durations(batch, sd=0.02)
    for early, late in ((100, 101), (401, 400)):
        time[late] += time[early] - 1e-3
        time[early] = 1e-3
        assert time[late] > 2 * durations(batch)[late] * 0.8
    reason = judge(traced(batch, time))
    assert (reason[[100, 101, 400, 401]] == BOOKED).all()
    assert (reason != KEPT).sum() == 4


def test_a_short_step_without_its_missing_time_beside_it_stays() -> None:
    batch = composed(1000)
    time = durations(batch, sd=0.02)
    time[300] /= 20
    assert (judge(traced(batch, time)) == KEPT).all()


def test_a_lasting_slowdown_is_a_plant_and_stays() -> None:
    batch = composed(2000)
    time = durations(batch, sd=0.03)
    time[1000:] *= 4
    assert (judge(traced(batch, time)) == KEPT).mean() > 0.995


def test_a_cliff_that_no_line_fits_stays() -> None:
    batch = composed(2000)
    time = durations(batch, sd=0.02)
    time = np.where(batch.decode_requests > 32, 2.5 * time, time)
    assert (judge(traced(batch, time)) == KEPT).all()


def test_more_work_than_any_other_step_is_no_outlier() -> None:
    batch = composed(1000)
    time = durations(batch, sd=0.02)
    huge = Batch(*(np.append(column, 50 * column.max()) for column in batch))
    assert (judge(traced(huge, np.append(time, 50 * time.max()))) == KEPT).all()


def test_streams_are_judged_apart() -> None:
    batch = composed(800)
    time = np.where(np.arange(800) < 400, 1.0, 10.0) * durations(batch, sd=0.02)
    source = np.where(np.arange(800) < 400, "fast", "slow")
    assert (judge(traced(batch, time, source=source)) == KEPT).all()
    booked = time.copy()
    booked[399], booked[400] = 1e-4, time[399] + time[400]  # the last step of one stream, the first of another
    assert judge(traced(batch, booked, source=source))[399] == KEPT


def test_rows_are_judged_before_they_are_chosen() -> None:
    batch = composed(1000)
    time = durations(batch, sd=0.02)
    time[500] *= 10
    trace = traced(batch, time, odd_one=np.where(np.arange(1000) == 500, "yes", "no"))
    chosen = select(trace, "all", {"odd_one": "yes"})
    assert used_rows(judge(trace), chosen) == {"read": 1, "used": 0, "set_aside": {GAP: 1}}


@pytest.mark.parametrize("k", [1, 2, 3, 5, 70])
def test_short_and_constant_traces_pass(k: int) -> None:
    same = Batch(*(np.full(k, 7.0) for _ in Batch._fields))
    assert (judge(traced(same, np.full(k, 0.02))) == KEPT).all()


def test_every_reason_is_explained_and_counts_add_up() -> None:
    reason = np.array(["", *REASONS, GAP], dtype=object)
    rows = used_rows(reason, np.ones(len(reason), bool), {"unreadable": 2})
    assert rows["read"] == rows["used"] + sum(rows["set_aside"].values()) == len(reason) + 2
    assert rows["set_aside"][GAP] == 2
    assert rows["set_aside"]["unreadable"] == 2
    assert all(text.strip() for text in REASONS.values())


def test_a_row_is_judged_the_same_whatever_comes_after_it_in_another_stream() -> None:
    batch = composed(400)
    time = durations(batch, sd=0.02)
    time[50] *= 9
    one = traced(batch, time)
    two = Trace.of(pl.concat([one.frame.with_columns(source=pl.lit("a")), one.frame.with_columns(source=pl.lit("b"))]))
    assert list(judge(two)) == list(judge(one)) * 2
