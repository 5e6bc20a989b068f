"""The pages by address: one row, one file with its title and its body."""

from __future__ import annotations

from types import ModuleType

from headway.web.pages import compare, export, goodput, live, loop, plant, trace

PAGES: dict[str, ModuleType] = {
    "trace": trace,
    "plant": plant,
    "loop": loop,
    "goodput": goodput,
    "live": live,
    "compare": compare,
    "export": export,
}
"""Pages in the order of the work."""
