"""Several engines as one: mixed replicas side by side, or a prefill pool that hands its requests to a decode pool.

Every replica is one exact run of the simulator on the requests that were sent to it. Who goes where is decided from arrivals alone: a
pool is run replica by replica, the prefill pool first, unless requests wait for each other's end or the run is cut; then all run side by
side, see `headway.controllers.fleet`. docs/engine.md, section 6.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.dispatch import DISPATCHES, arrivals_of_caches, send_caches, send_prompts
from headway.controllers.fleet import run_fleet
from headway.controllers.policy import RATE_TPS, SETPOINT_S, pack_targets
from headway.controllers.replicas import Replica, new_fleet, new_traffic, outcome_of_fleet
from headway.controllers.scheduled import Packed, pack_candidate
from headway.controllers.simulator import LOG_COLUMNS, STALL, Candidate, Draw, fresh_state, run_to_end, simulate
from headway.models.goodput import FINISHED, REJECTED, Outcome
from headway.models.handover import Handed, handed, take_over
from headway.models.identified import IdentifiedPlant
from headway.models.settlement import outcome_of
from headway.models.signals import Limits, Target
from headway.models.workload import GOLDEN, Workload

MOST_REPLICAS = 1024
"""Replicas of a pool, at most."""


@dataclasses.dataclass(frozen=True)
class Pools:
    """A topology: how many engines, which of them prefill and which decode, and what lies between.

    A request is computed on a prefill replica, which sends its first token, and goes on to a decode replica once its cache is there:
    prompt tokens * transfer_s_per_token + transfer_latency_s later. The link of a prefill replica carries one cache at a time.

    Args:
        prefill: replicas that compute prompts.
        decode: replicas that decode; with 0 there is one pool, whose replicas do both.
        transfer_s_per_token: time on the link per prompt token [s/token].
        transfer_latency_s: beside that, for each request; the link is free meanwhile [s].
        dispatch: one of DISPATCHES; see `headway.controllers.dispatch` for what "least_loaded" knows.
    """

    prefill: int
    decode: int = 0
    transfer_s_per_token: float = 0.0
    transfer_latency_s: float = 0.0
    dispatch: str = "round_robin"

    @property
    def replicas(self) -> int:
        """Engines in all."""
        return self.prefill + self.decode

    @property
    def name(self) -> str:
        """As people write it: "4 mixed", or "2+2", the prefill replicas first."""
        return f"{self.prefill}+{self.decode}" if self.decode else f"{self.prefill} mixed"

    def check(self) -> None:
        """Refuse what is no topology.

        Raises:
            ValueError: no replica that prefills, too many, a negative time or an unknown dispatch; the message names the field.
        """
        for name, least in (("prefill", 1), ("decode", 0)):
            count = getattr(self, name)
            if not isinstance(count, int | np.integer) or isinstance(count, bool) or not least <= count <= MOST_REPLICAS:
                raise ValueError(f"{name} must be a whole number of replicas from {least} to {MOST_REPLICAS}, got {count!r}")
        for name, hint in (("transfer_s_per_token", "4e-5 for 40 us a token"), ("transfer_latency_s", "0.002 for 2 ms")):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a time that is not negative, got {value:g}; write {hint}")
        if self.dispatch not in DISPATCHES:
            raise ValueError(f"dispatch must be one of {', '.join(DISPATCHES)}, got {self.dispatch!r}")


class Part(NamedTuple):
    """What one replica did.

    Args:
        rows: requests sent to it, ascending, shape (m,), int64.
        outcome: of its run.
    """

    rows: np.ndarray
    outcome: Outcome


def simulate_pools(
    identified: IdentifiedPlant,
    candidate: Candidate,
    drawn: Draw,
    targets: tuple[Target, ...],
    limits: Limits,
    pools: Pools,
    *,
    decode_candidate: Candidate | None = None,
    decode_identified: IdentifiedPlant | None = None,
    decode_limits: Limits | None = None,
    cut_s: float = 0.0,
) -> Outcome:
    """One exact run of all replicas of a topology, taken together.

    Args:
        identified: the plant of a replica.
        candidate: law and policy of each.
        drawn: workload and noise; replicas read the noise from different places on, the first from its beginning.
        targets: one per class.
        limits: of one replica.
        pools: the topology.
        decode_candidate: law and policy of the decode pool; None for the same, with decodes and prompts in one step.
        decode_identified: plant of a decode replica; None for the same.
        decode_limits: of a decode replica; None for the same.
        cut_s: end of a run of fixed length; 0 runs until every request has ended [s].

    Returns:
        Outcome of all requests in their order, with the counts of all replicas together and no log; the same arguments give
        the same one. The end is that of the replica that ends last.

    Raises:
        ValueError: no topology.
        RuntimeError: the scheduler stalled with work to do: a fault of Headway's.
    """
    pools.check()
    w = drawn.workload
    first = (identified, candidate, limits)
    mixed = candidate._replace(policy=dataclasses.replace(candidate.policy, phases="mixed"))  # pyright: ignore[reportArgumentType]
    second = (decode_identified or identified, decode_candidate or mixed, decode_limits or limits)
    if cut_s > 0.0 or (w.after is not None and bool((w.after >= 0).any())):
        return _side_by_side(first, second, drawn, targets, pools, cut_s)
    p = pack_candidate(candidate, targets, limits, identified.plant).policy
    sent = send_prompts(pools.dispatch, pools.prefill, w.arrival_s, w.prompt_tokens, float(p[RATE_TPS]))
    ends_there = w if pools.decode == 0 else first_tokens_of(w, limits, second[2])
    parts = []
    for k in range(pools.prefill):
        rows = np.flatnonzero(sent == k)
        if len(rows):
            own = Draw(rows_of(ends_there, rows), *noise_of(drawn, k))
            parts.append(Part(rows, simulate(identified, candidate, own, targets, limits)))
    if pools.decode == 0:
        return merged(w, parts, [])
    return merged(w, parts, run_decodes((*second[:2], targets, second[2]), drawn, pools, parts))


Engines = tuple[IdentifiedPlant, Candidate, Limits]


def _side_by_side(first: Engines, second: Engines, drawn: Draw, targets: tuple[Target, ...], pools: Pools, cut_s: float) -> Outcome:
    """The run of a topology whose replicas are tied together in time."""
    w = drawn.workload
    ends_there = w if pools.decode == 0 else first_tokens_of(w, first[2], second[2])
    replicas = [Replica(*first, ends_there, noise_of(drawn, k)) for k in range(pools.prefill)]
    there = dataclasses.replace(w, prefix=None)
    replicas += [Replica(*second, there, noise_of(drawn, pools.prefill + k)) for k in range(pools.decode)]
    fleet = new_fleet(replicas, targets)
    traffic = new_traffic(
        w,
        pools.prefill,
        pools.decode,
        least=pools.dispatch == "least_loaded",
        rate_tps=float(fleet.policies[0, RATE_TPS]),
        stay_s=float(second[1].policy.prior_output_tokens * fleet.policies[-1, SETPOINT_S]),
        s_per_token=float(pools.transfer_s_per_token),
        latency_s=float(pools.transfer_latency_s),
    )
    packed = pack_targets(targets)
    if not run_fleet(fleet, traffic, packed, float(cut_s)):
        raise RuntimeError(STALL)
    return outcome_of_fleet(fleet, traffic, w, packed)


def first_tokens_of(w: Workload, limits: Limits, decode_limits: Limits) -> Workload:
    """The same requests as a prefill pool has them: each ends with its first token.

    One that can never fit where it would decode is made too long for any engine, so that it fails at the door like everywhere.

    Args:
        w: requests.
        limits: of a prefill replica.
        decode_limits: of a decode replica.

    Returns:
        A workload.
    """
    length = w.prompt_tokens + w.output_tokens
    many = w.output_tokens > 1
    too_long = length > np.where(many, min(limits.max_len, decode_limits.max_len), limits.max_len)
    never = too_long | (many & (np.ceil(length / decode_limits.block_tokens) > decode_limits.blocks))
    return dataclasses.replace(w, output_tokens=np.where(never, limits.max_len + 1, 1))


def rows_of(w: Workload, rows: np.ndarray, *, prefixes: bool = True) -> Workload:
    """Some of the requests, on the clock of all.

    One whose predecessor is not among them arrives at its recorded time.

    Args:
        w: requests.
        rows: ascending, shape (m,), int64.
        prefixes: whether they keep which of them begin alike.

    Returns:
        A workload of m requests.
    """
    clients: dict[str, Any] = {name: of[rows] for name in ("patience_s", "cancel_s") if (of := getattr(w, name)) is not None}
    if w.after is not None and w.think_s is not None and (w.after[rows] >= 0).any():
        place = np.full(len(w) + 1, -1)  # the last stands for nobody
        place[rows] = np.arange(len(rows))
        clients |= {"after": place[w.after[rows]], "think_s": w.think_s[rows]}
    prefix = w.prefix.rows(rows) if prefixes and w.prefix is not None else None
    return Workload(w.arrival_s[rows], w.prompt_tokens[rows], w.output_tokens[rows], w.class_id[rows], w.source, prefix=prefix, **clients)


def noise_of(drawn: Draw, replica: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise of one replica: the run's own, read from another place on, so that replicas do not err alike.

    Args:
        drawn: the randomness of the run.
        replica: from 0, which reads from the beginning.

    Returns:
        (decode, mixed) factors, shapes as drawn.
    """
    part = (replica * GOLDEN) % 1.0
    decode, mixed = (np.roll(factors, -int(part * len(factors))) for factors in (drawn.decode, drawn.mixed))
    return decode, mixed


