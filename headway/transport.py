"""The stage behind `headway transport`: files of a client and an engine to a split of the requests' time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from headway.identification.clients.clocks import ASSUMPTIONS
from headway.identification.clients.requests import TPOT_FORMULA, RequestStamps
from headway.identification.clients.transport import Transport, transport
from headway.identification.readers.requests_table import read_requests

SHOWN_REJECTED = 20
"""Rejected durations that are listed; all are counted."""


def transport_stage(
    client: Path,
    engine: Path | None = None,
    *,
    itl_s: float | None = None,
    ttft_s: float | None = None,
    rtt_s: float | None = None,
    assume: str = "auto",
    quantile: float = 0.99,
    format: str = "auto",  # the option's own name
) -> dict[str, Any]:
    """Read what a client and an engine saw of the same requests, and split their time.

    Args:
        client: file of a load generator.
        engine: file of the engine's stamps; None if there is none, or if the client's file holds them.
        itl_s: promised gap between tokens [s].
        ttft_s: promised time to first token [s].
        rtt_s: round trip of the network, where known [s].
        assume: what decides the clocks' offset within its bounds.
        quantile: of transport to take off the promises, in (0, 1).
        format: of the client's file, or "auto".

    Returns:
        Figures by name, as `headway transport --json` shows them.

    Raises:
        ValueError: a file that cannot be read, or two that share no request.
    """
    seen = read_requests(client, format)
    beside = None if engine is None else read_requests(engine)
    found = transport(seen, beside, itl_s=itl_s, ttft_s=ttft_s, rtt_s=rtt_s, assume=assume, quantile=quantile)
    return {**requests_json(seen, beside), **transport_json(found)}


def requests_json(seen: RequestStamps, beside: RequestStamps | None) -> dict[str, Any]:
    """What was read, and the client's own figures.

    Args:
        seen: the client's requests.
        beside: the engine's; None if there are none.

    Returns:
        `formats`, `statuses`, `set_aside`, `ttft_s`, `tpot_s` with its formula and counts, `other_formulas`, gaps by kind.
    """
    own = {name: {**_quantiles(seen.frame[name]), "formula": text} for name, text in seen.formulas.items()}
    return {
        "formats": {"client": seen.reader, "engine": None if beside is None else beside.reader},
        "statuses": seen.counts,
        "set_aside": {**seen.aside, **({} if beside is None else beside.aside)},
        "ttft_s": _quantiles(seen.frame["ttft_s"]),
        "e2e_s": _quantiles(seen.frame["e2e_s"]),
        "tpot_s": {**_quantiles(seen.frame["tpot_s"]), "formula": TPOT_FORMULA, "requests": seen.tpot_counts},
        "other_formulas": own,
        "token_gap_s": _quantiles(pl.Series(seen.token_gaps_s())),
        "chunk_gap_s": _quantiles(pl.Series(seen.chunk_gaps_s())),
    }


def transport_json(found: Transport) -> dict[str, Any]:
    """A split as plain JSON values.

    Args:
        found: the split.

    Returns:
        Fields by name.
    """
    clock = found.clock
    return {
        "rows": dict(found.rows),
        "matched_by": found.matched_by or None,
        "clock": None
        if clock is None
        else {
            "offset_s": clock.offset_s,
            "offset_bounds_s": [_finite(clock.low_s), _finite(clock.high_s)],
            "drift_ppm": clock.drift_ppm,
            "drift_ci95_ppm": [_finite(value) for value in clock.drift_ci95_ppm],
            "assumption": clock.assumption,
            "means": ASSUMPTIONS[clock.assumption],
            "stamps_rejected": clock.rejected,
        },
        "rejected": len({one.request_id for one in found.rejected}),
        "rejected_durations": [one._asdict() for one in found.rejected[:SHOWN_REJECTED]],
        "request_path_s": dict(found.request_s),
        "response_path_s": dict(found.response_s),
        "split": [part._asdict() for part in found.split],
        "quantile": found.quantile,
        "ttft_transport_s": _finite(found.ttft_transport_s),
        "itl_transport_s": _finite(found.itl_transport_s),
        "itl_transport_from": found.itl_from,
        "promised": {"itl_s": found.itl_s, "ttft_s": found.ttft_s},
        "budget_s": found.budget_s,
        "first_token_s": found.first_token_s,
        "warnings": list(found.warnings),
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _quantiles(values: pl.Series) -> dict[str, float | None]:
    known = values.cast(pl.Float64).drop_nulls().drop_nans()
    return {f"p{100 * q:g}": known.quantile(q, "linear") if len(known) else None for q in (0.5, 0.9, 0.99)}
