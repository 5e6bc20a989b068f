"""What joins a tuned controller to a serving engine: the runtime that ships, and its exporters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.engines.export import EXPORTERS
    from headway.engines.live import ENGINES

__all__ = ["ENGINES", "EXPORTERS"]


def __getattr__(name: str) -> Any:
    """Load the tables when they are asked for: an engine's process that wants an adapter must not load JAX for it."""
    if name == "EXPORTERS":
        from headway.engines.export import EXPORTERS

        return EXPORTERS
    if name == "ENGINES":
        from headway.engines.live import ENGINES

        return ENGINES
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
