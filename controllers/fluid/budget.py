"""The prefill budget of one step of the fluid: as many prompt tokens as keep the step at its setpoint, on any plant."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from headway.controllers.fluid.threshold import SEARCHED
from headway.models.plant import Batch, Plant

LEAST_SLOPE_S = 1e-8
"""Least slope of the step time that is believed, per prompt token [s]."""
PIECES = 128
"""Into which a range of budgets is cut: of 8192 tokens each is 7 % wide."""


class Make(NamedTuple):
    """What the prompt part of a step is made of, as far as the step time asks.

    Args:
        context_tokens: computed before, mean over the prompt tokens of the step [tokens].
        chunk_tokens: prompt tokens per request [tokens].
    """

    context_tokens: Any
    chunk_tokens: Any


def batch_of(decode: Any, kv_tokens: Any, prefill_tokens: Any, make: Make) -> Batch:
    """The sums of a step.

    pairs = p (context + chunk / 2), requests = max(p / chunk, 1)

    Args:
        decode: requests that decode [requests].
        kv_tokens: that they read [tokens].
        prefill_tokens: p [tokens].
        make: of the prompt part.

    Returns:
        Batch.
    """
    chunk = jnp.minimum(make.chunk_tokens, prefill_tokens)
    pairs = prefill_tokens * (make.context_tokens + 0.5 * chunk)
    requests = jnp.maximum(prefill_tokens / jnp.maximum(chunk, 1.0), 1.0)
    alike = jnp.ones_like(prefill_tokens)
    return Batch(decode * alike, kv_tokens * alike, prefill_tokens, pairs, requests)


def duration(plant: Plant, batch: Batch, dtype: Any) -> Any:
    """Step time in the fluid's own precision.

    Args:
        plant: the plant.
        batch: sums of the step.
        dtype: of the result.

    Returns:
        Duration [s].
    """
    return plant.step_time_s(Batch(*(jnp.asarray(x, float) for x in batch))).astype(dtype)


def both_times(plant: Plant, decode: Any, kv_tokens: Any, prefill_tokens: Any, make: Make) -> tuple[Any, Any]:
    """Time of a step with prompts and of one without, in one look at the plant.

    Args:
        plant: the plant.
        decode: requests that decode [requests].
        kv_tokens: that they read [tokens].
        prefill_tokens: of the step with prompts [tokens].
        make: of the prompt part.

    Returns:
        Durations [s].
    """
    batch = batch_of(decode, kv_tokens, prefill_tokens, make)
    none = jnp.zeros_like(decode)
    alone = (decode, kv_tokens, none, none, none)
    times = duration(plant, Batch(*(jnp.stack(two) for two in zip(batch, alone, strict=True))), decode.dtype)
    return times[0], times[1]


class Budget(NamedTuple):
    """A prefill budget.

    Args:
        tokens: prompt tokens of a step [tokens].
        step_s: duration of a step that uses it up [s].
    """

    tokens: Any
    step_s: Any


def budget(plant: Plant, decode: Any, kv_tokens: Any, make: Make, setpoint_s: Any, most_tokens: Any) -> Budget:
    """Prompt tokens that bring a step to its setpoint: step(u) = setpoint, with the derivative of the root.

    The whole range is looked over in pieces; the chord of the one in which the setpoint lies gives a place and a slope, and
    one step along it the budget: exact where the plant is linear in the prompt tokens. A tangent would see nothing of a
    plant that pads to captured sizes, and a search from the last budget swings across a jump; the chord of a piece with a
    jump in it is steep, so that the budget rests there, as the law does.

    Args:
        plant: the plant.
        decode: requests that decode [requests].
        kv_tokens: that they read [tokens].
        make: of the prompt part.
        setpoint_s: [s].
        most_tokens: [tokens].

    Returns:
        Budget, its tokens in [0, most_tokens].
    """
    fixed = jax.tree.map(lambda x: lax.stop_gradient(jnp.asarray(x, float)), plant)
    still = [lax.stop_gradient(x) for x in (decode, kv_tokens, setpoint_s)]
    shape = Make(*(lax.stop_gradient(x) for x in make))

    most = jnp.maximum(lax.stop_gradient(most_tokens), 2.0)
    tokens = most ** (jnp.arange(PIECES + 1, dtype=most.dtype) / PIECES)
    times = duration(fixed, batch_of(still[0], still[1], tokens, Make(*(x * jnp.ones_like(tokens) for x in shape))), most.dtype)
    k = jnp.clip(jnp.sum((times <= still[2]).astype(jnp.int32)) - 1, 0, PIECES - 1)
    low, high, below_s, above_s = tokens[k], tokens[k + 1], times[k], times[k + 1]
    slope = jnp.maximum((above_s - below_s) / (high - low), LEAST_SLOPE_S)
    near = jnp.clip(low + (still[2] - below_s) / slope, 1.0, most)
    near, slope, low, high, below_s = (checkpoint_name(x, SEARCHED) for x in (near, slope, low, high, below_s))
    there_s = duration(plant, batch_of(decode, kv_tokens, near, make), near.dtype)
    move = (setpoint_s - there_s) / slope
    reach = high - low  # past a jump the chord says nothing of how far
    least = jnp.where(below_s > still[2], -most, -reach)  # no room for a single token
    found = jnp.clip(near + move - lax.stop_gradient(move) + jnp.clip(lax.stop_gradient(move), least, reach), 0.0, most_tokens)
    return Budget(found, there_s + slope * (found - near))


def at_least(plant: Plant, decode: Any, kv_tokens: Any, make: Make, found: Budget, least_tokens: Any) -> Budget:
    """A budget with a floor: prompts go on where decodes alone fill the step, which is longer for it.

    Args:
        plant: the plant.
        decode: requests that decode [requests].
        kv_tokens: that they read [tokens].
        make: of the prompt part.
        found: without the floor.
        least_tokens: the floor [tokens].

    Returns:
        Budget, its tokens at least the floor.
    """
    lifted = least_tokens > found.tokens
    there_s = duration(plant, batch_of(decode, kv_tokens, jnp.maximum(least_tokens, 1.0), make), found.tokens.dtype)
    return Budget(jnp.where(lifted, least_tokens, found.tokens), jnp.where(lifted, there_s, found.step_s))
