"""Topologies: what is refused, all splits of some engines side by side, and the command that prints them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from headway.cli import main
from headway.controllers.dispatch import transfer_s_per_token
from headway.controllers.pools import Pools
from headway.experiments.topologies import compare_topologies
from headway.experiments.tune import Effort, Problem
from headway.models.identified import IdentifiedPlant
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Replay, Workload
from tests.small_problems import known
from tests.test_pools import EVEN, WIDE, asked, run

# what is refused


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        (Pools(0, 1), "prefill must be a whole number"),
        (Pools(1, -1), "decode must be a whole number"),
        (Pools(1.5, 1), "prefill must be a whole number"),  # pyright: ignore[reportArgumentType]
        (Pools(1, 1, -1e-6), "transfer_s_per_token must be a time that is not negative, got -1e-06"),
        (Pools(1, 1, 0.0, math.inf), "transfer_latency_s must be"),
        (Pools(1, 1, dispatch="random"), "dispatch must be one of round_robin, least_loaded, got 'random'"),
    ],
)
def test_what_is_no_topology_is_refused(pools: Pools, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run(asked([0.0], [1], [1]), pools)


def test_a_transfer_needs_a_bandwidth() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        transfer_s_per_token(131072, 0.0)


# all splits side by side


def compared(rate_rps: float, itl_s: float, **between):
    rng = np.random.default_rng(11)
    n = 1500
    w = Workload(np.cumsum(rng.exponential(1 / rate_rps, n)), rng.integers(200, 1800, n), rng.geometric(1 / 60, n), np.zeros(n, np.int64))
    limits = Limits(60_000, 16, max_seqs=64, max_tokens=2048)
    plant = RegimePlant((0.008, 5e-5, 4e-8, 0.0, 0.0, 0.0), (0.009, 5e-5, 4e-8, 4e-5, 2e-9, 1e-4))
    identified: IdentifiedPlant = known(plant, limits)
    problem = Problem(identified, Replay(w), (Target(0.5, itl_s),), limits)
    return compare_topologies(problem, 3, effort=Effort(train_seeds=2, heldout_seeds=6, requests=300), **between)


def test_a_split_helps_where_no_policy_can() -> None:
    # a step with a prompt takes at least 9 ms, one without 8 ms: at 9.5 ms a gap no policy of mixed replicas may prefill much
    found = compared(20.0, 0.0095, transfer_s_per_token=1e-7)
    assert [c.pools.name for c in (found.mixed, *found.splits)] == ["3 mixed", "1+2", "2+1"]
    assert found.verdict == "split"
    difference = found.best.attainment - found.mixed.attainment
    assert found.best.gain.value == pytest.approx(difference.mean())
    assert f"with 3 replicas, {found.best.pools.name} attains" in found.sentence()
    assert "points [" in found.sentence()


def test_a_slow_link_makes_the_split_worse() -> None:
    found = compared(6.0, 0.05, transfer_s_per_token=2e-3)
    assert found.verdict == "mixed"
    assert found.sentence().endswith(("is attained by 3 mixed", "is attained by none of them"))
    assert found.to_json()["verdict"] == "mixed"


def test_one_engine_has_nothing_to_split() -> None:
    problem = Problem(known(EVEN, WIDE), Replay(asked(np.arange(9.0), np.ones(9, int), np.ones(9, int))), (Target(1.0, 0.025),), WIDE)
    with pytest.raises(ValueError, match="one engine has nothing to split"):
        compare_topologies(problem, 1)


def test_the_command_prints_all_topologies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant = tmp_path / "plant.json"
    limits = Limits(60_000, 16, max_seqs=64, max_tokens=2048)
    plant.write_text(json.dumps({**known(EVEN, limits).to_json(), "margin": {"decode": 0.05, "mixed": 0.1}}))
    load = ["--workload", "poisson:rate=20/s,prompt=400,output=geometric(40)", "--target", "ttft=500ms,itl=15ms"]
    at = ["pools", str(plant), *load, "--replicas", "2", "--requests", "80", "--runs", "8"]
    assert main([*at, "--transfer", "10us/token", "--latency", "1ms"]) == 0
    said = capsys.readouterr().out
    for text in ("2 mixed", "1+1", "attainment", "ITL p99", "TTFT p99", "verdict    with 2 replicas, 1+1 attains"):
        assert text in said
    assert main([*at, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [c["name"] for c in (data["mixed"], *data["splits"])] == ["2 mixed", "1+1"]
    # a step with prompt tokens takes 20 ms, longer than the target: nobody who prefills beside decodes can keep it
    assert data["verdict"] == "split"
    assert main([*at, "--transfer", "40us"]) == 2
    assert "--transfer must be a time per token, got '40us'; write for example 40us/token" in capsys.readouterr().err
