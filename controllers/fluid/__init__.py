"""The scheduler as a fluid of masses, with gradients in JAX, and the gate that says where they may be used."""

from headway.controllers.fluid.gate import fluid_gate
from headway.controllers.fluid.value import fluid_load, fluid_value, setting_of

__all__ = ["fluid_gate", "fluid_load", "fluid_value", "setting_of"]
