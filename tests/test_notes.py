"""Notes: the gravest first, and one line for what several say alike. And how a coefficient is written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cli.fitted import coefficient_lines, structure_lines
from headway.cli.words import fit_lines, note_lines
from headway.notes import DOUBTS, GRAVITY, gravity, merged, ordered
from headway.prefixes import acts, scaled
from headway.rungs import rung_name, tells
from tests.small_run import plant_json

BOOKED = "{}: a row holds {}% of the difference to the step {} (asynchronous scheduling); taken out before the fit"


def test_notes_that_end_alike_become_one() -> None:
    apart = [BOOKED.format("decode", 0.6, "before"), "something else", BOOKED.format("mixed", 1.7, "after")]
    assert merged(apart) == [
        "decode: a row holds 0.6% of the difference to the step before; mixed: 1.7% of the difference to the step after "
        "(asynchronous scheduling); taken out before the fit",
        "something else",
    ]
    moved = "{}: a and b moved together (VIF {}): what either takes alone is not trustworthy"
    assert merged([moved.format("decode", 14), moved.format("mixed", 14)]) == [
        "decode and mixed: a and b moved together (VIF 14): what either takes alone is not trustworthy"
    ]
    assert merged([moved.format("decode", 14), moved.format("mixed", 9)]) == [
        "decode: a and b moved together (VIF 14); mixed: (VIF 9): what either takes alone is not trustworthy"
    ]


@given(st.lists(st.text(st.sampled_from("ab:;( "), max_size=80), max_size=8))
def test_no_note_is_lost(notes: list[str]) -> None:
    once = list(dict.fromkeys(notes))
    assert len(merged(notes)) <= len(once)
    assert (len(merged(notes)) == 0) == (not once)
    assert sorted(ordered(notes)) == sorted(merged(notes))
    # a note that shares no ending stands as it was written
    alone = [n for n in once if not any(n != m and n[-30:] == m[-30:] for m in once)]
    assert set(alone) <= set(merged(notes))


def test_what_can_change_a_decision_comes_first() -> None:
    grave = [
        "held out, the plant errs by 9.0%, a constant by 9.0%: the terms explain nothing",
        "p99 ITL is 47.6 ms where 25 ms are promised, with 3 % clean requests",
        "held out: extrapolation: steps of up to 470 prefill tokens, the trace held 354",
        "held out: 82% (73% to 90%) of the mixed steps lie where 90 % should: they scatter more than the plant says",
        "token_budget follows earlier step times: recorded in closed loop, where noise moves the inputs",
        BOOKED.format("decode", 0.6, "before"),
        "from step 900 on the engine is 12% slower at equal composition",
        "mixed: prefill_tokens was never above zero, so mixed.per_prefill_token cannot be told from this trace",
        "decode: the plant misses steps by -2% to +3% along their tokens (lack of fit, p < 1e-6)",
        "decode: decode_requests and decode_kv_tokens moved together (VIF 21)",
        "the size of the KV cache is not in the trace; taken as the largest use seen, 13,232 tokens",
    ]
    assert ordered(grave[::-1]) == grave
    assert [gravity(text) for text in grave] == list(range(len(GRAVITY) + 1))
    assert gravity(grave[2]) <= DOUBTS < gravity(grave[3])
    assert note_lines(grave[::-1], 2, "with --all") == [*(f"note: {text}" for text in grave[:2]), "note: 9 more with --all"]


def test_a_rung_is_shown_where_the_error_fell() -> None:
    rung: dict[str, Any] = {
        "name": "jump at a number of tokens",
        "regime": "mixed",
        "before": 0.05,
        "after": 0.03,
        "errors": 4.0,
        "taken": True,
    }
    at = {"shape.mixed_limit_tokens": {"value": 512.0, "ci95": None, "unit": "tokens"}}
    assert rung_name(rung, at) == "a jump past 512 tokens"
    assert rung_name({**rung, "taken": False}, at) == "jump at a number of tokens"
    same = {**rung, "before": 0.033, "after": 0.0328}
    assert [tells(r) for r in (rung, same, {**rung, "taken": False}, {**rung, "before": None})] == [True, False, False, False]
    data = {"structure": "curved", "coefficients": at, "ladder": [rung, same, {**rung, "taken": False}]}
    assert structure_lines(data) == [
        "plant      curved, error on steps left out:",
        "             a jump past 512 tokens  mixed  5.0 % to 3.0 %",
        "             1 more tried, none of them surely better",
    ]
    assert structure_lines({"structure": "affine", "coefficients": {}}) == ["plant      affine"]


def test_a_coefficient_is_written_for_people() -> None:
    assert scaled({"value": 1.5e-8, "ci95": [1e-8, 2e-8], "unit": "s/token"}) == (pytest.approx(15), pytest.approx((10, 20)), "ns/token")
    assert scaled({"value": 1e-288, "ci95": [0.0, 0.0096], "unit": "s"}) == (0.0, (0.0, pytest.approx(9.6)), "ms")
    assert scaled({"value": 960.0, "ci95": None, "unit": "tokens"}) == (960.0, None, "tokens")
    nothing, held = {"value": 0.0, "ci95": None, "unit": "s"}, {"value": 0.0, "ci95": [0.0, 0.0], "unit": "s"}
    assert [acts(c) for c in (nothing, held, {**held, "ci95": [0.0, 1e-9]}, {**nothing, "value": 1.0})] == [False, False, True, True]
    lines = coefficient_lines({"a": {"value": 0.012, "ci95": [0.01, 0.0125], "unit": "s"}, "b": held, "c": nothing})
    assert [line.split() for line in lines[1:]] == [["a", "12", "[10,", "12.5]", "ms"], ["at", "zero:", "b"]]


def test_a_plant_of_an_earlier_version_is_still_told() -> None:
    """It holds no ladder, no binding and no intervals of its margins."""
    data = plant_json()
    data["heldout"]["coverage90"] = {r: {"value": None, "ci95": None} for r in ("decode", "mixed")}
    data["heldout"] |= {"median_ape": 0.01, "p90_ape": 0.03, "max_ape": 0.1}
    lines = fit_lines(data, None)
    assert lines[0] == "plant      regimes"
    assert "margin     decode 3.0 %, mixed -, for at most 1 % of the steps late" in lines
    assert not [line for line in lines if line.startswith(("binds", "coverage", "implies"))]
    data |= {
        "margin_ci95": {"decode": [0.02, 0.05], "mixed": None},
        "binding": [
            {"point": p, "step_time_s": 0.02, "shares": {"launch": 0.4, "bandwidth": 0.6}, "sentence": "of 20 ms: ... (give the llm)"}
            for p in ("typical decode step", "largest decode step")
        ],
        "implied": {"sentences": ["reading the weights goes at 5 TB/s"]},
    }
    at = (lines := fit_lines(data, None)).index("binds      typical decode step, 20.0 ms: bandwidth 60 %, launch 40 %")
    assert lines[at - 1] == "margin     decode 3.0 % [2.0, 5.0], mixed -, for at most 1 % of the steps late"
    assert lines[at + 1 : at + 4] == [
        "           largest decode step, 20.0 ms: bandwidth 60 %, launch 40 %",
        "           give the llm",
        "implies    reading the weights goes at 5 TB/s",
    ]
