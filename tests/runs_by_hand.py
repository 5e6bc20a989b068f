"""Runs told by hand, for the tests of what becomes of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.models.goodput import GAP_BINS, Outcome


def told(status: list[int], **fields: Any) -> Outcome:
    """A run told by hand: requests of ten tokens, 50 ms apart, unless it says otherwise."""
    n = len(status)
    arrival_s = np.asarray(fields.pop("arrival_s", 0.5 * np.arange(n)), float)
    emitted = np.asarray(fields.pop("emitted", np.full(n, 10.0)), float)
    ttft_s = np.asarray(fields.pop("ttft_s", np.full(n, 0.1)), float)
    given: dict[str, Any] = {
        "class_id": np.zeros(n, int),
        "prompt_tokens": np.full(n, 100.0),
        "output_tokens": np.full(n, 10.0),
        "last_s": arrival_s + np.nan_to_num(ttft_s) + 0.05 * np.maximum(emitted - 1, 0),
        "on_time": emitted,
        "owed": np.full(n, 10.0),
        "max_gap_s": np.full(n, 0.05),
        "gaps": np.zeros((1, GAP_BINS), int),
        "end_s": float(arrival_s.max() + 2.0),
        "steps": 100 * n,
        "preempted": 0,
        "binding": np.array([1, 0, 0, 0, 0]),
        "largest": np.ones(4),
        "log": np.zeros((0, 12)),
    } | {name: np.asarray(v) if isinstance(v, list) else v for name, v in fields.items()}
    return Outcome(status=np.asarray(status), arrival_s=arrival_s, emitted=emitted, ttft_s=ttft_s, **given)
