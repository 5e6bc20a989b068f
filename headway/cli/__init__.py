"""The command line."""

from headway.cli.app import main

__all__ = ["main"]
