"""The bars of the engine in silico: speed, other simulators, many policies at once, real runs, the real scheduler, the twin.

python -m benchmarks.engine
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType

import numba
import numpy as np

from benchmarks.served import served
from benchmarks.simulators import peers
from benchmarks.table import Missing, Row, at_least, at_most, informs, run, shared_data
from headway.controllers.pi import PILaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, draw, evaluate, simulate
from headway.controllers.static import StaticLaw
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.outcome import FINISHED, Outcome
from headway.models.regimes import AffinePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Prefix, Workload
from headway.targets import parse_target
from headway.workloads import workload_source

REQUESTS, RATE_RPS, REPEATS = 10_000, 10.0, 5
SLOTS, FEW_SLOTS = 1024, 256
"""Requests that the prototype holds at once, waiting ones included. Ours has no such limit; it counts for the prototype alone."""
RUNNING = 128.0
"""The prototype's running limit, in every row: a step costs by how many run, so that rows of different limits do not compare."""
MOST_STEPS = 200_000
"""Noise factors that are drawn; the prototype ends with them, and no load is longer."""
QUEUED, OVERLOAD, FOR_S, FEW = 20_000, 2.0, 300.0, 3
"""Requests waiting before steps count, times capacity at which requests arrive, for how long steps count [s], repetitions."""
LIMITS = Limits(kv_tokens=24_000 * 16, max_seqs=128, max_tokens=4096, watermark=0.02, reservation="full")
TARGETS = (Target(0.6, 0.025, name="chat"), Target(3.0, 0.025, name="doc"))
LAW = PILaw(margin=0.2)
PROTOTYPE = Policy(order="slack", triage="defer", aging_rate=0.1, chunk_tokens=512.0, running_limit=RUNNING, class_shares=(0.5, 0.5))
"""What the prototype does: slack with aging, the hopeless behind the others, shares by deficit, chunks."""
REJECTING = Policy(order="slack", triage="reject", aging_rate=0.1, chunk_tokens=512.0, running_limit=RUNNING)
QUEUEING = {
    "the prototype's policy": PROTOTYPE,
    "slack and aging alone": Policy(order="slack", triage="none", aging_rate=0.1, chunk_tokens=512.0, running_limit=RUNNING),
    "earliest deadline": Policy(order="edf", triage="none", chunk_tokens=512.0, running_limit=RUNNING),
}
"""Policies that keep whoever waits. What they cost tells what of a long queue costs."""
EVERYTHING = dataclasses.replace(  # pyright: ignore[reportCallIssue]  # a dataclass by @pytree
    PROTOTYPE,
    triage="degrade",
    class_shares=(0.7, 0.3),
    priority_s=(0.1, 0.0),
    memory_price_s=1e-3,
    prefill_every=4.0,
    decode_every=8.0,
    stride=0.5,
    preemption="swap",
)
"""Every part of the policy; its targets let the second class be stepped every other time, its load shares prefixes and loses patience."""
LOOSE = (TARGETS[0], Target(3.0, 0.1, name="doc"))
UNIT_TOKENS, GROUPS, SHARED_UNITS = 256, 200, 4
"""The load with prefixes: prompt tokens of one unit, prompts that many requests begin with, and their length [units]."""
PATIENCE_S = 5.0


def _prototype(name: str) -> ModuleType:
    path = shared_data().parent / "prototypes" / f"{name}.py"
    if not path.exists():
        raise Missing(f"{path} is not there")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # numba's cache looks the module up by its plain name
    return importlib.import_module(name)


def _load(requests: int, rate_rps: float) -> Draw:
    """The prototype's load, and its noise of every step."""
    arrival, prompt, output, classes, noise = _prototype("workload").make(requests, rate_rps, 0, n_noise=MOST_STEPS)
    return Draw(Workload(arrival, prompt, output, classes), noise, noise)


def _identified() -> IdentifiedPlant:
    p = _prototype("workload").PLANT
    plant = AffinePlant((p["w"], p["a"], p["d"], p["c"], 0.0, 0.0))
    return IdentifiedPlant(plant, Noise.none(), Hull(1, 1, 1, 1), {}, {}, LIMITS, {})


