"""What the findings of a fit advise: it can be typed, it takes the rows that it names, and it does not make things worse."""

from __future__ import annotations

import re

import numpy as np
import pytest

from headway.identification.diagnostics.independence import independence
from headway.identification.diagnostics.staircase import staircase
from headway.identification.diagnostics.variance import variance
from headway.identification.fit import fit
from headway.identification.limits import is_told
from headway.identification.structures.ladder import Rung, tried_text
from headway.models.signals import Limits
from tests.synthetic_steps import TRUTH, composed, durations, traced

CLIFFS = {
    (28, 16, 10): "; no token budget below it is advised: 28 leaves 12 tokens for prompts beside 16 decode requests (max_seqs); ",
    (
        28,
        None,
        18,
    ): "; no token budget below it is advised: 28 leaves 10 tokens for prompts beside 18 decode requests (the most of the trace); ",
    (28, 64, 10): "; no token budget below it is advised: 28 leaves none for prompts beside 64 decode requests (max_seqs); ",
    (60, 16, 18): "; a token budget of 60 stays below it and leaves 44 tokens for prompts beside 16 decode requests (max_seqs); ",
    (
        60,
        None,
        18,
    ): "; a token budget of 60 stays below it and leaves 42 tokens for prompts beside 18 decode requests (the most of the trace); ",
}


@pytest.mark.parametrize("case", CLIFFS)
def test_a_budget_below_a_cliff_is_proposed_only_if_it_leaves_room_for_prompts(case: tuple[int, int | None, int]) -> None:
    edge, max_seqs, most = case
    rng = np.random.default_rng(8)
    tokens, stream = rng.integers(21, 100, 4000).astype(float), np.zeros(4000, int)
    requests = rng.integers(1, most + 1, 4000).astype(float)
    residual = np.where(tokens > edge, 0.5, 0.0) - 0.3 + 0.01 * rng.normal(size=4000)
    _, (text,) = staircase(residual, stream == 0, stream, tokens, decode_requests=requests, max_seqs=max_seqs)
    assert f"a cliff at {edge + 1} tokens (+65%)" in text
    assert CLIFFS[case] in text
    assert text.endswith(f"`headway simulate PLANT --max-tokens {edge}` shows what that costs (this plant leaves the cliff out)")
    _, (blind,) = staircase(residual, stream == 0, stream, tokens)
    assert f"a token budget of {edge} stays below it, but pays only if it leaves room for prompts" in blind


@pytest.mark.parametrize("regime", ["decode", "mixed"])
def test_the_range_that_a_plant_misses_is_given_as_an_option(regime: str) -> None:
    rng = np.random.default_rng(6)
    batch = composed(3000, mixed=float(regime == "mixed"))
    batch = batch._replace(decode_requests=rng.integers(1, 400, 3000).astype(float))
    tokens, stream = batch.decode_requests + batch.prefill_tokens, np.zeros(3000, int)
    residual = 0.2 * (1 - np.exp(-tokens / np.median(tokens))) - 0.15 + 0.01 * rng.normal(size=3000)
    mixed = np.full(3000, regime == "mixed")
    structures = {regime: "others were tried"}
    found, (said,) = staircase(residual, mixed, stream, tokens, decode_requests=batch.decode_requests, structures=structures)
    named = re.search(r"\(--where (\w+)=(\d+:\d+) takes these\); others were tried$", said)
    assert named
    assert named[1] == ("decode_requests" if regime == "decode" else "prefill_tokens")
    chosen = traced(batch, np.ones(3000)).matching({named[1]: named[2]})
    worst = max(found[regime]["bins"], key=lambda row: abs(row[3]))
    assert chosen[(tokens >= worst[0]) & (tokens <= worst[1])].all()
    assert chosen.sum() >= 60
    _, (blind,) = staircase(residual, mixed, stream, tokens)
    assert blind.endswith("fit only the range that the engine runs in (--where COLUMN=LOW:HIGH)")