def run_decodes(
    pool: tuple[IdentifiedPlant, Candidate, tuple[Target, ...], Limits], drawn: Draw, pools: Pools, parts: list[Part]
) -> list[Part]:
    """Move the caches of all requests that go on, and run the decode pool.

    Args:
        pool: plant, law and policy, targets and limits of a decode replica.
        drawn: workload and noise of the run.
        pools: the topology.
        parts: what the prefill replicas did.

    Returns:
        What the decode replicas did.

    Raises:
        RuntimeError: the scheduler stalled with work to do: a fault of Headway's.
    """
    identified, candidate, targets, limits = pool
    w, first = drawn.workload, merged(drawn.workload, parts, [])
    goes_on, comes_s = (first.status == FINISHED) & (w.output_tokens > 1), np.full(len(w), np.nan)
    for part in parts:
        mine = part.rows[goes_on[part.rows]]
        comes_s[mine] = arrivals_of_caches(first.last_s[mine], w.prompt_tokens[mine], pools.transfer_s_per_token, pools.transfer_latency_s)
    rows = np.flatnonzero(goes_on)
    p = pack_candidate(candidate, targets, limits, identified.plant)
    stay_s = float(candidate.policy.prior_output_tokens * p.policy[SETPOINT_S])
    sent = send_caches(pools.dispatch, pools.decode, first.last_s[rows], w.prompt_tokens[rows], stay_s)
    done = []
    for k in range(pools.decode):
        mine = rows[sent == k]
        if len(mine):
            own = Draw(rows_of(w, mine, prefixes=False), *noise_of(drawn, pools.prefill + k))
            done.append(Part(mine, _decoded(pool, own, p, handed(first, mine, comes_s[mine]))))
    return done


