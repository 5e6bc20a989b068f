"""The simulator's twin in JAX: the same specification, docs/engine.md, for sweeps on accelerators."""

from headway.controllers.twin.run import TwinOutcome, simulate_twin, sweep

__all__ = ["TwinOutcome", "simulate_twin", "sweep"]
