"""Gains of a running adapter: read strictly, looked at again while it runs, and exchanged without a bump."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from headway.engines.runtime import Runtime, log
from headway.engines.runtime_gains import finite
from headway.engines.runtime_laws import HOLDS, QUANTILE_MOST, REACH, resume
from headway.engines.runtime_schedule import Schedule


class LoadedGains(NamedTuple):
    """What a gains file gives the adapter.

    Args:
        law: the controller.
        shares: prompt tokens that each class is due, as weights; () for none.
        classes: name of each class, in the order of the targets.
        itl_s: target of each class [s].
        transport_s: what the way to the client takes of each [s].
        share_schedule: shares that follow the load; None where none does.
    """

    law: Runtime
    shares: tuple[float, ...]
    classes: tuple[str, ...]
    itl_s: tuple[float, ...]
    transport_s: tuple[float, ...]
    share_schedule: Schedule | None = None

    def shares_at(self, queued_tokens: float, running_share: float, kv_share: float) -> tuple[float, ...]:
        """Shares under a load.

        Args:
            queued_tokens: prompt tokens still to be computed, of all who wait or run [tokens].
            running_share: requests that decode, of the running limit.
            kv_share: cache blocks in use, of all.

        Returns:
            Weight of each class; () for no shares.
        """
        if self.share_schedule is None or not self.shares:
            return self.shares
        found = self.share_schedule.at(queued_tokens, running_share, kv_share)
        return tuple(found.get(f"share.{c}", weight) for c, weight in enumerate(self.shares))


def without_shares(data: Any) -> tuple[Any, Any, Schedule | None]:
    """Gains for a runtime, which has no part in who waits, and the shares that were among them.

    Args:
        data: content of controller.json.

    Returns:
        (the same without shares, what it holds of `class_shares`, the schedule of shares), None for what is not there.

    Raises:
        ValueError: a schedule that cannot be read.
    """
    if not isinstance(data, dict) or not isinstance(data.get("policy"), dict):
        return data, None, None
    data = {**data, "policy": dict(data["policy"])}
    given, schedule = data["policy"].pop("class_shares", None), data.get("schedule")
    if not isinstance(schedule, dict) or not isinstance(schedule.get("gains"), dict):
        return data, given, None
    gains = schedule["gains"]
    shares = {name: row for name, row in gains.items() if name.startswith("share.")}
    if not shares:
        return data, given, None
    rest = {name: row for name, row in gains.items() if name not in shares}
    data["schedule"] = {**schedule, "gains": rest} if rest else None
    return data, given, Schedule({**schedule, "gains": shares})


def gains_of(data: Any) -> LoadedGains:
    """Read the content of controller.json. Shares are the queue's: a runtime by itself has no part in who waits.

    Args:
        data: its JSON value.

    Returns:
        The gains, the controller in its initial state.

    Raises:
        ValueError: another schema, a missing or wrong value; the message names it.
    """
    data, given, schedule = without_shares(data)
    values = given.get("value") if isinstance(given, dict) else given
    shares = tuple(finite(x, "class_shares", 0.0) for x in values or ())
    law = Runtime(data)
    if schedule is not None:
        numbers = [int(name.partition(".")[2]) for name in schedule.tables]
        if max(numbers) >= len(law.classes) or not (shares or len(numbers) == len(law.classes)):
            raise ValueError(f"a schedule of shares must name each of the {len(law.classes)} classes, or some beside class_shares")
        rest = schedule.at(0.0, 0.0, 0.0)
        shares = tuple(rest.get(f"share.{c}", shares[c] if shares else 0.0) for c in range(max(len(shares), len(law.classes))))
    if len(shares) not in (0, len(law.classes)) or (shares and not sum(shares) > 0.0):
        raise ValueError(f"class_shares must have one weight per class, not all 0, got {list(shares)} for {len(law.classes)} classes")
    shares = shares if len(shares) > 1 else ()
    itl_s, transport_s = (tuple(float(t[name]) for t in data["targets"]) for name in ("itl_s", "transport_s"))
    return LoadedGains(law, shares, law.classes, itl_s, transport_s, schedule)


def gains_from_text(text: str) -> LoadedGains:
    """Read gains from their text.

    Args:
        text: JSON.

    Returns:
        The gains.

    Raises:
        ValueError: not JSON, a number that is none, another schema, a missing or wrong value; the message names it.
    """
    return gains_of(json.loads(text, parse_constant=_no_number))


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number; write the gains anew with `headway export`")


class GainsFile:
    """A file that may be replaced at any time, and may be broken when it is looked at.

    Args:
        path: of the gains.
    """

    def __init__(self, path: Path) -> None:
        """Nothing was read yet."""
        self.path = path
        self._seen: tuple[int, int] | None = None
        self._content = ""
        self.refused = 0

    def changed(self) -> LoadedGains | None:
        """Look whether there is something new. What cannot be used is refused: logged once, and nothing changes.

        Returns:
            The new gains; None where there are none.
        """
        try:
            about = self.path.stat()
            if (about.st_mtime_ns, about.st_size) == self._seen:
                return None
            text = self.path.read_text(encoding="utf-8")
            self._seen = about.st_mtime_ns, about.st_size
            content = hashlib.sha256(text.encode()).hexdigest()
            if content == self._content:
                return None
            self._content = content
            return gains_from_text(text)
        except (OSError, ValueError, RecursionError) as error:
            said = f"{type(error).__name__}: {error}"
            if not isinstance(error, OSError) or self._seen is not None or not self.refused:
                self.refused += 1
                log.warning("gains in %s are refused, what was in force stays: %s", self.path, said)
            if isinstance(error, OSError):
                self._seen = None
            return None


def take_over(new: Runtime, old: Runtime, ready: float, ready_kv_tokens: float, context_tokens: float) -> None:
    """Let a new controller go on where the old one stands: same command, same guard, same measured prefill rate.

    A law that turns its plant round gets the bias under which that gives the command in force; one of the same kind and
    plant keeps what it has learned. Where a target became tighter the command may fall at once, it never jumps up.

    Args:
        new: in its initial state; changed in place.
        old: in force.
        ready: requests that want to decode now.
        ready_kv_tokens: cache tokens that they would read [tokens].
        context_tokens: of the prompt that goes on first, computed already [tokens].
    """
    prefill, guard, before = old.guard.prefill, new.guard, old.guard
    new.calls = max(old.calls, 1)
    new._start_rate(old.rate_tps)
    if len(new.arrivals) == len(old.arrivals):
        new.arrivals, new.sheds = list(old.arrivals), list(old.sheds)
    guard.held, guard.held_before, guard.held_earlier = before.held, before.held_before, before.held_earlier
    guard.prefill, guard.safe, guard.ready = prefill, min(before.safe, new.max_tokens), before.ready
    guard.y, guard.kv, guard.ready_kv = before.y, before.kv, before.ready_kv
    guard.single, guard.counts = list(before.single), dict(before.counts)
    if new.law == old.law and new.predicts and _same_plant(new, old):
        new.state[:] = old.state
    resume(new.law, new.gains, new.state, prefill)
    plant = new._plant
    if not new.predicts or plant is None or prefill < 1.0:
        return
    if (new.law, new.gains, new.budget_s) == (old.law, old.gains, old.budget_s) and _same_plant(new, old):
        return
    seconds = plant.along(ready, ready_kv_tokens, context_tokens)(prefill)
    if new.law == "feedforward":
        most = REACH * new.budget_s
        new.state[0] = min(max(seconds - (1.0 - new.gains[0]) * new.budget_s, -most), most)
    elif seconds > 0.0:
        wanted = math.log((1.0 - new.gains[3]) * new.budget_s / seconds) - new.state[0]
        new.state[2] = min(max(wanted, 0.0), QUANTILE_MOST)
    assert new.law in HOLDS


def _same_plant(new: Runtime, old: Runtime) -> bool:
    """Whether two plants predict alike, by two batches that no two plants of a kind share by chance."""
    if new._plant is None or old._plant is None:
        return False
    return all(new._plant.step_time(*b) == old._plant.step_time(*b) for b in ((7.0, 3001.0, 0.0, 0.0, 0.0), (5.0, 2003.0, 311.0, 1e5, 2.0)))
