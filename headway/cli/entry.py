"""The door of the command line: light to load, so that an interrupt ends in one line whenever it comes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

INTERRUPTED = 130
"""Exit status of an interrupt, as a shell gives it."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: of the command line; None for the process's own.

    Returns:
        Exit status: 0, 1 for "not met", 2 for bad input, 130 for an interrupt.
    """
    before = signal.getsignal(signal.SIGINT)
    ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        from headway.cli.app import main as command

        return command(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("headway: interrupted\n")
        return INTERRUPTED
    finally:
        if ours:
            # the process ends now, and what runs at its exit must not be torn into a traceback either
            signal.signal(signal.SIGINT, signal.SIG_DFL if arguments is None else before)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """While a module loads, leave at once: extensions in C cannot bear an exception then, and nothing is being written."""
    place = frame
    while place is not None:
        if place.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"headway: interrupted\n")
            os._exit(INTERRUPTED)
        place = place.f_back
    signal.default_int_handler(number, frame)
