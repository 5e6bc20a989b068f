"""What the commands print: one JSON object, or a short text; and a progress bar on standard error for what takes long."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

PATIENCE_S = 2.0
"""A bar appears after this time [s]: what is quicker needs none."""


class Bar:
    """A progress bar that appears only if the work takes long, with the time still to go.

    Args:
        console: of rich, on standard error.
    """

    def __init__(self, console: Any) -> None:
        """Start the clock."""
        self.console, self.began, self.progress, self.task, self.label = console, time.monotonic(), None, None, ""
        self.told = self.began

    def __call__(self, label: str, fraction: float) -> None:
        """Tell how far the work is.

        Args:
            label: what is being done.
            fraction: share done, in [0, 1].
        """
        if time.monotonic() - self.began < PATIENCE_S:
            return
        if not self.console.is_terminal:  # a log: one line for each new thing that is being done
            if label != self.label and time.monotonic() - self.told >= PATIENCE_S:
                self.label, self.told = label, time.monotonic()
                self.console.file.write(f"headway: {label} ({fraction:.0%} done, {time.monotonic() - self.began:.0f} s)\n")
            return
        if self.progress is None:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description:24}"),
                BarColumn(),
                TextColumn("{task.percentage:3.0f} %"),
                TimeElapsedColumn(),
                TextColumn("to go"),
            )
            self.progress = Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True)
            self.progress.start()
            self.task = self.progress.add_task(label, total=1.0)
        if self.task is not None:
            self.progress.update(self.task, description=label, completed=fraction)

    def stop(self) -> None:
        """Take the bar away."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None


@contextmanager
def progress_bar() -> Iterator[Bar]:
    """A bar on standard error for as long as the block runs.

    Yields:
        A callable that takes a label and a fraction in [0, 1].
    """
    from rich.console import Console

    bar = Bar(Console(stderr=True))
    try:
        yield bar
    finally:
        bar.stop()


def show(value: Mapping[str, Any], lines: list[str], *, as_json: bool) -> None:
    """Print a result, as one JSON object or as lines for people.

    Args:
        value: plain JSON values.
        lines: the text.
        as_json: print the JSON object and nothing else.
    """
    if as_json:
        from headway.experiments.whole_files import without_nan

        _put(json.dumps(without_nan(value)) + "\n")
    else:
        _put("\n".join(lines) + "\n")


def _put(text: str) -> None:
    """Write it out. Who reads may have gone (`| head -1`): the result stands all the same, and so does the exit status."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table(rows: list[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """Rows as aligned text: the first column to the left, the others to the right.

    Args:
        rows: of equal length, the heading first.
        indent: before every row.

    Returns:
        One line per row.
    """
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        (
            indent + "  ".join(cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True)))
        ).rstrip()
        for row in rows
    ]


def ms(value_s: float | None) -> str:
    """A duration for people.

    Args:
        value_s: [s]; None where unknown.

    Returns:
        In milliseconds, or seconds from ten thousand milliseconds on.
    """
    if value_s is None or value_s != value_s:
        return "-"
    return f"{value_s:.1f} s" if value_s >= 10 else f"{value_s * 1e3:.0f} ms" if value_s >= 0.1 else f"{rounded(value_s * 1e3)} ms"


def percent(value: float | None, digits: int = 1) -> str:
    """A share for people.

    Args:
        value: share; None where unknown.
        digits: after the point.

    Returns:
        In percent.
    """
    return "-" if value is None or value != value else f"{rounded(100 * value, digits)} %"


def rounded(value: float, digits: int = 1, sign: str = "") -> str:
    """A number to so many digits after the point; one that is rounded to zero has no sign.

    Args:
        value: number.
        digits: after the point.
        sign: "+" shows that of a positive number too.

    Returns:
        The text.

    Example:
        >>> rounded(-0.04), rounded(0.04, sign="+"), rounded(-0.06), rounded(1234.5, 0, "+")
        ('0.0', '0.0', '-0.1', '+1,234')
    """
    return unsigned_zero(f"{value:{sign},.{digits}f}")


def unsigned_zero(text: str) -> str:
    """A number that was rounded: a zero loses its sign.

    Args:
        text: the number alone.

    Returns:
        The text.

    Example:
        >>> unsigned_zero("-0.00"), unsigned_zero("+0"), unsigned_zero("-0.01")
        ('0.00', '0', '-0.01')
    """
    return text if text.strip("+-0.") else text.lstrip("+-")


def change(value: float | None, ends: Sequence[float | None] = (None, None)) -> str:
    """A relative change for people, with its sign.

    Args:
        value: ratio minus 1; None where unknown.
        ends: of its interval; None where unknown.

    Returns:
        In percent, with the interval where it is known.

    Example:
        >>> change(0.0123), change(-0.0002, [-0.0004, 0.01])
        ('+1.2 %', '0.0 % [0.0, +1.0]')
    """
    if value is None or value != value:
        return "-"
    span = "" if ends[0] is None else f" [{', '.join('?' if x is None else rounded(100 * x, sign='+') for x in ends)}]"
    return f"{rounded(100 * value, sign='+')} %{span}"


def warning_lines(warnings: list[str]) -> list[str]:
    """Warnings as lines.

    Args:
        warnings: sentences.

    Returns:
        One line each; none if there are none.
    """
    return [f"note: {text}" for text in warnings]
