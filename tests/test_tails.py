"""Quantiles and what stands beside goodput, as a person reads them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.cli.sides import event_rows
from headway.cli.sides import side_table as told_table
from headway.cli.words import beside_lines, simulate_lines
from headway.models.bottleneck import SUMS
from headway.models.goodput import ABANDONED, CANCELLED, FINISHED, summarise
from headway.models.other_goodputs import DEFINITIONS
from headway.models.signals import Target
from headway.models.stability import load_of
from headway.report.data import Findings
from headway.report.sections import side_section
from headway.report.tables import side_table
from headway.report.tails import PARTS, class_tails, more_rows, side_notes
from headway.tails import refusals, tail
from tests.runs_by_hand import told

TARGETS = (Target(1.0, 0.05, name="chat"), Target(1.0, 0.05, name="batch"))


def figures(n: int = 400, rate_rps: float = 1.0) -> dict[str, Any]:
    """Figures of a run of two classes on an engine of 10/s."""
    run = told(
        [FINISHED] * n, class_id=np.arange(n) % 2, ttft_s=0.1 + 1e-3 * (np.arange(n) % 50), gaps=np.zeros((2, 2048), int), recomputed=300.0
    )
    found = summarise([run], TARGETS, load_of(rate_rps, 10.0)).to_json()
    parts = dict.fromkeys((*SUMS, "floor"), 0.0)
    return {**found, "resources": {"time": parts | {"floor": 0.75, "prefill_tokens": 0.25}, "steps": parts | {"floor": 1.0}}}


def test_a_quantile_stands_with_its_interval_and_a_refused_one_with_its_reason() -> None:
    side = {"ttft_s": {"p99": 1.2, "p999": None}, "ci95": {"ttft_s": {"p99": [1.1, 1.4], "p999": None}}}
    assert tail(side, "ttft_s", "p99", "{} s".format) == "1.2 s [1.1 s, 1.4 s]"
    assert tail(side, "ttft_s", "p999", str) == "None"
    assert tail({"itl_s": {"p99": 1.2}, "ci95": {"itl_s": {"p99": [1.1, None]}}}, "itl_s", "p99", str) == "1.2 [1.1, open]"
    assert tail({}, "ttft_s", "p99", str) == tail(None, "itl_s", "p50", str) == "None"
    few = {"refused": {"ttft_s.p99": "needs 299 requests, has 40", "ttft_s.p999": "needs 2,995 requests, has 40"}}
    assert refusals({"controller": few, "best static": few, "other": {}}) == [
        "no TTFT p99: needs 299 requests, has 40 (controller, best static)",
        "no TTFT p99.9: needs 2,995 requests, has 40 (controller, best static)",
    ]
    assert refusals({"": few})[0] == "no TTFT p99: needs 299 requests, has 40"


def test_a_comparison_shows_intervals_refusals_and_the_goodput_of_others() -> None:
    html = (side_table({"simulated": {"one": figures()}}, "told") + side_notes({"simulated": {"one": figures()}})).replace(
        "\N{NO-BREAK SPACE}", " "
    )
    low, high = figures()["ci95"]["ttft_s"]["p50"]
    assert low < 0.125 < high
    assert f"<td>125 ms\n[{1e3 * low:.0f} ms, {1e3 * high:.0f} ms]</td>" in html.split("TTFT p50")[1][:60]
    assert "no TTFT p99.9, TPOT p99.9: needs 2,995 requests, has 400 (one; simulated)" in html
    for label in ("class batch: TTFT p90", "others&#x27; goodput: vllm_bench", "fairness over classes, Jain", "tokens computed again"):
        assert label in html
    assert all(f"{name}: {text}".replace("'", "&#x27;")[:40] in html for name, text in DEFINITIONS.items())


def test_rows_beside_goodput_are_there_only_where_they_say_something() -> None:
    labels = [row[0] for row in more_rows([figures()])]
    assert "requests degraded" not in labels
    assert "cache blocks moved out or in" not in labels
    assert "load of controller, measured: stable (load 0.10 of a capacity of 10/s)" in side_notes({"measured": {"controller": figures()}})
    assert more_rows([{}]) == class_tails("chat", [{}]) == []
    assert side_notes({"a": {"b": {}}}) == ""
    assert set(PARTS) == {*SUMS, "floor"}


def test_a_prediction_is_told_from_the_other_in_the_notes_below_the_table() -> None:
    grown = {"load": "uncertain", "load_text": "uncertain: its interval holds 1", "refused": {"ttft_s.p99": "it cannot be said"}}
    still = {"load": "stable", "load_text": "stable (load 0.81)", "refused": {}}
    validation = {"engine": "sim", "controller": grown, "best_static": still, "predicted": {"controller": grown, "best_static": still}}
    found = Findings(run=Path("r"), plant={}, controller=None, validation=validation, manifest={}, steps=None)
    html = side_section(found).replace("\N{NO-BREAK SPACE}", " ")
    assert "load of predicted, validated on engine sim: uncertain: its interval holds 1" in html
    assert "load of its prediction, validated on engine sim: stable (load 0.81)" in html
    assert "no TTFT p99: it cannot be said (controller, predicted; validated on engine sim)" in html
    assert '<th scope="col">predicted</th>' in html
    assert '<th scope="col">its prediction</th>' in html


def test_a_simulation_past_saturation_says_so_in_its_first_line_and_gives_no_ttft() -> None:
    data = figures(rate_rps=12.4) | {"runs": 1, "warnings": []}
    text = "\n".join(simulate_lines(data))
    assert "load unstable, queue +2.4/s (load 1.24 of a capacity of 10/s)" in text
    assert simulate_lines(figures(rate_rps=10.0) | {"runs": 1, "warnings": []})[0].startswith("400 requests in 1 run, load uncertain")
    uncertain = simulate_lines(figures(rate_rps=10.0) | {"runs": 1, "warnings": []})
    assert any("no TTFT p50, TTFT p90, TTFT p99: it cannot be said whether the queue grows" in line for line in uncertain)


def test_what_stands_beside_a_simulation() -> None:
    lines = beside_lines(figures())
    assert lines[0] == "others' goodput: vllm_bench 100.0 %, aiperf 100.0 %, guidellm_tpot 0.0 %"
    assert any(line.startswith("worst class: chat 100") for line in lines)
    assert "steps' time: 75.0 % floor, 25.0 % prefill tokens" in lines


def test_who_left_what_was_degraded_and_moved_is_told_only_where_it_happened() -> None:
    quiet = figures() | {"recomputed_tokens": 0.0}
    assert event_rows([quiet]) == []
    status = [FINISHED] * 564 + [ABANDONED] * 24 + [CANCELLED] * 12
    run = told(status, degraded=np.arange(600) < 30, degraded_on_time=np.zeros(600), recomputed=300.0, swapped_blocks=1200.0)
    found = summarise([run], TARGETS[:1], load_of(1.0, 10.0)).to_json()
    assert event_rows([found, quiet]) == [
        ("clients left late", "4.0 %, 24", "0.0 %"),
        ("clients left in time", "2.0 %, 12", "0.0 %"),
        ("degraded", "5.0 %", "-"),
        ("degraded: on time", "0.0 %", "-"),
        ("computed again, tok", "300", "0"),
        ("KV blocks moved", "1,200", "0"),
    ]
    assert ["clients", "left", "late", "4.0", "%,", "24"] in [line.split() for line in told_table({"": found})]
    assert event_rows([quiet | {"hit_share": 0.25, "preempted": 3}]) == [("prefix cache hits", "25.0 %"), ("preempted", "3")]


def test_a_quantile_of_a_class_that_is_refused_has_its_reason() -> None:
    lines = told_table({"": figures()})
    assert ["batch:", "p99", "TTFT", "-"] in [line.split() for line in lines]
    for name in ("chat", "batch"):
        assert f"no TTFT p99 of {name}: needs 299 requests, has 200" in lines
    assert not any("p99.9 of" in line for line in lines), "only of the quantiles that are shown"
    assert "no TTFT p99.9, TPOT p99.9 of batch: needs 2,995 requests, has 200 (one)" in refusals({"one": figures()})
    same = {"refused": {"ttft_s.p99": "the queue grows"}}
    assert refusals({"": same | {"classes": {"a": same, "b": {}}}}) == ["no TTFT p99: the queue grows"]


def test_a_load_says_whether_the_capacity_or_the_runs_decided() -> None:
    assert load_of(5.0, 10.0, seen="uncertain").sentence() == (
        "uncertain: the runs' own backlog does not say whether it grows, though capacity is enough (load 0.50 of a capacity of 10/s)"
    )
    run = told([FINISHED] * 400, ttft_s=np.full(400, 0.1))
    assert summarise([run], TARGETS[:1]).load_text == "stable: the runs' own backlog does not grow (no capacity was measured)"


@pytest.mark.parametrize("rate_rps", [1.0, 10.0, 12.4])
def test_figures_are_plain_json(rate_rps: float) -> None:
    import json

    again = json.loads(json.dumps(figures(rate_rps=rate_rps)))
    assert again["load"] == load_of(rate_rps, 10.0).verdict
    assert dataclasses.asdict(summarise([told([FINISHED])], TARGETS[:1]))["refused"]