def _shared_prefixes(workload: Workload) -> Prefix:
    """A beginning of some units for each request, one of a few that many have in common, and units of its own after it."""
    group = np.random.default_rng(0).integers(GROUPS, size=len(workload))
    units = workload.prompt_tokens // UNIT_TOKENS
    start = np.concatenate([[0], np.cumsum(units)])
    place = np.arange(start[-1]) - np.repeat(start[:-1], units)
    common = np.repeat(group, units) * SHARED_UNITS + place
    own = GROUPS * SHARED_UNITS + np.arange(start[-1])
    ids = np.unique(np.where(place < SHARED_UNITS, common, own), return_inverse=True)[1]
    return Prefix(UNIT_TOKENS, start.astype(np.int64), ids.astype(np.int64))


def _with_everything(load: Draw) -> Draw:
    workload = dataclasses.replace(load.workload, prefix=_shared_prefixes(load.workload))
    return load._replace(workload=workload.with_patience(PATIENCE_S))


def _timed(once: Callable[[], Outcome]) -> tuple[float, Outcome]:
    """Steps per second of this thread's processor time: others on the machine do not count."""
    began = time.thread_time()
    out = once()
    return out.steps / (time.thread_time() - began), out


def _spent(once: Callable[[], Outcome]) -> tuple[float, Outcome]:
    """Seconds of this thread's processor time."""
    rate, out = _timed(once)
    return out.steps / rate, out


def _peer_rate(peer: ModuleType, load: Draw, slots: int, steps: int) -> float:
    """The same of the prototype's engine."""
    made = _prototype("workload")
    w, packed, spec = load.workload, peer.packp(made.PLANT), peer.pack(made.SPEC)
    requests = w.arrival_s, w.prompt_tokens, w.output_tokens, w.class_id, load.mixed
    began = time.thread_time()
    ran = peer.sim(*requests, made.THETA0, packed, spec, slots, steps, 1e-3)[4]
    return ran / (time.thread_time() - began)


def _tokens_a_step(out: Outcome) -> float:
    return float(out.emitted.sum()) / out.steps


