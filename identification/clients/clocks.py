"""Two clocks from the stamps of the same requests: what can be told of their offset and drift, and what must be assumed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import theilslopes

WINDOWS = 24
"""Most stretches of time of which the least delay enters the drift."""
PER_WINDOW = 4
"""Fewest stamps in a stretch, on average: fewer stretches are made where there are fewer stamps."""
FEWEST_WINDOWS = 4
"""Stretches below which no drift is estimated."""
RESOLUTION_S = 1e-6
"""Below this a negative duration is rounding: epoch stamps in double precision resolve 0.24 us [s]."""
UNTOLD_PPM = 100.0
"""Width of the drift's interval from which on none is corrected for: quartz clocks drift less than that apart."""
ONE_CLOCK_PPM = 1.0
"""Drift that does not speak against one clock: 0.06 ms a minute, less than the least delay itself moves with the load."""
MOST_REJECTED = 0.1
"""Share of stamps that may contradict every offset; above it the two files are not of the same requests."""

ASSUMPTIONS = {
    "same_clock": "the stamps allow both sides to read one clock, and so it is taken: offset and drift are 0",
    "symmetric": "the least delay is taken as the same both ways: half of what the two bounds leave open goes to each",
    "round_trip": "the least way back is taken as half of the round trip given",
    "no_least_delay": "only one way is stamped by both sides: its least delay is taken as 0, transport is what lies above it",
}
"""What decides the offset within its bounds: stamps alone cannot, a slower way there looks like a clock that is ahead."""


class ClockFit(NamedTuple):
    """The client's clock against the engine's: client = engine + offset + drift (engine - reference).

    Args:
        offset_s: at the reference [s].
        low_s: bound below: no request may reach the engine before it was sent [s]; minus infinity where unknown.
        high_s: bound above: no token may reach the client before it was made [s]; infinity where unknown.
        drift_ppm: by how much the client's clock runs faster, in millionths.
        drift_ci95_ppm: interval of the drift, 95 %; (nan, nan) where too few stamps tell one. Drift is taken as 0 then, and
            where the interval is wider than clocks can drift apart.
        reference_s: engine's clock at the first stamp [s].
        assumption: a key of `ASSUMPTIONS`.
        rejected: stamps that contradict every offset with the fewest contradictions.
    """

    offset_s: float
    low_s: float
    high_s: float
    drift_ppm: float
    drift_ci95_ppm: tuple[float, float]
    reference_s: float
    assumption: str
    rejected: int

    def offset_at(self, engine_s: np.ndarray) -> np.ndarray:
        """Offset at instants of the engine's clock.

        Args:
            engine_s: instants, shape (k,) [s].

        Returns:
            What to add to them for the client's clock, shape (k,) [s].
        """
        return self.offset_s + self.drift_ppm * 1e-6 * (engine_s - self.reference_s)


def fit_clock(
    sent: tuple[np.ndarray, np.ndarray],
    received: tuple[np.ndarray, np.ndarray],
    *,
    rtt_s: float | None = None,
    assume: str = "auto",
) -> ClockFit:
    """Estimate offset and drift of the client's clock against the engine's.

    sent_client - arrival_engine <= offset(t) <= received_client - made_engine

    The drift is the Theil-Sen slope through the least delays of stretches of time, of the way that tells it more sharply.
    The bounds are the envelopes after the drift is taken off; where they cross, the offset with fewest contradictions wins.

    Args:
        sent: (arrival on the engine's clock, sending on the client's less that), shapes (k,) [s, s].
        received: (emission on the engine's clock, receipt on the client's less that), shapes (m,) [s, s].
        rtt_s: round trip of the network, where known [s].
        assume: "auto", or a key of `ASSUMPTIONS` that the stamps allow.

    Returns:
        The fit. Its bounds hold whatever the delays were; the offset within them rests on its assumption.

    Raises:
        ValueError: no pair of stamps, an unknown assumption, or stamps that contradict each other in more than a tenth.

    Source:
        Sen, JASA 63, 1968 (slope and interval); Mills, RFC 5905 (bounds from the two ways).
    """
    if assume not in ("auto", *ASSUMPTIONS):
        raise ValueError(f"assume must be auto or one of {list(ASSUMPTIONS)}, got {assume!r}")
    if not len(sent[0]) + len(received[0]):
        raise ValueError("no request has a stamp of its client and one of its engine for the same event: no clock can be told")
    reference = float(min(part[0].min() for part in (sent, received) if len(part[0])))
    back, there = _drift(*received), _drift(sent[0], -sent[1])
    slope, ci = 0.0, (float("nan"), float("nan"))
    if back is not None or there is not None:
        there = None if there is None else (-there[0], -there[2], -there[1])
        slope, *span = min((d for d in (back, there) if d is not None), key=lambda d: d[2] - d[1])
        ci = (span[0] * 1e6, span[1] * 1e6)
        slope = slope if ci[1] - ci[0] < UNTOLD_PPM else 0.0
    if assume == "same_clock" or (assume == "auto" and rtt_s is None and _one_clock(sent, received, ci)):
        low, high, wrong = _bounds(sent[1], received[1], at=0.0)
        return ClockFit(0.0, low, high, 0.0, ci, reference, "same_clock", wrong)
    below, above = (part[1] - slope * (part[0] - reference) for part in (sent, received))
    low, high, wrong = _bounds(below, above)
    total = len(below) + len(above)
    if wrong > MOST_REJECTED * total:
        raise ValueError(f"{wrong} of {total} stamps contradict every offset of the clocks: the two files are not of the same requests")
    offset, why = _within(low, high, rtt_s, assume)
    return ClockFit(offset, low, high, slope * 1e6, ci, reference, why, wrong)


