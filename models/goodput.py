"""Goodput, in one place: what became of the promise, per class and in all, with how sure each figure is.

Which tokens were on time and which were owed is settled in `headway.models.outcome`; here they become figures. Times
are the client's. Quantiles carry their interval or are refused, and where the load is more than the engine carries, or
might be, there is no point TTFT: it would measure how long the run was.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from headway.models.fairness import fairness
from headway.models.other_goodputs import hidden_by_means, other_goodputs, tpot_s
from headway.models.outcome import (
    ABANDONED,
    BOUNDS,
    CANCELLED,
    CLEAN_SHARE,
    EXPIRED,
    FAILED,
    FINISHED,
    FUTURE,
    GAP_BINS,
    GAP_LOW_S,
    GAP_RATIO,
    REJECTED,
    RUNNING,
    WAITING,
    Outcome,
    gap_bin,
    owed_at_cut,
    tokens_owed,
)
from headway.models.quantiles import Quantile, blocks_of, gap_quantiles, quantiles
from headway.models.signals import Target
from headway.models.stability import Load, agreed, load_verdict, queue_verdict, seen_sentence

__all__ = [
    "ABANDONED",
    "BOUNDS",
    "CANCELLED",
    "CLEAN_SHARE",
    "EXPIRED",
    "FAILED",
    "FINISHED",
    "FUTURE",
    "GAP_BINS",
    "GAP_LOW_S",
    "GAP_RATIO",
    "REJECTED",
    "RUNNING",
    "WAITING",
    "Goodput",
    "Outcome",
    "gap_bin",
    "owed_at_cut",
    "summarise",
    "tokens_owed",
]

WITHHELD = {
    "unstable": "the queue grows as long as the run lasts",
    "uncertain": "it cannot be said whether the queue grows",
}
"""Why there is no point TTFT, by what is said of the load."""


@dataclasses.dataclass(frozen=True)
class Goodput:
    """What became of the promise in one run, or in several taken together. Times are the client's.

    Args:
        requests: that arrived.
        attainment: tokens on time / tokens owed, in [0, 1].
        request_attainment: share of clean requests, in [0, 1]; those cut off before their first token was due are left out.
        goodput_tps: tokens on time per second from the first arrival to the last token [tokens/s].
        throughput_tps: tokens per second over the same time [tokens/s].
        ttft_s: quantiles by name [s]; None where no request got a token, or where refused.
        itl_s: quantiles of the gaps [s].
        tpot_s: quantiles of (E2E - TTFT) / (n - 1) [s]; answers of one token have none.
        max_gap_s: longest gap [s].
        shed: share of requests rejected, expired or failed, in [0, 1].
        preempted: preemptions.
        binding: share of steps by the limit that bound them; "deferred", admission held back, where there are such steps.
        load: "stable", "unstable" or "uncertain": whether unserved prompt work grows with time.
        classes: per class name its attainment, request_attainment, goodput_tps, throughput_tps, shed, abandoned, cancelled,
            degraded, degraded_attainment, spared, itl_p99_s, ttft_p99_s, max_gap_s [s], the quantiles ttft_s, itl_s, tpot_s
            with their ttft_s_ci95, itl_s_ci95, tpot_s_ci95, and what was refused.
        ci95: per "ttft_s", "itl_s", "tpot_s" the 95 % intervals by name, [low, high] [s]; high is None where it is open,
            all where refused.
        refused: why a quantile is not given, by place, such as "ttft_s.p999".
        load_text: the verdict on the load with what decides it: the capacity, in numbers, or what the runs show.
        abandoned: share of requests whose client left with something late, in [0, 1].
        cancelled: share of requests whose client left with nothing late, in [0, 1].
        tpot_none: answers of one token among those that finished: they have no TPOT.
        degraded: share of requests that were given degraded targets; None where nothing is degraded.
        degraded_attainment: of these, tokens on time against the degraded targets / tokens owed.
        spared: share of requests that triage would have shed but for its cap; None where nobody counts them.
        recomputed_tokens: computed again after preemptions [tokens].
        swapped_blocks: moved out or in [blocks].
        hit_share: prompt tokens that the prefix cache held, as a share of all; None without a cache.
        others: goodput as others define it, see `headway.models.other_goodputs`.
        fairness: worst class, Jain's index over classes and over requests.
        notes: sentences that should not be overlooked.
    """

    requests: int
    attainment: float
    request_attainment: float
    goodput_tps: float
    throughput_tps: float
    ttft_s: dict[str, float | None]
    itl_s: dict[str, float | None]
    tpot_s: dict[str, float | None]
    max_gap_s: float | None
    shed: float
    preempted: int
    binding: dict[str, float]
    load: str
    classes: dict[str, dict[str, Any]]
    ci95: dict[str, dict[str, list[float | None] | None]]
    refused: dict[str, str]
    load_text: str
    abandoned: float
    cancelled: float
    tpot_none: int
    degraded: float | None
    degraded_attainment: float | None
    spared: float | None
    recomputed_tokens: float
    swapped_blocks: float
    hit_share: float | None
    others: dict[str, float | None]
    fairness: dict[str, Any]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            Mapping by field name.
        """
        return dataclasses.asdict(self)


