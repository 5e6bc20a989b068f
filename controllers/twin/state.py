"""The state of a twin's run: where each request stands, the engine's books, the prefix cache, all arrays of fixed shape."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headway.controllers.admission import POINTS
from headway.controllers.controller import Controller
from headway.controllers.twin.load import Choices, Load, Numbers
from headway.models.goodput import FUTURE, RUNNING, WAITING
from headway.models.state import OUTLOOK_BINS, OUTLOOK_CLASSES

SEEN = 8
"""Numbers that the law is told of a step that ended."""


class Track(NamedTuple):
    """Where each request stands; shapes (n,).

    Args:
        status: see `headway.models.goodput`, int.
        arrival_s: infinite while its predecessor has not ended [s].
        ended_s: infinite before [s].
        goal: tokens to compute before it decodes [tokens].
        computed: [tokens].
        emitted: [tokens].
        blocks: held alone.
        shared: leading prefix units held with others.
        swapped: blocks moved out, to be taken again.
        take: tokens in this step: a chunk, -1 for a decode, 0 for nothing.
        stepped: index of the step that gave its last token or chunk.
        begun: was admitted once, bool.
        degraded: bool.
        spared: triage would have shed it, but for the cap, bool.
        ghost: ended, and rides once more, bool.
        place: in the queue, least first.
        seat: order of admission, least first.
        tail: blocks of its own that it left in the prefix cache.
        tail_at: units before them.
        tail_age: when it left them, least first.
        hit: tokens of its prompt found in the cache when its key was taken [tokens].
        key: least first, while it waits [s].
        last_s: time of its last token [s].
        ttft_s: NaN until the first token [s].
        met: 1 if the first token was on time.
        on_time: [tokens].
        owed: [tokens].
        max_gap_s: [s].
    """

    status: Any
    arrival_s: Any
    ended_s: Any
    goal: Any
    computed: Any
    emitted: Any
    blocks: Any
    shared: Any
    swapped: Any
    take: Any
    stepped: Any
    begun: Any
    degraded: Any
    spared: Any
    ghost: Any
    place: Any
    seat: Any
    tail: Any
    tail_at: Any
    tail_age: Any
    hit: Any
    key: Any
    last_s: Any
    ttft_s: Any
    met: Any
    on_time: Any
    owed: Any
    max_gap_s: Any


class Books(NamedTuple):
    """The engine's own; shapes () unless said.

    Args:
        now_s: [s].
        settled_s: end of the last step [s].
        started_s: start of the last step [s].
        step: steps so far.
        free: blocks that hold nothing; idle ones do.
        rate_tps: prefill rate lately measured [tokens/s].
        used_tps: the one that estimates use [tokens/s].
        renewed: step in which it last took the measured one.
        seats: admissions so far.
        places: arrivals so far.
        fronts: preemptions so far.
        moved: blocks moved out or in since the last step ended.
        unprompted: steps since one carried prompt tokens; infinite before the first that did.
        stalled: work but no step, bool: a fault.
        last: what the law is told of the last step, shape (SEEN,).
        earlier: of the one before, shape (SEEN,).
        deficit: of each class, shape (classes,) [tokens].
        arrivals: of each class, shape (classes,).
        shed: of them, by triage, shape (classes,).
    """

    now_s: Any
    settled_s: Any
    started_s: Any
    step: Any
    free: Any
    rate_tps: Any
    used_tps: Any
    renewed: Any
    seats: Any
    places: Any
    fronts: Any
    moved: Any
    unprompted: Any
    stalled: Any
    last: Any
    earlier: Any
    deficit: Any
    arrivals: Any
    shed: Any


class Units(NamedTuple):
    """The prefix cache; shapes (ids,).

    Args:
        cached: whole, bool.
        holders: requests that hold it.
        left: blocks of it that nobody holds.
        idle: when it was let go, least first.
        releases: how often something was let go so far, shape ().
    """

    cached: Any
    holders: Any
    left: Any
    idle: Any
    releases: Any


class Outlook(NamedTuple):
    """What admission expects of those who run; see `headway.controllers.admission`.

    Args:
        seen: outputs that ended in each bin of lengths, shape (classes, bins).
        alive: probability to reach each bin, shape (classes, bins).
        sums: requests, cache tokens, their variance, cache tokens if nobody ends; at each point of the horizon, shape (4, points).
        until: step from which it is to be made anew, shape ().
        fronts: preemptions when it was made, shape ().
    """

    seen: Any
    alive: Any
    sums: Any
    until: Any
    fronts: Any


class Run(NamedTuple):
    """A run in progress.

    Args:
        track: of the requests.
        books: the engine's.
        units: the prefix cache.
        law: state of the law.
        outlook: of admission; None without.
    """

    track: Track
    books: Books
    units: Units
    law: Any
    outlook: Outlook | None


def count(mask: Any) -> Any:
    """How many are true, as a number that mixes with others.

    Args:
        mask: bool, any shape.

    Returns:
        Their number, shape ().
    """
    return jnp.sum(jnp.where(mask, 1.0, 0.0))


def fresh_run(choices: Choices, numbers: Numbers, load: Load, law: Controller) -> Run:
    """State of an idle engine before the first arrival.

    Args:
        choices: of the twin.
        numbers: of the candidate.
        load: of the draw.
        law: of the token budget.

    Returns:
        The run.
    """
    zero, none = jnp.zeros_like(load.prompt), jnp.zeros_like(load.prompt, dtype=bool)
    after = jnp.where(load.after >= 0, jnp.inf, load.arrival_s)
    track = Track(*[zero] * len(Track._fields))._replace(
        status=jnp.full(zero.shape, FUTURE), arrival_s=after, ended_s=zero + jnp.inf, goal=load.prompt, ttft_s=zero + jnp.nan
    )
    track = track._replace(begun=none, degraded=none, spared=none, ghost=none)
    nought = jnp.zeros((), float)
    silent = jnp.zeros(SEEN).at[0].set(jnp.nan)
    books = Books(*[nought] * len(Books._fields))._replace(
        free=numbers.blocks, rate_tps=numbers.rate_tps, used_tps=numbers.rate_tps, last=silent, earlier=silent, unprompted=nought + jnp.inf
    )
    none_yet = jnp.zeros_like(numbers.shares)
    books = books._replace(deficit=none_yet, arrivals=none_yet, shed=none_yet, stalled=jnp.zeros((), bool))
    ids = jnp.zeros(choices.units)
    units = Units(jnp.zeros(choices.units, bool), ids, ids, ids, nought)
    outlook = None
    if choices.admission:
        lengths = jnp.zeros((min(numbers.shares.shape[0], OUTLOOK_CLASSES), OUTLOOK_BINS))
        outlook = Outlook(lengths, lengths, jnp.zeros((4, POINTS)), nought, nought)
    return Run(track, books, units, jax.tree.map(lambda x: jnp.asarray(x, float), law.init()), outlook)


def running(track: Track) -> Any:
    """Who runs.

    Args:
        track: of the requests.

    Returns:
        Mask, shape (n,).
    """
    return track.status == RUNNING


def waiting(track: Track) -> Any:
    """Who waits.

    Args:
        track: of the requests.

    Returns:
        Mask, shape (n,).
    """
    return track.status == WAITING


def decodes(track: Track) -> Any:
    """Who runs and has computed its goal.

    Args:
        track: of the requests.

    Returns:
        Mask, shape (n,).
    """
    return running(track) & (track.computed >= track.goal)