@pytest.mark.parametrize("more", [True, False])
def test_the_third_that_scatters_more_is_given_as_an_option(more: bool) -> None:
    batch = composed(4000)
    mixed = batch.prefill_tokens > 0
    predicted = np.asarray(TRUTH.step_time_s(batch))
    size = (predicted / np.median(predicted[mixed])) ** (1.5 if more else -1.5)
    residual = np.random.default_rng(2).normal(size=4000) * 0.01 * np.where(mixed, size, 1.0)
    found, said = variance(residual, predicted, mixed, np.zeros(4000, int), batch._asdict())
    (text,) = [text for text in said if "exceed a margin" in text]
    named = re.search(r"run at \(--where (\w+)=(\d*):(\d*) takes those that scatter more\), or ask for a smaller epsilon$", text)
    assert named
    column, low, high = named.groups()
    assert [low, high] == (
        ["{:.0f}".format(found["mixed"]["against"][column]["thirds"][1]), ""]
        if more
        else ["", "{:.0f}".format(found["mixed"]["against"][column]["thirds"][0])]
    )
    chosen = traced(batch, predicted).matching({column: f"{low}:{high}"})
    assert 0.3 < chosen[mixed].mean() < 0.5
    assert residual[mixed & chosen].std() > 1.3 * residual[mixed & ~chosen].std()
    _, (blind,) = variance(residual[mixed], predicted[mixed], mixed[mixed], np.zeros(int(mixed.sum()), int), {})
    assert "run at (--where COLUMN=LOW:HIGH), or" in blind
    _, said = variance(
        residual, predicted, mixed, np.zeros(4000, int), batch._asdict(), epsilon=0.002
    )  # a third is too few for this margin
    assert not [text for text in said if "takes those that scatter more" in text]


def test_other_structures_are_advised_only_where_nobody_tried_them() -> None:
    rungs = [Rung("a knee", "mixed", 0.05, 0.049, 0.3, False), Rung("a roof", "mixed", 0.05, 0.06, -1.0, False)]
    assert tried_text(None, "mixed") == "--structure auto tries others on steps left out"
    assert tried_text([], "mixed") == tried_text(rungs, "decode") == ""
    assert tried_text(rungs, "mixed") == (
        "of 2 other structures that --structure auto tried on steps left out none told them surely better "
        "(the nearest, a knee: error 5.0% to 4.9%)"
    )
    batch = composed(3000)
    predicted, mixed = np.asarray(TRUTH.step_time_s(batch)), batch.prefill_tokens > 0
    residual = np.log1p(4e-4 * batch.prefill_requests / predicted) + 0.01 * np.random.default_rng(1).normal(size=3000)
    for structures, end in ((None, "held at zero"), ({"mixed": "they were tried"}, "held at zero; they were tried")):
        _, said = independence(residual, predicted, mixed, np.zeros(3000, int), batch._asdict(), structures=structures)
        assert [text for text in said if text.startswith("mixed: steps with more") and text.endswith(end)]


def test_a_fit_says_whether_its_structure_was_chosen_or_named() -> None:
    batch = composed(1500)
    y = np.where((batch.prefill_tokens > 0) & (batch.decode_requests % 2 == 0), 1.3, 1.0) * durations(batch, 0.01)
    y = y + np.where(batch.prefill_tokens > 0, 0.0, 3e-7 * batch.decode_requests**2)
    said = {structure: " ".join(fit(traced(batch, y), structure=structure).about["warnings"]) for structure in ("auto", "affine")}
    assert "--structure auto tries others on steps left out" in said["affine"]
    assert "--structure auto tries others" not in said["auto"]
    assert "try another structure" not in " ".join(said.values())


def test_a_limit_is_told_from_a_default() -> None:
    trace = traced(composed(5), np.ones(5))
    assert not is_told(trace, None, "max_seqs")
    assert not is_told(trace, {"max_tokens": 512}, "max_seqs")
    assert is_told(trace, {"max_seqs": 16}, "max_seqs")
    assert is_told(trace, Limits(kv_tokens=1600), "max_seqs")
