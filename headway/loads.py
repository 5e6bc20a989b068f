"""What a command is given, resolved: workload and target, plant and controller files, limits of the engine."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.controllers.policy import Policy
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import NOISE_LENGTH, Candidate, Draw, simulate
from headway.controllers.static import StaticLaw
from headway.experiments.whole_files import read_json
from headway.models.identified import IdentifiedPlant
from headway.models.levels import levels_of
from headway.models.outcome import FUTURE
from headway.models.signals import Limits, Target
from headway.models.workload import Workload, WorkloadSource
from headway.targets import parse_target
from headway.workloads import load_workload, located

RUN_S = 120.0
"""Default length of one simulated run [s]: shorter ones flatter a queue that is filling up."""

REQUESTS = (200, 2000)
"""A run's number of requests is kept in this range."""


@dataclasses.dataclass(frozen=True)
class Load:
    """What is served and what was promised, as given at a door.

    Args:
        spec: workload file or generator spec.
        rate_rps: to rescale the arrivals to; None leaves them [requests/s].
        rows: selected rows of a file; None for all.
        source: where seeds draw from.
        targets: one per class.
        notes: sentences on what was assumed or set aside.
    """

    spec: str
    rate_rps: float | None
    rows: tuple[int, int | None] | None
    source: WorkloadSource
    targets: tuple[Target, ...]
    notes: list[str]

    def requests(self, wanted: int | None, identified: IdentifiedPlant | None = None, limits: Limits | None = None) -> int:
        """Requests per run.

        Where requests wait for each other's end, how many come in RUN_S seconds is the engine's doing: it is simulated, as a stock engine
        serves them, and said.

        Args:
            wanted: as asked for; None for about RUN_S seconds of arrivals.
            identified: the plant that is to serve them; None leaves a closed loop to its thinking times.
            limits: of the engine; None for the plant's own.

        Returns:
            Number of requests.
        """
        if wanted is not None:
            given = len(self.source.draw(0, wanted, heldout=True))
            if given < wanted:
                self.notes.append(f"runs hold {given} requests, not {wanted}: held-out runs come from the last third of the file")
            return wanted
        low, high = REQUESTS
        sample = self.source.draw(0, 1000, heldout=False)
        closed = sample.after is not None and bool((sample.after >= 0).any())
        if closed and identified is not None:
            sample = self.source.draw(0, high, heldout=False)
            rate = served_rate_rps(identified, sample, self.targets, limits or identified.limits)
            found = min(max(math.ceil(rate * RUN_S), low), high)
            self.notes.append(
                f"requests wait for each other's end: a stock engine of this plant is sent {rate:.3g} a second in a run of {RUN_S:g} s, "
                f"so runs hold {found}, about {found / rate:.0f} s; a policy that serves faster, or sheds, is sent more"
            )
            return found
        rate = sample.rate_rps
        found = low if not math.isfinite(rate) else int(min(max(math.ceil(rate * RUN_S), low), high))
        if closed:
            self.notes.append(
                f"requests wait for each other's end and no plant says how soon that is: runs hold {found}, as if every answer took no time"
            )
        return found


def served_rate_rps(identified: IdentifiedPlant, workload: Workload, targets: tuple[Target, ...], limits: Limits) -> float:
    """Rate at which requests come that wait for each other's end, on a stock engine that answers them all.

    rate = arrivals in a simulated run of RUN_S / its length

    Args:
        identified: the plant.
        workload: requests, enough for such a run or as many as there are.
        targets: one per class.
        limits: of the engine.

    Returns:
        Rate, above 0 [requests/s].
    """
    stock = Candidate(StaticLaw(float(limits.max_tokens)), Policy(order="fcfs", triage="none", running_limit=float(limits.max_seqs)))
    drawn = Draw(workload, *identified.noise.draw(0, NOISE_LENGTH))
    out = simulate(identified, stock, drawn, targets, limits, cut_s=RUN_S)
    came = out.arrival_s[out.status != FUTURE]
    # where all came before the end, what follows the last arrival is no time in which more were sent
    over = len(came) == len(workload) and len(came) > 1
    return (len(came) - 1) / max(float(came.max() - came.min()), 1e-9) if over else len(came) / RUN_S