def speed() -> Iterator[Row]:
    """Steps per second on one core, in turn with the prototype's own engine."""
    peer, identified, load = _prototype("hard_numba"), _identified(), _load(REQUESTS, RATE_RPS)
    whole = _with_everything(load)
    ways: dict[str, Callable[[], Outcome]] = {
        "the prototype's policy": lambda: simulate(identified, Candidate(LAW, PROTOTYPE), load, TARGETS, LIMITS),
        "every part of the policy on": lambda: simulate(identified, Candidate(LAW, EVERYTHING), whole, LOOSE, LIMITS),
        "slack, aging and rejection alone": lambda: simulate(identified, Candidate(LAW, REJECTING), load, TARGETS, LIMITS),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    theirs: list[float] = []
    tokens: dict[str, float] = {}
    clocks = set()
    for k in range(REPEATS + 1):
        for name, once in ways.items():
            rate, out = _timed(once)
            tokens[name] = _tokens_a_step(out)
            clocks.add((name, out.end_s, float(out.on_time.sum())))
            if k:  # the first compiles
                rates[name].append(rate)
        rate = _peer_rate(peer, load, FEW_SLOTS, MOST_STEPS)
        if k:
            theirs.append(rate)
    for name, least in zip(ways, (800_000, 500_000, None), strict=True):
        middle, best = float(np.median(rates[name])), max(rates[name])
        tag = f"{name}, {RATE_RPS:g} req/s, running limit {RUNNING:g}"
        what = f"{tag}: steps/s on one core, median of {REPEATS}"
        yield at_least(what, middle, least, "steps/s") if least else informs(what, f"{middle:,.0f} steps/s")
        ratio = float(np.median(np.divide(rates[name], theirs)))
        shown = f"{ratio:.2f}; {best:,.0f}; {tokens[name]:.1f}; {1e9 / middle / tokens[name]:.0f} ns"
        yield informs(f"{tag}: times the prototype's engine; fastest; tokens a step; time a token", shown)
    yield informs(f"the prototype's engine, {FEW_SLOTS} slots, in turn with these: steps/s", f"{np.median(theirs):,.0f}")
    yield Row("the same result each time", f"{len(ways)} results", f"{len(clocks)} results", len(clocks) == len(ways))


def overload() -> Iterator[Row]:
    """What a step costs once a long queue has grown, beside what it costs with a short one; the prototype likewise."""
    peer, identified, light = _prototype("hard_numba"), _identified(), _load(REQUESTS, RATE_RPS)
    stock = Candidate(StaticLaw(512.0), Policy(order="fcfs", triage="none", running_limit=RUNNING))
    full = simulate(identified, stock, _load(QUEUED, 1e6), TARGETS, LIMITS, cut_s=FOR_S)
    capacity_rps = float((full.status == FINISHED).sum()) / full.end_s
    grown_s = QUEUED / ((OVERLOAD - 1.0) * capacity_rps)
    end_s = grown_s + FOR_S
    heavy = _load(int(OVERLOAD * capacity_rps * end_s), OVERLOAD * capacity_rps)
    ours: dict[str, list[float]] = {name: [] for name in QUEUEING}
    theirs: list[float] = []
    grown = full
    for name, policy in QUEUEING.items():
        candidate = Candidate(LAW, policy)
        for k in range(FEW + 1):
            fast, _ = _timed(lambda c=candidate: simulate(identified, c, light, TARGETS, LIMITS))
            before_s, before = _spent(lambda c=candidate: simulate(identified, c, heavy, TARGETS, LIMITS, cut_s=grown_s))
            whole_s, out = _spent(lambda c=candidate: simulate(identified, c, heavy, TARGETS, LIMITS, cut_s=end_s))
            if k:
                ours[name].append(fast * (whole_s - before_s) / (out.steps - before.steps))
            if name == "the prototype's policy":
                grown = out
    for _ in range(FEW):
        fast = _peer_rate(peer, light, SLOTS, MOST_STEPS)
        theirs.append(fast / _peer_rate(peer, heavy, SLOTS, grown.steps))
    queued = int(((grown.emitted == 0) & (grown.arrival_s <= grown.end_s)).sum())
    about = f"{OVERLOAD:g} times the capacity of {capacity_rps:.1f} req/s, running limit {RUNNING:g}, cost of a step once {QUEUED:,} wait"
    for name, values in ours.items():
        what = f"{name}: {about}, times that at {RATE_RPS:g} req/s, median of {FEW}"
        middle = float(np.median(values))
        yield at_most(what, middle, 3.0) if name == "the prototype's policy" else informs(what, f"{middle:.2f}")
    yield informs(f"the prototype's engine, {SLOTS:,} slots, the same from its first step on: times", f"{np.median(theirs):.2f}")
    yield Row("the prototype's policy: requests waiting at the end", f">= {QUEUED:,}", f"{queued:,}", queued >= QUEUED)


def policies() -> Iterator[Row]:
    """One hundred policies on one trace, both cores."""
    trace = read_trace(shared_data("steps", "fpm_vllm0201_b300", "qwen3-32b_tp4.fpm_detail.csv"))
    identified = fit(trace, limits={"kv_tokens": 200_000})
    source = workload_source(str(shared_data("workloads", "AzureLLMInferenceTrace_conv.csv")), rate_rps=13.0)
    targets, _ = parse_target("ttft=1s,itl=25ms")
    grid = itertools.product((0.1, 0.2, 0.3, 0.4, 0.5), (0.0, 0.05, 0.1, 0.2, 0.5), (512.0, 2048.0), ("defer", "reject"))
    candidates = [Candidate(PILaw(margin=m), Policy(triage=t, aging_rate=a, chunk_tokens=c)) for m, a, c, t in grid]
    drawn = draw(source, identified, 0, 1000)
    took, found = [], np.zeros(0)
    for k in range(4):
        began = time.perf_counter()
        found = evaluate(identified, candidates, [drawn], targets, identified.limits)
        if k:  # the first compiles
            took.append(time.perf_counter() - began)
    different = len(np.unique(found.reshape(len(candidates), -1), axis=0))
    about = f"{len(candidates)} policies on {len(drawn.workload):,} requests of Azure at 13 req/s, {numba.get_num_threads()} threads"
    yield at_most(f"{about}: median of 3", float(np.median(took)), 10.0, "s")
    yield informs("the same: different outcomes among them", different)


def _theirs(module: str, name: str) -> Callable[[], Iterable[Row]]:
    """A part that another module of this folder measures."""

    def part() -> Iterable[Row]:
        if importlib.util.find_spec(f"benchmarks.{module}") is None:
            raise Missing(f"benchmarks/{module}.py is not there")
        return getattr(importlib.import_module(f"benchmarks.{module}"), name)()

    return part


PARTS: dict[str, Callable[[], Iterable[Row]]] = {
    "speed": speed,
    "overload": overload,
    "peers": peers,
    "policies": policies,
    "served": served,
    "vllm": _theirs("parity", "vllm_scheduler"),
    "twin": _theirs("twin", "twin"),
}

if __name__ == "__main__":
    sys.exit(run("engine", PARTS))
