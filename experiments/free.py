"""The free numbers of a controller: range, scale and practical unit of each, and what has to be on for it to act."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.policy import EITHER
from headway.controllers.simulator import Candidate
from headway.models.signals import Limits, Target

PRICE_S_PER_TOKEN = 2e-3
"""Highest price of memory that is searched: a prompt of 1000 tokens gives 2 s of slack for its blocks [s/token]."""

DEARER = 3.0
"""The same as a multiple of where the search starts."""

PER_CLASS: dict[str, tuple[str, float]] = {
    "share": ("class_shares", 1.0),
    "priority": ("priority_s", 0.0),
    "tolerance": ("tolerance", 0.0),
    "estimate": ("estimate", 1.0),
}
"""Names with one number per class, as in share.chat: field of the policy, and where all classes start."""


class Free(NamedTuple):
    """One free number.

    Args:
        name: field of the law or of the policy; `share.CLASS` is one class's, as are the others of `PER_CLASS`.
        low: least value, on the scale that is searched.
        high: greatest.
        unit: a practical step on that scale: differences are taken over half of it, moves are measured in it.
        log2: searched as a base-2 logarithm.
        whole: a number searched so is rounded to a whole one.
        off_at_high: its loose end switches it off, which is written 0.
    """

    name: str
    low: float
    high: float
    unit: float
    log2: bool = False
    whole: bool = True
    off_at_high: bool = False

    def value(self, x: float) -> float:
        """A place on the scale that is searched, in the number's own unit.

        Args:
            x: on the scale, within its bounds.

        Returns:
            Value.
        """
        if self.off_at_high and x >= self.high:
            return 0.0
        if not self.log2:
            return x
        return float(round(2.0**x)) if self.whole else float(2.0**x)

    def place(self, value: float) -> float:
        """The inverse of `value`.

        Args:
            value: in the number's own unit.

        Returns:
            Place on the scale that is searched, not cut to its bounds.
        """
        if value == 0 and (self.off_at_high or self.name == "chunk_tokens"):
            return self.high
        return math.log2(max(value, 1.0 if self.whole else 2.0**self.low)) if self.log2 else value


def free_parameters(limits: Limits, targets: tuple[Target, ...] = (), price_s: float = 0.0) -> dict[str, Free]:
    """All numbers that can be tuned, by name.

    Args:
        limits: of the engine: no cap is searched above them.
        targets: one per class; shares, priorities, tolerances and estimates have a name for each where there are several.
        price_s: of memory, where the search starts: on a slow plant it is worth more [s].

    Returns:
        Mapping from name to its range.
    """
    tokens, seqs, length = (math.log2(x) for x in (limits.max_tokens, limits.max_seqs, limits.max_len))
    price = max(PRICE_S_PER_TOKEN * limits.block_tokens, DEARER * price_s)
    rows = [
        Free("margin", 0.0, 0.6, 0.05),
        Free("late_rate", -10.0, -2.0, 0.5, log2=True, whole=False),
        Free("aging_rate", 0.0, 3.0, 0.25),
        Free("chunk_tokens", min(4.0, tokens), tokens, 0.5, log2=True),
        # kp and ki up to a quarter keep a gain margin of 7.9 dB at a delay of two steps, while the plant is no steeper than the law assumes
        Free("kp", 0.0, 0.25, 0.05),
        Free("ki", 0.0, 0.25, 0.05),
        Free("running_limit", min(2.0, seqs), seqs, 0.5, log2=True),
        Free("least_tokens", min(3.0, tokens), tokens, 0.5, log2=True),
        Free("most_tokens", min(4.0, tokens), tokens, 0.5, log2=True),
        Free("tolerance", -0.6, 0.4, 0.1),
        Free("estimate", -3.0, 4.0, 0.5, log2=True, whole=False),
        Free("timeout", 0.1, 3.0, 0.1),
        Free("degrade", 0.0, 3.0, 0.25, log2=True, whole=False),
        Free("lookahead_steps", 0.0, 14.0, 0.5, log2=True),
        Free("lookahead_z", 0.0, 4.0, 0.25),
        Free("prior_output_tokens", min(2.0, length), min(13.0, length), 0.5, log2=True),
        Free("prior_requests", -1.0, 10.0, 0.5, log2=True, whole=False),
        Free("prefill_every", 0.0, 7.0, 0.5, log2=True, off_at_high=True),
        Free("decode_every", 0.0, 7.0, 0.5, log2=True, off_at_high=True),
        Free("stride", 0.0, 1.0, 0.1),
        Free("memory_price_s", 0.0, price, price / 32),
        Free("shed_cap", 0.0, 1.0, 0.05),
    ]
    if len(targets) > 1:
        longest_s = max(t.first_token_s for t in targets)
        rows += [Free(f"share.{t.name}", -4.0, 4.0, 0.5, log2=True, whole=False) for t in targets]
        rows += [Free(f"priority.{t.name}", 0.0, 2 * longest_s, longest_s / 16) for t in targets]
        rows += [row._replace(name=f"{row.name}.{t.name}") for row in rows if row.name in EITHER for t in targets]
    return {row.name: row for row in rows}


def needs(name: str, base: Candidate) -> str:
    """What a number needs that the base has not got: without it no value of it changes anything.

    Args:
        name: one of `free_parameters`.
        base: law and policy that it would be a number of.

    Returns:
        What to switch on, as in "order=slack"; empty where it can act. Of a number that the law has not got: "another law".
    """
    order, triage, phases = base.policy.order, base.policy.triage, base.policy.phases
    estimated = triage in ("reject", "defer", "degrade")
    keyed = "" if order != "fcfs" else "order=slack or order=edf"
    looks = "" if base.policy.admission == "lookahead" else "admission=lookahead"
    missing = {
        "aging_rate": "" if order == "slack" else "order=slack",
        "tolerance": "" if estimated else "triage=reject, triage=defer or triage=degrade",
        "estimate": "" if order == "slack" or estimated else "order=slack, or triage=reject",
        "timeout": "" if triage == "timeout" else "triage=timeout",
        "degrade": "" if triage == "degrade" else "triage=degrade",
        "lookahead_steps": looks,
        "lookahead_z": looks,
        "prior_output_tokens": looks,
        "prior_requests": looks,
        "prefill_every": keyed or ("phases=mixed or phases=decode_first" if phases == "prefill_first" else ""),
        "decode_every": keyed or ("phases=mixed or phases=prefill_first" if phases == "decode_first" else ""),
        "stride": keyed,
        "memory_price_s": keyed,
        "share": keyed,
        "priority": keyed,
        "shed_cap": keyed or ("" if triage in ("reject", "timeout", "degrade") else "triage=reject, triage=timeout or triage=degrade"),
    }
    part = name.partition(".")[0]
    if name in EITHER and not missing[part] and np.ndim(getattr(base.policy, name)):
        return f"one {name} for all classes, where the start has one for each"
    if part in missing:
        return missing[part]
    return "" if part in base.law.gains() or hasattr(base.policy, part) else "another law"


def is_off(name: str, base: Candidate) -> bool:
    """Whether the part that a number belongs to is off in the base: it is searched only if it is named.

    Args:
        name: one of `free_parameters`.
        base: law and policy.

    Returns:
        True if so.
    """
    part, _, of_class = name.partition(".")
    field = PER_CLASS[part][0] if part in PER_CLASS else part
    found: Any = getattr(base.policy, field, None)
    if part in EITHER:
        return bool(of_class) and not np.ndim(found)
    if part == "least_tokens":
        return float(getattr(base.law, part, 0.0)) == 0.0
    if part == "shed_cap":
        return float(found) == 1.0
    return field in ("prefill_every", "decode_every", "stride", "memory_price_s", "class_shares", "priority_s") and (
        found == () or found == 0.0
    )