def _decoded(pool: tuple[IdentifiedPlant, Candidate, tuple[Target, ...], Limits], drawn: Draw, packed: Packed, given: Handed) -> Outcome:
    """One decode replica: a run of the simulator whose requests come with their prompt computed."""
    identified, _, targets, limits = pool
    s = fresh_state(drawn.workload, len(targets), limits, packed.policy[RATE_TPS])
    take_over(s, given)
    log, plant = np.zeros((0, len(LOG_COLUMNS))), identified.plant.pack()
    own = Packed(packed.policy.copy(), packed.law.copy(), packed.schedule)
    if not run_to_end(*s, *own, pack_targets(targets), plant, drawn.decode, drawn.mixed, 0.0, log):
        raise RuntimeError(STALL)
    return outcome_of(s, log)


OWN = ("status", "emitted", "ttft_s", "last_s", "on_time", "owed", "max_gap_s", "degraded", "degraded_on_time", "token_late")
"""What an outcome says of each request and a decode replica says anew; what the prefix cache saved, and whom triage spared, is known where prompts are."""


def merged(w: Workload, prefill: list[Part], decode: list[Part]) -> Outcome:
    """The outcomes of all replicas as one.

    Args:
        w: requests, as they were asked for.
        prefill: what the replicas of the first pool did; together they hold every request once.
        decode: what those of the decode pool did.

    Returns:
        Outcome in order of arrival. A request that was lost owes all the tokens it asked for, wherever that was.
    """
    columns: dict[str, Any] = {}
    for name in (*OWN, "hit_tokens", "spared"):
        columns[name] = np.zeros(len(w), getattr(prefill[0].outcome, name).dtype)
        for part in (*prefill, *decode) if name in OWN else prefill:
            columns[name][part.rows] = getattr(part.outcome, name)
    lost = (columns["status"] >= REJECTED) & (columns["emitted"] == 0)
    columns["owed"] = np.where(lost, w.output_tokens, columns["owed"])
    all_ = [part.outcome for part in (*prefill, *decode)]
    total = lambda name: np.sum([getattr(o, name) for o in all_], axis=0)  # noqa: E731
    return Outcome(
        class_id=np.asarray(w.class_id),
        arrival_s=np.asarray(w.arrival_s, float),
        prompt_tokens=np.asarray(w.prompt_tokens, float),
        output_tokens=np.asarray(w.output_tokens, float),
        gaps=total("gaps"),
        end_s=max(o.end_s for o in all_),
        steps=int(total("steps")),
        preempted=int(total("preempted")),
        binding=total("binding"),
        largest=np.max([o.largest for o in all_], axis=0),
        log=np.zeros((0, len(LOG_COLUMNS))),
        recomputed=float(total("recomputed")),
        swapped_blocks=float(total("swapped_blocks")),
        **columns,
    )
