"""From the times of single kernels to the time of a step: sums over layers, on a grid of compositions.

step = layers * (attention + sum of the layers' other kernels at its tokens) + kernels that run once (at its tokens, at
its sequences)

The sum holds no gap between kernels, no host and no collective, unless a table holds it: steps composed so are durations
on the device, and a lower bound of those of an engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.interpolate import RegularGridInterpolator

COLLECTIVES = 2
"""Collectives of one layer under tensor parallelism: after attention and after the feed-forward part."""
DISAGREE = 0.10
"""Share of the measured step from which on composed and measured steps are said to disagree."""


class Curve(NamedTuple):
    """Time of one kernel against its size.

    Args:
        at: sizes measured, rising, shape (m,) [tokens or sequences].
        time_s: its time there, shape (m,) [s].
        times: how often it runs, in one layer or in one step.
    """

    at: np.ndarray
    time_s: np.ndarray
    times: int = 1


def curve_s(curve: Curve, size: np.ndarray) -> np.ndarray:
    """Time of a kernel at any size: linear between the sizes measured, in proportion to the size above the largest.

    Args:
        curve: as measured, shape (m,).
        size: where it is asked for, shape (k,) [tokens or sequences].

    Returns:
        times * time, shape (k,) [s]; below the smallest size the time there.

    Example:
        >>> curve_s(Curve(np.array([1.0, 2.0]), np.array([3.0, 5.0])), np.array([1.5, 4.0])).tolist()
        [4.0, 10.0]
    """
    inside = np.interp(size, curve.at, curve.time_s)
    return curve.times * np.where(size > curve.at[-1], curve.time_s[-1] * size / curve.at[-1], inside)


def compose_s(
    attention_s: np.ndarray,
    tokens: np.ndarray,
    sequences: np.ndarray,
    *,
    layers: int,
    in_layer: Iterable[Curve],
    once: Iterable[Curve] = (),
    per_sequence: Iterable[Curve] = (),
) -> np.ndarray:
    """Time of steps from the times of their kernels.

    t = L (a + sum_j c_j(tokens)) + sum_j e_j(tokens) + sum_j h_j(sequences)

    Args:
        attention_s: attention of one layer, shape (k,) [s].
        tokens: in the step, prompt tokens and one for each request that decodes, shape (k,) [tokens].
        sequences: that get a token, shape (k,) [sequences].
        layers: L, of the llm.
        in_layer: the other kernels of a layer, against tokens.
        once: kernels that run once a step, against tokens.
        per_sequence: the same, against sequences.

    Returns:
        Durations, shape (k,) [s].

    Raises:
        ValueError: layers below 1.
    """
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    one = attention_s + sum(curve_s(curve, tokens) for curve in in_layer)
    return layers * one + sum(curve_s(c, tokens) for c in once) + sum(curve_s(c, sequences) for c in per_sequence)


def grid_index(values: np.ndarray) -> np.ndarray:
    """Number of each value among the values that come at all, from the smallest.

    Args:
        values: one coordinate of a grid of measurements, shape (k,).

    Returns:
        Numbers from 0, shape (k,), int64.

    Example:
        >>> grid_index(np.array([16, 0, 64, 16])).tolist()
        [1, 0, 2, 1]
    """
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def checkerboard(*indices: np.ndarray) -> np.ndarray:
    """Colour of each grid point: neighbours along any axis differ. Half of a grid predicts the other half from all sides.

    colour = (i + j + ...) mod 2

    Args:
        *indices: one coordinate each, from `grid_index`, shape (k,).

    Returns:
        0 or 1, shape (k,), int64.
    """
    return np.sum(indices, axis=0) % 2


def on_plane(first: np.ndarray, second: np.ndarray, value: np.ndarray, at_first: np.ndarray, at_second: np.ndarray) -> np.ndarray:
    """Interpolate, linearly in both, values that were measured on a full grid of two coordinates.

    Args:
        first: coordinate of the points, shape (k,).
        second: coordinate of the points, shape (k,).
        value: there, shape (k,).
        at_first: where it is asked for, shape (q,).
        at_second: where it is asked for, shape (q,).

    Returns:
        Values, shape (q,); NaN outside the grid.

    Raises:
        ValueError: the points are no full grid.
    """
    axes = np.unique(first), np.unique(second)
    if len(value) != len(axes[0]) * len(axes[1]):
        raise ValueError(f"expected a full grid of {len(axes[0])} by {len(axes[1])} points, got {len(value)}")
    plane = np.full((len(axes[0]), len(axes[1])), np.nan)
    plane[np.searchsorted(axes[0], first), np.searchsorted(axes[1], second)] = value
    lookup = RegularGridInterpolator(axes, plane, bounds_error=False, fill_value=np.nan)
    return np.asarray(lookup(np.column_stack([at_first, at_second])))


def missing_collective(composed_step_s: np.ndarray, measured_step_s: np.ndarray, tp: int) -> str | None:
    """Say by how much measured steps exceed those composed from kernel tables, and what the tables lack.

    Args:
        composed_step_s: composed at the compositions measured, shape (k,) [s].
        measured_step_s: the same steps in an engine, shape (k,) [s].
        tp: ranks of tensor parallelism.

    Returns:
        A sentence; None where the two agree within a tenth.

    Raises:
        ValueError: the shapes differ, or there is no step.

    Example:
        >>> print(missing_collective(np.array([0.042]), np.array([0.059]), 2))
        measured steps take 17.0 ms (29 %) more than the kernel tables add up to: at TP 2 the all-reduces are not in the tables
    """
    composed, measured = np.asarray(composed_step_s, float), np.asarray(measured_step_s, float)
    if composed.shape != measured.shape or not composed.size:
        raise ValueError(f"expected as many composed as measured steps, got {composed.shape} and {measured.shape}")
    lacking_s, share = float(np.median(measured - composed)), float(np.median(1.0 - composed / measured))
    if abs(share) <= DISAGREE:
        return None
    if lacking_s < 0:
        return f"measured steps take {-1e3 * lacking_s:.1f} ms ({-100 * share:.0f} %) less than the kernel tables add up to: not the same llm, card or TP"
    why = f"at TP {tp} the all-reduces are not in the tables" if tp > 1 else "the tables hold no gap between kernels and no host time"
    return f"measured steps take {1e3 * lacking_s:.1f} ms ({100 * share:.0f} %) more than the kernel tables add up to: {why}"
