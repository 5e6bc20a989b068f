"""Admission of the fluid: cache and running limit let in as much of the new as there are places, in the order of the keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from headway.controllers.fluid.state import Knobs, Now, Rows, Setting
from headway.controllers.fluid.threshold import DEFICIT, Offers, ramp, root


class Places(NamedTuple):
    """What the new need, and what there is.

    Args:
        early: requests that would begin in the slot and can be on time, per row.
        late: that cannot.
        size: cache that one takes, per row [tokens].
        free: cache that is free for them [tokens].
        seats: of the running limit that are free [requests].
    """

    early: Any
    late: Any
    size: Any
    free: Any
    seats: Any


def places(setting: Setting, rows: Rows, now: Now, knobs: Knobs, offered: Offers, early: Any, steps: Any) -> Places:
    """What the new need of cache and running limit.

    Args:
        setting: of the run.
        rows: live requests.
        now: of this slot.
        knobs: of this slot.
        offered: what could be served.
        early: share of each request that can still be on time.
        steps: in the slot.

    Returns:
        Places. Who is let in by halves keeps cache free for the other half, until it is too late for it.
    """
    each = jnp.minimum(rows.prompt, knobs.chunk_tokens * steps)
    size = rows.prompt + 0.5 * setting.block_tokens + 1.0
    free = jnp.maximum(setting.pool_tokens * (1.0 - setting.watermark) - now.used - jnp.sum(now.waiting * early * size), 1.0)
    seats = jnp.maximum(jnp.minimum(knobs.running_limit, setting.max_seqs) - now.running, 0.01)
    return Places(offered.early_new / each, offered.late_new / each, size, free, seats)


def gate(forms: Any, grid: Any, offered: Offers, wanted: Places, guess: Any) -> tuple[Any, Any]:
    """Where the gate has to be so that cache and running limit are kept.

    It solves max(cache taken / cache free, requests begun / requests free) = 1: nobody later in the order passes whoever
    has to wait, as in the engine. Shares are balanced within the slot here too: a prompt takes about as much cache as it
    has tokens.

    The gate carries no derivative. Who is let in is served, and gives the place back, over many later slots; through that
    delay the loop place -> service -> place has a derivative that grows without bound, though the loop is bounded. Taken
    as given, it leaves what the knobs do to those inside and to who is still in time.

    Args:
        forms: order and triage.
        grid: of the run.
        offered: with an open gate.
        wanted: by the new.
        guess: gate of the last slot [s].

    Returns:
        Share of early and late new mass that is let in, shape (2, rows), and the gate [s]; neither carries a derivative.
    """
    wish = wanted.early + wanted.late
    mean = jnp.sum(wish * wanted.size) / jnp.maximum(jnp.sum(wish), 1e-6)
    total = jnp.minimum(wanted.free, wanted.seats * mean)

    def let(x: Any, given: Any) -> Any:
        offered, wanted, total = given
        behind, back = (x - offered.key_s) / grid.gate_s, forms.defer_s / grid.gate_s
        rest = (1.0 - offered.first) * (wanted.early * ramp(behind) + wanted.late * ramp(behind - back))
        gain = offered.share * total - (total - jnp.sum(rest * wanted.size))
        shift = offered.boost * jnp.clip(offered.deficit + gain * 1e-3, -DEFICIT, DEFICIT) / grid.gate_s
        behind = behind + offered.first * shift
        return jnp.stack([ramp(behind), ramp(behind - back)])

    def full(shares: Any, wanted: Places) -> Any:
        starts = wanted.early * shares[0] + wanted.late * shares[1]
        return jnp.maximum(jnp.sum(starts * wanted.size) / wanted.free, jnp.sum(starts) / wanted.seats) - 1.0

    given = jax.tree.map(lax.stop_gradient, (offered, wanted, total))
    gate_s = root(lambda x: full(let(x, given), given[1]), guess, grid.gate_s)
    return let(gate_s, given), gate_s
