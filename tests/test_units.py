"""Durations, rates, shares, sizes and row ranges: what is written comes back, and what is wrong is said in one line."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import units

POSITIVE = st.floats(min_value=1e-6, max_value=1e6)


@given(POSITIVE, st.sampled_from(sorted(units.DURATION_S)), st.sampled_from(["", " "]))
def test_a_duration_is_its_number_times_its_unit(value: float, unit: str, gap: str) -> None:
    assert units.duration_s(f"{value!r}{gap}{unit}") == value * units.DURATION_S[unit]
    assert units.duration_s(repr(value), bare=unit) == value * units.DURATION_S[unit]


@given(POSITIVE, st.sampled_from(sorted(units.RATE_RPS)))
def test_a_rate_is_its_number_times_its_unit(value: float, unit: str) -> None:
    assert units.rate_rps(f"{value!r}{unit}") == value * units.RATE_RPS[unit]


@given(st.floats(min_value=1e-7, max_value=1e5))
def test_a_duration_that_is_printed_reads_back(value_s: float) -> None:
    assert math.isclose(units.duration_s(units.duration_text(value_s)), value_s, rel_tol=1e-5)


@given(st.integers(1, 10**9))
def test_tokens_with_and_without_a_unit_are_the_same(n: int) -> None:
    assert units.tokens(str(n)) == units.tokens(f"{n}") == n
    assert units.tokens(f"{n}k") == 1000 * n
    assert units.tokens(f"{n / 1000!r}k") == n


@given(st.floats(0, 1))
def test_a_share_is_the_same_as_a_percentage(value: float) -> None:
    assert units.share(repr(value)) == value
    assert math.isclose(units.share(f"{100 * value!r}%"), value, abs_tol=1e-12) or value > 1 - 1e-12


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(0, 3000))
def test_a_row_range_selects_as_python_slices(start: int, more: int, n: int) -> None:
    rows = list(range(n))
    assert rows[units.row_range(f"{start}:{start + more}")] == rows[start : start + more]
    assert rows[units.row_range(f"{start}:")] == rows[start:]
    assert rows[units.row_range(f":{more}")] == rows[:more]


def test_what_people_write_is_understood() -> None:
    assert units.duration_s("25ms") == 0.025
    assert units.duration_s("250 µs") == units.duration_s("250μs") == units.duration_s("250us")
    assert units.duration_s("0") == units.duration_s("0ms") == 0.0
    assert units.rate_rps("12rps") == units.rate_rps("12 req/s") == units.rate_rps("720/min") == 12.0
    assert units.tokens("200_000") == units.tokens("200k") == units.tokens("0.2M") == 200_000
    assert units.share("20%") == units.share("0.2") == 0.2


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (units.duration_s, "25", "a duration needs a unit, got '25'; write 25ms or 25s"),
        (units.duration_s, "fast", "a duration is a number and a unit, got 'fast'; write 25ms or 1.5s"),
        (
            units.duration_s,
            "25mins",
            "a duration in an unknown unit 'mins', got '25mins'; units: ns, us, ms, s, min, h; write 25ms or 1.5s",
        ),
        (units.duration_s, "-1s", "a duration must be finite and not negative, got '-1s'; write 25ms or 1.5s"),
        (units.duration_s, "1e999s", "a duration must be finite and not negative, got '1e999s'; write 25ms or 1.5s"),
        (units.rate_rps, "12", "a rate needs a unit, got '12'; write 12/s or 12/min"),
        (units.rate_rps, "0/s", "a rate must be above 0, got '0/s'; write for example 12/s"),
        (units.rate_rps, "12s", "a rate in an unknown unit 's', got '12s'; units: /s, rps, req/s, /min, /h; write 12/s or 300/min"),
        (units.share, "20", "a share must be in 0 to 1, got '20'; write 20% or 0.2"),
        (units.share, "120%", "a share must be in 0 to 1, got '120%'; write 20% or 0.2"),
        (units.share, "half", "a share is a percentage or a fraction, got 'half'; write 20% or 0.2"),
        (units.tokens, "1.5", "a number of tokens must be whole and at least 1, got '1.5'; write 4096 or 200k"),
        (units.tokens, "0", "a number of tokens must be whole and at least 1, got '0'; write 4096 or 200k"),
        (units.tokens, "4GB", "a number of tokens in an unknown unit 'GB', got '4GB'; units: k, M; write 4096 or 200k"),
        (units.row_range, "100", "rows are a range of whole numbers from 0, got '100'; write for example 100:500"),
        (units.row_range, "_:10", "rows are a range of whole numbers from 0, got '_:10'; write for example 100:500"),
        (units.row_range, "-5:10", "rows are a range of whole numbers from 0, got '-5:10'; write for example 100:500"),
        (units.row_range, "1:9:2", "rows are a range of whole numbers from 0, got '1:9:2'; write for example 100:500"),
        (units.row_range, "5:5", "rows 5:5 hold none: the end is left out and must lie after the start; write for example 100:500"),
    ],
)
def test_what_is_wrong_is_said_with_value_rule_and_fix(read, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read(text)


@given(st.text(max_size=20))
def test_any_text_is_understood_or_refused_in_one_line(text: str) -> None:
    for read in (units.duration_s, units.rate_rps, units.share, units.tokens, units.row_range):
        message = ""
        try:
            read(text)
        except ValueError as error:
            message = str(error)
        assert len(message.splitlines()) <= 1
