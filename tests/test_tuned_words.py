"""What `tune` prints: word for word, in 80 columns, and each figure called what it is."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headway.cli.summary import _law_text
from headway.cli.terminal import change, ms, percent
from headway.cli.tuned import (
    SETTING_UNITS,
    WIDTH,
    bound_lines,
    bound_summary,
    contest_table,
    gain_lines,
    look_lines,
    part_lines,
    search_lines,
    settings_lines,
)
from headway.cli.words import found_text, tune_lines
from headway.controllers import CONTROLLERS
from headway.controllers.record import ADMISSION_UNITS, PART_UNITS, POLICY_UNITS
from tests.small_run import tuning_json
from tests.synthetic_steps import TRUTH

PLANT = {"plant": TRUTH}
BOUND: dict[str, Any] = {
    "schema": "headway/distance/1",
    "attainment": 1.0,
    "attained": 0.931,
    "share": 0.931,
    "share_ci95": [0.92, 0.94],
    "estimate": 0.979,
    "told_whom_to_shed": 0.952,
    "promise": 0.99,
    "ruled_out": False,
    "changes": None,
    "verdict": None,
    "windows": 2,
    "requests": 300,
}


def worth(part: str, value: float, low: float | None, high: float | None, clean: float) -> dict[str, Any]:
    return {
        "part": part,
        "instead": "something",
        "without": 0.9,
        "attainment": {"value": value, "ci95": [low, high]},
        "clean": {"value": clean, "ci95": [None, None]},
    }


ABLATION: dict[str, Any] = {
    "attainment": 0.99,
    "parts": [worth("triage", 0.0631, 0.049, 0.081, 0.12), worth("budget law", -0.0004, -0.001, None, 0.003)],
    "off": ["admission"],
    "draws": 20,
}
KNEES: dict[str, Any] = {
    "of": {
        "controller": {"outcome": "found", "rate_rps": 14.123, "ci95_rps": [13.5, None], "share": 0.99},
        "any_static": {"outcome": "above", "rate_rps": 80.0, "ci95_rps": [None, None], "share": 0.99},
    }
}
WHOLE: dict[str, Any] = {
    **tuning_json(),
    "bound": BOUND,
    "ablation": ABLATION,
    "knees": KNEES,
    "pareto": {"sentence": "the controller trades over 3 settings from 90.0 % of first tokens with 99.0 % of their tokens in time to more"},
    "heldout_said": "20 held-out seeds: the gain's interval is 0.4 % to either side",
    "slopes": ["exact differences: the fluid does not know caps", "exact differences: the fluid does not know caps"],
    "robust": {"kind": "cvar", "tail": 0.25, "plants": 4, "drawn": "jointly", "controller": 0.91, "best_static": 0.84},
    "required": [{"said": "shed 1.0 %, at most 2.0 %", "kept": True}],
}
PRINTED = """\
outcome    better than the best static setting (2048 tokens, 64 requests)
gain       +10.0 % [+8.0, +12.0] of the tokens on time over it, held out
           +1.0 % [-0.2, +2.0] over it with a queue timeout
settings   margin 0.15, aging_rate 0.5 s/s
                    tuned  best static  + timeout  untuned
  attainment       99.0 %       90.0 %     98.0 %   97.0 %
  clean requests   98.0 %       81.0 %     96.0 %   94.1 %
  goodput, tok/s    1,980        1,800      1,960    1,940
  shed              0.2 %        0.0 %      0.2 %    0.2 %
  preempted             3            3          3        3
  TTFT p99         200 ms       400 ms     300 ms   240 ms
  ITL p99         20.0 ms      40.0 ms    30.0 ms  24.0 ms
  longest gap     60.0 ms       120 ms    90.0 ms  72.0 ms
required   shed 1.0 %, at most 2.0 %: kept, held out
bound      100.0 %  no policy attains more (proved): 93.1 % of the bound
            97.9 %  a scheduler that knows the load (estimate, not proved)
            95.2 %  the controller, told whom to shed (a run)
            93.1 %  the controller; all on 2 windows of 300 requests
