"""What tuning found beside its figures, in words: what is required and kept, what is left on other plants, how it was looked for."""

from __future__ import annotations

from typing import Any

from headway.cli.terminal import percent


def required_lines(tuning: dict[str, Any]) -> list[str]:
    """Requirements, and what became of them on the held-out seeds.

    Args:
        tuning: as `headway tune --json`, without the controller.

    Returns:
        One line each.
    """
    mark = lambda one: "kept" if one["kept"] else "NOT kept"  # noqa: E731
    return [f"required   {one['said']}: {mark(one)}, held out" for one in tuning.get("required") or []]


def search_lines(tuning: dict[str, Any]) -> list[str]:
    """How it was looked for: held-out seeds, slopes, other plants, what was taken over from a search that was interrupted.

    Args:
        tuning: as `headway tune --json`, without the controller.

    Returns:
        Lines; each sentence once.
    """
    lines = [f"held out   {tuning['heldout_said']}"] if tuning.get("heldout_said") else []
    lines += [f"slopes     {said}" for said in dict.fromkeys(tuning.get("slopes") or [])]
    robust = tuning.get("robust")
    if robust:
        of = "all runs" if robust["tail"] is None else f"the worst {percent(robust['tail'], 0)} of the runs"
        lines.append(
            f"robust     on {robust['plants']} other plants that the trace allows, mean of {of}: {percent(robust['controller'])}, "
            f"best static {percent(robust['best_static'])}"
        )
    if tuning.get("resumed"):
        lines.append(f"resumed    {tuning['resumed']} answers of an interrupted search were taken over")
    return lines
