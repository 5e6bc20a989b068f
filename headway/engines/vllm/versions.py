"""What each version of vLLM has of what the adapter and exported flags use: measured by `scripts/vllm-versions`, and read from the sources."""

from __future__ import annotations

from typing import NamedTuple

TRIED = ("0.16.0", "0.25.1", "0.30.0", "0.31.0", "0.32.0")
"""Versions that `scripts/vllm-versions` runs the adapter in, on a simulated device; synchronous and asynchronous."""


class VllmKnob(NamedTuple):
    """One thing that can be set.

    Args:
        name: of the flag, or of the scheduler's member.
        kind: "flag", set at the start, or "member", written by the adapter before each step.
        since: first of the versions looked at that has it.
        without: what stands in for it in a version that lacks it: how it is mapped, or that it is refused.
    """

    name: str
    kind: str
    since: str
    without: str


KNOBS = (
    VllmKnob("max_num_scheduled_tokens", "member", "0.16.0", "none lacks it"),
    VllmKnob(
        "max_num_active_reqs", "member", "0.31.0", "mapped: max_num_running_reqs, never below who runs, so that a lowered limit drains"
    ),
    VllmKnob("long_prefill_token_threshold", "member", "0.16.0", "none lacks it; before 0.31 it also cuts a prompt that is alone"),
    VllmKnob(
        "waiting",
        "member",
        "0.16.0",
        "none lacks it; 0.25 and 0.30 keep requests that were skipped in a queue of their own, in vLLM's order",
    ),
    VllmKnob("finish_requests", "member", "0.16.0", "none lacks it: a refused request ends with finish_reason abort"),
    VllmKnob("--max-num-batched-tokens", "flag", "0.16.0", "none lacks it"),
    VllmKnob("--max-num-seqs", "flag", "0.16.0", "none lacks it"),
    VllmKnob("--long-prefill-token-threshold", "flag", "0.16.0", "none lacks it"),
    VllmKnob(
        "--max-num-active-seqs",
        "flag",
        "0.31.0",
        "refused: vLLM does not know the flag; --max-num-seqs is the nearest, and sizes buffers too",
    ),
    VllmKnob("--max-num-queued-reqs", "flag", "0.30.0", "refused: vLLM does not know the flag; a limit in front of the server stands in"),
    VllmKnob("--max-num-queued-tokens", "flag", "0.30.0", "refused: vLLM does not know the flag; a limit in front of the server stands in"),
)
"""Knobs of vLLM that Headway uses."""


def lacking(version: str, kind: str = "") -> dict[str, str]:
    """Knobs that a version does not have, and what stands in for each.

    Args:
        version: of vLLM, such as "0.30.0".
        kind: "flag", "member" or "" for both.

    Returns:
        What stands in, by name of the knob.

    Raises:
        ValueError: the version is no dotted number.

    Example:
        >>> sorted(lacking("0.30.0"))
        ['--max-num-active-seqs', 'max_num_active_reqs']
    """
    here = _numbers(version)
    return {knob.name: knob.without for knob in KNOBS if kind in ("", knob.kind) and here < _numbers(knob.since)}


def _numbers(version: str) -> tuple[int, ...]:
    digits = version.split("+")[0].split(".")
    if len(digits) < 2 or not all(part.isdigit() for part in digits[:2]):
        raise ValueError(f"a version of vLLM is written as 0.32.0, got {version!r}")
    return tuple(int(part) for part in digits[:3] if part.isdigit())