class _Population(NamedTuple):
    """The requests of all runs, one after the other, on the client's clock; shapes (n,)."""

    status: np.ndarray
    class_id: np.ndarray
    emitted: np.ndarray
    on_time: np.ndarray
    owed: np.ndarray
    prompt: np.ndarray
    ttft_s: np.ndarray
    e2e_s: np.ndarray
    max_gap_s: np.ndarray
    decided: np.ndarray
    clean: np.ndarray
    degraded: np.ndarray | None
    degraded_on_time: np.ndarray | None
    spared: np.ndarray | None
    hit_tokens: np.ndarray | None
    run: np.ndarray


def summarise(outcomes: list[Outcome], targets: tuple[Target, ...], load: Load | None = None) -> Goodput:
    """The figures of one run, or of several runs taken as one population.

    Args:
        outcomes: at least one.
        targets: one per class.
        load: verdict that knows the plant's interval, see `headway.models.stability`; None says what the runs show.

    Returns:
        Goodput on the client's clock.
    """
    all_ = _population(outcomes, targets)
    gaps = np.stack([o.gaps for o in outcomes])[:, : len(targets)]
    steps = sum(int(o.steps) for o in outcomes)
    span_s = sum(max(float(o.end_s - o.arrival_s.min()), 1e-9) for o in outcomes)
    transport = np.array([t.transport_s for t in targets])
    seen = agreed([load_verdict(o) for o in outcomes])
    verdict = load.verdict if load is not None else seen
    # triage bounds the queue at any load: what the plant's interval leaves open is then how many are shed, not how long the others wait
    shed = any(np.isin(o.status, (REJECTED, EXPIRED)).any() for o in outcomes)
    told = load is not None and (load.verdict == "stable" or (load.verdict == "uncertain" and not shed))
    queue = load.verdict if load is not None and told else queue_verdict(outcomes)
    figures = lambda mine, c: _figures(all_, mine, gaps[:, c], transport[c], steps, span_s, queue)  # noqa: E731
    by_class = {}
    for c, target in enumerate(targets):
        mine = (all_.status != FUTURE) & (all_.class_id == c)
        if mine.any():
            own = figures(mine, slice(c, c + 1))
            by_class[target.name] = own | {"itl_p99_s": own["itl_s"]["p99"], "ttft_p99_s": own["ttft_s"]["p99"]}
    whole = figures(all_.status != FUTURE, slice(None))
    others = other_goodputs(outcomes, targets, span_s)
    bound = np.maximum(np.sum([o.binding for o in outcomes], axis=0), 0)
    notes = [hidden_by_means(others, whole["request_attainment"])]
    nan = float("nan")
    return Goodput(
        requests=int((all_.status != FUTURE).sum()),
        attainment=nan if whole["attainment"] is None else whole["attainment"],
        request_attainment=nan if whole["request_attainment"] is None else whole["request_attainment"],
        preempted=int(sum(o.preempted for o in outcomes)),
        binding={k: _share(v, bound.sum()) for k, v in zip(BOUNDS, bound, strict=False) if k != "deferred" or v > 0},
        load=verdict,
        load_text=load.sentence() if load is not None else seen_sentence(verdict),
        classes=by_class,
        ci95={name: whole[f"{name}_ci95"] for name in ("ttft_s", "itl_s", "tpot_s")},
        tpot_none=int(((all_.status == FINISHED) & (all_.emitted == 1)).sum()),
        recomputed_tokens=float(sum(o.recomputed for o in outcomes)),
        swapped_blocks=float(sum(o.swapped_blocks for o in outcomes)),
        hit_share=None if all_.hit_tokens is None else _share(all_.hit_tokens.sum(), all_.prompt.sum()),
        others=others,
        fairness=fairness({name: one["attainment"] for name, one in by_class.items()}, all_.on_time, all_.owed),
        notes=[text for text in notes if text],
        **{name: whole[name] for name in WHOLE},
    )


WHOLE = (
    "goodput_tps",
    "throughput_tps",
    "ttft_s",
    "itl_s",
    "tpot_s",
    "max_gap_s",
    "shed",
    "abandoned",
    "cancelled",
    "degraded",
    "degraded_attainment",
    "spared",
    "refused",
)
"""Figures that are the same of a class and of all."""


