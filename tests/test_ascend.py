"""The cost table for vllm-ascend, read by the rule that its scheduler states."""

from __future__ import annotations

import csv
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.engines.ascend import COLUMNS, SCALES, contexts_in_order, keys_in_order, profile_table
from headway.engines.export import EXPORTERS
from headway.models.plant import Batch
from headway.models.signals import Limits, Target
from tests.guarded_loops import PLANTS, laws, record

LIMITS = Limits(kv_tokens=40_000, max_seqs=24, max_len=8192, max_tokens=2048)


class Refiner:
    """What the table's reader makes of it: of each context and number of decodes the largest chunk within the limit."""

    def __init__(self, file: Path, slo_ms: int, full: int) -> None:
        self.lookup: dict[tuple[int, int], int] = {}
        self.full = full
        with file.open(newline="") as rows:
            for row in csv.DictReader(rows):
                size, n, c = (int(row[name]) for name in ("chunk_size", "d_num", "ctx_len"))
                if float(row["cost"]) <= slo_ms:
                    self.lookup[c, n] = max(size, self.lookup.get((c, n), 0))
        # sets, in the order in which they come: that is how it rounds up
        self.contexts, self.decodes = {c for c, _ in sorted(self.lookup)}, {n for _, n in sorted(self.lookup)}

    def budget(self, mean_context: float, decodes: int) -> int:
        c = next((k for k in self.contexts if k >= mean_context), None)
        n = next((k for k in self.decodes if k >= decodes), None)
        assert c is not None
        assert n is not None
        return self.lookup.get((c, n), self.full)


def exported(folder: Path, law: str = "tracker", plant: str = "regimes", limits: Limits = LIMITS, **changed: Any) -> tuple[Any, Path, int]:
    held = record(laws(PLANTS[plant])[law], PLANTS[plant], limits=limits, **changed)
    out = EXPORTERS["vllm-ascend"](held, folder / "out")
    assert set(out.files) == {"profile_table.csv", "README.md"}
    slo = re.search(r'"SLO_limits_for_dynamic_batch": (\d+)', (out.folder / "README.md").read_text())
    assert slo
    return held, out.folder / "profile_table.csv", int(slo[1])


@given(st.integers(1, 200_000), st.integers(4, 96))
@settings(max_examples=300)
def test_keys_come_out_of_a_set_in_ascending_order_and_reach_the_limit(most: int, count: int) -> None:
    for keys in ((keys_in_order(most, count),) if most <= 3000 else ()) + (contexts_in_order(most),):
        assert list(set(keys)) == sorted(keys) == list(keys)
        assert keys[-1] >= most
        assert keys[0] >= 1


@pytest.mark.parametrize("plant", PLANTS)
def test_columns_and_monotonicity(plant: str, tmp_path: Path) -> None:
    _, file, slo = exported(tmp_path, "pi", plant)
    with file.open(newline="") as rows:
        reader = csv.DictReader(rows)
        assert tuple(reader.fieldnames or ()) == COLUMNS
        table = list(reader)
    assert len({(row["d_num"], row["ctx_len"]) for row in table}) > 300
    cells: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for row in table:
        size, p, n, c = (int(row[name]) for name in COLUMNS[:4])
        assert 1 <= size <= LIMITS.max_tokens
        assert size == max(p + n, 1)
        cells.setdefault((c, n), []).append((size, float(row["cost"])))
    for rows_of in cells.values():
        priced = [r for r in rows_of if r[1] > 0]
        assert priced == sorted(priced)
        assert all(a[1] <= b[1] for a, b in itertools.pairwise(priced))
        assert min(cost for _, cost in rows_of) <= slo, "a cell that the reader would not find gives the full budget"


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("law", ["tracker", "pi in quanta"])
def test_the_budget_that_is_read_out_of_it_ends_by_the_setpoint_and_one_token_more_would_not(plant: str, law: str, tmp_path: Path) -> None:
    held, file, slo = exported(tmp_path, law, plant)
    refiner, share = Refiner(file, slo, LIMITS.max_tokens), 1 - held.candidate.law.setpoint_margin
    for n in refiner.decodes:
        for c in refiner.contexts:
            if c * n > LIMITS.kv_tokens:
                continue
            u = refiner.budget(float(c), n) - n
            at = lambda p, n=n, c=c: 1e3 * float(held.plant.step_time_s(Batch(float(n), float(n * c), p, p * p / 2, 1.0))) / share  # noqa: E731
            if at(1.0) > slo:
                assert u == min(LIMITS.block_tokens, LIMITS.max_tokens - n), "decodes alone are late: one block of prompt goes on"
                continue
            assert at(float(u)) <= slo + 2e-4
            assert n + u == LIMITS.max_tokens or at(float(u + 1)) > slo


