"""Workloads and the windows that seeds draw from a recording: what is refused, what stays, what two seeds may share."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.models.prefix import Prefix, prefix_of
from headway.models.workload import Replay, Workload


def recorded(n: int, seed: int = 0) -> Workload:
    rng = np.random.default_rng(seed)
    return Workload(np.cumsum(rng.exponential(0.1, n)), np.arange(1, n + 1), rng.integers(1, 50, n), np.arange(n) % 2, "a recording")


def told(n: int, seed: int = 0) -> Workload:
    """A recording with all that one may hold: prefixes, clients who leave, turns that wait for others."""
    rng = np.random.default_rng([seed, 1])
    plain = recorded(n, seed)
    hashes = [rng.integers(0, 2, size=i // 4).tolist() for i in plain.prompt_tokens]
    after = np.array([rng.integers(-1, i) for i in range(n)])
    left_s = np.where(rng.random(n) < 0.5, rng.exponential(1.0, n) + 1e-9, np.inf)
    full = dataclasses.replace(plain, prefix=prefix_of(4, hashes, plain.prompt_tokens), after=after, think_s=rng.exponential(1.0, n))
    return full.with_patience(left_s).with_cancel(2 * left_s)


WORKLOADS = st.builds(recorded, st.integers(6, 200), st.integers(0, 100)) | st.builds(told, st.integers(6, 60), st.integers(0, 100))


def same(a: Workload, b: Workload) -> bool:
    if (a.prefix is None) != (b.prefix is None):
        return False
    if a.prefix is not None and b.prefix is not None and not all(np.array_equal(x, y) for x, y in zip(a.prefix, b.prefix, strict=True)):
        return False
    names = [f.name for f in dataclasses.fields(Workload) if f.name != "prefix"]
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


@given(WORKLOADS, st.integers(0, 10**6), st.integers(1, 300), st.booleans())
def test_a_seed_is_a_window_of_the_recording(workload: Workload, seed: int, requests: int, heldout: bool) -> None:
    drawn = Replay(workload).draw(seed, requests, heldout=heldout)
    drawn.check()
    n, third = len(workload), len(workload) // 3
    assert len(drawn) == min(requests, third if heldout else n - third)
    first = int(drawn.prompt_tokens[0]) - 1  # a prompt's length is its place
    window = workload.window(first, first + len(drawn))
    assert same(drawn, window.rescaled(workload.rate_rps) if np.isfinite(window.rate_rps) and np.isfinite(workload.rate_rps) else window)
    assert drawn.arrival_s[0] == 0
    assert (first >= n - third) if heldout else (first + len(drawn) <= n - third)
    assert same(drawn, Replay(workload).draw(seed, requests, heldout=heldout))


@given(WORKLOADS, st.integers(0, 50), st.integers(0, 50))
def test_training_and_heldout_seeds_share_no_request(workload: Workload, training: int, heldout: int) -> None:
    a = Replay(workload).draw(training, len(workload), heldout=False)
    b = Replay(workload).draw(heldout, len(workload), heldout=True)
    assert not set(a.prompt_tokens) & set(b.prompt_tokens)
    assert len(a) + len(b) == len(workload)


def test_a_few_seeds_spread_their_windows_over_all_of_the_part() -> None:
    starts = sorted(int(Replay(recorded(3000)).draw(seed, 100, heldout=False).prompt_tokens[0]) - 1 for seed in range(8))
    gaps = np.diff([0, *starts, 1900])
    assert gaps.max() <= 2 * 1900 / 8
    assert gaps[1:-1].min() >= 0.4 * 1900 / 8


@given(WORKLOADS, st.floats(0.01, 1000))
def test_another_rate_keeps_the_requests_and_their_order(workload: Workload, rate_rps: float) -> None:
    faster = workload.rescaled(rate_rps)
    assert faster.rate_rps == pytest.approx(rate_rps, rel=1e-9)
    assert faster.arrival_s[0] == 0
    np.testing.assert_allclose(np.diff(faster.arrival_s) * rate_rps, np.diff(workload.arrival_s) * workload.rate_rps, rtol=1e-6)
    assert np.array_equal(faster.prompt_tokens, workload.prompt_tokens)
    assert same(workload, workload.rescaled(None))


@given(st.builds(told, st.integers(2, 60), st.integers(0, 100)), st.data())
def test_a_window_keeps_what_is_told_of_its_requests(workload: Workload, data: st.DataObject) -> None:
    workload.check()
    start = data.draw(st.integers(0, len(workload) - 1))
    stop = data.draw(st.integers(start + 1, len(workload)))
    part = workload.window(start, stop)
    part.check()
    assert workload.after is not None
    assert part.after is not None
    for row, before in enumerate(workload.after[start:stop]):
        assert part.after[row] == (before - start if before >= start else -1)
    assert part.arrival_s == pytest.approx(workload.arrival_s[start:stop] - workload.arrival_s[start])
    for name in ("patience_s", "cancel_s", "think_s"):
        assert np.array_equal(getattr(part, name), getattr(workload, name)[start:stop])
    # Two prompts of the window share as many leading units as they did before.
    for i, j in data.draw(st.lists(st.tuples(st.integers(0, len(part) - 1), st.integers(0, len(part) - 1)), max_size=20)):
        assert shared_units(part, i, j) == shared_units(workload, start + i, start + j)


def shared_units(workload: Workload, i: int, j: int) -> int:
    assert workload.prefix is not None
    a, b = (workload.prefix.ids[workload.prefix.start[k] : workload.prefix.start[k + 1]].tolist() for k in (i, j))
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=12), st.integers(1, 40), st.randoms(use_true_random=False))
def test_ids_are_equal_where_prompts_begin_alike(hashes: list[list[int]], unit: int, chance) -> None:
    prompt = np.array([len(row) * unit + chance.randrange(-unit, unit) for row in hashes]).clip(1)
    prefix = prefix_of(unit, hashes, prompt)
    prefix.check(prompt)
    workload = Workload(np.zeros(len(prompt)), prompt, prompt, 0 * prompt, prefix=prefix)
    for i, a in enumerate(hashes):
        for j, b in enumerate(hashes):
            whole = min(len(a), len(b), *(prompt[[i, j]] // unit))
            alike = next((n for n in range(whole) if a[n] != b[n]), whole)
            assert shared_units(workload, i, j) == alike


def test_people_are_not_stretched_with_their_arrivals() -> None:
    slow = told(20).rescaled(0.5)
    assert slow.rate_rps == pytest.approx(0.5)
    for name in ("patience_s", "cancel_s", "think_s", "after"):
        assert np.array_equal(getattr(slow, name), getattr(told(20), name))
    assert slow.prefix is not None


def test_one_number_holds_for_all_requests() -> None:
    assert recorded(6).with_patience(2.0).with_cancel(np.full(6, 3.0)).patience_s == pytest.approx(np.full(6, 2.0))
    turns = recorded(6).with_thinking(np.array([-1, -1, 0, 1, 2, 3]), 1.5)
    assert turns.think_s == pytest.approx(np.full(6, 1.5))
    with pytest.raises(ValueError, match="patience_s must be above 0, infinite for a client that never leaves, row 0 has 0"):
        recorded(6).with_patience(0.0)
    with pytest.raises(ValueError, match="cancel_s has 5 rows, arrival_s has 6"):
        recorded(6).with_cancel(np.ones(5))


def test_the_rate_is_that_of_the_gaps() -> None:
    assert dataclasses.replace(recorded(6), arrival_s=np.arange(6) / 4).rate_rps == 4.0
    assert np.isnan(recorded(6).window(2, 3).rate_rps)
    assert np.isnan(dataclasses.replace(recorded(6), arrival_s=np.ones(6)).rate_rps)


NO_ONE = np.full(6, -1)
NOTHING, ENDS, IDS = np.zeros(7, int), np.array([0, 0, 0, 0, 0, 0, 2]), np.arange(2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"arrival_s": np.zeros(0)}, "workload a recording holds no request"),
        ({"prompt_tokens": np.ones(5)}, "workload: prompt_tokens has 5 rows, arrival_s has 6"),
        ({"class_id": np.ones(7)}, "workload: class_id has 7 rows, arrival_s has 6"),
        ({"arrival_s": np.array([0, 1, 2, 1.5, 3, 4])}, "workload: arrival_s must be finite and ascending; sort the rows by time"),
        ({"arrival_s": np.array([0, 1, 2, np.nan, 3, 4])}, "workload: arrival_s must be finite and ascending; sort the rows by time"),
        ({"prompt_tokens": np.array([1, 2, 0, 4, 0, 6])}, "workload: prompt_tokens must be at least 1, row 2 has 0"),
        ({"output_tokens": np.array([1, 2, 3, 4, 5, -6])}, "workload: output_tokens must be at least 1, row 5 has -6"),
        ({"patience_s": np.ones(5)}, "workload: patience_s has 5 rows, arrival_s has 6"),
        (
            {"cancel_s": np.array([1, 1, np.nan, 1, 1, 1])},
            "workload: cancel_s must be above 0, infinite for a client that never leaves, row 2 has nan",
        ),
        ({"after": NO_ONE}, "workload: after and think_s go together: who is waited for, and how long it takes from that end"),
        ({"think_s": np.ones(6)}, "workload: after and think_s go together: who is waited for, and how long it takes from that end"),
        (
            {"after": np.array([-1, 0, 2, -1, -1, -1]), "think_s": np.ones(6)},
            "workload: after must be the number of an earlier row, or -1 for none, row 2 has 2",
        ),
        (
            {"after": np.array([-1, -2, 0, -1, -1, -1]), "think_s": np.ones(6)},
            "workload: after must be the number of an earlier row, or -1 for none, row 1 has -2",
        ),
        (
            {"after": NO_ONE, "think_s": np.array([0, 0, 0, -1.0, 0, 0])},
            "workload: think_s must be finite and not negative, row 3 has -1.0",
        ),
        (
            {"after": NO_ONE, "think_s": np.array([0, np.inf, 0, 0, 0, 0])},
            "workload: think_s must be finite and not negative, row 1 has inf",
        ),
        ({"prefix": Prefix(0, NOTHING, IDS)}, "prefix: unit_tokens must be at least 1, got 0"),
        ({"prefix": Prefix(1, NOTHING[1:], IDS)}, "prefix: start has 6 entries, 6 requests need 7"),
        (
            {"prefix": Prefix(1, np.array([0, 1, 0, 1, 1, 1, 1]), IDS[:1])},
            "prefix: start must ascend from 0 to the number of ids, 1, got 0 to 1",
        ),
        ({"prefix": Prefix(1, NOTHING, IDS)}, "prefix: start must ascend from 0 to the number of ids, 2, got 0 to 0"),
        (
            {"prefix": Prefix(2, np.array([0, 0, 0, 2, 2, 2, 2]), IDS)},
            "prefix: row 2 has 2 ids for a prompt of 3 tokens, 1 whole units of 2; leave out what is not whole",
        ),
        ({"prefix": Prefix(1, ENDS, IDS + 1)}, "prefix: ids must be numbered from 0 without a gap, got 2 from 1 to 2"),
        ({"prefix": Prefix(1, ENDS, 2 * IDS)}, "prefix: ids must be numbered from 0 without a gap, got 2 from 0 to 2"),
        (
            {"prefix": Prefix(1, ENDS, np.array([0, 0]))},
            "prefix: id 0 stands at two places or after two beginnings; equal ids mean equal prompts up to there",
        ),
        (
            {"prefix": Prefix(1, np.array([0, 0, 0, 0, 2, 4, 4]), np.array([0, 1, 2, 1]))},
            "prefix: id 1 stands at two places or after two beginnings; equal ids mean equal prompts up to there",
        ),
    ],
)
def test_what_is_no_workload_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        dataclasses.replace(recorded(6), **fields).check()


@pytest.mark.parametrize(
    ("rate_rps", "workload", "message"),
    [
        (0.0, recorded(6), "rate must be positive, got 0; write for example --rate 12/s"),
        (float("inf"), recorded(6), "rate must be positive, got inf; write for example --rate 12/s"),
        (1.0, recorded(1), "a workload of one request, or with all arrivals at one instant, has no rate to rescale"),
    ],
)
def test_what_has_no_rate_is_not_rescaled(rate_rps: float, workload: Workload, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        workload.rescaled(rate_rps)


def test_a_recording_too_short_to_hold_a_third_back_is_refused() -> None:
    with pytest.raises(ValueError, match="a recording holds 5 requests; it takes at least 6 to hold a third of them back"):
        Replay(recorded(5)).draw(0, 3, heldout=False)
    with pytest.raises(ValueError, match="requests must be at least 1, got 0"):
        Replay(recorded(9)).draw(0, 0, heldout=False)