def _population(outcomes: list[Outcome], targets: tuple[Target, ...]) -> _Population:
    both = lambda name: np.concatenate([getattr(o, name) for o in outcomes])  # noqa: E731
    maybe = lambda name: both(name) if all(getattr(o, name) is not None for o in outcomes) else None  # noqa: E731
    status, class_id, owed, on_time, emitted = (both(n) for n in ("status", "class_id", "owed", "on_time", "emitted"))
    transport, ttft_at = (np.array([getattr(t, n) for t in targets])[class_id] for n in ("transport_s", "ttft_s"))
    ttft = both("ttft_s") + transport
    # cut off, or left by its client, while its first token was not yet due: nobody knows what would have become of it
    decided = (status != FUTURE) & ~(np.isin(status, (WAITING, RUNNING, CANCELLED)) & (owed == 0))
    met = np.nan_to_num(ttft, nan=np.inf) <= ttft_at + 1e-12
    return _Population(
        status=status,
        class_id=class_id,
        emitted=emitted,
        on_time=on_time,
        owed=owed,
        prompt=both("prompt_tokens"),
        ttft_s=ttft,
        e2e_s=both("last_s") - both("arrival_s") + transport,
        max_gap_s=both("max_gap_s") + transport,
        decided=decided,
        clean=decided & met & (on_time >= CLEAN_SHARE * owed - 1e-9) & (status < REJECTED),
        degraded=maybe("degraded"),
        degraded_on_time=maybe("degraded_on_time"),
        spared=maybe("spared"),
        hit_tokens=maybe("hit_tokens"),
        run=np.repeat(np.arange(len(outcomes)), [len(o.status) for o in outcomes]),
    )


def _figures(
    all_: _Population, mine: np.ndarray, gaps: np.ndarray, transport_s: np.ndarray, steps: int, span_s: float, queue: str
) -> dict[str, Any]:
    """Figures of one class, or of all: `mine` are its requests, `gaps` its histograms per run."""
    known, lost = mine & all_.decided, all_.status >= REJECTED
    owed, count = all_.owed[mine].sum(), mine.sum()
    many = mine & (all_.status == FINISHED) & (all_.emitted > 1)
    asked = known & ~lost
    tails = {
        "ttft_s": withheld(quantiles(np.nan_to_num(all_.ttft_s[asked], nan=np.inf), _blocks(all_.run[asked])), queue),
        "itl_s": gap_quantiles(gaps, transport_s, steps),
        "tpot_s": quantiles(tpot_s(all_.ttft_s[many], all_.e2e_s[many], all_.emitted[many]), _blocks(all_.run[many])),
    }
    longest = all_.max_gap_s[mine & (all_.emitted > 1)]
    found: dict[str, Any] = {
        "attainment": _share(all_.on_time[mine].sum(), owed) if owed > 0 else None,
        "request_attainment": _share(all_.clean[known].sum(), known.sum()) if known.any() else None,
        "goodput_tps": float(all_.on_time[mine].sum() / span_s),
        "throughput_tps": float(all_.emitted[mine].sum() / span_s),
        "max_gap_s": float(longest.max()) if len(longest) else None,
        "shed": _share((mine & lost & (all_.status != ABANDONED)).sum(), count),
        "abandoned": _share((mine & (all_.status == ABANDONED)).sum(), count),
        "cancelled": _share((mine & (all_.status == CANCELLED)).sum(), count),
        "degraded": None,
        "degraded_attainment": None,
        "spared": None if all_.spared is None else _share((mine & all_.spared).sum(), count),
    }
    if all_.degraded is not None:
        lesser = mine & all_.degraded.astype(bool)
        found["degraded"] = _share(lesser.sum(), count)
        if all_.degraded_on_time is not None and all_.owed[lesser].sum() > 0:
            found["degraded_attainment"] = _share(all_.degraded_on_time[lesser].sum(), all_.owed[lesser].sum())
    for name, tail in tails.items():
        found[name] = {q: one.value for q, one in tail.items()}
        found[f"{name}_ci95"] = {q: None if one.low is None else [one.low, one.high] for q, one in tail.items()}
    found["refused"] = {f"{name}.{q}": one.refused for name, tail in tails.items() for q, one in tail.items() if one.refused}
    return found


def withheld(tail: dict[str, Quantile], queue: str) -> dict[str, Quantile]:
    """TTFT as far as the load lets it be said: without points where the queue may grow, without intervals where it does.

    Args:
        tail: quantiles by name.
        queue: "stable", "unstable" or "uncertain".

    Returns:
        Quantiles; those withheld say why.
    """
    if queue == "stable" or all(one == Quantile() for one in tail.values()):
        return tail
    ends = (lambda one: (one.low, one.high)) if queue == "uncertain" else (lambda _: (None, None))
    few = lambda one: one.value is None and one.low is None  # noqa: E731
    return {name: one if few(one) else Quantile(None, *ends(one), WITHHELD[queue]) for name, one in tail.items()}


def _blocks(run: np.ndarray) -> np.ndarray | None:
    return blocks_of(np.bincount(run).tolist()) if len(run) else None


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else float("nan")
