"""Runs on processes and on Ray: the same results in the same places, whoever runs them, and whatever is lost on the way."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from headway.experiments import scaleout
from headway.experiments.scaleout import MOST_LOST, Ran, cores, map_runs, ray_missing

NO_RAY = "the extra scale is not installed: pip install 'headway[scale]'"


def squared(x: int) -> int:
    return x * x


def of_worker(_: int) -> tuple[int, bool]:
    return os.getpid(), bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]


def met(folder: str, item: int) -> tuple[int, bool]:
    """Whoever comes first waits until another worker has come, however long that takes to start."""
    told = of_worker(item)
    (Path(folder) / str(told[0])).touch()
    ends = time.monotonic() + 120
    while len(list(Path(folder).iterdir())) < 2 and time.monotonic() < ends:
        time.sleep(0.05)
    return told


def refusing(x: int) -> int:
    if x == 2:
        raise ValueError(f"no {x} here")
    return x


def broken(x: int) -> int:
    return [][x]


def killed_once(folder: str, x: int) -> int:
    """Items 3 and 8 kill the worker that has them for the first time."""
    mark = Path(folder) / str(x)
    if x % 5 == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return x * x


def deadly(x: int) -> int:
    if x == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


# without workers


def test_one_worker_runs_here_in_order() -> None:
    told: list[Any] = []
    here = partial(map_runs, workers=1, done=lambda place, result: told.append((place, result)))
    assert here(squared, [3, 1, 2]) == Ran([9, 1, 4], 0, "here", [])
    assert told == [(0, 9), (1, 1), (2, 4)]
    assert here(of_worker, [0]).results[0][0] == os.getpid()
    assert here(squared, []).results == []


def test_what_the_function_raises_is_raised_here() -> None:
    with pytest.raises(ValueError, match=r"^no 2 here") as caught:
        map_runs(refusing, range(4), workers=1)
    assert "refusing" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError, match=r"^IndexError: list index out of range"):
        map_runs(broken, [0], workers=1)


def test_another_place_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^where must be one of processes, ray, got 'moon'$"):
        map_runs(squared, [1], where="moon")


def test_progress_goes_from_nothing_to_the_end() -> None:
    told: list[tuple[str, float]] = []
    map_runs(squared, range(4), workers=1, progress=lambda label, share: told.append((label, share)), label="squares")
    assert told == [("squares", 0.25), ("squares", 0.5), ("squares", 0.75), ("squares", 1.0)]


def test_without_ray_it_runs_on_processes_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaleout.importlib.util, "find_spec", lambda name: None)
    found = map_runs(squared, [2, 3], where="ray", workers=1)
    assert found.results == [4, 9]
    assert found.where == "here"
    said = f"ray is not installed, so this runs on {cores()} processes of this machine; for a cluster: pip install 'headway[scale]'"
    assert found.notes == [said] == [ray_missing()]


# on processes


def test_a_killed_process_is_replaced_and_what_it_had_runs_again(tmp_path: Path) -> None:
    done: dict[int, int] = {}
    found = map_runs(partial(killed_once, str(tmp_path)), range(10), workers=2, done=done.__setitem__)
    assert found.results == [x * x for x in range(10)]
    assert (found.lost, found.where) == (2, "processes")
    assert found.notes == ["2 workers were lost; what they worked on ran again"]
    assert done == dict(enumerate(found.results)), "told of each once"


@pytest.mark.slow
def test_workers_compute_as_this_process_does_and_end_with_an_error() -> None:
    found = map_runs(of_worker, range(6), workers=2).results
    pids = {pid for pid, _ in found}
    assert os.getpid() not in pids
    assert {x64 for _, x64 in found} == {bool(jax.config.jax_enable_x64)}  # pyright: ignore[reportAttributeAccessIssue]
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
def test_an_item_that_kills_every_worker_is_named() -> None:
    with pytest.raises(RuntimeError, match=rf"^item 1 of 3 lost {MOST_LOST} workers: ended by signal 9$"):
        map_runs(deadly, range(3), workers=2)
    with pytest.raises(ValueError, match=r"^no 2 here"):
        map_runs(refusing, range(4), workers=2)


# on Ray; the clusters are of two nodes, each a process of this machine


@pytest.mark.slow
def test_an_address_where_nobody_answers_is_one_line() -> None:
    pytest.importorskip("ray", reason=NO_RAY)
    with pytest.raises(ValueError, match=r"^no Ray cluster at 127.0.0.1:9: .*; start one with `ray start --head`$"):
        map_runs(squared, [1, 2], where="ray", address="127.0.0.1:9")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    pytest.importorskip("ray", reason=NO_RAY)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        yield str(cluster.address)
    finally:
        cluster.shutdown()


@pytest.mark.slow
def test_a_cluster_of_two_gives_the_same_and_survives_a_killed_worker(address: str, tmp_path: Path) -> None:
    on_ray = partial(map_runs, where="ray", address=address)
    found = on_ray(partial(killed_once, str(tmp_path)), range(10))
    assert found.results == [x * x for x in range(10)]
    assert (found.lost, found.where) == (2, "ray")
    assert found.notes == ["2 workers were lost; what they worked on ran again"]
    (meet := tmp_path / "met").mkdir()
    where = on_ray(partial(met, str(meet)), range(4)).results
    assert len({pid for pid, _ in where}) >= 2
    assert {x64 for _, x64 in where} == {True}


@pytest.mark.slow
def test_on_a_cluster_errors_are_those_of_the_function(address: str) -> None:
    with pytest.raises(ValueError, match=r"^no 2 here"):
        map_runs(refusing, range(4), where="ray", address=address)
    with pytest.raises(RuntimeError, match=rf"^item 1 of 3 lost {MOST_LOST} workers"):
        map_runs(deadly, range(3), where="ray", address=address)


@pytest.mark.slow
def test_a_node_that_goes_takes_no_result_with_it(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason=NO_RAY)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=1)
        gone: list[Any] = []

        def done(place: int, result: Any) -> None:
            if place >= 8 and not gone:
                gone.append(cluster.remove_node(node, allow_graceful=False))

        found = map_runs(slept, range(60), where="ray", address=cluster.address, done=done)
        assert found.results == [float(np.sqrt(x)) for x in range(60)]
        assert gone
    finally:
        cluster.shutdown()


def slept(x: int) -> float:
    time.sleep(0.1)
    return float(np.sqrt(x))
