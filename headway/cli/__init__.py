"""The command line."""

from headway.cli.entry import main

__all__ = ["main"]
