"""Allocation by a solved threshold: who is served without a sort, and with a derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

SEARCHED = "searched"
"""Name of what was searched for: reverse mode keeps it when it computes a slot anew, so that nothing is searched for twice."""

LEAST, MOST = -300.0, 100.0
"""Where a threshold may lie [s]."""
DEFICIT = 5.0
"""Largest deficit of a class that the order remembers [thousand tokens]."""
LEAST_SLOPE = 1e-2
"""Below this slope [tokens/s] nothing answers to the threshold, and neither does a derivative."""


class Offers(NamedTuple):
    """What could be served in a slot, and in which order. Arrays of shape (rows,), scalars beside them.

    Each kind of mass keeps its own order: `early` comes by its key, `late`, which cannot be on time any more, as much
    later as triage says; `begun` has its place in the cache already, the rest needs one.

    Args:
        key_s: smaller goes first [s].
        early: tokens that can still be on time, begun [tokens].
        late: tokens that cannot, begun [tokens].
        early_new: as early, not begun; None where nothing is told apart [tokens].
        late_new: as late, not begun [tokens].
        first: 1 for class 0, else 0.
        deficit: tokens that class 0 is behind its share [thousand tokens].
        share: of class 0, in [0, 1].
        boost: seconds of slack that a deficit of a thousand tokens is worth [s].
        let_in: share of early and of late new mass that may begin, shape (2, rows); None for an open gate.
    """

    key_s: Any
    early: Any
    late: Any
    early_new: Any
    late_new: Any
    first: Any
    deficit: Any
    share: Any
    boost: Any
    let_in: Any


def ramp(x: Any) -> Any:
    """How much of a mass is served whose key lies x widths below the threshold.

    Args:
        x: distance over width.

    Returns:
        In (0, 1).
    """
    return jax.nn.sigmoid(x)


def served(offers: Offers, threshold_s: Any, total: Any, width_s: float, defer_s: float) -> Any:
    """What a threshold serves.

    take = early R((th - key) / width) + late R((th - key - defer) / width)

    The share between class 0 and the others is balanced within the slot (backward Euler): the shift of class 0 follows
    from what the others are served at the same threshold. Taking the shift from the slot before closes a loop order ->
    service -> deficit -> order whose derivative grows without bound.

    Args:
        offers: what could be served.
        threshold_s: of the classes without the shift [s].
        total: tokens served in the slot [tokens].
        width_s: of the ramp [s].
        defer_s: by which late mass is put back [s].

    Returns:
        Tokens per row, shape (rows,); where new mass is told apart two lines, begun and new, shape (2, rows).
    """
    others = 1.0 - offers.first
    behind, back = (threshold_s - offers.key_s) / width_s, defer_s / width_s

    def parts(shift: Any) -> Any:
        early, late = ramp(behind + shift), ramp(behind + (shift - back))
        take = offers.early * early + offers.late * late
        if offers.early_new is None:
            return take
        if offers.let_in is not None:
            early, late = jnp.minimum(early, offers.let_in[0]), jnp.minimum(late, offers.let_in[1])
        return jnp.stack([take, offers.early_new * early + offers.late_new * late])

    rest = parts(jnp.zeros_like(total)) * _like(others, offers)
    deficit = jnp.clip(offers.deficit + (offers.share * total - (total - jnp.sum(rest))) * 1e-3, -DEFICIT, DEFICIT)
    return rest + _like(offers.first, offers) * parts(offers.boost * deficit / width_s)


def _like(rows: Any, offers: Offers) -> Any:
    """A column beside tokens per row, which have two lines where new mass is told apart."""
    return rows if offers.early_new is None else rows[None, :]


def fill(offers: Offers, total: Any, guess: Any, width_s: float, defer_s: float) -> tuple[Any, Any]:
    """Serve exactly a total, in the order of the keys.

    take = take(x) - take'(x) (sum take(x) - total) / sum take'(x)  at the root x: what the root's own error leaves is
    taken from who stands at the threshold, and the same line carries the derivative of the root.

    Args:
        offers: what could be served.
        total: to be served [tokens].
        guess: threshold to begin with [s].
        width_s: of the ramp [s].
        defer_s: by which late mass is put back [s].

    Returns:
        Tokens as `served` gives them, and the threshold, which carries no derivative [s].
    """
    fixed = jax.tree.map(lax.stop_gradient, (offers, total))

    def over(x: Any) -> Any:
        return jnp.sum(served(fixed[0], x, fixed[1], width_s, defer_s)) - fixed[1]

    x = root(over, guess, width_s)
    take, rise = jax.jvp(lambda y: served(offers, y, total, width_s, defer_s), (x,), (jnp.ones_like(x),))
    rise = lax.stop_gradient(rise)
    slope = jnp.sum(rise)
    error = jnp.where(slope > LEAST_SLOPE, (jnp.sum(take) - total) / jnp.maximum(slope, LEAST_SLOPE), 0.0)
    return take - rise * error, x


def root(f: Callable[[Any], Any], guess: Any, width_s: float) -> Any:
    """The root of an increasing function of one number, without a derivative.

    Newton's method inside a bracket.

    Args:
        f: of inputs that carry no derivative.
        guess: where to begin.
        width_s: scale of x. The last step is below 3 % of it, and its error about the square of that [s].

    Returns:
        x; at the end of its range where f has no root.
    """
    start = jnp.clip(lax.stop_gradient(guess), LEAST, MOST)
    one = jnp.ones_like(start)

    def going(state: tuple[Any, ...]) -> Any:
        low, high, _, step, count = state
        return (jnp.abs(step) > 0.03 * width_s) & (high - low > 1e-3 * width_s) & (count < 60)

    def better(state: tuple[Any, ...]) -> tuple[Any, ...]:
        low, high, x, before, count = state
        value, slope = jax.jvp(f, (x,), (one,))
        low, high = jnp.where(value < 0, x, low), jnp.where(value < 0, high, x)
        # a wide bracket is walked into from the guess: its middle would be far out, where every ramp is flat
        reach = jnp.maximum(2.0 * jnp.abs(before), 2.0 * width_s)
        newton = x - value / jnp.maximum(slope, 1e-9)
        aside = jnp.where(high - low < 4.0 * reach, 0.5 * (low + high), newton)
        inside = (newton > low) & (newton < high)
        new = jnp.clip(jnp.clip(jnp.where(inside, newton, aside), x - reach, x + reach), low, high)
        return low, high, new, new - x, count + 1

    first = (jnp.full_like(start, LEAST), jnp.full_like(start, MOST), start, one * width_s, jnp.zeros((), jnp.int32))
    return checkpoint_name(lax.while_loop(going, better, first)[2], SEARCHED)
