"""Headway: a control-theory tuning workbench for LLM inference engines."""

__version__ = "0.1.0"