def open_load(workload: str, target: str, *, rate_rps: float | None, rows: slice | None, epsilon: float | None) -> Load:
    """Resolve a workload and a target.

    Args:
        workload: path of a file, or a generator spec.
        target: target string, or path of a TOML file of classes.
        rate_rps: to rescale to [requests/s].
        rows: of a file.
        epsilon: in place of every class's own, in (0, 1).

    Returns:
        Load.

    Raises:
        ValueError: one of them cannot be understood; the message says what and where.
    """
    targets, notes = parse_target(target, epsilon=epsilon)
    loaded = load_workload(workload, rate_rps, rows, targets)
    targets, said = per_token(targets, loaded.source)
    spec = located(workload)
    span = None if rows is None else (int(rows.start or 0), None if rows.stop is None else int(rows.stop))
    return Load(spec, rate_rps, span, loaded.source, targets, [*notes, *said, *loaded.notes])


SAMPLED = 400
"""Requests whose outputs say what one level of a target means at the others."""


def per_token(targets: tuple[Target, ...], source: WorkloadSource) -> tuple[tuple[Target, ...], list[str]]:
    """Targets counted per token, whatever level they name, and what each means at the other levels.

    Everything behind the doors counts owed tokens: epsilon is turned into a share of them once, here, and it is said.

    Args:
        targets: one per class.
        source: of the workload: its output lengths decide.

    Returns:
        (the targets with their level "token"; one sentence for each that named another).
    """
    if all(target.level == "token" for target in targets):
        return targets, []
    sample, found, said = source.draw(0, SAMPLED, heldout=False), [], []
    for class_id, target in enumerate(targets):
        if target.level == "token":
            found.append(target)
            continue
        levels = levels_of(target, sample, class_id=class_id)
        said.append(f"{'' if len(targets) == 1 else f'class {target.name}: '}{levels.sentence()}")
        found.append(dataclasses.replace(target, epsilon=levels.token, level="token"))
    return tuple(found), said


def load_of(record: ControllerRecord, *, workload: str | None, rate_rps: float | None, target: str | None) -> Load:
    """The load that a controller was tuned for, with what the caller overrides.

    Args:
        record: the controller.
        workload: another workload; None keeps its own.
        rate_rps: another rate [requests/s]; None keeps its own.
        target: another target; None keeps its own.

    Returns:
        Load.

    Raises:
        ValueError: the workload or the target cannot be read.
    """
    spec = workload or record.workload["spec"]
    rate = rate_rps if rate_rps is not None or workload is not None else record.workload.get("rate_rps")
    rows = None if workload is not None or not record.workload.get("rows") else slice(*record.workload["rows"])
    targets, notes = parse_target(target) if target else (record.targets, [])
    loaded = load_workload(spec, rate, rows, targets)
    targets, said = per_token(targets, loaded.source)
    span = None if rows is None else (int(rows.start or 0), None if rows.stop is None else int(rows.stop))
    edited = ["controller.json was changed by hand since it was tuned: its content hash does not fit"] if record.edited else []
    return Load(spec, rate, span, loaded.source, targets, [*edited, *notes, *said, *loaded.notes])


def read_plant(path: Path) -> IdentifiedPlant:
    """Read a plant.json.

    Args:
        path: of the file.

    Returns:
        The plant.

    Raises:
        ValueError: names the file and what is wrong with it.
    """
    return _named(path, IdentifiedPlant.from_json)


def read_controller(path: Path) -> ControllerRecord:
    """Read a controller.json.

    Args:
        path: of the file.

    Returns:
        The record.

    Raises:
        ValueError: names the file and what is wrong with it.
    """
    return _named(path, ControllerRecord.from_json)


def _named(path: Path, read: Callable[[Any], Any]) -> Any:
    data = read_json(path)
    try:
        return read(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except (AttributeError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise ValueError(f"{path}: a value is missing or of another kind than Headway writes ({error}); write the file anew") from None


def with_limits(limits: Limits, given: Mapping[str, int]) -> Limits:
    """Engine limits with what the caller overrides.

    Args:
        limits: known so far.
        given: overriding values by field [tokens, requests].

    Returns:
        Limits.

    Raises:
        ValueError: limits under which nothing could run.
    """
    changed = dataclasses.replace(limits, **given)
    changed.check()
    return changed
