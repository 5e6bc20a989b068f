"""Headway: a control-theory tuning workbench for LLM inference engines.

In a notebook: `plant = headway.fit("steps.csv")`, `tuned = headway.tune(plant, "requests.csv", "ttft=1s,itl=25ms")`,
`tuned.save("controller.json")`. Nothing heavy is loaded before one of these names is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.notebook import fit, open_controller, open_plant, simulate, tune

__version__ = "0.1.0"

__all__ = ["fit", "open_controller", "open_plant", "simulate", "tune"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    from headway import notebook

    return getattr(notebook, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