def test_what_the_cache_can_hold_is_always_found(tmp_path: Path) -> None:
    _, file, slo = exported(tmp_path)
    refiner = Refiner(file, slo, LIMITS.max_tokens)
    for n in range(1, LIMITS.max_seqs + 1):
        for c in range(1, min(LIMITS.max_len, LIMITS.kv_tokens // n), 37):
            key = next(k for k in refiner.contexts if k >= c), next(k for k in refiner.decodes if k >= n)
            assert key in refiner.lookup, f"context {c}, {n} decodes"


def test_a_longer_context_or_more_decodes_never_get_more_prompt_tokens(tmp_path: Path) -> None:
    _, file, slo = exported(tmp_path)
    refiner = Refiner(file, slo, LIMITS.max_tokens)
    contexts, decodes = sorted(refiner.contexts), sorted(refiner.decodes)
    prompt = {(c, n): refiner.lookup[c, n] - n for c in contexts for n in decodes if (c, n) in refiner.lookup}
    assert all(prompt[c, n] >= prompt[d, n] for c, d in itertools.pairwise(contexts) for n in decodes if (d, n) in prompt)
    assert all(prompt[c, n] >= prompt[c, m] for n, m in itertools.pairwise(decodes) for c in contexts if (c, m) in prompt)


@pytest.mark.parametrize("scale", SCALES)
def test_other_limits_are_answered_by_the_same_table(scale: float, tmp_path: Path) -> None:
    _, file, slo = exported(tmp_path, limits=Limits(kv_tokens=400_000, max_seqs=8, max_len=4096, max_tokens=8192))
    tight, wide = Refiner(file, max(1, int(scale * slo)), 8192), Refiner(file, 2 * slo, 8192)
    assert all(budget <= wide.lookup[key] for key, budget in tight.lookup.items())


def test_where_decodes_alone_are_late_it_is_said_and_prompts_still_move(tmp_path: Path) -> None:
    held, file, slo = exported(tmp_path, plant="regimes", limits=Limits(kv_tokens=6_000_000, max_seqs=300, max_len=16_384, max_tokens=8192))
    table = profile_table(held)
    assert table.floors > 0
    assert f"({table.floors} of " in (file.parent / "README.md").read_text()
    late = Refiner(file, slo, 8192).budget(16_000.0, 300)
    assert late == sorted(Refiner(file, slo, 8192).decodes)[-1] + 16


def test_a_budget_below_a_millisecond_is_refused(tmp_path: Path) -> None:
    held = record(laws(PLANTS["regimes"])["static"], targets=(Target(1.0, 0.0009),))
    with pytest.raises(ValueError, match=r"whole milliseconds, and the budget is 0\.900 ms"):
        EXPORTERS["vllm-ascend"](held, tmp_path / "out")


def test_the_same_table_every_time_and_whole_numbers_in_it(tmp_path: Path) -> None:
    _, a, _ = exported(tmp_path / "a")
    _, b, _ = exported(tmp_path / "b")
    assert a.read_bytes() == b.read_bytes()
    for row in csv.reader(a.read_text().splitlines()[1:]):
        assert all(json.loads(cell) == int(cell) for cell in row[:4])
