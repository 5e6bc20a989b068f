"""Many independent runs on the processes of this machine, or on a Ray cluster: the same code, the same results in the same places.

What a run gives depends on its item alone, so neither the number of workers nor the order in which they end shows in a
result. A worker that is lost, killed or out of memory, costs no more than the item it worked on: that runs again elsewhere.
"""

from __future__ import annotations

import importlib.util
import os
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numba

from headway.experiments.workers import Lost, Workers

PLACES = ("processes", "ray")

MOST_LOST = 3
"""Workers that one item may lose before it is taken to be what kills them."""

Progress = Callable[[str, float], None]


class Ran(NamedTuple):
    """What came of the items, and how.

    Args:
        results: one per item, in the order of the items.
        lost: workers that were lost; what they worked on ran again.
        where: "here", "processes" or "ray".
        notes: sentences on what was otherwise than asked for.
    """

    results: list[Any]
    lost: int
    where: str
    notes: list[str]


class Pool(Protocol):
    """Where items run."""

    def room(self) -> int:
        """Items that it should be given at a time.

        Returns:
            At least 1.
        """
        ...

    def give(self, place: int, item: Any) -> None:
        """Start one.

        Args:
            place: of the item among all.
            item: what the function is called with.
        """
        ...

    def take(self) -> list[tuple[int, Any]]:
        """Wait until at least one has ended.

        Returns:
            (place, answer of `answered`, or `Lost` where its worker was).
        """
        ...

    def close(self, *, at_once: bool) -> None:
        """End the workers.

        Args:
            at_once: whatever they do.
        """
        ...


def map_runs(
    function: Callable[[Any], Any],
    items: Sequence[Any],
    *,
    where: str = "processes",
    address: str | None = None,
    workers: int | None = None,
    done: Callable[[int, Any], None] | None = None,
    progress: Progress | None = None,
    label: str = "running",
) -> Ran:
    """Call a function on every item, on as many cores as there are.

    Args:
        function: of one item, found by its module's name on every worker (or a partial of such a one); no hidden state, no
            chance that the item does not fix. It is sent to a worker once, an item whenever it runs.
        items: independent of each other.
        where: one of PLACES. Without ray installed, "ray" runs on processes, and a note says so.
        address: of a running Ray cluster, "auto" for the one of this machine; None starts one here.
        workers: processes; None for one per core. A cluster has as many as it has cores.
        done: called here with place and result as each ends, in no order: what it keeps is kept if the whole is killed.
        progress: called with the label and a fraction.
        label: for the progress.

    Returns:
        Ran. With one worker or one item on processes, they run here.

    Raises:
        ValueError: another place; or what the function raises as such.
        RuntimeError: an item that lost MOST_LOST workers, or whatever else the function raised.

    Example:
        >>> map_runs(abs, [3, -4], workers=1).results
        [3, 4]
    """
    if where not in PLACES:
        raise ValueError(f"where must be one of {', '.join(PLACES)}, got {where!r}")
    notes = [ray_missing()] if where == "ray" and ray_missing() else []
    tell = lambda k: progress(label, k / max(len(items), 1)) if progress else None  # noqa: E731
    if where == "ray" and not notes:
        from headway.experiments.cluster import Cluster

        results, lost = _driven(Cluster(function, address), items, done, tell)
        return Ran(results, lost, "ray", _lost_note(lost))
    count = min(workers or cores(), len(items))
    if count <= 1:
        results = []
        for place, item in enumerate(items):
            results.append(_opened(answered(function, item)))
            if done:
                done(place, results[-1])
            tell(place + 1)
        return Ran(results, 0, "here", notes)
    settings = {"threads": max(1, cores() // count), "x64": bool(jax.config.jax_enable_x64)}  # pyright: ignore[reportAttributeAccessIssue]
    results, lost = _driven(Workers(answered, function, count, settings), items, done, tell)
    return Ran(results, lost, "processes", [*notes, *_lost_note(lost)])


def ray_missing() -> str:
    """What to say where Ray is asked for and is not there.

    Returns:
        A sentence; empty where it is installed.
    """
    if importlib.util.find_spec("ray") is not None:
        return ""
    return f"ray is not installed, so this runs on {cores()} processes of this machine; for a cluster: pip install 'headway[scale]'"


def cores() -> int:
    """Cores that this process may use.

    Returns:
        At least 1.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Answer(NamedTuple):
    """What a worker sends back: plain values, because not every exception survives the way.

    Args:
        fine: the function returned.
        value: what it returned, or the message of what it raised.
        kind: of exception; empty where it returned.
        trace: where it was raised.
    """

    fine: bool
    value: Any
    kind: str = ""
    trace: str = ""


def answered(function: Callable[[Any], Any], item: Any) -> Answer:
    """Call the function, and turn what it raises into an answer.

    Args:
        function: of one item.
        item: the item.

    Returns:
        Answer.
    """
    try:
        return Answer(True, function(item))
    except Exception as error:  # noqa: BLE001  # it is raised again where the answer is opened
        return Answer(False, str(error), type(error).__name__, traceback.format_exc())


def settled(settings: dict[str, Any]) -> None:
    """Make a worker compute as the process that started it.

    Args:
        settings: {"threads": of numba, "x64": of JAX}.
    """
    numba.set_num_threads(min(int(settings["threads"]), numba.config.NUMBA_NUM_THREADS))  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_x64", settings["x64"])


def _opened(answer: Answer) -> Any:
    if answer.fine:
        return answer.value
    error = ValueError(answer.value) if answer.kind == "ValueError" else RuntimeError(f"{answer.kind}: {answer.value}")
    error.add_note(f"in a worker:\n{answer.trace}")
    raise error


def _driven(
    pool: Pool, items: Sequence[Any], done: Callable[[int, Any], None] | None, tell: Callable[[int], None]
) -> tuple[list[Any], int]:
    """Keep a pool busy until every item has its result; give again what a lost worker had."""
    results: list[Any] = [None] * len(items)
    waiting, flying, left, lost = deque(range(len(items))), 0, len(items), [0] * len(items)
    fine = False
    try:
        while left:
            while waiting and flying < pool.room():
                place = waiting.popleft()
                pool.give(place, items[place])
                flying += 1
            for place, answer in pool.take():
                flying -= 1
                if isinstance(answer, Lost):
                    lost[place] += 1
                    if lost[place] >= MOST_LOST:
                        raise RuntimeError(f"item {place} of {len(items)} lost {MOST_LOST} workers: {answer.why}")
                    waiting.appendleft(place)
                    continue
                results[place] = _opened(answer)
                left -= 1
                if done:
                    done(place, results[place])
                tell(len(items) - left)
        fine = True
    finally:
        pool.close(at_once=not fine)
    return results, sum(lost)


def _lost_note(lost: int) -> list[str]:
    if not lost:
        return []
    return ["1 worker was lost; what it worked on ran again" if lost == 1 else f"{lost} workers were lost; what they worked on ran again"]
