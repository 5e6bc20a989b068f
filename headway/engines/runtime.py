"""A tuned controller inside an engine's process: it and gains.json are all that is needed. Standard library only.

Once per engine step, before the step is composed: `Runtime.update` takes the measurement of the step that ended and
returns the token budget of the next. `slack_s`, `key`, `turn_away` and `degrades` answer for one prompt: how urgent it
is, and whether to serve it at all.
"""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

from headway.engines.runtime_admission import Admission
from headway.engines.runtime_drift import DRIFT_NUMBERS, DriftWatch
from headway.engines.runtime_gains import finite, initial_rate_tps, number, reading
from headway.engines.runtime_guard import EMPTY, KINDS, MISSING, NEGATIVE, NUMBERS, POWERLESS, SUMS, Guard
from headway.engines.runtime_laws import ADDED, HOLDS, LAWS, MOVES, PREDICTS, held, least_tokens, resume, settled, start_state, target_s
from headway.engines.runtime_plants import largest_prefill, read_plant
from headway.engines.runtime_prompts import Prompts
from headway.engines.runtime_schedule import Schedule

SCHEMA = "headway/controller/1"
INF, NAN = math.inf, math.nan

READINGS = (
    "step_time_s",
    "prefill_tokens",
    "decode_requests",
    "binding",
    "ready_requests",
    "decode_kv_tokens",
    "prefill_pairs",
    "prefill_requests",
    "ready_kv_tokens",
    "context_tokens",
)
"""What an engine reads, in the order in which `Runtime.update` takes it; the last five for laws that predict."""

log = logging.getLogger("headway_runtime")


