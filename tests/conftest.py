"""What every test relies on: 64-bit floats, no silent promotion, the folder of measured data."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import jax
import pytest

# As the tools run it: in 32 bits a clock of some minutes resolves no better than tens of microseconds.
jax.config.update("jax_enable_x64", True)
# A promotion that nobody wrote is a mistake in a shape or a dtype; the tests want it as an error.
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# No deadline: the first call of a compiled function takes seconds. Where CI is set, the same examples every time.
hypothesis.settings.register_profile("headway", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
hypothesis.settings.load_profile("headway")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The measured data that is not ours to ship: data/ of the shared folder, `../shared` or where HEADWAY_SHARED says."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("HEADWAY_SHARED") or beside) / "data"
    if not folder.is_dir():
        pytest.skip(f"no measured data at {folder}; HEADWAY_SHARED names the folder that holds data/")
    return folder