def _within(low: float, high: float, rtt_s: float | None, assume: str) -> tuple[float, str]:
    """The offset within its bounds, and what decides it."""
    two_ways = np.isfinite(low) and np.isfinite(high)
    if assume == "symmetric" and not two_ways:
        raise ValueError(
            "only one way is stamped by both sides: nothing can be symmetric; leave the assumption to auto, or give the round trip"
        )
    if rtt_s is not None and assume in ("auto", "round_trip"):
        return (high - rtt_s / 2, "round_trip") if np.isfinite(high) else (low + rtt_s / 2, "round_trip")
    if assume == "round_trip":
        raise ValueError("the round trip decides the offset only where it is given: give rtt_s")
    if two_ways and assume != "no_least_delay":
        return (low + high) / 2, "symmetric"
    return (high if np.isfinite(high) else low), "no_least_delay"


def _drift(at: np.ndarray, value: np.ndarray) -> tuple[float, float, float] | None:
    """Slope through the least values of stretches of time, and its 95 % interval; None where there are too few."""
    count = min(WINDOWS, len(at) // PER_WINDOW)
    if count < FEWEST_WINDOWS or np.ptp(at) <= 0:
        return None
    stretch = np.minimum(((at - at.min()) / np.ptp(at) * count).astype(int), count - 1)
    least = np.full(count, np.inf)
    np.minimum.at(least, stretch, value)
    rows = np.array([np.flatnonzero((stretch == k) & (value == least[k]))[0] for k in range(count) if np.isfinite(least[k])])
    if len(rows) < FEWEST_WINDOWS:
        return None
    found = theilslopes(value[rows], at[rows], alpha=0.95)
    return float(found.slope), float(found.low_slope), float(found.high_slope)  # pyright: ignore[reportAttributeAccessIssue]


def _one_clock(sent: tuple[np.ndarray, np.ndarray], received: tuple[np.ndarray, np.ndarray], ci_ppm: tuple[float, float]) -> bool:
    """Whether no stamp contradicts an offset of 0, both ways bound it, and the drift may be 0."""
    if not (len(sent[1]) and len(received[1])) or np.isnan(ci_ppm[0]):
        return False
    early = np.sum(sent[1] > RESOLUTION_S) + np.sum(received[1] < -RESOLUTION_S)
    return bool(early == 0 and ci_ppm[0] <= ONE_CLOCK_PPM and ci_ppm[1] >= -ONE_CLOCK_PPM)


def _bounds(below: np.ndarray, above: np.ndarray, at: float | None = None) -> tuple[float, float, int]:
    """Where the offset may lie with fewest contradictions (or around a given one), and their number."""
    low, high = (below.max() if len(below) else -np.inf), (above.min() if len(above) else np.inf)
    if at is None and low <= high:
        return float(low), float(high), 0
    edges = np.unique(np.concatenate([below, above]))
    if at is None:
        # contradictions of an offset between two neighbouring edges; at the ends it is beyond all of them
        middle = np.concatenate([[edges[0] - 1], (edges[1:] + edges[:-1]) / 2, [edges[-1] + 1]])
        ordered = np.sort(below), np.sort(above)
        count = len(below) - np.searchsorted(ordered[0], middle, "right") + np.searchsorted(ordered[1], middle, "left")
        at = float(middle[int(np.argmin(count))])
    kept_below, kept_above = below[below <= at + RESOLUTION_S], above[above >= at - RESOLUTION_S]
    wrong = len(below) + len(above) - len(kept_below) - len(kept_above)
    return (
        float(kept_below.max()) if len(kept_below) else -np.inf,
        float(kept_above.min()) if len(kept_above) else np.inf,
        int(wrong),
    )