parts      what each brings, in points     tokens on time  clean
           triage                       +6.3 [+4.9, +8.1]  +12.0
           budget law                       0.0 [-0.1, ?]   +0.3
           not in use: admission
knees      99 % on time up to, requests/s
           controller                      14.1 [13.5, ?]
           any static                            above 80
trade      the controller trades over 3 settings from 90.0 % of first tokens
           with 99.0 % of their tokens in time to more
held out   20 held-out seeds: the gain's interval is 0.4 % to either side
slopes     exact differences: the fluid does not know caps
robust     on 4 other plants that the trace allows, drawn jointly, as the fit's
           bootstrap holds them, mean of the worst 25 % of the runs: 91.0 %,
           best static 84.0 %
note: extrapolation: steps of up to 70 decoding sequences, the trace held 63
written    controller.json"""


def test_the_command_prints_this() -> None:
    assert "\n".join(tune_lines(WHOLE, "controller.json")).splitlines() == PRINTED.splitlines()


def test_no_line_is_wider_than_a_narrow_terminal() -> None:
    assert max(len(line) for line in PRINTED.splitlines()) <= WIDTH


def test_a_setting_has_its_unit_and_a_line_its_width() -> None:
    settings = {"margin": 0.0, "aging_rate": 0.09867, "tolerance": 0.01861, "priority.chat": 0.5, "running_limit": 64}
    settings |= {"memory_price_s": 0.002689, "stride": 0.5, "timeout": None}
    lines = settings_lines(settings)
    assert " ".join(" ".join(lines).split()) == (
        "settings margin 0, aging_rate 0.09867 s/s, tolerance 0.01861 x ttft, priority.chat 0.5 s, running_limit 64 requests, "
        "memory_price_s 0.002689 s/block, stride 0.5 x ITL budget"
    )
    assert max(map(len, lines)) <= WIDTH


def test_the_units_of_settings_are_those_of_the_record() -> None:
    words = {"share of ttft": "x ttft", "share of the ITL budget": "x ITL budget", "share of arrivals": "of arrivals"}
    known = {name: words.get(unit, unit) for name, unit in (POLICY_UNITS | ADMISSION_UNITS | PART_UNITS).items()}
    for name in ("class_shares", "priority_s"):  # settings have one of each class: share.chat, priority.chat
        known.pop(name)
    for kind in ("tracker", "pi"):
        known |= {name: gain.unit for name, gain in CONTROLLERS[kind](**PLANT if CONTROLLERS[kind].predicts else {}).gains().items()}
    told = {name: unit for name, unit in known.items() if unit not in ("1", "standard deviations", "times both targets")}
    assert {name: SETTING_UNITS.get(name) for name in told} == told
    assert set(SETTING_UNITS) - set(known) == {"priority", "token_budget"}


def test_a_gain_that_is_rounded_to_zero_has_no_sign() -> None:
    tuning = {
        **tuning_json(),
        "gain": -0.0002,
        "gain_ci95": [-0.0004, 0.0004],
        "gain_over_timeout": 0.0,
        "gain_over_timeout_ci95": [None, 0.1],
    }
    assert gain_lines(tuning) == [
        "gain       0.0 % [0.0, 0.0] of the tokens on time over it, held out",
        "           0.0 % over it with a queue timeout",
    ]
    assert (percent(-1e-5), ms(-1e-6), change(-0.0001), found_text({"name": "tokens as predicted", "value": -1e-5})) == (
        "0.0 %",
        "0.0 ms",
        "0.0 %",
        "0.0 %",
    )


def test_what_was_not_looked_at_is_not_told() -> None:
    bare = {**tuning_json(), "bound": None}
    text = "\n".join(tune_lines(bare, None))
    assert "bound      not looked at; --bound does" in text
    for word in ("parts", "knees", "trade", "acted", "plant off", "robust", "written"):
        assert f"\n{word}" not in text
    assert part_lines(bare) == look_lines(bare) == search_lines(bare) == bound_summary(bare) == []


def test_a_target_out_of_reach_is_told_with_the_smallest_changes() -> None:
    out = {"attainment": 0.41, "ruled_out": True}
    unasked = bound_lines({"bound": {**BOUND, **out}})
    assert unasked[4:] == [
        "target     OUT OF REACH: no policy attains 99 % on these windows, at most",
        "           41.0 %; --bound names the smallest change that helps",
    ]
    changes = ["at 22.3 requests/s", "with an ITL target of 40 ms", "with 2 replicas"]
    asked = bound_lines({"bound": {**BOUND, **out, "changes": changes, "verdict": "no policy can attain 99 %"}})
    assert asked[6:] == [f"           {text}" for text in changes]
    assert "smallest change with which it is not ruled out" in " ".join(line.strip() for line in asked[4:6])
    noisy = bound_lines({"bound": {**BOUND, **out, "changes": [], "verdict": "99 % is not ruled out"}})
    assert "whatever the noise: 99 % is not ruled out" in " ".join(line.strip() for line in noisy)
    assert any("OUT OF REACH" in line for line in bound_summary({"bound": {**BOUND, **out}}))


def test_an_estimate_below_what_the_controller_attains_is_called_too_low() -> None:
    low = {"bound": {**BOUND, "estimate": 0.784}}
    assert "            78.4 %  a scheduler that knows the load (estimate, too low here)" in bound_lines(low)
    assert bound_summary(low)[0].endswith("one that knows the load: about 78.4 % (estimate, too low here)")
    assert bound_summary({"bound": BOUND})[0].endswith("one that knows the load: about 97.9 % (estimate)")


def test_a_part_of_which_nothing_is_known_is_said_to_be_off() -> None:
    assert part_lines({"ablation": {"parts": [], "off": ["triage", "order"], "draws": 4}}) == ["parts      not in use: triage, order"]


@pytest.mark.parametrize(
    ("drawn", "words"), [("jointly", "drawn jointly"), ("apart", "drawn one coefficient at a time"), (None, "allows, mean of")]
)
def test_how_plants_were_drawn_is_said(drawn: str | None, words: str) -> None:
    robust = {k: v for k, v in {**WHOLE["robust"], "drawn": drawn}.items() if v is not None}
    assert words in " ".join(line.strip() for line in search_lines({"robust": robust}))


def test_a_quantile_without_a_point_is_what_it_is_at_least_and_only_shown_ones_are_explained() -> None:
    side = json.loads(json.dumps(tuning_json()["heldout"]["figures"]))
    side["ttft_s"]["p99"] = None
    side |= {"ci95": {"ttft_s": {"p99": [0.54, None]}}, "refused": {"ttft_s.p99": "the queue grows", "itl_s.p999": "needs more requests"}}
    text = "\n".join(contest_table({"one": side}))
    assert re.search(r"^  TTFT p99 +over 540 ms$", text, re.MULTILINE)
    assert "no TTFT p99: the queue grows (one)" in text
    assert "needs more" not in text


@pytest.mark.parametrize(
    ("gains", "text"),
    [
        ({"late_rate": 0.01, "least_tokens": 128.0, "most_tokens": 8192.0}, "the margin is found as it runs, from 20.0 ms of 25.0 on"),
        ({"late_rate": 0.01, "least_tokens": 8192.0, "most_tokens": 8192.0}, "a fixed budget of 8,192 prompt tokens a step"),
        ({}, "margin 20.0 % (a step is steered to 20.0 ms of 25.0)"),
    ],
)
def test_the_law_is_told_by_what_it_steers_to(gains: dict[str, float], text: str) -> None:
    assert text in _law_text({name: {"value": value} for name, value in gains.items()}, 0.2, 20.0, 25.0)