class Runtime(Prompts):
    """A controller with its state: one per engine, called from one thread.

    A reading that cannot be true, or cannot be of the one step that ended last, changes nothing: the state freezes, the
    last command is held and not raised (requests that decode get their one token each whatever happens), `counts` has
    it by kind and the first in a row is logged. The next good reading goes on from there without a bump.

    A watchdog reverts to the fallback, the best static budget that tuning found, after many late steps in its window,
    and gives the loop back to the law after a clean one; both are logged once.

    Where the gains hold a schedule, `follow_load` before each `update` puts those of the load in force. Until it is told any
    load they are those of an idle engine; updates without one are counted in `unfollowed`, the first is logged.

    Args:
        data: content of gains.json or controller.json.

    Raises:
        ValueError: another schema, an unknown law, plant or policy, a missing or wrong value; the message names it.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        """Read the gains."""
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"expected schema {SCHEMA!r}, found {found!r}; is this the gains.json of `headway export`?")
        try:
            self._read_law(data)
            self._read_policy(data)
            self._read_watches(data)
            self._initial_rate_tps = initial_rate_tps(data, self._plant, self.setpoint_s, self.max_tokens)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"gains lack or misstate {error}; write them anew with `headway export`") from None
        certificate = data.get("certificate") or {}
        if certificate.get("uncertified"):
            log.warning("this controller was exported without a certificate: %s", certificate.get("reason"))
        self.reset()

    def _read_law(self, data: dict[str, Any]) -> None:
        self.law, self.content = data["law"]["kind"], str(data["content_sha256"])
        if self.law not in LAWS:
            raise ValueError(f"unknown law {self.law!r}; this runtime knows {', '.join(LAWS)}")
        given = {name: {"value": value} for name, value in ADDED.items()} | data["law"]["gains"]
        self.gains = tuple(number(given, name) for name in LAWS[self.law])
        if self.law == "pi" and self.gains[4] <= 0.0:
            raise ValueError(f"slope_s_per_token must be above 0, got {self.gains[4]:g}")
        self.predicts, self._static = self.law in PREDICTS, self.law == "static"
        self._move, holds = MOVES[self.law], self.law in HOLDS
        self._most, self._quantum = self.gains[-2 if holds else -1], self.gains[-1] if holds else 1.0
        self._least = least_tokens(self.law, self.gains)
        self.schedule, self.unfollowed, self._told_load = None, 0, False
        if data.get("schedule") is not None:
            self._read_schedule(data["schedule"])
        self._plant = read_plant(data["plant"], number)
        if self.predicts and self._plant is None:
            raise ValueError(f"unknown plant structure {data['plant']['structure']!r}, which law {self.law!r} would predict with")
        hull = data.get("hull") or {}
        n, kv = (finite(hull.get(name, 0.0), name, 0.0) for name in ("decode_requests", "decode_kv_tokens"))
        self._hull = max(n, 1.0), kv

    def _read_schedule(self, data: Any) -> None:
        self.schedule = Schedule(data)
        for name in self.schedule.tables:
            if name.startswith("share."):
                raise ValueError(f"the schedule of {name} is for the engine's own scheduler, no runtime carries it; tune without it")
        if "margin" in self.schedule.tables and "margin" not in LAWS[self.law]:
            raise ValueError(f"the gain schedule moves the margin, and law {self.law!r} has none")

    def _read_policy(self, data: dict[str, Any]) -> None:
        policy, engine, targets = data["policy"], data["engine"], data["targets"]
        self.max_tokens, self._max_seqs = finite(engine["max_tokens"], "max_tokens", 1.0), finite(engine["max_seqs"], "max_seqs", 1.0)
        self.running_limit = min(math.floor(number(policy, "running_limit")), int(self._max_seqs))
        self.classes = tuple(str(t["name"]) for t in targets)
        transport_s = [finite(t["transport_s"], "transport_s", 0.0) for t in targets]
        self.first_token_s = tuple(finite(t["ttft_s"], "ttft_s", 0.0) - x for t, x in zip(targets, transport_s, strict=True))
        self.budget_s = min((finite(t["itl_s"], "itl_s", 0.0) - x for t, x in zip(targets, transport_s, strict=True)), default=0.0)
        if not self.budget_s > 0.0:
            raise ValueError("targets must leave a positive time for the step; write the gains anew with `headway export`")
        self._read_prompts(policy, engine)
        self._set_setpoint()
        if self.schedule is not None:
            self._use(self.schedule.at(0.0, 0.0, 0.0))

    def _set_setpoint(self) -> None:
        margin = 0.0 if self.law in ("static", "balanced") else self.gains[0]
        if self.law == "tracker":
            margin = 1.0 - (1.0 - self.gains[3]) * math.exp(-self.gains[5])
        self.setpoint_s = (1.0 - margin) * self.budget_s

    def _use(self, found: dict[str, float]) -> None:
        """Put scheduled gains in force."""
        if "margin" in found:
            place = LAWS[self.law].index("margin")
            self.gains = (*self.gains[:place], found["margin"], *self.gains[place + 1 :])
            self._set_setpoint()
        self.aging_next = found.get("aging_rate", self.aging_next)
        self.chunk_tokens = found.get("chunk_tokens", self.chunk_tokens)

    def _read_watches(self, data: dict[str, Any]) -> None:
        best = ((data.get("tuning") or {}).get("best_static") or {}).get("settings") or {}
        given = {name: {"value": value} for name, (value, _) in NUMBERS.items()}
        given |= {"fallback_tokens": {"value": best.get("token_budget") or 0.0}} | data.get("guard", {})
        numbers = {name: finite(given[name]["value"], name, 0.0) for name in NUMBERS}
        finite(numbers["window_steps"], "window_steps", 1.0, 50.0)
        finite(numbers["late_steps"], "late_steps", 1.0, numbers["window_steps"])
        self.guard, plant = Guard(numbers, self.max_tokens), self._plant
        drift = data.get("drift") if plant is not None else None
        self.drift = DriftWatch({name: finite(drift[name]["value"], name, 0.0) for name in DRIFT_NUMBERS}) if drift else None
        if plant is None and data["policy"].get("admission", "none") != "none":
            raise ValueError(f"unknown plant structure {data['plant']['structure']!r}, which admission would predict with")
        self.admission = Admission.from_gains(data, lambda n, kv: plant.step_time(n, kv, 0.0, 0.0, 0.0) if plant else INF)

    @classmethod
    def from_json(cls, source: str | Path | dict[str, Any]) -> Runtime:
        """Read gains from a file, or from its content.

        Args:
            source: path of gains.json or controller.json, or what it holds.

        Returns:
            The controller in its initial state.

        Raises:
            ValueError: not JSON, another schema, a missing or wrong value; the message names it.
        """
        if isinstance(source, dict):
            return cls(source)
        try:
            return cls(json.loads(Path(source).read_text(encoding="utf-8")))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{source}: not JSON: {error}") from None

    def reset(self) -> None:
        """Back to the state before the first step."""
        self.unfollowed, self._told_load = 0, False
        if self.schedule is not None:
            self._use(self.schedule.at(0.0, 0.0, 0.0))
        self.state = start_state(self.law, self.gains)
        self._start_rate(self._initial_rate_tps)
        self.calls, self.last_fault, self._outages = 0, "", 0
        # before any reading, a law that predicts can only assume the hardest step that its plant was fitted on
        self._fitting = 0.0
        self.admission.reset()
        if self.drift is not None:
            self.drift.reset()
        self.guard.reset(self._prefill(list(self.state), 0.0, 0.0, *self._hull, 0.0))

    def follow_load(self, queued_tokens: Any, decoding_requests: Any, kv_share: Any) -> None:
        """Put the gains of a load in force, as the last step left it. Call it before `update`, and before keys are taken. It never raises.

        Margin, setpoint and chunk cap follow at once, the aging rate when all keys are to be taken anew: a key that was taken before
        stands until `renewals` counts one more. Without a schedule it does nothing. A load that is no load leaves the gains as they
        are, and is counted in `unfollowed`.

        Args:
            queued_tokens: prompt tokens still to be computed, of all who wait or run [tokens].
            decoding_requests: requests that run and decode.
            kv_share: cache blocks in use, of all; blocks kept for prompts that begin alike and held by nobody are not [1].
        """
        if self.schedule is None:
            return
        queued, n, kv = reading(queued_tokens), reading(decoding_requests), reading(kv_share)
        if 0.0 <= queued < INF and 0.0 <= n < INF and 0.0 <= kv < INF:
            self._told_load = True
            self._use(self.schedule.at(queued, n / self.running_limit, kv))

    def _miss_load(self) -> None:
        self.unfollowed += 1
        if self.unfollowed == 1:
            log.warning("gains follow the load, and this step came without one that can be read: they stay as they are")

    @property
    def admit_limit_s(self) -> float:
        """Longest decode-only step that admission may lead to, for `admission.admits` [s]."""
        if self.law != "tracker":
            return self.setpoint_s
        return (1.0 - self.gains[3]) * self.budget_s * math.exp(-self.state[1] - self.state[0])

    @property
    def faults(self) -> int:
        """Bad readings so far, of all kinds."""
        return sum(self.guard.counts[kind] for kind in KINDS)

    @property
    def counts(self) -> dict[str, int]:
        """Bad readings by kind, steps without authority, and how often the watchdog reverted to the fallback."""
        return dict(self.guard.counts)

    @property
    def reverted(self) -> bool:
        """Whether the fallback is in force in the law's place."""
        return self.guard.reverted

    def update(
        self,
        step_time_s: Any,
        prefill_tokens: Any,
        decode_requests: Any,
        binding: Any,
        ready_requests: Any,
        decode_kv_tokens: Any = 0.0,
        prefill_pairs: Any = 0.0,
        prefill_requests: Any = 0.0,
        ready_kv_tokens: Any = 0.0,
        context_tokens: Any = 0.0,
        *,
        step_number: Any = None,
        clock_s: Any = None,
    ) -> int:
        """Token budget of the step to be composed, from the measurement of the one that ended. It never raises.

        Args:
            step_time_s: duration of the last step, start to start [s]; None or NaN before the first.
            prefill_tokens: prompt tokens that it carried [tokens].
            decode_requests: requests that decoded in it.
            binding: whether its token budget was used up while prompt work was waiting.
            ready_requests: requests that want to decode in the step composed now.
            decode_kv_tokens: cache tokens that the last step's decodes read; this and the next four only for a law that
                predicts, which counts a fault without them [tokens].
            prefill_pairs: attention work of its chunks, sum of p (context + p / 2) [tokens^2].
            prefill_requests: requests with a chunk in it.
            ready_kv_tokens: cache tokens that the requests that want to decode now would read [tokens].
            context_tokens: of the prompt that goes on first, computed already [tokens].
            step_number: of the step that ended, one more each step; tells readings that are missing or come twice.
            clock_s: monotonic clock at its end; likewise [s].

        Returns:
            Most tokens in the step, the decoding requests' own included; within the engine's limit [tokens].
        """
        self.calls += 1
        if self.schedule is not None:
            if not self._told_load:
                self._miss_load()
            self._told_load = False
        try:
            y, p, n, b, ready = float(step_time_s), float(prefill_tokens), float(decode_requests), float(binding), float(ready_requests)
            kv, pairs, r = float(decode_kv_tokens), float(prefill_pairs), float(prefill_requests)
            ready_kv, context = float(ready_kv_tokens), float(context_tokens)
        except (TypeError, ValueError, OverflowError):
            given = (step_time_s, prefill_tokens, decode_requests, binding, ready_requests, decode_kv_tokens, prefill_pairs)
            y, p, n, b, ready, kv, pairs, r, ready_kv, context = map(reading, (*given, prefill_requests, ready_kv_tokens, context_tokens))
        guard, predicted_s, kind = self.guard, NAN, 0
        if y == guard.y or step_number is not None or clock_s is not None:
            kind = guard.order(step_number, clock_s, y, kv, ready_kv)
        guard.y, guard.kv, guard.ready_kv = y, kv, ready_kv
        sound = 0.0 < y < INF and 0.0 <= p < INF and 0.0 <= n < INF and 0.0 <= b < INF and 0.0 <= ready < INF
        known = 0.0 <= kv < INF and 0.0 <= pairs < INF and 0.0 <= r < INF and (n == 0.0 or kv > 0.0) and (p == 0.0 or pairs > 0.0 < r)
        if sound and known and self._plant is not None and n + p > 0.0:
            predicted_s = self._plant.step_time(n, kv, p, pairs, r)
        if self.predicts and sound:
            sound = known and 0.0 <= ready_kv < INF and 0.0 <= context < INF and (ready == 0.0 or ready_kv > 0.0)
        if not sound:
            kind = self._unsound(y, p, n, b, ready, kv, pairs, r, ready_kv, context)
        kind = kind or guard.examine(y, p, n, predicted_s)
        if kind:
            return self._hold(
                kind, y, p, n, ready, ready_kv, context, (step_time_s, prefill_tokens, decode_requests, binding, ready_requests)
            )
        if guard.bad:
            guard.bad = 0
            if self._outages & (self._outages - 1) == 0:
                log.info("readings are back; faults in all: %d", self.faults)
        guard.ready = ready
        self.observe(y, p)
        if self.drift is not None and predicted_s > 0.0:
            before = self.drift.alarm
            if self.drift.update(predicted_s, y) not in (0, before):
                log.warning(self.drift.sentence())
        if n > 0.0 and not self._static:
            self._learn(y, p, b > 0.0, predicted_s)
        return self._command(p, n, ready, ready_kv, context)

    def _learn(self, y: float, p: float, bound: bool, predicted_s: float) -> None:
        """Watchdog and law, after a good reading of a step with decodes."""
        guard = self.guard
        late = y > self.budget_s
        powerless = late and p == 0.0 and guard.prefill < 1.0
        if powerless:
            guard.counts[POWERLESS] += 1
        elif bound and p > 0.0 and not late:
            guard.safe = guard.prefill
        before = guard.reverted
        if guard.watch(late and p > 0.0):
            resume(self.law, self.gains, self.state, guard.prefill)
            log.info("a clean window: law %s is back", self.law)
        elif guard.reverted and not before:
            log.warning("%d late steps in a window of %d: reverted to the fallback", guard.late_steps, guard.window)
        # what a plant is off by can be learned under any command; an error under another's command would wind up an integral
        if self.predicts or not (guard.reverted or powerless):
            self._move(self.gains, self.state, y, p, bound, self.budget_s, predicted_s)

    def _prefill(self, state: list[float], p: float, n: float, ready: float, ready_kv: float, context: float) -> float:
        """The law's prefill budget from its state, which keeps the command that quanta are held to."""
        if not self.predicts:
            if self.law != "pi":
                return state[0] // 1.0
            state[2] = held(state[1], state[2], self._quantum, self._most)
            return state[2]
        plant = self._plant
        assert plant is not None
        at, seconds = plant.along(ready, ready_kv, context), target_s(self.law, self.gains, state, self.budget_s)
        u = largest_prefill(at, seconds, self._most // 1.0, self._fitting, plant.slope_s_per_token)
        self._fitting, limit = u, plant.limit_tokens
        if self._quantum >= 2.0 or limit < INF:
            u = settled(
                u, at, (limit - ready) // 1.0 if limit < INF else INF, p > 0.0 and p + n > limit, state[-1], self._quantum, self._most
            )
        state[-1] = u = max(u, self._least)
        return u

    def _command(self, p: float, n: float, ready: float, ready_kv: float, context: float) -> int:
        """The law's command: the most there is where nobody decodes and no ITL has to be kept."""
        guard = self.guard
        if self._static:
            return int(guard.command(self._most))
        if ready > 0.0 or not self.predicts:
            u = self._prefill(self.state, p, n, ready, ready_kv, context)
            guard.prefill = guard.capped(u, ready) if guard.reverted else u
        return int(guard.command(self._most if ready == 0.0 else guard.prefill + ready))

    def _hold(
        self, kind: int, y: float, p: float, n: float, ready: float, ready_kv: float, context: float, readings: tuple[Any, ...]
    ) -> int:
        """The command without a measurement: from the frozen state, not above the last but for what decodes need."""
        guard = self.guard
        seen = ready == 0.0 or (0.0 < ready_kv < INF and 0.0 <= context < INF)
        if self.calls == 1 and y != y and 0.0 <= ready < INF and (seen or not self.predicts):
            guard.ready = ready
            return self._command(p, n, ready, ready_kv, context)
        guard.counts[KINDS[kind - 1]] += 1
        guard.bad += 1
        values = ", ".join(f"{name}={value!r:.40}" for name, value in zip(READINGS, readings, strict=False))
        self.last_fault = f"{KINDS[kind - 1]}: {values}"
        if guard.bad == 1:
            self._outages += 1
            # a sensor that flickers must not fill the log of an engine: outages 1, 2, 4, 8, ... are said
            if self._outages & (self._outages - 1) == 0:
                log.warning("bad reading (outage %d), the last command is held: %s", self._outages, self.last_fault)
        if self._static:
            return int(guard.command(self._most))
        u = INF
        if 0.0 < ready < INF:  # nobody to decode may be an outage read as zero
            guard.ready = min(ready, self._max_seqs)
            if self.predicts and seen:
                u = self._prefill(list(self.state), p, n, guard.ready, ready_kv, context)
        return int(guard.hold(u, guard.ready))

    def _unsound(self, *values: float) -> int:
        """Code of what is wrong with a reading's values."""
        values = values if self.predicts else values[:5]
        if any(not -INF < value < INF for value in values):
            return MISSING
        if any(value < 0.0 for value in values):
            return NEGATIVE
        return EMPTY if values[0] == 0.0 else SUMS
