"""Was the trace recorded under a law that watched the step time? Then its noise moves its inputs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from headway.identification.diagnostics.correlation import chance, explained, sampled, settled, whole

PAST = 5
"""Steps of the past that may explain a command [steps]."""
FEWEST = 200
"""Steps of a mode below which nothing is tested [steps]."""
WINDOW = 500
"""Steps of a window: a law may have been on in a part of the trace only [steps]."""
FEWEST_CHANGES = 20
"""Changes of a command below which nothing is tested."""
LEVEL = 1e-3
"""Share of false alarms that the test of one command in one mode allows."""
SHARE = 0.02
"""Share of a command's changes that past step times must explain to be said."""


def closed_loop(
    commands: Mapping[str, np.ndarray], step_time_s: np.ndarray, stream: np.ndarray, *, mode: np.ndarray | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Test whether past step times explain a command beyond the command's own past (Granger), per mode of the recorder.

    Args:
        commands: commands in force by name ("token_budget", "running_limit", "chunk_tokens"), each of shape (k,).
        step_time_s: measured durations of every busy step, above zero, in time order, shape (k,) [s].
        stream: number of the source of each row, shape (k,), ascending.
        mode: name of the law in force at each row, shape (k,), str; None takes all rows as one.

    Returns:
        ({mode, or "all": {command: {"steps", "changes", "share", "p", "closed_steps", "feedback"}}}; what there is to say, one sentence
        for each mode with feedback). share and p are of the whole mode or of the window that shows most, closed_steps the
        steps of all that show it. A command that hardly changed in a mode is left out of it.

    Source:
        Granger, Investigating causal relations by econometric models, 1969; Ljung, System Identification, 1999, section
        13.4 (closed-loop data).
    """
    rows, stretch, said = sampled(stream)
    words = np.full(len(rows), "all") if mode is None else np.asarray(mode).astype(str)[rows]
    breaks = np.concatenate([[0], (np.diff(stretch) != 0) | (words[1:] != words[:-1])])
    stretch = np.cumsum(breaks)
    time = np.log(np.maximum(np.asarray(step_time_s, float)[rows], np.finfo(float).tiny))
    result: dict[str, Any] = {}
    for word in np.unique(words).tolist():
        here = words == word
        result[word] = {}
        for name, command in commands.items():
            values = np.asarray(command, float)[rows]
            found = _feedback(values[here], time[here], stretch[here])
            if found is not None:
                result[word][name] = found
    return result, said + _said(result)


def _feedback(command: np.ndarray, time: np.ndarray, stretch: np.ndarray) -> dict[str, Any] | None:
    """The test over all rows, and over windows of them where the command changed often enough."""
    whole_mode = _tested(command, time, stretch)
    if whole_mode is None:
        return None
    bounds = np.arange(0, len(command) + 1, WINDOW) if len(command) >= 2 * WINDOW else np.zeros(0, int)
    windows = [_tested(command[a:b], time[a:b], stretch[a:b]) for a, b in itertools.pairwise(bounds.tolist())]
    tested = [window for window in windows if window is not None]
    clear = [w for w in tested if w["p"] < LEVEL / len(tested) and w["share"] >= SHARE]
    # the windows say where; a law too weak for any window may still show over all rows
    over_all = whole_mode["p"] < LEVEL and whole_mode["share"] >= SHARE
    closed = sum(w["steps"] for w in clear) or (whole_mode["steps"] if over_all else 0)
    strongest = max([whole_mode, *clear], key=lambda w: w["share"])
    return {**whole_mode, "share": strongest["share"], "p": strongest["p"], "closed_steps": closed, "feedback": closed > 0}


def _tested(command: np.ndarray, time: np.ndarray, stretch: np.ndarray) -> dict[str, Any] | None:
    limited = command > 0
    level = np.log(np.where(limited, command, np.max(command[limited], initial=1.0)))
    changes = int(((level[1:] != level[:-1]) & (stretch[1:] == stretch[:-1])).sum())
    good = np.flatnonzero(whole(stretch, PAST))
    if len(good) < FEWEST or changes < FEWEST_CHANGES:
        return None
    past = np.column_stack([level[good - i] for i in range(1, PAST + 1)])
    step_times = settled(time)
    found = explained(level[good], past, np.column_stack([step_times[good - i] for i in range(1, PAST + 1)]))
    return {"steps": len(good), "changes": changes, "share": found.share, "p": found.p}


def _said(result: Mapping[str, Mapping[str, Any]]) -> list[str]:
    closed = {word: [name for name, row in rows.items() if row["feedback"]] for word, rows in result.items()}
    # a mode without feedback helps only if something was moved in it
    free = [word for word, rows in result.items() if rows and not closed[word]]
    said = []
    for word, names in closed.items():
        if not names:
            continue
        name = max(names, key=lambda key: result[word][key]["share"])
        row = result[word][name]
        where = f" in {row['closed_steps']:,} of {row['steps']:,} steps" + ("" if word == "all" else f" of mode={word}")
        way = f"fit the steps of mode={free[0]} (--where mode={free[0]})" if free else "record with the command moved at random"
        said.append(
            f"{name} follows earlier step times{where} ({row['share']:.0%} of what its own past leaves, {chance(row['p'])}): recorded in closed loop, where "
            f"noise moves the inputs and biases the coefficients; {way}"
        )
    return said
